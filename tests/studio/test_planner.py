"""The planner: the numbers of cl.plan and the words of `cloister plan`, and answers that nobody waits for."""

from __future__ import annotations

import asyncio
import shlex

import pytest
from studio_runs import owner

import cloister as cl
from cloister.errors import CloisterError
from cloister.runs.report.plan import warning
from cloister.studio.plan_process import PlanProcess, Stale
from cloister.studio.planner import command, exact, keys_of, quick

USERS = {"clients": 300, "sampling_rate": 0.5, "rounds": 60, "epsilon": 2.0, "delta": 1e-3, "parameters": 650}
SAMPLES = {**USERS, "clients": 4, "sizes": 300, "batch_size": 32, "sampling_rate": 1.0, "rounds": 20}


def asked(values, method: str = "dp_fedavg"):
    return keys_of({"method": method, **{name: str(value) for name, value in values.items()}})


@pytest.mark.parametrize("changed", [{}, {"clients": 4, "sampling_rate": 1.0}, {"epsilon": 0.5, "rounds": 7}])
def test_numbers_are_those_of_plan(changed):
    values = {**USERS, **changed}
    found = exact(asked(values))
    method = cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1)
    rest = {name: values[name] for name in ("clients", "rounds", "epsilon", "delta", "parameters")}
    plan = cl.plan(method, cohort=cl.poisson(values["sampling_rate"]), **rest)
    assert found["noise_multiplier"] == plan.noise_multiplier
    assert found["epsilon"] == plan.epsilon <= values["epsilon"]
    assert (found["signal_round"], found["signal_run"]) == (plan.signal.round, plan.signal.run)
    assert found["needed"] == plan.needed
    assert found["curve"]["epsilon"][-1] == pytest.approx(plan.epsilon, rel=1e-6)
    assert found["curve"]["round"][-1] == values["rounds"]
    known = {point.round: point.epsilons[0] for point in plan.curve}
    both = [(known[r], e) for r, e in zip(*found["curve"].values(), strict=True) if r in known]
    assert len(both) > 2
    assert all(one == pytest.approx(other, rel=1e-6) for one, other in both)
    assert found["warning"] == (warning(plan) if plan.too_small else None)
    assert (found["warning"] is not None) == (values["clients"] == 4)


def test_samples_can_be_planned_too():
    found = exact(asked(SAMPLES, "pfl"))
    method = cl.methods.pfl(clip_norm=1.0, batch_size=32)
    plan = cl.plan(method, cohort=cl.poisson(1.0), clients=4, sizes=300, rounds=20, epsilon=2.0, delta=1e-3)
    assert found["noise_multiplier"] == pytest.approx(plan.noise_multiplier)
    assert found["needed_of"] == "samples of every client"
    assert quick(asked(SAMPLES, "pfl")) is None


@pytest.mark.parametrize(
    "changed", [{}, {"sampling_rate": 0.01}, {"epsilon": 8.0}, {"sampling_rate": 1.0, "delta": 1e-9}]
)
def test_the_quick_bound_never_has_less_noise_than_it_takes(changed):
    values = asked({**USERS, **changed})
    bound, found = quick(values), exact(values)
    assert found["noise_multiplier"] <= bound["noise_multiplier"] < 1.6 * found["noise_multiplier"]
    assert bound["signal_run"] <= found["signal_run"]
    assert bound["curve"]["epsilon"][-1] <= values["epsilon"]
    assert bound["curve"]["round"] == found["curve"]["round"]


def test_the_command_says_the_same():
    from cloister.runs.config_file import load
    from cloister.runs.plan_keys import plan_of

    values = asked({**USERS, "delta": 1e-9, "epsilon": 1 / 3})
    program, verb, *words = shlex.split(command(values))
    assert (program, verb) == ("cloister", "plan")
    assert plan_of(load(None, words)).noise_multiplier == exact(values)["noise_multiplier"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"clients": "many"}, "Expected a number for clients, found 'many'"),
        ({"clients": ""}, "Expected a number for clients, found ''"),
        ({"clients": "2.5"}, "Expected clients to be a whole number, found 2.5"),
        ({"rounds": "inf"}, "Expected a number for rounds"),
        ({"epsilon": "nan"}, "Expected a number for epsilon"),
        ({"method": "none"}, "Expected method to be one of"),
    ],
)
def test_mistakes_are_one_sentence(changed, words):
    with pytest.raises(CloisterError, match=words):
        keys_of({**{name: str(value) for name, value in USERS.items()}, **changed})


def test_the_address_answers_and_refuses(tmp_path):
    with owner(tmp_path) as client:
        found = client.get("/api/plan", params=USERS)
        assert found.status_code == 200
        assert found.json()["plan"]["noise_multiplier"] == exact(asked(USERS))["noise_multiplier"]
        assert found.json()["command"].startswith("cloister plan method=dp_fedavg clients=300")
        refused = client.get("/api/plan", params={**USERS, "delta": 2})
        assert refused.status_code == 200, "or there is an error on the console of the browser"
        assert refused.json()["error"].startswith("Expected 0 < delta < 1, found 2.0")
        bound = client.get("/api/plan", params={**USERS, "quick": 1}).json()["plan"]
        assert bound["accountant"] == "RDP at few orders"


SLOW = {**USERS, "sampling_rate": 0.001, "epsilon": 20.0}
"""So little noise that PLD takes long."""


def test_an_answer_that_nobody_waits_for_ends_with_its_process_and_others_are_answered():
    async def all_of_it() -> None:
        process = PlanProcess(quick=False)
        waiting = True

        async def wanted() -> bool:
            return waiting

        async def always() -> bool:
            return True

        slow = asyncio.ensure_future(process.ask(asked(SLOW), wanted))
        queued = asyncio.ensure_future(process.ask(asked({**SLOW, "rounds": 61}), wanted))
        while process._process is None:
            await asyncio.sleep(0.01)
        first = process._process
        waiting = False
        for one in (slow, queued):
            with pytest.raises(Stale):
                await one
        assert await first.wait() != 0, "it was ended, and not waited for"
        found = await process.ask(asked(USERS), always)
        assert found["plan"]["noise_multiplier"] == exact(asked(USERS))["noise_multiplier"]
        assert await process.ask(asked(USERS), always) == found
        await process.end()
        assert await process.ask(asked(USERS), always) == found, "it is remembered, without a process"

    asyncio.run(all_of_it())
