"""Messages, sums, steps and queries on a grid: bounds and sums that are exact, and noise as it was priced."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cloister as cl
from cloister.core.noise_grid import STEP_GRID, grid_of, nearest, on_grid, points_of, slack
from cloister.engine import Loop, Vectorized
from cloister.privacy.events import Adjacency
from cloister.privacy.ledger import Charge, Ledger
from cloister.random.streams import Streams
from cloister.round import Offer, RoundPlan, cohort_total, run_round
from cloister.round.queries import Query, ask, query_event
from conftest import federation, prepared, toy_task
from contract import sample_audit
from contract.audit import AUDITS, only_noise, released
from contract.catalogue import AUDITED, AUDITED_STEPS, METHODS, cohorts_for, fed_of

METHOD = cl.methods.dp_fedavg(clip_norm=0.7, lr=0.5, local_steps=2, noise_multiplier=1.3)


def square(points: torch.Tensor) -> int:
    """The squared norm of whole numbers, in whole numbers."""
    assert torch.equal(points, points.round())
    assert float(points.abs().max()) < 2**25
    return int((points.numpy().astype(np.int64) ** 2).sum())  # below 2^63


def within(message: torch.Tensor, l2: float, grid: float) -> bool:
    """Whether a message is on the grid and within the bound: exactly."""
    found = on_grid(message, grid, l2)
    return square(found / grid) * Fraction(grid) ** 2 <= Fraction(l2) ** 2


@settings(max_examples=150)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=64), min_size=1, max_size=40),
    st.floats(1e-6, 1e6),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_whatever_a_message_is_it_ends_on_the_grid_and_within_the_bound(values, l2, dtype):
    message = torch.tensor(values, dtype=torch.float64).clamp(-3e38, 3e38).to(dtype)
    grid = grid_of(l2, l2)
    found = on_grid(message, grid, l2)
    assert within(message, l2, grid)
    assert torch.equal(on_grid(found, grid, l2), found), "rounding twice changes nothing"
    assert torch.equal(found.float().double(), found), "float32 holds it"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 1000, 200_000])
def test_messages_at_their_bound_stay_within_it(size, dtype):
    """Clipped by floating point, which may leave them some units in the last place above: all lengths around the bound.
    Where nothing has to be made shorter, no coordinate moves by a whole point, and none away from zero."""
    random = torch.Generator().manual_seed(size)
    for l2 in (1.0, 0.7, 1e-3):
        grid = grid_of(l2, l2)
        for excess in (-1e-6, -1e-15, 0.0, 1e-16, 1e-7, 1e-3, 1.0):
            message = torch.randn(size, generator=random, dtype=dtype)
            message = message * (l2 * (1 + excess) / message.double().norm()).to(dtype)
            found = on_grid(message, grid, l2)
            assert within(message, l2, grid)
            assert (found.abs() <= message.double().abs()).all()
            assert float((found - message.double()).norm()) <= l2 * max(excess, 0) + 2 * grid * math.sqrt(size)
        even = torch.full((size,), l2 / math.sqrt(size), dtype=dtype)
        assert within(even, l2, grid)
        assert within(torch.nextafter(even, torch.tensor(math.inf, dtype=dtype)), l2, grid)


def test_rounding_to_the_nearest_would_exceed_the_bound():
    """The same vectors: what is rounded away from zero is longer than was priced, and the test above would say so."""
    even = torch.full((1000,), 0.7 / math.sqrt(1000), dtype=torch.float64)
    grid, worst = grid_of(0.7, 0.7), 0
    for shift in range(20):
        message = even * (1 - shift * 1e-9)
        points = (message / grid).round()
        worst = max(worst, square(points) * Fraction(grid) ** 2 - Fraction(0.7) ** 2)
    assert worst > 0


def test_the_grid_follows_from_public_numbers_and_noise_is_never_narrower():
    for l2 in (1e-45, 1e-3, 0.7, 1.0, 5.0, 1e30):
        for z in (1e-3, 1.0, 7.0, 1e5):
            grid, deviation = grid_of(l2, z * l2), z * l2
            assert math.frexp(grid)[0] == 0.5
            assert l2 / grid < 2.0**24
            assert Fraction(points_of(deviation, grid)) * Fraction(grid) >= Fraction(z) * Fraction(l2)
            assert points_of(deviation, grid, 1.5) * grid == pytest.approx(1.5 * deviation, rel=1e-12)
            assert points_of(deviation, grid) <= 2.0**35 or l2 < 1e-40


def test_a_sum_is_exact_whatever_the_order_and_the_engine():
    for dtype in (torch.float32, torch.float64):
        fed, w = federation(METHOD, cl.full(), dtype=dtype)
        fed = replace(fed, rounded=True)
        clients = list(range(fed.population.clients))
        each = [cohort_total(fed, Loop(), 1, w, torch.tensor([client]))[0] for client in clients]
        whole, _ = cohort_total(fed, Loop(), 1, w, torch.tensor(clients))
        assert whole.dtype == torch.float64
        for order in (clients, clients[::-1], clients[3:] + clients[:3]):
            assert torch.equal(sum((each[client] for client in order), torch.zeros_like(whole)), whole)
        assert all(square(message / fed.grid) * Fraction(fed.grid) ** 2 <= Fraction(0.7) ** 2 for message in each)
        chunks, _ = cohort_total(fed, Vectorized(chunk=3), 1, w, torch.tensor(clients))
        assert float((chunks - whole).abs().max()) <= 1e-5
        assert not torch.remainder(chunks / fed.grid, 1).any()


@pytest.mark.parametrize("audit", [name for name in AUDITS if name != "signal"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if (name, kind) == ("adaptive_clipping", "poisson") else pytest.mark.slow)
        for name in AUDITED
        for kind in cohorts_for(name)
    ],
)
def test_the_round_keeps_its_promise_on_a_grid(name, kind, audit):
    fed, w = fed_of(METHODS[name](), cohorts_for(name)[kind])
    fed = replace(fed, rounded=True)
    shares = fed.method.mechanism.place == "distributed" or fed.method.mechanism.integer
    assert (fed.grid is None) == shares
    AUDITS[audit](run_round, fed, w)


QUICK = {("dp_fed", "noise"), ("adap_dp_fl", "noise"), ("fed_spa", "sensitivity"), ("fed_spa", "price")}


@pytest.mark.parametrize(
    ("name", "audit"),
    [
        pytest.param(name, audit, marks=() if (name, audit) in QUICK else pytest.mark.slow)
        for name in AUDITED_STEPS
        for audit in ("noise", "sensitivity", "price")
    ],
)
def test_steps_keep_their_promise_on_a_grid(name, audit):
    fed, w = sample_audit.audited(AUDITED_STEPS[name])
    fed = replace(fed, rounded=True)
    assert fed.method.mechanism.grid == STEP_GRID
    sample_audit.AUDITS[audit](run_round, fed, w)


@pytest.mark.parametrize("engine", [Loop(), Vectorized(chunk=3)])
def test_what_a_step_releases_is_on_the_grid_with_and_without_data(engine):
    """The gradient of one step, in clips: whole points, whoever was in the batch. Floating-point noise has none."""
    method = cl.methods.dp_fed(clip_norm=0.5, lr=1.0, batch_size=4, local_steps=1, noise_multiplier=1.3)
    for rounded, data in ((True, 1.0), (True, 0.0), (False, 1.0)):
        fed, w = federation(method, cl.full(), task=toy_task(sizes=(8, 8)))
        people = replace(fed.population, inputs=fed.population.inputs * data)
        fed = replace(fed, population=people, rounded=rounded)
        message, _ = cohort_total(fed, engine, 1, torch.zeros_like(w), torch.tensor([0]))
        points = message * fed.method.local.batching.expected(8) / 0.5 / STEP_GRID
        whole = (points - points.round()).abs() < 1e-3  # divided by the batch, and by the learning rate
        assert bool(whole.all()) is rounded


def test_a_step_is_as_much_wider_as_rounding_can_move_its_sum():
    """Two sums one sample apart are at most 1 + slack apart on the grid; there are some that are more than 1 apart."""
    random = np.random.default_rng(0)
    worst = 0.0
    for _ in range(300):
        one = torch.from_numpy(random.normal(size=50))
        step = torch.from_numpy(random.normal(size=50))
        other = one + step / step.norm()
        moved = float((nearest(one, 1.0, 0.01) - nearest(other, 1.0, 0.01)).norm())
        worst = max(worst, moved)
        assert moved <= 1 + slack(50, 0.01)
    assert worst > 1.001
    method = cl.methods.pfl(clip_norm=1.0, lr=0.1, batch_size=4, noise_multiplier=1.3)
    fed, w = federation(method)
    offer = Offer(1, torch.tensor([0]), w)
    plan = RoundPlan.of(replace(fed, rounded=True), offer, offer.clients)
    ((_, scale, _),) = plan.noise(torch.tensor([0]), 1).sources
    assert scale == 1.3 * (1 + slack(len(w), STEP_GRID, int(fed.population.counts[0])))
    assert scale > 1.3


def test_a_tree_of_rounded_noise_adds_up_to_its_nodes():
    """The noise of a prefix is that of the nodes that cover it: exact points of the grid, as wide as was priced."""
    mechanism = cl.mechanisms.tree(1.3, 7)
    method = replace(METHODS["dp_ftrl tree"](), mechanism=mechanism, bind=None)
    fed, w = federation(method, cl.cyclic(1), task=toy_task(sizes=(2, 1, 1, 1, 1, 1, 1)))
    fed = replace(fed, rounded=True)
    draws, noises, state = [], [], {}
    for number in range(1, 8):
        drawn = fed.method.mechanism.draw(1.3, fed.streams, fed.blank(w, {}), fed.sensitivity, number, -1, 1)
        noise, state = fed.method.mechanism.correlate(drawn, number, state)
        draws.append(drawn / fed.grid)
        noises.append(noise / fed.grid)
    assert all(torch.equal(one, one.round()) for one in [*draws, *noises])
    covers = {1: [1], 2: [2], 3: [2, 3], 4: [4], 5: [4, 5], 6: [4, 6], 7: [4, 6, 7]}
    for last, nodes in covers.items():
        prefix = sum(noises[:last], torch.zeros_like(noises[0]))
        assert torch.equal(prefix, sum((draws[node - 1] for node in nodes), torch.zeros_like(prefix)))
    spread = torch.stack(draws) * fed.grid
    assert 0.85 < float(spread.std()) / (math.sqrt(3) * 1.3 * fed.sensitivity.l2) < 1.15


def test_banded_and_shared_noise_stay_as_they_are():
    for name in ("dp_ftrl", "dp_fedavg distributed", "ddgauss"):
        kind = next(iter(cohorts_for(name).values()))
        fed, w = fed_of(METHODS[name](), kind)
        again = replace(fed, rounded=True)
        assert again.grid is None
        assert torch.equal(released(run_round, only_noise(fed), w), released(run_round, only_noise(again), w))


def test_nobody_is_told_from_somebody_by_the_noise_of_another_round():
    fed, w = federation(METHOD, cl.full(), secure=True)
    assert fed.rounds
    one, other = (released(run_round, only_noise(fed), w, 1) for _ in range(2))
    assert not torch.equal(one, other), "secure noise is drawn anew"


def _asked(fed, query, unit_count):
    charge = Charge(query_event(Adjacency.ADD_OR_REMOVE_ONE, query.noise_multipliers[0], unit_count))
    units = ["client"] if fed.unit == "client" else [f"sample of client {c}" for c in range(fed.population.clients)]
    return ask(fed, Ledger.create(None, "test", {}), query, dict.fromkeys(units, charge), fed.population, 1)


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("name", ["dp_fedavg", "pfl"])
def test_answers_of_queries_are_on_the_grid_and_close_to_those_of_floats(name, moments):
    task = toy_task(sizes=(5, 3, 4))
    fed, _ = fed_of(METHODS[name](), cl.full(), task=task)
    query = Query("mean", 6, lambda inputs, labels: inputs / 20, (0.8,) * 3, moments)
    rounded, quiet = replace(fed, rounded=True), replace(query, noise_multipliers=(1e-4,) * 3)
    divisor = 3 if fed.unit == "client" else 12
    found = _asked(rounded, query, 3).mean * divisor / 2.0**-23
    assert (found - found.round()).abs().max() < 1e-6
    floats = _asked(fed, query, 3).mean * divisor / 2.0**-23
    assert (floats - floats.round()).abs().max() > 1e-3
    exact, close = (_asked(one, quiet, 3).mean for one in (fed, rounded))
    assert float((exact - close).abs().max()) < 2e-3


def test_runs_with_secret_batches_have_draws_of_their_own():
    """The key of a round was once computed from its first step's: such a run is not gone on with."""
    steps = cl.methods.pfl(clip_norm=0.7, lr=0.5, local_epochs=1, noise_multiplier=1.3)
    runs = [prepared(one, toy_task(), rounded_noise=rounded) for one in (METHOD, steps) for rounded in (False, True)]
    assert len({ready.description.draws for ready in runs}) == 4
    assert runs[0].description.draws == 5


