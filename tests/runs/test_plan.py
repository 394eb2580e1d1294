"""Plans: what they say is what a run would be, for every method; and what is asked the wrong way is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import cloister as cl
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.certificate import certify
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.runs.config_file import load
from cloister.runs.noise import with_noise
from cloister.runs.plan_keys import plan_of
from cloister.runs.report.plan import plan_plot, plan_summary, plan_table, warning
from conftest import prepared, toy_model, toy_task
from contract.catalogue import ENTRIES, cohorts_for, pool, quick_pairs


def gaussian(clients, rounds=None, delta=1e-3, sampling_rate=None, clients_per_round=None, epsilon=None, **more):
    """DP-FedAvg, of which only the noise and the cohort are priced."""
    cohort = None if sampling_rate is None else cl.poisson(sampling_rate)
    cohort = cohort if clients_per_round is None else cl.fixed_size(clients_per_round)
    method = cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1)
    return cl.plan(method, rounds=rounds, cohort=cohort, clients=clients, epsilon=epsilon, delta=delta, **more)


def keys(*words):
    return plan_of(load(None, words))


# What it was from the start: a Gaussian, at the level of clients.


def test_there_and_back():
    there = gaussian(3400, 1000, 1 / 3400, sampling_rate=0.04, epsilon=2.0)
    assert there.noise_multiplier == pytest.approx(2.18, abs=0.01)
    assert 1.99 < there.epsilon <= 2.0
    back = gaussian(3400, 1000, 1 / 3400, sampling_rate=0.04, noise_multiplier=there.noise_multiplier)
    assert back.epsilon == pytest.approx(there.epsilon, rel=1e-9)
    most = gaussian(3400, None, 1 / 3400, sampling_rate=0.04, epsilon=2.0, noise_multiplier=there.noise_multiplier)
    assert most.rounds == 1000


def test_fixed_cohorts_are_planned_under_replace_one():
    planned = gaussian(3400, 1000, 1 / 3400, clients_per_round=136, noise_multiplier=2.38)
    assert planned.epsilon == pytest.approx(6.1, abs=0.05)
    assert "replace one client" in planned.relation


def test_everyone_is_planned_without_amplification():
    sampled = gaussian(100, 10, sampling_rate=0.1, noise_multiplier=2.0)
    assert gaussian(100, 10, noise_multiplier=2.0).epsilon > 2 * sampled.epsilon


def test_epsilon_rises_over_the_rounds():
    curve = gaussian(300, 60, sampling_rate=0.5, noise_multiplier=5.0).curve
    assert [point.round for point in curve] == [1, 6, 12, 18, 24, 30, 36, 42, 48, 54, 60]
    spent = [point.epsilons[0] for point in curve]
    assert spent == sorted(spent)
    assert all(own < strict for own, strict in (point.epsilons for point in curve))


@pytest.mark.parametrize(
    ("delta", "says"),
    [(1 / 300, "weak"), (1e-2, "weak"), (1e-3, "which is a lot"), (1e-6, "may fail with probability")],
)
def test_delta_is_explained(delta, says):
    lines = dict(plan_summary(gaussian(300, 1, delta, sampling_rate=0.5, noise_multiplier=5.0)))
    assert says in lines["delta"]


def test_a_plan_can_be_shown_and_drawn(tmp_path):
    planned = gaussian(300, 20, sampling_rate=0.5, epsilon=2.0)
    plan_plot(planned, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert len(plan_table(planned).rows) == 11
    lines = dict(plan_summary(planned))
    assert set(lines) >= {"noise multiplier", "epsilon", "delta", "signal / noise", "needed"}
    assert max(map(len, str(planned).splitlines())) <= 100
    assert lines["adjacency"] in str(planned)


# Every method: the plan is the run.


def _task():
    """With public samples, and sizes that differ: one batch, and two."""
    return replace(toy_task(sizes=(7, 3, 8, 3, 7, 4)), public_samples=pool())


def _calibrated(name: str) -> tuple:
    """A method whose noise is left open, and a target; or, where coins take long to calibrate, with its noise."""
    method = ENTRIES[name].make(**ENTRIES[name].settings)
    if name.startswith("cpsgd"):
        return method, None
    return with_noise(method, None), 4.0


@pytest.mark.parametrize(("name", "kind"), quick_pairs([name for name in ENTRIES if not name.startswith("fedavg")]))
def test_the_plan_of_every_method_is_that_of_its_run(name, kind):
    """Noise, charges and price: to the last bit, with the task, and from numbers alone where a price needs no more."""
    cohort, task, rounds, delta = cohorts_for(name)[kind], _task(), 3, 1e-3
    method, epsilon = _calibrated(name)
    model = toy_model(task)
    ready = prepared(method, task, rounds=rounds, cohort=cohort, epsilon=epsilon, delta=delta, model=model)
    fed = ready.fed
    from_task = cl.plan(method, task, rounds=rounds, cohort=cohort, epsilon=epsilon, delta=delta, model=model)
    who = {"sizes": task.population.counts.tolist()} if method.unit == "sample" else {"clients": task.clients}
    from_numbers = cl.plan(
        method, rounds=rounds, cohort=cohort, epsilon=epsilon, delta=delta, model=model, public_samples=6, **who
    )
    ledger = Ledger.create(None, "test", ready.description.budgets)
    counted = cohort.releases(rounds, task.clients)
    if method.unit == "sample":
        counted = cohort.participations(rounds, task.clients)
    for round in range(1, counted + 1):  # what a run is charged in which everybody comes as often as is likely
        charges = fed.charges(list(range(task.clients)), round=round)
        assert not ledger.charge_each(charges, round=round, repeatable=True)
    for query in ready.description.queries:  # in the order in which a plan adds up
        charges = ready.queries.charges(query.noise_multipliers, task.population.counts.tolist())
        assert not ledger.charge_each(charges, round=0, what=query.name, repeatable=True)
    certificate = certify(ready.description, ledger)
    for planned in (from_task, from_numbers) if " " not in name and method.unit == "client" else (from_numbers,):
        assert planned.noise_multiplier == fed.method.mechanism.noise_multiplier
        assert planned.noise.multipliers == fed.multipliers
        assert planned.noise.budgets == ready.description.budgets
        assert planned.epsilon == certificate.epsilon
        assert planned.price.epsilon_rdp == certificate.prices[0].epsilon_rdp
        assert planned.expected == fed.denominator
        for row in planned.rows:
            steps = [entry for entry in ledger.entries if entry.unit == row.account and entry.what == "update"]
            counts = [entry.count for entry in steps]
            assert (row.steps_per_round, row.steps) == (max(counts), sum(counts))


def test_a_run_ends_with_the_planned_epsilon():
    task, method = _task(), cl.methods.pfl(batch_size=4)
    planned = cl.plan(method, task, rounds=3, epsilon=3.0, delta=1e-3)
    run = cl.run(method, task, rounds=3, epsilon=3.0, delta=1e-3)
    assert run.epsilon == planned.epsilon == max(row.epsilon for row in planned.rows)
    assert run.certificate.noise_multipliers == [row.noise_multiplier for row in planned.rows]


def test_clients_that_overlap_are_planned_like_their_run():
    values = ["method=pfl", "data=digits", "partition=overlapping", "clients=5", "batch_size=100"]
    task = cl.data.digits(partition=cl.data.overlapping(clients=5))
    planned = keys(*values, "rounds=2", "epsilon=8", "delta=1e-5")
    ready = prepared(cl.methods.pfl(batch_size=100), task, rounds=2, epsilon=8.0, delta=1e-5)
    assert planned.terms.copies == task.copies > 1
    assert planned.noise.multipliers == ready.fed.multipliers


# Questions in every direction.


def test_a_row_by_hand():
    planned = cl.plan(cl.methods.pfl(batch_size=50), rounds=10, sizes=[100, 430], delta=1e-5, noise_multiplier=3.0)
    small, large = planned.rows
    assert (small.samples, small.sampling_rate, small.steps_per_round, small.steps) == (100, 1 / 2, 2, 20)
    assert (large.samples, large.steps_per_round, large.steps) == (430, 9, 90)
    assert large.sampling_rate == pytest.approx(1 / 9)
    assert small.epsilon == pytest.approx(epsilon_of(PoissonGaussian(3.0, 1 / 2), 20, 1e-5), rel=1e-6)
    assert large.epsilon == pytest.approx(epsilon_of(PoissonGaussian(3.0, 1 / 9), 90, 1e-5), rel=1e-6)
    assert planned.epsilon == max(small.epsilon, large.epsilon)


def test_targets_may_differ_by_client():
    planned = cl.plan(cl.methods.pfl(), rounds=5, sizes=[300, 300, 90], epsilon=[1.0, 4.0, 2.0], delta=1e-5)
    assert [row.target for row in planned.rows] == [1.0, 4.0, 2.0]
    assert all(0.99 * row.target < row.epsilon <= row.target for row in planned.rows)
    assert planned.rows[0].noise_multiplier > planned.rows[1].noise_multiplier


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_the_most_rounds_are_those_a_ledger_pays_for(unit):
    if unit == "client":
        planned = gaussian(100, epsilon=2.0, noise_multiplier=3.0, sampling_rate=0.3)
        charge, account = PoissonGaussian(3.0, 0.3), "client"
    else:
        planned = cl.plan(
            cl.methods.dp_fed(batch_size=30, local_steps=1, noise_multiplier=3.0), sizes=[100], epsilon=2.0, delta=1e-3
        )
        charge, account = PoissonGaussian(3.0, 1 / 4), "sample of client 0"
    ledger = Ledger.create(None, "test", planned.noise.budgets)
    for round in range(1, planned.rounds + 1):
        ledger.charge(account, charge, round=round, repeatable=True)
    with pytest.raises(BudgetExceededError):
        ledger.charge(account, charge, round=planned.rounds + 1, repeatable=True)
    assert planned.rounds > 5


def test_turns_pay_once_in_a_cycle():
    settings = {"clip_norm": 1.0, "local_steps": 1, "noise_multiplier": 4.0}
    planned = cl.plan(cl.methods.dp_ftrl(**settings), cohort=cl.cyclic(10), clients=40, epsilon=2.0, delta=1e-5)
    full = cl.plan(cl.methods.dp_fedavg(**settings), clients=40, epsilon=2.0, delta=1e-5)
    assert planned.rounds == 4 * full.rounds


# Signal and noise.


def test_signal_to_noise_by_hand():
    signal = gaussian(300, 9, sampling_rate=0.5, noise_multiplier=5.0, parameters=400).signal
    assert signal.round == pytest.approx(150 / (5 * 20))
    assert signal.unrelated == pytest.approx(signal.round / 150**0.5)
    assert signal.run == pytest.approx(3 * signal.round)


def test_signal_to_noise_of_samples_by_hand():
    planned = cl.plan(
        cl.methods.pfl(batch_size=50), rounds=9, sizes=[100, 100], delta=1e-5, noise_multiplier=2.0, parameters=400
    )
    alone = math.sqrt(18) * 50 / (2 * 20)
    assert [row.signal for row in planned.rows] == pytest.approx([alone, alone])
    assert planned.signal.run == pytest.approx(math.sqrt(2) * alone)


@pytest.mark.parametrize("factorization", ["banded", "tree"])
def test_correlated_noise_is_summed_as_it_is_drawn(factorization):
    """Against many draws of the noise itself."""
    method = cl.methods.dp_ftrl(clip_norm=1.0, local_steps=1, noise_multiplier=1.0, factorization=factorization)
    planned = cl.plan(method, cohort=cl.cyclic(2), clients=16, rounds=24, delta=1e-5, parameters=1)
    total, state = torch.zeros(20000), {}
    for round in range(1, 25):
        noise, state = planned.method.mechanism.correlate(torch.randn(20000), round, state)
        total += noise
    assert planned.signal.run == pytest.approx(2 * 24 / float(total.std()), rel=0.03)
    independent = 2 * math.sqrt(24)
    assert planned.signal.run > 1.2 * independent


def test_clients_needed_are_enough_and_one_less_is_not():
    asked = {"rounds": 20, "epsilon": 2.0, "sampling_rate": 0.5}
    needed = gaussian(30, **asked).needed
    assert gaussian(needed, **asked).signal.run >= 1 > gaussian(needed - 1, **asked).signal.run
    assert not gaussian(needed, **asked).too_small


@pytest.mark.slow
def test_clients_needed_in_cohorts_of_fixed_size():
    """The rate stays; the price depends on the population, and is found anew."""
    planned = gaussian(20, 5, clients_per_round=10, epsilon=2.0, parameters=100)
    found = planned.needed
    again = gaussian(found, 5, clients_per_round=round(found / 2), epsilon=2.0, parameters=100)
    assert again.signal.run >= 1
    assert again.terms.event(with_noise(again.asked, 1.0)) == FixedSizeGaussian(1.0, round(found / 2), found)


@pytest.mark.slow
def test_samples_needed_are_enough_and_one_less_is_not():
    def run(samples):
        method = cl.methods.pfl(batch_size=16)
        return cl.plan(method, rounds=5, sizes=samples, clients=2, epsilon=0.5, delta=1e-5, parameters=20_000)

    needed = run(40).needed
    assert run(needed).signal.run >= 1 > run(needed - 1).signal.run
    assert run(40).too_small
    assert f"({needed:,} of every client)" in warning(run(40))


def test_four_hospitals_are_too_few_to_be_protected_whole_and_enough_to_protect_patients():
    few = keys("clients=4", "rounds=50", "epsilon=2", "delta=1e-3")
    said = dict(plan_summary(few))["WARNING"]
    assert few.signal.run < 0.2
    assert f"{few.signal.run:.2g}" in said
    assert "method=pfl" in said
    assert f"({few.needed})" in said
    assert said.endswith(".")
    assert ". " not in said
    patients = keys("method=pfl", "sizes=[303,294,123,200]", "rounds=20", "epsilon=2", "delta=1e-5")
    assert "WARNING" not in dict(plan_summary(patients))
    assert not gaussian(300, 60, sampling_rate=0.5, epsilon=2.0).too_small  # the demo, which learns


# Keys.


def test_the_same_from_keys_and_in_python():
    by_keys = keys("method=pfl", "sizes=[303,294]", "rounds=5", "epsilon=2", "delta=1e-5", "batch_size=32", "lr=0.5")
    in_python = cl.plan(cl.methods.pfl(batch_size=32), sizes=[303, 294], rounds=5, epsilon=2.0, delta=1e-5)
    assert str(by_keys) == str(in_python)


def test_a_config_of_a_run_can_be_planned_as_it_is():
    planned = plan_of(load(None, ["rounds=3", "epsilon=2", "delta=1e-3", "data=digits", "clients=30", "model=mlp"]))
    assert (planned.clients, planned.parameters) == (30, 64 * 32 + 32 + 32 * 10 + 10)
    assert "count as public" in str(planned)


def test_a_model_without_data_says_how_many_parameters_it_has():
    planned = keys("clients=30", "rounds=2", "epsilon=2", "delta=1e-3", "model=mlp", "shape=[64]", "classes=10")
    assert planned.parameters == 64 * 32 + 32 + 32 * 10 + 10


def test_published_clipping_is_priced_for_the_tensors_of_the_model():
    words = ["mode=as_published", "clients=30", "rounds=2", "noise_multiplier=4", "delta=1e-3"]
    with pytest.raises(CloisterError, match="Expected a model for dp_fedavg, whose price depends on it"):
        keys(*words)
    planned = keys(*words, "model=mlp", "shape=[64]", "classes=10")
    assert planned.epsilon == pytest.approx(gaussian(30, 2, noise_multiplier=2.0).epsilon)  # four tensors


def test_clients_have_their_names():
    task = replace(_task(), client_names=("a", "b", "c", "d", "e", "f"))
    planned = cl.plan(cl.methods.pfl(batch_size=4), task, rounds=2, noise_multiplier=4.0, delta=1e-3)
    assert [row.name for row in planned.rows] == list("abcdef")


def test_many_clients_fit_a_table_and_a_picture(tmp_path):
    sizes = list(range(100, 200))
    planned = cl.plan(cl.methods.pfl(batch_size=16), rounds=3, sizes=sizes, noise_multiplier=3.0, delta=1e-5)
    plan_plot(planned, tmp_path / "many.png")
    assert "9 of 100 clients" in str(planned)
    assert len(str(planned).splitlines()) < 40
    assert len(planned.rows) == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 2.0, "noise_multiplier": 1.0}, "either epsilon or noise_multiplier"),
        ({}, "either epsilon or noise_multiplier"),
        ({"noise_multiplier": 0.0}, "noise_multiplier > 0"),
        ({"epsilon": 2.0, "clients": 0}, "clients"),
        ({"epsilon": 2.0, "sampling_rate": 2.0}, "sampling_rate <= 1"),
        ({"epsilon": 2.0, "sampling_rate": 5e-324}, "sampling_rate >= 1e-18"),
        ({"epsilon": 10**400}, "epsilon between"),
        ({"epsilon": 1e6}, "epsilon <= 300"),
        ({"noise_multiplier": 10**400}, "noise_multiplier between"),
        ({"noise_multiplier": 1e-9}, "between 0.001 and 1e.06"),
        ({"epsilon": 2.0, "rounds": 10**40}, "rounds to be at most"),
        ({"epsilon": 2.0, "delta": None}, "a delta"),
        ({"epsilon": 2.0, "parameters": 0}, "parameters to be a whole number"),
        ({"epsilon": 2.0, "public_samples": -1}, "public_samples"),
    ],
)
def test_bad_plans_are_refused(change, message):
    with pytest.raises(CloisterError, match=message):
        gaussian(**{"clients": 300, "rounds": 10, "delta": 1e-3, "sampling_rate": 0.5, **change})


_PFL = ["method=pfl", "sizes=[100,200]", "rounds=3", "epsilon=2", "delta=1e-5"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=pfll"], 'perhaps you mean "pfl"'),
        (["clients=9"], "Expected rounds, or both epsilon and noise_multiplier"),
        (["clients=9", "rounds=3", "delta=1e-3"], "either epsilon or noise_multiplier"),
        (["clients=9", "rounds=3", "epsilon=1", "noise_multiplier=2", "delta=1e-3"], "or leave rounds out"),
        (["clients=9", "rounds=3", "epsilon=1"], "a delta"),
        (["rounds=3", "epsilon=1", "delta=1e-3"], "clients, the number of them"),
        (["clients=9", "sizes=[3]", "rounds=3", "epsilon=1", "delta=1e-3"], "leave sizes out"),
        (["clients=9", "rounds=3", "epsilon=1e-9", "delta=1e-3"], "some noise can reach"),
        (["clients=9", "epsilon=0.001", "noise_multiplier=0.5", "delta=1e-3"], "pays for one round at least"),
        (["clients=9", "rounds=3", "epsilon=[1,2]", "delta=1e-3"], "one epsilon for all clients"),
        (["clients=9", "rounds=2.5", "epsilon=1", "delta=1e-3"], "rounds to be a whole number"),
        (["clients=9", "rounds=3", "epsilon=1", "delta=2"], "0 < delta < 1"),
        (["clients=9", "rounds=3", "epsilon=1", "delta=1e-3", "sampling_rate=2"], "0 < sampling_rate <= 1"),
        (["clients=9", "rounds=3", "epsilon=1", "delta=1e-3", "clients_per_round=20"], "a cohort of at most 9"),
        (
            ["clients=9", "rounds=3", "epsilon=1", "delta=1e-3", "clients_per_round=2", "sampling_rate=0.5"],
            "a cohort is drawn one way",
        ),
        (["clients=9", "rounds=3", "epsilon=1", "delta=1e-3", "clip_nrm=3"], 'perhaps you mean "clip_norm"'),
        (["clients=9", "rounds=3", "epsilon=1", "delta=1e-3", "clip_norm=-3"], "clip_norm > 0"),
        (["method=fedavg", "clients=9", "rounds=3", "epsilon=1", "delta=1e-3"], "fedavg without noise"),
        (["method=dp_ftrl", "clients=9", "rounds=3", "epsilon=1", "delta=1e-3"], "a value for clients_per_round"),
        (["method=ddgauss", "clients=9", "rounds=3", "epsilon=1", "delta=1e-3"], "Expected a model for ddgauss"),
        (["method=ae_dpfl", "clients=9", "rounds=1", "epsilon=1", "delta=1e-3"], "public samples to vote on"),
        (["method=pfl", "rounds=3", "epsilon=2", "delta=1e-5"], "Expected sizes"),
        (["method=pfl", "clients=4", "rounds=3", "epsilon=2", "delta=1e-5"], "Expected sizes"),
        (["method=pfl", "sizes=300", "rounds=3", "epsilon=2", "delta=1e-5"], "one number and no clients"),
        (["method=pfl", "sizes=[100,-3]", "rounds=3", "epsilon=2", "delta=1e-5"], "sizes to be a whole number"),
        (["method=pfl", "sizes=[]", "rounds=3", "epsilon=2", "delta=1e-5"], "sizes"),
        (["method=pfl", "sizes=[1.5]", "rounds=3", "epsilon=2", "delta=1e-5"], "sizes to be a whole number"),
        (["method=pfl", "sizes=many", "rounds=3", "epsilon=2", "delta=1e-5"], "sizes to be a whole number"),
        ([*_PFL, "clients=3"], "as many sizes as clients"),
        ([*_PFL[:3], "epsilon=[1,2,3]", "delta=1e-5"], "an epsilon for each of 2 clients"),
        ([*_PFL, "data=digits"], "found both"),
        ([*_PFL, "model=mlp"], "Expected a value for shape"),
        ([*_PFL, "model=mlp", "shape=[-1]", "classes=3"], "shape"),
        ([*_PFL, "parameters=5", "model=mlp", "shape=[4]", "classes=3"], "parameters or a model"),
        (["method=dp_fed", *_PFL[1:]], "either local_steps or local_epochs"),
        (["method=adap_dp_fl", *_PFL[1:]], "public samples on which the loss is watched"),
    ],
)
def test_what_is_asked_the_wrong_way_is_one_sentence(command, tmp_path, words, message):
    done = command("plan", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert done.stderr.startswith("error: Expected ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
