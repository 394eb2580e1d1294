"""An audit: the method is played many times with and without a canary, and somebody guesses which was which."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

import torch
from torch import Tensor

from cloister.auditing import canary_clients, families
from cloister.auditing.bounds import at_least, best_threshold, from_rates
from cloister.auditing.canary_samples import Player
from cloister.auditing.found import ANY, FAMILY, GDP, Audit, LowerBound
from cloister.auditing.likelihood import Seen, Test, fitted
from cloister.auditing.worst_case import PUBLIC, Audited, Terms, audited
from cloister.core import Cohort, Method
from cloister.data.task import Task
from cloister.errors import expect, expect_count, expect_one_of, expect_share, expect_type
from cloister.privacy.unit import ProtectedUnit
from cloister.runs.request import Options, Request
from cloister.server.cohorts import full

Kind = Literal["worst_case", "one_run", "one_shot"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Progress = Callable[[str, int, int], None]
"""(what is done, how many of its steps are, how many it has)"""

TUNED = 0.2
"""Share of the trials on which the test and its threshold are chosen; they are not counted."""
SURE = 0.9999
"""The confidence of a second audit, where the first one found more than is certified."""
_USUAL_CLIENTS, _USUAL_SIZE = 10, 100


def _quiet(what: str, done: int, of: int) -> None:
    pass


def audit(
    method: Annotated[Method, "what is audited"],
    task: Annotated[Task | None, "whose clients and sizes; without it, `clients` and `sizes`"] = None,
    *,
    rounds: Annotated[int, "number of rounds"] = 1,
    cohort: Annotated[Cohort | None, "who takes part in a round (by default all clients)"] = None,
    epsilon: Annotated[float | None, "what the noise is calibrated to, where the method leaves it open"] = None,
    delta: Annotated[float, "at which epsilon is certified, and bounded from below"] = 1e-5,
    clients: Annotated[int, "number of clients"] = _USUAL_CLIENTS,
    sizes: Annotated[int | list[int], "samples of every client, where samples are protected"] = _USUAL_SIZE,
    trials: Annotated[int, "short runs, half of them with the canary; or canaries in one run"] = 10_000,
    confidence: Annotated[float, "that a lower bound is not above the true epsilon"] = 0.95,
    kinds: Annotated[Sequence[Kind], "worst_case, one_run, one_shot"] = ("worst_case",),
    seed: Annotated[int, "of everything random"] = 0,
    secure_rng: Annotated[bool, "draw cohorts and noise from the operating system, as a run with it would"] = False,
    device: Annotated[str, "cpu, cuda, ..."] = "cpu",
    dtype: Annotated[str, "float32 or float64"] = "float32",
    progress: Annotated[Progress, "told of every step"] = _quiet,
) -> Audit:
    """Lower bounds on the epsilon that a method really spends, beside the upper bound that its ledger certifies.

    The worst case is audited: the attacker chooses data and model, and sees all that a certificate covers. Who wants to
    know what a run on data of one's own gives away audits those with `kinds=["one_run"]` and a task.

    A lower bound above the certificate is confirmed by a second audit before anybody is told that it is wrong.

    >>> from cloister.methods import dp_fedavg
    >>> found = audit(dp_fedavg(clip_norm=1.0, local_steps=1), epsilon=4.0, trials=2000)
    >>> 2 < found.lower < found.certified < 4.001
    True
    """
    expect_type("method", method, Method, "a Method such as cloister.methods.dp_fedavg(...)")
    expect_count("trials", trials, "some thousands, half of which have a canary", least=20)
    expect_share("confidence", confidence, "0.95 is usual")
    expect(bool(kinds), "a kind of audit", "none", f"choose among {', '.join(KINDS)}")
    for kind in kinds:
        expect_one_of("kind", kind, KINDS)
    options = Options(seed=seed, secure_rng=secure_rng, device=device, dtype=dtype)
    terms = _terms(method, task, rounds, full() if cohort is None else cohort, epsilon, delta, clients, sizes, options)
    ready = audited(terms, seed)
    asked = _Asked(terms, trials, confidence, task, progress)
    bounds = tuple(_bound(kind, asked, ready, seed) for kind in kinds)
    found = Audit(
        method.name,
        str(method.unit),
        "replace one" if ready.replaces else "add or remove one",
        ready.rounds,
        ready.fed.noise_of(0) if ready.fed.multipliers else ready.fed.method.mechanism.noise_multiplier,
        delta,
        ready.certified,
        bounds,
    )
    if not found.above:
        return found
    surer = replace(asked, confidence=max(confidence, SURE))
    worst = max((one for one in bounds if one.confidence is not None), key=lambda one: one.epsilon)
    again = audited(terms, seed + 1)
    kind = next(kind for kind in KINDS if kind == worst.kind)
    return replace(found, confirmation=_bound(kind, surer, again, seed + 1))


@dataclass(frozen=True)
class _Asked:
    terms: Terms
    trials: int
    confidence: float
    task: Task | None
    progress: Progress


def _bound(kind: Kind, asked: _Asked, ready: Audited, seed: int) -> LowerBound:
    started = time.perf_counter()
    if kind == "worst_case":
        found = worst_case(ready, asked.trials, asked.confidence, asked.terms.delta, asked.progress)
    else:
        from cloister.auditing import one_run

        audit_one = one_run.one_run if kind == "one_run" else one_run.one_shot
        found = audit_one(asked.terms, ready, asked.task, asked.trials, asked.confidence, seed, asked.progress)
    return replace(found, seconds=time.perf_counter() - started)


def worst_case(ready: Audited, trials: int, confidence: float, delta: float, progress: Progress = _quiet) -> LowerBound:
    """A lower bound from many short runs with a canary that uses all of the bound, half of them without it.

    Guesses become epsilon in two ways: by how many were right, on the curves that the charged releases have, and by
    the rates at a threshold of their own, which presume nothing. Each has half of the chance to be wrong, so that the
    larger one may be taken. Where no curves are known, rates have all of it.
    """
    tuning = max(int(TUNED * trials) // 2 * 2, 4)
    counted = max((trials - tuning) // 2 * 2, 2)
    test, threshold, seen = scored(ready, tuning, counted, confidence, delta, progress)
    score, each, known = test.score(seen.shown), counted // 2, families.known(ready.releases)
    miss = (1 - confidence) / (2 if known else 1)

    def counts(threshold: float) -> tuple[int, int]:
        guessed = score > threshold
        return int((guessed & ~seen.world).sum()), int((guessed & seen.world).sum())

    alarms, hits = counts(threshold)
    epsilon, assumes = from_rates(alarms, each, hits, each, delta, miss), ANY
    details: dict[str, Any] = {"of_each": each, "tuned_on": tuning, "from_rates": epsilon}
    details |= {"false_positives": alarms, "true_positives": hits}
    wrong, found = counts(0.0)
    right = found + each - wrong
    if known:
        curve = by_curve(right, counted, ready, delta, miss)
        details["from_curve"] = curve
        if curve >= epsilon:
            epsilon, assumes = curve, GDP if families.gaussian(ready.releases) else FAMILY
    return LowerBound("worst_case", epsilon, confidence, assumes, counted, right, counted, 0.0, details)


def by_curve(right: int, guesses: int, ready: Audited, delta: float, miss: float) -> float:
    """The least that the charged releases cost, if so many guesses were right, but for a chance `miss`."""
    return families.epsilon_of(at_least(right, guesses, miss), ready.releases, delta)


def scored(
    ready: Audited, tuning: int, counted: int, confidence: float, delta: float, progress: Progress = _quiet
) -> tuple[Test, float, Seen]:
    """A test and a threshold that were chosen on trials of their own, and the trials that count."""
    fed, w, rounds = ready.fed, ready.w, ready.rounds
    done, of = [0], rounds * (2 if fed.unit is ProtectedUnit.CLIENT else 3)

    def tick() -> None:
        done[0] += 1
        progress("playing rounds", done[0], of)

    player = Player(rounds, tick)

    def play(runs: int, number: int) -> Seen:
        world = torch.arange(runs, device=w.device) % 2 == 1
        own = replace(fed, streams=replace(fed.streams, run=f"{fed.streams.run} part {number}"))
        if fed.unit is ProtectedUnit.SAMPLE:
            return player.play(own, w, world, ready.replaces)
        return canary_clients.play(own, w, rounds, world, ready.replaces, tick)

    first = play(tuning, 0)
    test = fitted(first, canary_clients.correlation_of(fed, w, rounds))
    threshold = _threshold(test.score(first.shown), first.world, confidence, delta)
    return test, threshold, play(counted, 1)


def _threshold(scores: Tensor, world: Tensor, confidence: float, delta: float) -> float:
    """Where rates would prove most on the tuning trials: few of them say little of the tails, and know it."""
    negative, positive = scores[~world].cpu().numpy(), scores[world].cpu().numpy()

    def worth(alarms: int, hits: int) -> float:
        return from_rates(alarms, len(negative), hits, len(positive), delta, 1 - confidence)

    return best_threshold(negative, positive, worth)


def _terms(
    method: Method,
    task: Task | None,
    rounds: int,
    cohort: Cohort,
    epsilon: float | None,
    delta: float,
    clients: int,
    sizes: int | list[int],
    options: Options,
) -> Terms:
    """What is audited: sizes are the task's, where there is one; the canary lies with the first client."""
    public = PUBLIC
    if task is not None:
        own = [size for size in task.population.counts.tolist() if size]
        public = PUBLIC if task.public_samples is None else len(task.public_samples[1])
    else:
        expect_count("clients", clients, "the number of clients")
        own = [sizes] * clients if isinstance(sizes, int) else list(sizes)
        for size in own:
            expect_count("sizes", size, "the number of a client's samples")
    typical = sorted(own)[len(own) // 2]
    Request(method, _any_task(task), rounds, cohort, epsilon, delta, None, options)  # refuses what is no question
    return Terms(method, cohort, rounds, epsilon, delta, (typical,) * len(own), options, public)


def _any_task(task: Task | None) -> Task:
    from cloister.auditing.worst_case import task_of

    return task_of([1]) if task is None else task
