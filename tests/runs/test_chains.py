"""Parts compose, or are refused before anything is paid for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cloister as cl
from cloister import mechanisms, transforms
from cloister.core import Mechanism, Sensitivity, Transform
from cloister.errors import CloisterError
from cloister.privacy.accountant import epsilon
from cloister.privacy.discrete_gaussian import grid
from cloister.privacy.events import DiscreteGaussianSum
from cloister.round import cohort_total
from cloister.round.answer import noise_share
from cloister.runs.folder import RunFolder
from cloister.transforms.hadamard import padded
from conftest import ENGINES, federation, flat_state, plan_of, toy_model, toy_task

TASK = toy_task(sizes=(7, 3, 1, 12, 5, 4, 2, 6))
MODEL = toy_model(TASK)
SIZE = sum(p.numel() for p in MODEL.parameters())
LOCAL = cl.client.sgd(lr=0.1, batch_size=4, local_steps=2)


def method(transform: Transform, mechanism: Mechanism, local=LOCAL) -> cl.Method:
    return cl.Method("composed", local, transform, mechanism, cl.server.sgd())


def go(composed: cl.Method, **more):
    settings = {"rounds": 2, "delta": 1e-3, "model": MODEL, "engine": "loop", "progress": False, **more}
    return cl.run(composed, TASK, **settings)


def masked_grid(keep_fraction: float = 0.5, z: float = 2.0, bits: int = 16) -> cl.Method:
    """A random mask, a clip and a grid, under discrete noise, with SAM's steps."""
    count = math.floor(round(keep_fraction * SIZE, 9))
    found = grid(z, 0.5, len(TASK.population.counts), padded(count), bits, 4.0, math.exp(-0.5))
    chained = transforms.chain(
        transforms.random_mask(keep_fraction), transforms.clip_l2(0.5), transforms.quantize(found.scale, found.l2, bits)
    )
    noise = mechanisms.discrete_gaussian(z, found.sigma, TASK.clients, found.l2, "distributed")
    return method(chained, noise, cl.methods.dp_fedsam(clip_norm=0.5, local_steps=2, batch_size=4, lr=0.1).local)