def test_it_is_the_default_with_secure_randomness_and_certificates_say_so():
    for given_rounded, secure, expected in [
        (None, False, False),
        (None, True, True),
        (True, False, True),
        (False, True, False),
    ]:
        ready = prepared(METHOD, toy_task(), secure_rng=secure, rounded_noise=given_rounded)
        assert ready.fed.rounds is expected
        assert ready.description.rounded_noise is expected
        assert ready.description.draws == (6 if expected else 5), "with draws of its own"
        assert ("grid" in ready.description.method.mechanism.settings) is expected
        assert ("rounded_noise" in ready.description.to_json()) is expected, "older runs keep their identity"


@pytest.mark.parametrize(
    ("method", "says", "leaves_out"),
    [
        (METHOD, "multiples of 2^-24, to which every message is rounded toward zero", "coins"),
        (METHODS["pfl"](), "of the clip, to which sums of gradients are rounded", "sums in private steps"),
        (METHODS["dp_fedavg distributed"](), "floating point", "no rounding of their sum"),
        (METHODS["ddgauss"](), "whole numbers", "coins"),
        (
            cl.methods.pfl(batch_size=2, noise_multiplier=1.0, trust="sum", noise="discrete"),
            "once sums of gradients, in floating point, are rounded",
            "sums in messages",
        ),
    ],
)
def test_a_certificate_tells_the_grid_and_what_is_left_out(method, says, leaves_out):
    run = cl.run(method, toy_task(), cohort=cl.full(), rounds=1, delta=1e-3, secure_rng=True)
    assert says in run.certificate.noise_arithmetic
    gaps = [gap for gap in run.certificate.not_covered if gap.startswith("floating-point")]
    assert any(leaves_out in gap for gap in gaps)
    assert says in " ".join(str(run.certificate).split())


def test_without_rounding_a_certificate_says_that_noise_is_of_floats():
    run = cl.run(METHOD, toy_task(), cohort=cl.full(), rounds=1, delta=1e-3)
    assert run.certificate.noise_arithmetic == "floating point"
    assert any("the proof is for real numbers" in gap for gap in run.certificate.not_covered)


def test_seeded_runs_on_a_grid_repeat_and_learn_as_others_do():
    method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=3, noise_multiplier=0.1)
    one, again, plain = (
        cl.run(method, toy_task(), cohort=cl.full(), rounds=4, delta=1e-3, rounded_noise=rounded)
        for rounded in (True, True, False)
    )
    first, second, third = (torch.cat([p.flatten() for p in run.model.parameters()]) for run in (one, again, plain))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert one.epsilon == plain.epsilon


def test_two_streams_of_a_run_share_no_noise():
    fed, w = federation(METHOD, cl.full())
    fed = replace(fed, rounded=True)
    seen = {tuple(released(run_round, only_noise(fed), w, number)[:4].tolist()) for number in range(1, 40)}
    assert len(seen) == 39
    other = replace(fed, streams=Streams(0, run="another"))
    assert tuple(released(run_round, only_noise(other), w, 1)[:4].tolist()) not in seen
