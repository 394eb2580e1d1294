"""Draws that protect somebody: none is made twice, none follows from another, and large ones are as good as small ones.

Draws of the system (secure) are unseeded. What is asked of them fails without cause with probability below 1e-8 in
each test: see `draws` for a single question.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import cloister as cl
from cloister.client import poisson_batches
from cloister.client.poisson_batches import StepNoise
from cloister.core import Method, Sensitivity
from cloister.engine import Loop, Vectorized
from cloister.privacy.ledger import Ledger
from cloister.random import binomial
from cloister.random.binomial import fair_coins
from cloister.random.discrete_gaussian import discrete_gaussian
from cloister.random.rounded_normal import rounded_normal
from cloister.random.streams import Streams
from cloister.round import run_round
from conftest import federation, share, toy_task
from contract.audit import only_noise, priced_noise, released
from contract.catalogue import METHODS, cohorts_for, fed_of, quick
from draws import Recording, block_off_by, comes_again, shift_of

CPU = torch.device("cpu")
MANY = 2**18 + 4097  # more than any block in which something is drawn, and odd

Source = Callable[[Streams, int], torch.Tensor]
NORMAL: dict[str, tuple[Source, float]] = {
    "float32": (lambda s, n: s.protective_normal(torch.empty(n), "noise", 1, 2), 1.0),
    "float64": (lambda s, n: s.protective_normal(torch.empty(n).double(), "noise", 1, 2), 1.0),
    "rounded": (lambda s, n: rounded_normal(n, 2.0**24, s, "noise", 1, 2).long(), 2.0**24),
    "whole": (lambda s, n: discrete_gaussian(n, 3000.5, s, CPU, "noise", 1, 2), 3000.5),
    "coins": (lambda s, n: fair_coins(n, 40_000, s, CPU, "noise", 1, 2) - 20_000, 100.0),
}
OTHERS: dict[str, Source] = {
    "uniform": lambda s, n: s.protective_uniform(n, "cohort", 1),
    "bits": lambda s, n: s.protective_bits(n, CPU, "noise", 1),
    "words": lambda s, n: s.protective_words(n, "noise", 1),
    "integers": lambda s, n: s.protective_integers(n, 2**40 + 3, "cohort", 1),
}
EVERY = {**{name: source for name, (source, _) in NORMAL.items()}, **OTHERS}
SOURCES = [pytest.param(Streams(3, secure), id="secure" if secure else "seeded") for secure in (False, True)]


@pytest.mark.parametrize("streams", SOURCES)
@pytest.mark.parametrize("name", EVERY)
def test_a_long_draw_does_not_repeat_itself_and_has_its_scale_in_every_part(name, streams):
    """False alarms of secure draws: below 6e-9."""
    found = EVERY[name](streams, MANY).numpy()
    assert not comes_again(found), "the same numbers occur twice"
    assert shift_of(found) is None, "some numbers follow from others"
    again = EVERY[name](streams, MANY).numpy()
    if streams.secure:
        assert abs(np.corrcoef(found, again)[0, 1]) < 8 / np.sqrt(MANY), "what is secure does not follow from its place"
    else:
        assert np.array_equal(found, again)
    if name in NORMAL:
        scale = NORMAL[name][1]
        assert block_off_by(found, scale) is None
        assert block_off_by(found, 1.2 * scale) is not None, "a scale that is a little off is noticed"


@pytest.mark.parametrize("streams", SOURCES)
@pytest.mark.parametrize("name", ["float32", "float64", "uniform", "integers"])
def test_draws_of_all_lengths_are_whole(name, streams):
    """Odd ones, and those around powers of two. False alarms of secure draws: four zeros, or four equal ones, in 24
    ends, of 40 bits and more each: below 1e-30."""
    for power in (0, 1, 4, 12, 15, 16, 17, 18):
        for length in (2**power - 1, 2**power, 2**power + 1):
            found = EVERY[name](streams, length)
            assert len(found) == length
            assert length < 4 or len(set(found[-4:].tolist())) > 1
            assert length < 4 or name == "uniform" or bool(found[-4:].any())


def spoiled(how: str, numbers: np.ndarray) -> np.ndarray:
    """A long draw with something wrong with it."""
    half = len(numbers) // 2
    first, later = numbers[:half], numbers[half:]
    if how == "a short repetition":
        return np.concatenate([numbers[:-2000], numbers[70_001:72_001]])
    if how == "repeated from 131,072 on":
        return np.resize(numbers[:131_072], len(numbers))
    if how == "negated":
        return np.concatenate([first, -first, later[:1]])
    if how == "mirrored":
        return np.concatenate([first, first[::-1], later[:1]])
    return np.concatenate([first, 0.3 * first + 0.95 * later[: len(first)]])  # a little of it comes again


@pytest.mark.parametrize("how", ["a short repetition", "repeated from 131,072 on", "negated", "mirrored", "a little"])
def test_what_repeats_itself_is_noticed(how):
    numbers = spoiled(how, np.random.default_rng(0).standard_normal(MANY))
    assert shift_of(numbers) is not None or comes_again(numbers)
    assert comes_again(numbers) == (how in ("a short repetition", "repeated from 131,072 on", "negated"))


def test_what_was_not_filled_is_noticed_and_sums_that_cancel_are_not():
    numbers = np.random.default_rng(0).standard_normal(MANY).astype(np.float32)
    numbers[[100, 9000, -2]] = 0
    assert block_off_by(numbers, 1.0) is None
    for not_filled in (slice(5, 8), slice(-2, None)):
        spoiled = numbers.copy()
        spoiled[not_filled] = 0
        assert block_off_by(spoiled, 1.0) is not None


def wide(method: Method, dtype: torch.dtype, secure: bool = False, outputs: int = 240):
    """A federation whose model has more numbers than any block: nobody has data, so that a round releases noise."""
    task = toy_task(sizes=(2, 1, 3), features=1100)
    torch.manual_seed(0)
    fed, w = federation(method, cl.full(), task=task, model=nn.Linear(1100, outputs), dtype=dtype, secure=secure)
    return only_noise(fed), torch.zeros_like(w)


WIDE = {"clip_norm": 0.5, "lr": 0.1, "batch_size": 4, "local_steps": 1, "noise_multiplier": 1.3}


@pytest.mark.parametrize(("dtype", "secure"), [(torch.float32, False), (torch.float64, False), (torch.float32, True)])
@pytest.mark.parametrize("place", ["central", "distributed"])
def test_the_noise_of_a_large_model_is_fresh_in_every_part_and_round(place, dtype, secure):
    """False alarms of the secure one: below 4e-9."""
    fed, w = wide(cl.methods.dp_fedavg(**WIDE, noise=place), dtype, secure)
    both = torch.cat([released(run_round, fed, w, round) for round in (1, 2)]).numpy()
    assert len(both) > 2**19
    assert shift_of(both) is None
    assert block_off_by(both, priced_noise(fed), grid=fed.grid is not None) is None


def test_whole_noise_of_a_large_model_is_fresh_in_every_part_and_round():
    fed, w = wide(cl.methods.ddgauss(**WIDE), torch.float64, outputs=120)
    both = torch.cat([released(run_round, fed, w, round) for round in (1, 2)]).long().numpy()
    assert len(both) == 2 * fed.event.dimension == 2**19, "every number that is sent is priced"
    assert shift_of(both) is None
    assert block_off_by(both, priced_noise(fed)) is None


def test_coins_of_a_large_model_are_fresh_for_every_client_and_round():
    fed, w = wide(cl.methods.cpsgd(batch_size=4, value_range=1.0, noise_multiplier=5.0), torch.float64, outputs=120)
    mechanism, like = fed.method.mechanism, fed.blank(w, {"1": {"signs": torch.ones(2**18)}})
    assert like.numel() == fed.sensitivity.length == 2**18, "every number that is sent is priced"
    drawn = [
        share(mechanism, fed.streams, like, fed.sensitivity, r, c, 3) for r, c in ((1, 0), (1, 1), (2, 0), (1, -1))
    ]
    together = torch.corrcoef(torch.stack(drawn).double()) - torch.eye(4)
    assert together.abs().max() < 8 / np.sqrt(2**18)
    assert block_off_by(drawn[0].numpy(), mechanism.settings["trials"] ** 0.5 / 2) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1000, 70_000, 2**18])
def test_step_noise_is_fresh_in_every_step_block_client_and_round(size, dtype):
    """Sizes for which a block has many steps, some, and one; the last block is a short one."""
    steps = 2**18 // 1000 + 2 if size == 1000 else 5
    found = []
    for round in (1, 2):
        noise = StepNoise(
            Streams(1), round, [(0, 1.0, steps), (7, 2.0, 3), (1, 0.5, steps)], torch.empty(size).to(dtype), 3
        )
        for step in (0, 1, 2, 3, steps - 2, steps - 1) if size == 1000 else range(steps):
            for place, scale in enumerate((1.0, 2.0, 0.5)):
                drawn = noise.at(step)[place] / scale
                if place == 1 and step >= 3:
                    assert not drawn.any(), "who does not take a step has no noise in it"
                else:
                    assert block_off_by(drawn.numpy(), 1.0, block=65_536) is None
                    found.append(drawn)
    together = torch.corrcoef(torch.stack(found).double()) - torch.eye(len(found))
    assert together.abs().max() < 8 / np.sqrt(size)
    assert len({tuple(drawn[:4].tolist()) for drawn in found}) == len(found)


@pytest.mark.parametrize("ahead", [2**18, 3700, 1])
def test_noise_of_many_steps_adds_up_as_it_was_priced(ahead, monkeypatch):
    """Whatever a block is: were noise used again in another block, sums over steps would have more than their share."""
    monkeypatch.setattr(poisson_batches, "AHEAD", ahead)
    method = cl.methods.pfl(clip_norm=0.5, lr=1.0, batch_size=2, local_epochs=3, momentum=0.0, noise_multiplier=1.3)
    task = toy_task(sizes=(7, 5, 1), features=600)
    task = replace(task, population=replace(task.population, inputs=task.population.inputs * 0))
    for engine in (Loop(), Vectorized(chunk=2)):
        fed, w = federation(method, task=task, model=nn.Linear(600, 3, bias=False))
        ledger = Ledger.create(None, "test", {})
        outcome = run_round(fed, ledger, engine, 1, w, fed.method.init(w))
        paid = {entry.unit: (entry.count, entry.event.sampling_rate) for entry in ledger.entries}
        assert [steps for steps, _ in paid.values()] == [12, 9, 3]
        lots_sum = sum(
            steps / (sampling_rate * n) ** 2 for (steps, sampling_rate), n in zip(paid.values(), (7, 5, 1), strict=True)
        )
        scale = 1.3 * 0.5 * lots_sum**0.5 / 3
        assert block_off_by((outcome.w - w).numpy(), scale, block=600) is None
        assert block_off_by((outcome.w - w).numpy(), 1.3 * scale, block=600) is not None


@pytest.mark.parametrize("name", quick(METHODS))
def test_nothing_is_drawn_twice_and_engines_draw_the_same(name):
    """Over rounds, clients, phases, steps and blocks; what everybody could draw protects nobody."""
    nothing_twice(name, rounded=False)


@pytest.mark.parametrize("name", ["dp_fedavg", "pfl", "fed_spa"])
def test_nothing_is_drawn_twice_on_a_grid(name):
    nothing_twice(name, rounded=True)


def nothing_twice(name: str, rounded: bool) -> None:
    cohort, seen = next(iter(cohorts_for(name).values())), []
    for engine in (Loop(), Vectorized(chunk=3)):
        fed, w = fed_of(METHODS[name](), cohort)
        streams = Recording(3)
        fed, state = replace(fed, streams=streams, rounded=rounded), fed.method.init(w)
        for number in (1, 2, 3):
            w, state, *_ = run_round(fed, Ledger.create(None, "test", {}), engine, number, w, state)
        streams.expect_sound()
        seen.append({key: what for key, what in streams.drawn.items() if what[1]})
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("method", "cohort"),
    [
        (cl.methods.dp_fedavg(clip_norm=0.1, local_steps=1, noise_multiplier=1.0), cl.poisson(0.6)),
        (cl.methods.dp_fedavg(clip_norm=0.1, local_steps=1, noise_multiplier=1.0), cl.fixed_size(3)),
        (cl.methods.pfl(clip_norm=0.1, batch_size=2, local_epochs=2, noise_multiplier=1.0), cl.full()),
        (
            cl.methods.fed_spa(
                clip_norm=0.1, batch_size=2, local_steps=5, noise_multiplier=1.0, batch_sampling="fixed_size"
            ),
            cl.full(),
        ),
        (cl.methods.cpsgd(batch_size=2, noise_multiplier=20.0), cl.full()),
    ],
    ids=["poisson cohorts", "fixed cohorts", "poisson batches", "fixed batches", "one batch"],
)
def test_who_runs_out_of_draws_gets_new_ones(method, cohort):
    fed, w = federation(method, cohort)
    streams = Recording(3, mean=True)
    fed = replace(fed, streams=streams)
    for number in (1, 2):
        run_round(fed, Ledger.create(None, "test", {}), Loop(), number, w, fed.method.init(w))
    streams.expect_sound()
    kind = "cohort" if method.unit == "client" else "poisson batch"
    assert max(key[-1] for key in streams.drawn if key[0] == kind) > 0, "somebody asked again"


class Undecided(Recording):
    """Bits that leave every draw of whole noise open, so that more are asked for."""

    def protective_bits(self, count, device, purpose, *position):
        found = super().protective_bits(count, device, purpose, *position)
        return found if purpose.endswith("/more") else torch.full_like(found, self.seed)


@pytest.mark.parametrize(
    "draw",
    [
        lambda s, *place: discrete_gaussian(20, 5.0, s, CPU, "noise", *place),
        lambda s, *place: fair_coins(20, 300, s, CPU, "noise", *place),
    ],
    ids=["whole", "coins"],
)
def test_bits_that_settle_a_draw_are_its_own(draw, monkeypatch):
    from cloister.random import discrete_gaussian as whole

    monkeypatch.setattr(binomial, "_AT_ONCE", 128)
    bits = (
        whole._thresholds(5.0, 63)[30]
        if draw(Streams(0), 1, 1).abs().max() < 100
        else binomial._thresholds(128, 63)[60]
    )
    streams = Undecided(bits)
    for place in ((1, 0), (1, 1), (2, 0)):
        draw(streams, *place)
    settled = [key for key in streams.drawn if key[0] == "noise/more"]
    assert len(settled) >= 60


def test_places_in_a_run_have_draws_of_their_own():
    """Any two of many places, for all kinds of draws: purpose, round, client, and what is below."""
    places = [
        (p, *at)
        for p in ("noise", "poisson batch")
        for at in ((), (0,), (1,), (1, 0), (0, 1), (1, 1), (1, 1, 0), (11, 1))
    ]
    places += [("noise", 1, 1, 1), ("noise", 1, 11), ("noise", 1, 1, 0, 0), ("noise", 1, 1, 0, 1), ("noise", -1, 1)]
    for name, draw in {
        "normal": lambda s, *at: s.protective_normal(torch.empty(4).double(), *at),
        "float32": lambda s, *at: s.protective_normal(torch.empty(4), *at),
        "uniform": lambda s, *at: s.protective_uniform(4, *at),
        "integers": lambda s, *at: s.protective_integers(4, 2**40, *at),
        "bits": lambda s, *at: s.protective_bits(4, CPU, *at),
        "words": lambda s, *at: s.protective_words(4, *at),
        "rounded": lambda s, *at: rounded_normal(4, 2.0**24, s, *at),
    }.items():
        runs = [Streams(0), Streams(1), Streams(0, run="a"), Streams(0, run="b")]
        seen = {tuple(draw(streams, *at).tolist()) for streams in runs for at in places}
        assert len(seen) == len(runs) * len(places), name


def test_threads_have_generators_of_their_own():
    """Were they shared, one draw in ten would be torn: of so many, one certainly."""
    streams, wrong = Streams(5), []
    like = {torch.float32: torch.empty(40_001), torch.float64: torch.empty(20_001).double()}
    drawing = _drawing(like)
    expected = {(name, place): draw(streams, place) for name, draw in drawing.items() for place in range(12)}

    def work(first: int) -> None:
        for turn in range(4):
            for place in range(12):
                at = (place + 3 * first + turn) % 12
                for name, draw in drawing.items():
                    if not torch.equal(draw(streams, at), expected[name, at]):
                        wrong.append((name, at))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong, f"{len(wrong)} draws are torn"


def _drawing(like: dict[torch.dtype, torch.Tensor]) -> dict[str, Source]:
    return {
        "float32": lambda s, at: s.protective_normal(like[torch.float32], "noise", at),
        "float64": lambda s, at: s.protective_normal(like[torch.float64], "noise", at),
        "uniform": lambda s, at: s.protective_uniform(20_000, "cohort", at),
        "integers": lambda s, at: s.protective_integers(20_000, 1000, "cohort", at),
        "bits": lambda s, at: s.protective_bits(20_000, CPU, "noise", at),
        "words": lambda s, at: s.protective_words(20_000, "noise", at),
        "rounded": lambda s, at: rounded_normal(20_000, 2.0**24, s, "noise", at),
        "subset": lambda s, at: s.subset(500, 1000, CPU, "mask", at),
        "signs": lambda s, at: s.signs(20_000, like[torch.float32], "signs", at),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_noise_is_the_same_however_many_threads_draw_it(dtype, monkeypatch):
    def drawn() -> list[torch.Tensor]:
        noise = StepNoise(Streams(1), 1, [(c, 1.0 + c, 4) for c in range(6)], torch.empty(30_001).to(dtype), 7)
        return [noise.at(step).clone() for step in range(4)]

    alone = drawn()
    monkeypatch.setattr(poisson_batches, "_WORTH_THREADS", 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(5):
            assert all(torch.equal(a, b) for a, b in zip(drawn(), alone, strict=True))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("place", ["central", "distributed"])
def test_the_law_of_a_share_does_not_depend_on_the_numbers_type(place):
    mechanism = cl.mechanisms.gaussian(1.3, place)
    for dtype in (torch.float32, torch.float64):
        part = share(mechanism, Streams(2), torch.empty(100_001, dtype=dtype), Sensitivity(0.5), 3, 1, 4)
        scale = 0.65 / (1 if place == "central" else 2)
        if place == "central":
            part = share(mechanism, Streams(2), torch.empty(100_001, dtype=dtype), Sensitivity(0.5), 3, -1, 1)
        assert stats.kstest(part.double().numpy() / scale, "norm").pvalue > 1e-4
        assert stats.kstest(part.double().numpy() / scale * 1.05, "norm").pvalue < 1e-4


def test_noise_of_a_step_is_never_left_over_from_the_steps_before(monkeypatch):
    """Blocks share memory: who has fewer steps, and places that nobody fills, have zeros in every block."""
    monkeypatch.setattr(poisson_batches, "AHEAD", 2 * 5)
    streams, like = Streams(3), torch.empty(5)

    def alone(client, scale, steps):
        """Each step asked for by itself, of an object that has drawn nothing before."""
        return [StepNoise(streams, 4, [(client, scale, steps)], like, 1).at(step)[0] for step in range(steps)]

    sources = [(0, 1.0, 7), (6, 2.0, 3), (2, 0.5, 4)]
    noise, expected = StepNoise(streams, 4, sources, like, 5), [alone(*source) for source in sources]
    for step in range(7):
        drawn = noise.at(step)
        for place, own in enumerate(expected):
            assert torch.equal(drawn[place], own[step] if step < len(own) else torch.zeros(5))
        assert not drawn[3:].any()
