"""The price of binomial noise, beside divergences that are summed up, coin by coin and rounding by rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve
from scipy.special import gammaln

from cloister.errors import CloisterError, UnsupportedMechanismError
from cloister.privacy import accountant, fixed_size
from cloister.privacy.accountant import PrivacyLoss, best_step_delta
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.binomial import (
    Loss,
    Moves,
    amplified,
    loss,
    loss_of,
    message_norm,
    moves,
    profile,
    published,
    published_moves,
    theorem,
    trials_for,
)
from cloister.privacy.composition import Composition, steps_of
from cloister.privacy.events import (
    Adjacency,
    BinomialSum,
    FixedSizeGaussian,
    PoissonGaussian,
    from_json,
    to_json,
)
from cloister.privacy.pricing import common_adjacency, pricing_of

MNIST = BinomialSum(
    levels=17, trials=7114, clip_norm=1.0, range=1.0, dimension=21840, sampling_rate=10 / 600, step_delta=2e-5
)


def log_coins(trials: int) -> np.ndarray:
    heads = np.arange(trials + 1)
    return gammaln(trials + 1) - gammaln(heads + 1) - gammaln(trials - heads + 1) - trials * math.log(2)


def explicit(trials: int, shifts: list[int], step: float = 2e-3) -> Callable[[float], float]:
    """Delta of vectors that are `shifts` apart, never too large: losses are rounded DOWN to a grid, and rare ones left
    out, but for those that are infinite."""
    finite, first, total = 1.0, 0, np.ones(1)
    for shift in shifts:
        log_mass = log_coins(trials)
        losses = log_mass[: trials + 1 - shift] - log_mass[shift:]
        masses = np.exp(log_mass[: trials + 1 - shift])
        finite *= 1 - np.exp(log_mass[trials + 1 - shift :]).sum()
        places = np.floor(losses[masses > 1e-18] / step).astype(int)
        one = np.bincount(places - places.min(), masses[masses > 1e-18])
        total, first = fftconvolve(total, one), first + int(places.min())
        kept = np.flatnonzero(total > 1e-16)
        total, first = total[kept[0] : kept[-1] + 1], first + int(kept[0])
    at = (first + np.arange(len(total))) * step
    return lambda eps: float(1 - finite + np.sum(total[at > eps] * -np.expm1(eps - at[at > eps])))


def moves_of(shifts: list[int]) -> Moves:
    return Moves(sum(shifts), math.sqrt(sum(s * s for s in shifts)), max(shifts))


# -- one step -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    trials=st.integers(150, 2500),
    shifts=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    step_delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_the_profile_covers_explicit_noise(trials, shifts, step_delta):
    found = loss_of(moves_of(shifts), trials, len(shifts), step_delta)
    exact, eps = explicit(trials, shifts), np.linspace(0, found.top, 25)
    assert all(exact(at) <= bound + 1e-12 for at, bound in zip(eps, profile(eps, found), strict=True))


@settings(deadline=None)
@given(
    trials=st.integers(60, 4000),
    shift=st.integers(1, 12),
    order=st.floats(0.01, 60),
    step_delta=st.sampled_from([0.3, 1e-3, 1e-6]),
)
def test_the_moments_cover_explicit_noise_and_are_those_of_a_gaussian_but_for_little(trials, shift, order, step_delta):
    """Step 4 by itself, which nothing that comes later makes any looser."""
    found = loss_of(moves_of([shift]), trials, 1, step_delta)
    if found is None:
        return
    log_mass, reach = log_coins(trials), math.sqrt(trials * math.log(2 / step_delta) / 2)
    kept = np.abs(np.arange(trials + 1) - trials / 2) <= reach
    kept[trials + 1 - shift :] = False
    losses = log_mass[: trials + 1 - shift] - log_mass[shift:]
    exact = np.logaddexp.reduce(log_mass[kept] + order * losses[kept[: len(losses)]])
    bound = order * ((1 + order) * found.rho + found.extra)
    assert exact <= bound
    if trials > 1000 and step_delta == 1e-3 and order < math.sqrt(trials) / shift / 3:
        assert exact > 0.95 * bound - 0.01


@pytest.mark.parametrize("trials", [400, 4000])
def test_the_profile_covers_many_coordinates_and_is_not_far_above(trials):
    shifts = [1] * 60 + [2] * 20
    found = loss_of(moves_of(shifts), trials, len(shifts), 1e-7)
    exact, eps = explicit(trials, shifts, 5e-4), np.linspace(0, 0.4 * found.top, 9)
    for at, bound in zip(eps, profile(eps, found), strict=True):
        assert exact(at) <= bound
        assert trials == 400 or bound < 8 * exact(at) + 3e-7


def test_without_its_bend_the_bound_would_be_wrong():
    """The moments of a Gaussian of the same width are not enough, for losses grow toward the end of the range."""
    trials, shifts = 60, [10]
    exact, found = explicit(trials, shifts), loss_of(moves_of(shifts), trials, len(shifts), 1e-4)
    eps = np.linspace(0, found.top, 60)
    deltas = np.array([exact(at) for at in eps])
    straight = Loss(sum(s * s for s in shifts) / (2 * trials / 4), 0.0, 0.0)
    assert (deltas > 1.5 * profile(eps, straight)).any()
    assert (deltas <= profile(eps, found)).all()


def test_the_published_theorem_is_too_small_where_epsilon_is_large():
    trials, shift, delta = 4_000_000, 5000, 1e-3
    claimed = theorem(moves_of([shift]), trials, 1, delta)
    assert claimed == pytest.approx(19.25, abs=0.01)
    exact = explicit(trials, [shift])
    assert exact(claimed) > 60 * delta
    assert exact(claimed) <= profile(np.array([claimed]), loss_of(moves_of([shift]), trials, 1, 1e-5))[0]


def test_the_published_theorem_is_as_others_wrote_it_down():
    """An independent program has 0.63755 here; it takes 7/4 sqrt(2) for the 5/2 of the paper."""
    assert theorem(Moves(1, 1, 1), 2000, 1, 1e-6) == pytest.approx(0.6376, abs=2e-4)
    with pytest.raises(UnsupportedMechanismError, match=r"at least 1483 trials for Theorem 1 of cpSGD, found 1482"):
        theorem(Moves(1, 1, 1), 1482, 1, 1e-6)
    assert theorem(Moves(1, 1, 1), 1483, 1, 1e-6) < 1


@settings(deadline=None)
@given(
    trials=st.integers(2000, 10**7),
    levels=st.integers(2, 40),
    spread=st.floats(0.1, 4),
    dimension=st.integers(1, 10**6),
    step_delta=st.floats(1e-10, 1e-2),
)
def test_where_the_published_theorem_says_little_this_says_less(trials, levels, spread, dimension, step_delta):
    event = BinomialSum(levels, trials, 1.0, spread, dimension, 1.0, step_delta)
    try:
        claimed = theorem(published_moves(event), trials, dimension, step_delta)
    except UnsupportedMechanismError:
        return
    if claimed <= 1:
        assert profile(np.array([claimed]), loss(event))[0] <= 3 * step_delta + 1e-12


# -- what rounding does -------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    levels=st.integers(2, 5000),
    spread=st.floats(1e-3, 1e3),
    dimension=st.integers(1, 10**7),
    step_delta=st.floats(1e-12, 0.4),
)
def test_moves_are_never_beyond_the_published_ones(levels, spread, dimension, step_delta):
    event = BinomialSum(levels, 10, 1.0, spread, dimension, 1.0, step_delta)
    digits = 2.0**-23 * (2 if levels % 2 == 0 else 1)  # of which the paper has endless ones
    rounded = math.sqrt(dimension) * levels * digits * spread / (levels - 1)
    ours, theirs = moves(event), published_moves(replace(event, clip_norm=1.0 + rounded))
    assert ours.most <= theirs.most
    assert ours.l1 <= theirs.l1 * (1 + 1e-12)
    assert ours.l2 <= theirs.l2 * (1 + 1e-12)


@pytest.mark.parametrize("kind", ["flat", "spike", "many small", "mixed"])
@pytest.mark.parametrize(("levels", "spread"), [(3, 1.0), (17, 1.0), (17, 0.05), (257, 0.2)])
def test_roundings_are_as_far_apart_as_is_said_and_seldom_farther(kind, levels, spread):
    d, step_delta, random = 400, 0.05, np.random.default_rng(1)
    event = BinomialSum(levels, 10, 1.0, spread, d, 1.0, step_delta)
    x = {
        "flat": np.ones(d),
        "spike": np.eye(d)[0],
        "many small": random.normal(size=d) * (random.random(d) < 0.3),
        "mixed": np.append(np.ones(d - 1), 10.0),
    }[kind]
    x = x / np.linalg.norm(x)
    scale, half = (levels - 1) / (2 * spread), (levels - 1) / 2
    first, second = (np.clip(v * scale, -half, half) for v in (x, -x))
    draws = random.random((4000, d))
    apart = np.abs(np.floor(first + draws) - np.floor(second + draws))
    found = moves(event)
    outside = (apart.sum(1) > found.l1) | (np.linalg.norm(apart, axis=1) > found.l2) | (apart.max(1) > found.most)
    assert outside.mean() < step_delta
    if kind == "flat" and spread == 1.0:
        assert np.linalg.norm(apart, axis=1).max() > 0.8 * found.l2, "a fifth less would be exceeded"


def test_the_norm_of_a_message_is_bounded_and_grows_with_all_that_it_depends_on():
    bound = message_norm(1.0, 0.5, 17, 100)
    assert bound == 2 * 8 + 10
    assert bound < message_norm(1.1, 0.5, 17, 100)
    assert bound < message_norm(1.0, 0.4, 17, 100)
    assert bound < message_norm(1.0, 0.5, 19, 100)
    assert bound < message_norm(1.0, 0.5, 17, 128)
    assert message_norm(math.inf, 0.5, 17, 100) == 80 + 10


# -- sampling and composition -------------------------------------------------------------------------------------


def two_point(eps: np.ndarray, epsilon: float, delta: float) -> np.ndarray:
    """All that (epsilon, delta)-DP says of other eps."""
    above = np.maximum(0.0, -np.expm1(np.minimum(eps - epsilon, 0.0))) / (1 + math.exp(-epsilon))
    return delta + (1 - delta) * above


def optimal(epsilon: float, delta: float, count: int) -> list[tuple[float, float]]:
    """The points of the optimal composition theorem (Kairouz, Oh & Viswanath 2015, Theorem 3.3)."""
    points = []
    for i in range(count // 2 + 1):
        inner = sum(
            math.comb(count, j) * (math.exp((count - j) * epsilon) - math.exp((count - 2 * i + j) * epsilon))
            for j in range(i)
        )
        rest = inner / (1 + math.exp(epsilon)) ** count
        points.append(((count - 2 * i) * epsilon, 1 - (1 - delta) ** count * (1 - rest)))
    return points


@pytest.mark.parametrize(
    ("epsilon", "delta", "count"), [(0.1, 1e-6, 40), (0.5, 1e-4, 7), (1.5, 1e-3, 12), (0.03, 0, 99)]
)
@pytest.mark.parametrize("parts", [1, 3])
def test_steps_compose_as_the_optimal_theorem_says(epsilon, delta, count, parts):
    """Their delta is mass at infinity, and nothing of it is lost."""
    ours = fixed_size.sampled(partial(two_point, epsilon=epsilon, delta=delta), 1.0, epsilon, epsilon / parts)
    (step,) = steps_of(ours)
    assert math.exp(step.log_finite) == pytest.approx(1 - delta, rel=1e-14)
    total = Composition.of([(step, count)])
    for at, needed in optimal(epsilon, delta, count):
        if needed - (1 - (1 - delta) ** count) > 1e-9 and needed < 0.5:
            assert total.epsilon(needed * (1 + 1e-6)) == pytest.approx(at, abs=1e-4 * epsilon * count)
            assert total.epsilon(needed) >= at - 1e-9
    at_infinity = 1 - (1 - delta) ** count
    if delta:
        assert total.epsilon(at_infinity * (1 - 1e-9)) == math.inf
        assert total.epsilon(at_infinity + 1e-10) < math.inf


def test_the_library_describes_such_a_step_alike():
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(0.2, 1e-5), 0.1)
    ours = fixed_size.sampled(partial(two_point, epsilon=0.2, delta=1e-5), 1.0, 0.2, 0.1)
    for delta in (3e-3, 1e-4):
        found = ours.self_compose(9).get_epsilon_for_delta(delta)
        assert found == pytest.approx(theirs.self_compose(9).get_epsilon_for_delta(delta), rel=1e-9)


def test_a_bound_that_bends_the_wrong_way_at_zero_becomes_a_profile():
    """What is proven lies above two lines that meet in a corner; the curve that is composed has none, and covers it."""
    found = Loss(0.02, 0.0, 1e-6)
    eps = np.linspace(0, 1, 2001)
    raw = profile(eps, found)
    mended = fixed_size._without_a_corner(eps, raw.copy())
    assert (mended <= raw + 1e-15).all()
    assert mended[0] < raw[0]
    both = np.concatenate([(-np.expm1(-eps) + np.exp(-eps) * mended)[:0:-1], mended])
    t = np.exp(np.concatenate([-eps[:0:-1], eps]))
    slopes = np.diff(both) / np.diff(t)
    assert (np.diff(slopes) > -1e-9).all()
    slopes = np.diff(np.concatenate([(-np.expm1(-eps) + np.exp(-eps) * raw)[:0:-1], raw])) / np.diff(t)
    assert np.diff(slopes).min() < -0.01, "and the bound itself was not convex"
    gaussian = fixed_size.gaussian(eps, math.sqrt(2 * found.rho))
    assert (gaussian <= mended).all()


@pytest.mark.parametrize("trials", [60, 400])
def test_sampling_covers_every_enumerated_batch(trials):
    """Four units, one a batch; what the first gives is replaced. All batches are enumerated, without any rounding."""
    found = loss_of(Moves(4, 4, 4), trials, 1, 1e-6)
    interval = 0.002
    release = fixed_size.sampled(partial(profile, of=found), 0.25, found.top, interval)
    masses = np.exp(log_coins(trials))

    def mixture(values):
        return np.mean([np.pad(masses, (2 + value, 2 - value)) for value in values], axis=0)

    for others in [(0, 0, 0), (2, 2, 2), (-2, 0, 1)]:
        one, other = mixture((2, *others)), mixture((-2, *others))
        for eps in np.linspace(0, found.top, 12):
            exact = max(np.maximum(p - math.exp(eps) * q, 0).sum() for p, q in ((one, other), (other, one)))
            assert exact <= release.get_delta_for_epsilon(eps) + 1e-12


def test_the_point_of_amplification_is_on_the_sampled_curve():
    release = fixed_size.sampled(partial(two_point, epsilon=2.0, delta=1e-4), 0.05, 2.0, 1e-3)
    eps, delta = amplified(2.0, 1e-4, 0.05)
    assert (eps, delta) == (pytest.approx(math.log1p(0.05 * math.expm1(2.0))), pytest.approx(5e-6))
    assert release.get_delta_for_epsilon(eps + 1e-3) == pytest.approx(delta, rel=1e-9)
    assert release.get_delta_for_epsilon(eps - 1e-2) > 2 * delta


@pytest.mark.parametrize("sampling_rate", [1.0, 0.3, 10 / 600])
@pytest.mark.parametrize("count", [1, 45, 700])
def test_our_composition_is_the_library_s(sampling_rate, count):
    event = replace(MNIST, trials=100 * MNIST.trials, sampling_rate=sampling_rate, step_delta=1e-8)
    library = pricing_of(event).pld(pricing_of(event).interval).self_compose(count)
    for delta in (1e-3, 1e-4):
        expected = library.get_epsilon_for_delta(delta)
        assert expected * (1 - 1e-8) <= epsilon_of(event, count, delta) <= expected * (1 + 1e-6) + 1e-9


def test_what_is_set_aside_is_never_given_back():
    count, aside = 45, MNIST.sampling_rate * 2 * MNIST.step_delta
    total = -math.expm1(count * math.log1p(-aside))
    assert epsilon_of(MNIST, count, 0.999 * total) == math.inf
    assert epsilon_of(MNIST, count, 1.001 * total) < math.inf
    certified = PrivacyLoss()
    certified.add(MNIST, count)
    assert certified.certified(0.999 * total) == math.inf
    assert certified.certified(1e-3) == pytest.approx(certified.epsilon(1e-3), rel=1e-6)


def test_round_by_round_is_all_at_once_and_never_falls():
    together, before = PrivacyLoss(), 0.0
    for count in range(1, 101):
        together.add(MNIST)
        now = together.epsilon(1e-3)
        assert now > before
        before = now
        if count in (1, 17, 63, 64, 65, 100):
            assert now == pytest.approx(epsilon_of(MNIST, count, 1e-3), rel=1e-7)


def test_other_noise_under_the_same_relation_composes_with_it():
    mixed = PrivacyLoss()
    mixed.add(MNIST, 10)
    alone = mixed.epsilon(1e-3)
    mixed.add(FixedSizeGaussian(2.0, 10, 600), 10)
    assert alone < mixed.epsilon(1e-3) < alone + epsilon_of(FixedSizeGaussian(2.0, 10, 600), 10, 1e-4)
    with pytest.raises(UnsupportedMechanismError, match="one way of drawing cohorts"):
        mixed.add(PoissonGaussian(1.0, 0.1))


@settings(max_examples=12, deadline=None)
@given(
    trials=st.integers(4000, 10**6),
    levels=st.integers(3, 60),
    sampling_rate=st.floats(0.01, 1),
    count=st.integers(1, 60),
)
def test_more_trials_fewer_levels_smaller_batches_and_fewer_steps_never_cost_more(trials, levels, sampling_rate, count):
    event = BinomialSum(levels, trials, 1.0, 1.0, 1000, sampling_rate, 1e-7)
    context, slack = epsilon_of(event, count, 1e-4), 1 + 2e-3
    assert epsilon_of(replace(event, trials=2 * trials), count, 1e-4) <= context * slack + 1e-6
    assert epsilon_of(replace(event, levels=levels - 1), count, 1e-4) <= context * slack + 1e-6
    assert epsilon_of(replace(event, sampling_rate=sampling_rate / 2), count, 1e-4) <= context * slack + 1e-6
    assert context <= epsilon_of(event, count + 1, 1e-4) * slack + 1e-6


# -- prices -------------------------------------------------------------------------------------------------------


def cheapest(event: BinomialSum, count: int, delta: float) -> float:
    return epsilon_of(replace(event, step_delta=best_step_delta(event, count, delta)), count, delta)


@pytest.mark.parametrize(
    ("levels", "trials", "expected_size", "agents", "expected"),
    [
        (17, 7114, 10, 1, 1.52),
        (17, 7114, 10, 100, 0.026),
        (33, 7098, 50, 1, 18.8),
        (33, 7098, 50, 100, 0.328),
    ],
)
def test_golden_prices_of_45_rounds_on_mnist(levels, trials, expected_size, agents, expected):
    event = BinomialSum(levels, agents * trials, 1.0, 1.0, 21840, expected_size / 600, 1e-6)
    assert cheapest(event, 45, 1e-3) == pytest.approx(expected, rel=0.01)


def test_the_published_epsilons_are_of_the_order_that_their_arithmetic_gives():
    """Fed-SPA's Table 1: 3.63 at 12.8 bits, 2.26 at 32. Summed over 100 agents, by advanced composition over 45 rounds,
    each of which takes the whole delta. Batches of 50, and levels of 5 and of 16 bits, are a guess."""
    for levels, bits, printed in [(33, 12.8, 3.63), (65537, 32, 2.26)]:
        event = BinomialSum(levels, 100 * int(2**bits - levels), 1.0, 1.0, 21840, 50 / 600, 0.5e-3 * 600 / 50)
        eps, delta = published(event)
        assert delta == pytest.approx(1e-3)
        claimed = eps * math.sqrt(2 * 45 * math.log(1000)) + 45 * eps * math.expm1(eps)
        assert 0.8 < claimed / printed < 1.25
        assert cheapest(event, 45, 1e-3) < 0.2 * printed, "of the sum, and at the delta that was promised"
        alone = replace(event, trials=event.trials // 100)
        assert cheapest(alone, 45, 1e-3) > 4 * printed, "of a message by itself"


@pytest.mark.parametrize("count", [1, 45])
def test_the_best_chance_is_better_than_its_neighbors(count):
    best = best_step_delta(MNIST, count, 1e-3)
    context = epsilon_of(replace(MNIST, step_delta=best), count, 1e-3)
    for other in (best * 10, best / 100):
        assert context <= epsilon_of(replace(MNIST, step_delta=other), count, 1e-3)


def test_there_is_no_renyi_price():
    assert epsilon_of(MNIST, 3, 1e-3, "rdp") == math.inf
    assert np.isinf(accountant.rdp_at(MNIST, [2, 4])).all()


def test_too_few_trials_are_refused_with_the_number_that_would_do():
    few = replace(MNIST, trials=70)
    with pytest.raises(
        UnsupportedMechanismError, match=r"at least \d+ trials for 17 levels in 21840 coordinates, found 70: "
    ) as broadcast:
        PrivacyLoss().add(few)
    needed = int(str(broadcast.value).split()[3])
    assert loss(replace(few, trials=needed)).rho > 0
    with pytest.raises(UnsupportedMechanismError):
        loss(replace(few, trials=needed - 1))
    assert best_step_delta(few, 1, 1e-3) > 0, "and to be asked for the best chance is no error"


def test_the_event_survives_being_written_down():
    assert from_json(to_json(MNIST)) == MNIST
    assert to_json(MNIST)["kind"] == "binomial_sum"
    assert common_adjacency([MNIST]) is Adjacency.REPLACE_ONE
    assert pricing_of(MNIST).protects
    assert MNIST.noise_multiplier == pytest.approx(math.sqrt(7114) / 16)
    assert trials_for(MNIST.noise_multiplier, 1.0, 1.0, 17) == 7114


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("levels", 1),
        ("trials", 0),
        ("trials", 7.5),
        ("clip_norm", 0.0),
        ("range", math.inf),
        ("dimension", 0),
        ("sampling_rate", 1.5),
        ("step_delta", 0.0),
        ("step_delta", 0.5),
    ],
)
def test_a_nonsensical_event_is_refused(field, wrong):
    with pytest.raises(CloisterError, match=f"{field}|delta"):
        replace(MNIST, **{field: wrong})