def test_mask_clip_and_grid_under_discrete_noise_train_and_cost_what_is_sent():
    composed = masked_grid()
    run = go(composed, rounds=3)
    noise, l2 = composed.mechanism.settings, composed.mechanism.most_l2(Sensitivity())
    event = DiscreteGaussianSum(noise["scale"], noise["shares"], l2, padded(SIZE // 2), 1.0)
    assert run.epsilon == pytest.approx(epsilon(event, 3, 1e-3, "rdp"), rel=1e-9)
    assert f"modular sum of {padded(SIZE // 2)} coordinates" in run.certificate.sampling_accounted[0]


def test_a_masked_grid_gives_back_what_was_masked():
    """Without noise: the mean of the clients' clipped parts, on the mask, to the grid's rounding; zero elsewhere."""
    composed = masked_grid(bits=30)
    fed, w = federation(replace(composed, mechanism=mechanisms.gaussian(0.0)), task=TASK, model=MODEL)
    transform, state = fed.method.transform, fed.method.init(w).transform
    broadcast = fed.broadcast(1, w, state)
    update = torch.randn(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    message = transform.encode(update, fed.context(w, broadcast, torch.tensor(5)))
    assert message.shape == (padded(SIZE // 2),)
    found, _ = transform.decode(message, fed.context(w, broadcast), state)
    mask = broadcast["0"]["mask"]
    expected = torch.zeros(SIZE, dtype=torch.float64)
    expected[mask] = update[mask] * SIZE / len(mask)
    expected *= 0.5 / expected.norm()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_two_adaptive_clips_keep_two_thresholds():
    first = transforms.adaptive_clip(0.5, 0.5, 0.2, 1.0)
    second = transforms.adaptive_clip(3.0, 0.1, 0.4, 1.0)
    composed = method(transforms.chain(first, second), mechanisms.gaussian(1e-3))
    fed, w = federation(composed, task=TASK, model=MODEL)
    state = fed.method.init(w)
    clips = {name: float(value) for name, value in flat_state(state).items()}
    assert clips == {"transform/0/clip_norm": 0.5, "transform/1/clip_norm": 3.0}
    from cloister.engine import Loop
    from cloister.privacy.ledger import Ledger
    from cloister.round import run_round

    outcome = run_round(fed, Ledger.create(None, "test", {}), Loop(), 1, w, state)
    # All updates are far below 0.5 in these steps, and what the first sends has norm of at most sqrt(1 + 1/4) < 3.
    assert float(outcome.state.transform["0"]["clip_norm"]) == pytest.approx(0.5 * math.exp(-0.2 * (1 - 0.5)), rel=1e-2)
    assert float(outcome.state.transform["1"]["clip_norm"]) == pytest.approx(3.0 * math.exp(-0.4 * (1 - 0.1)), rel=1e-2)


@pytest.mark.parametrize("noise", [mechanisms.banded(2.0, 3), mechanisms.tree(2.0, 4)], ids=["banded", "tree"])
def test_correlated_noise_is_as_long_as_what_is_sent(noise):
    composed = method(transforms.chain(transforms.random_mask(0.5), transforms.clip_l2(0.5)), noise)
    assert math.isfinite(go(composed, rounds=6, cohort=cl.cyclic(2)).epsilon)


@pytest.mark.parametrize("keep_fraction", [0.1, 0.5, 1.0])
def test_what_is_accounted_is_the_dimension_that_is_sent(keep_fraction):
    """Nobody can say another one: 1 for 128 numbers was epsilon 24.9 for 227.9."""
    fed, _ = federation(masked_grid(keep_fraction), task=TASK, model=MODEL)
    sent = padded(math.floor(round(keep_fraction * SIZE, 9)))
    assert fed.event.dimension == fed.sensitivity.length == sent
    with pytest.raises(CloisterError, match=f"messages of {sent} numbers"):
        noise_share(fed, torch.zeros(sent + 1, dtype=torch.int64), 1, 0, 1)
    coded = transforms.chain(transforms.clip_l2(0.5), transforms.quantize_to_levels(0.5, 17))
    coins = mechanisms.binomial(1000, 17, 0.5, 0.5, 1e-6, "message")
    fed, _ = federation(method(coded, coins, cl.client.one_gradient(2)), task=TASK, model=MODEL)
    assert {charge.event.dimension for charge in fed.charges(range(TASK.clients)).values()} == {SIZE}


class Odd:
    """Parts that somebody wrote, and that do not fit."""

    LONGER = Transform("longer", {}, lambda u, context: torch.cat([u, u[:1]]), lambda known, layout: known)
    SHORTER = Transform(
        "shorter", {}, lambda u, context: u, lambda known, layout: known, lambda t, context, state: (t[1:], {})
    )
    BROKEN = Transform(
        "broken", {}, lambda u, context: u, lambda known, layout: known, lambda t, context, state: t[10**6]
    )


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (transforms.chain(transforms.clip_l2(1.0), Odd.LONGER), "Expected messages of|Expected an update of"),
        (transforms.chain(transforms.clip_l2(1.0), Odd.SHORTER), "Expected messages of|Expected an update of"),
        (transforms.chain(transforms.clip_l2(1.0), Odd.BROKEN), "fit one another|fail"),
        (transforms.chain(transforms.random_mask(0.5), transforms.clip_each_tensor(1.0)), "fit one another|fail"),
        (
            transforms.chain(transforms.random_mask(0.5), transforms.clip_l2(1.0), transforms.top_k_of_sum(0.5)),
            "fit one another|fail",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_a_line_is_written(tmp_path, transform, message):
    with pytest.raises(CloisterError, match=message):
        go(method(transform, mechanisms.gaussian(2.0)), folder=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_two_parts_may_use_one_name_and_see_their_own_alone():
    """A transform that keeps something under the name that the server's optimizer uses."""
    server = cl.server.adam()
    taken = next(iter(server.init(torch.zeros(3))))
    seen = []

    def decode(total, context, state):
        seen.append(float(state[taken]))
        return total, {taken: state[taken] + 1}

    clip_norm = transforms.clip_l2(1.0)
    nosy = replace(clip_norm, init=lambda w: {taken: torch.zeros(())}, decode=decode)
    go(replace(method(nosy, mechanisms.gaussian(2.0)), server=server), rounds=3)
    assert seen == [0.0, 0.0, 1.0, 2.0], "a dry run, and three rounds"


def test_the_server_optimizer_sees_what_this_round_released():
    """The noisy share of updates within the clip moves the clip; a step may go by it in the same round."""
    seen = []

    def update(w, mean, state, context):
        seen.append((float(context.broadcast["clip_norm"]), float(context.released["clip_norm"])))
        return w + mean, state

    decay_on_loss = replace(cl.server.sgd(), update=update)
    composed = method(transforms.adaptive_clip(0.5, 0.5, 0.2, 1.0), mechanisms.gaussian(0.5))
    go(replace(composed, server=decay_on_loss), rounds=3)
    assert seen[0][0] == 0.5
    assert [released for _, released in seen[:-1]] == [told for told, _ in seen[1:]]
    assert seen[0][1] != 0.5


def part() -> st.SearchStrategy[Transform]:
    keep_fraction = st.sampled_from([0.1, 0.5, 1.0])
    return st.one_of(
        st.builds(transforms.clip_l2, st.sampled_from([0.1, 1.0])),
        st.builds(transforms.random_mask, keep_fraction),
        st.just(transforms.identity()),
        st.just(transforms.clip_each_tensor(0.5)),
        st.just(transforms.adaptive_clip(0.5, 0.5, 0.2, 1.0)),
        st.just(transforms.top_k_of_sum(0.5)),
        st.just(transforms.top_k_after_noise(0.5)),
        st.just(transforms.quantize(1000.0, 2000.0, 20)),
        st.just(transforms.quantize_to_levels(0.5, 17)),
        st.just(transforms.quantize_to_levels(0.1, 17, rotate=True)),
        st.just(transforms.votes(2)),
    )


NOISE = [
    mechanisms.gaussian(3.0),
    mechanisms.gaussian(3.0, "distributed"),
    mechanisms.banded(3.0, 2),
    mechanisms.tree(3.0, 4),
    mechanisms.discrete_gaussian(3.0, 6000.0, 4, 2000.0, "distributed"),
    mechanisms.discrete_gaussian(3.0, 6000.0, 1, 2000.0, "central"),
    mechanisms.none(),
]
COHORTS = [cl.poisson(0.5), cl.fixed_size(3), cl.full(), cl.cyclic(2), cl.cyclic(4)]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(parts=st.lists(part(), min_size=1, max_size=4), noise=st.sampled_from(NOISE), cohort=st.sampled_from(COHORTS))
def test_any_chain_trains_within_its_budget_or_is_refused_before_a_line(tmp_path_factory, parts, noise, cohort):
    folder = tmp_path_factory.mktemp("chains") / "run"
    budget = None if noise.place == "nowhere" else 50.0
    try:
        run = go(method(transforms.chain(*parts), noise), folder=folder, cohort=cohort, epsilon=budget)
    except CloisterError:
        assert not folder.exists()
        return
    assert len(run.history) == 2 or run.stopped
    assert budget is None or run.epsilon <= budget
    assert len({entry.round for entry in RunFolder.open(folder).ledger().entries}) == len(run.history)


def test_binomial_noise_is_for_the_levels_that_it_was_priced_for():
    """Found in review: numbers on a grid of the same norm moved further than what was priced."""
    coins = mechanisms.binomial(40_000, 17, 0.5, 0.5, 1e-6, "message")
    good = transforms.chain(transforms.clip_l2(0.5), transforms.quantize_to_levels(0.5, 17))
    fed, _ = federation(method(good, coins, cl.client.one_gradient(2)), task=TASK, model=MODEL)
    l2 = fed.sensitivity.l2
    for other in (transforms.quantize(1.0, l2, 16), transforms.quantize_to_levels(1.0, 17)):
        odd = method(transforms.chain(transforms.clip_l2(0.5), other), coins, cl.client.one_gradient(2))
        with pytest.raises(CloisterError, match=r"quantize_to_levels|norm at most"):
            go(odd)


def test_single_messages_are_priced_under_gaussian_noise_alone():
    """Found in review: discrete noise of a hundredth of the scale was priced by its stated multiplier."""
    grid_of = transforms.chain(transforms.clip_l2(0.5), transforms.quantize(100.0, 60.0, 16))
    tiny = mechanisms.discrete_gaussian(1000.0, 0.01, 4, 60.0, "distributed")
    with pytest.raises(CloisterError, match=r"use mechanisms\.gaussian"):
        federation(replace(method(grid_of, tiny), local_only=True), task=TASK, model=MODEL)


def test_a_name_that_a_checkpoint_would_lose_is_refused(tmp_path):
    slashed = replace(transforms.clip_l2(1.0), init=lambda w: {"a/b": torch.zeros(())})
    with pytest.raises(CloisterError, match="without a slash"):
        go(method(slashed, mechanisms.gaussian(2.0)), folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_later_phase_draws_its_own_batches():
    """Found in review: only the first phase was asked whether it draws."""
    phase = cl.client.one_gradient(3).phases[0]
    first = replace(phase, batching=replace(phase.batching, batch_sampling=None))
    rule = replace(cl.client.one_gradient(3), phases=(first, phase))
    fed, w = federation(method(transforms.clip_l2(1.0), mechanisms.none(), rule), task=TASK, model=MODEL)
    drawn = plan_of(fed, 1, w, torch.arange(3)).drawn(torch.arange(3), 3).batches
    assert [batches is None for batches in drawn] == [True, False]
    results = [cohort_total(fed, engine, 1, w, torch.arange(TASK.clients))[0] for engine in ENGINES]
    for found in results[1:]:
        torch.testing.assert_close(found, results[0], rtol=1e-9, atol=1e-12)


def test_every_client_has_its_own_multiplier_or_none_has():
    fed, _ = federation(cl.methods.pfl(clip_norm=0.5, batch_size=4, noise_multiplier=1.0), task=TASK, model=MODEL)
    with pytest.raises(CloisterError, match="for each of 8 clients"):
        replace(fed, multipliers=(1.0, 2.0))
