"""From what a user asks for to a federation that is ready to run. Everything that can be refused is refused here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from cloister.batches import Population
from cloister.data.task import Task
from cloister.errors import (
    CloisterError,
    expect_type,
)
from cloister.experiments.description import describe_run, made_of_noise
from cloister.experiments.evaluate import Score, scorer
from cloister.experiments.identity import configuration_hash
from cloister.experiments.noise import People, Target, expect_small_delta, settle, with_noise
from cloister.experiments.request import DTYPES, expect_request
from cloister.federation import Federation, bill_of, event_of, fitted
from cloister.joints import Batch, Cohort, Method, Problem
from cloister.params import hash_of
from cloister.precision import expect_precision
from cloister.privacy.ledger import Budget, Charge, Ledger
from cloister.problem import explained, problem_of
from cloister.streams import Streams


@dataclass(frozen=True)
class Ready:
    """A federation, the model it starts from, and the description that certifies it."""

    fed: Federation
    module: nn.Module
    w: Tensor
    score: Callable[[Tensor], Score]
    budgets: dict[str, Budget]
    delta: float | None
    description: dict[str, Any]
    fingerprint: str
    """Of the data; never part of what is published."""


def prepare(
    method: Method,
    task: Task,
    *,
    rounds: int,
    cohort: Cohort,
    epsilon: Target,
    delta: float | None,
    model: nn.Module | Callable[[], nn.Module] | None,
    seed: int,
    randomness: str,
    device: str,
    dtype: str,
    precision: str = "exact",
    allow_large_delta: bool = False,
    known: Mapping[str, Any] | None = None,
) -> Ready:
    """Check, calibrate and describe. `known` is the description of a run that is being resumed."""
    expect_request(method, task, rounds, epsilon, delta, model, seed, randomness, device, dtype)
    expect_type("cohort", cohort, Cohort, "a Cohort such as cloister.poisson(0.5)")
    place, kind = _device(device), DTYPES[dtype]
    expect_precision(precision, place, kind)
    streams = Streams(seed, secure=randomness == "secure")

    module = _module(model if model is not None else task.model, streams).to(place, kind).train()
    population = task.population.to(place, kind)
    few = slice(0, 2)
    problem = problem_of(module, task.loss, population.inputs[few], population.labels[few], task.classes, task.view)
    public = None if task.public is None else _placed(task.public, place, kind)
    w = problem.layout.flatten(dict(module.named_parameters()))
    norms = cache(partial(_norms_on_noise, problem, w, population))
    complete = partial(fitted, cohort=cohort, layout=problem.layout, clients=task.clients, public=public, norms=norms)
    price = partial(event_of, cohort=cohort, layout=problem.layout, clients=task.clients)

    def bill(method: Method, multiplier: float, samples: int) -> Charge:
        return bill_of(complete(with_noise(method, multiplier)), multiplier, samples, task.copies)

    counts = task.population.counts.tolist()
    # Cohorts that are everybody on average are everybody always; that they are in all likelihood does not suffice.
    all_come = cohort.expected(task.clients) == task.clients
    noise = settle(
        method,
        lambda known: price(complete(known)),
        cohort.releases(rounds, task.clients),
        People(counts, cohort.turns(rounds, task.clients), bill, task.copies > 1, all_come),
        epsilon,
        delta,
        known,
    )
    fed = Federation(
        complete(noise.method), cohort, problem, population, streams, precision, public, noise.multipliers, task.copies
    )
    if not allow_large_delta:
        expect_small_delta(delta, noise, counts)
    method, budgets = fed.method, noise.budgets
    fed.expect_composed(w)
    _expect_a_round(fed, budgets)
    description = describe_run(
        fed, task, w, budgets, rounds=rounds, delta=delta, seed=seed, randomness=randomness, dtype=dtype
    )
    # Two runs that differ in anything must not share their noise: the difference would lay bare the signal.
    # A GPU may round differently the next time (kernels are chosen by timing), so nothing there counts as repeatable.
    fingerprint = task.fingerprint()
    run = hash_of({"w": w}, f"{configuration_hash(description)} {fingerprint}")
    fed = replace(fed, streams=replace(streams, run=run, repeatable=place.type == "cpu"))
    score = scorer(module, problem.layout, task, w)
    return Ready(fed, module, w, score, budgets, delta, description, fingerprint)


def _expect_a_round(fed: Federation, budgets: Mapping[str, Budget]) -> None:
    """Refuse what has no price, and budgets that do not pay for one round of anybody."""
    bills = fed.bills(list(range(fed.population.clients)))
    if not bills:
        raise CloisterError("Expected some client to have samples, found none: check the data.")
    ledger = Ledger.create(None, "trial", budgets)
    refused = ledger.charge_each(bills, round=1, repeatable=True)
    if len(refused) == len(bills):
        raise CloisterError(
            f"Expected a budget that pays for one round at least, found epsilon "
            f"{next(iter(budgets.values())).epsilon:g} with noise multiplier "
            f"{fed.method.mechanism.noise_multiplier:g}: leave the multiplier out to calibrate it."
        )


def _norms_on_noise(problem: Problem, w: Tensor, population: Population) -> Tensor:
    """The norms of the gradients of samples made of noise: what a threshold may start from without asking anybody."""
    random = torch.Generator().manual_seed(0)
    inputs = made_of_noise(population, _NOISE_SAMPLES, random)
    labels = population.labels[:1].repeat(_NOISE_SAMPLES, *[1] * (population.labels.dim() - 1)) * 0
    real = torch.ones(_NOISE_SAMPLES, dtype=torch.bool, device=w.device)
    key = torch.zeros((), dtype=torch.int64, device=w.device)
    batch = Batch(inputs, labels, real, real.sum(), key, real.any(), w.new_empty(0))
    return problem.clipped(w, batch, 1.0)[1]


_NOISE_SAMPLES = 64


def _placed(samples: tuple[Tensor, Tensor], place: torch.device, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    inputs, labels = samples
    return inputs.to(place, kind if inputs.is_floating_point() else None), labels.to(place)


def _module(model: nn.Module | Callable[[], nn.Module], streams: Streams) -> nn.Module:
    """A module of our own: a copy of the user's, or a new one initialised from the run's seed."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key("init") & (2**63 - 1))
        try:
            with explained("a model that can be made"):
                made = model()
        except (CloisterError, MemoryError) as error:
            if not isinstance(error, MemoryError) and "allocate" not in str(error):
                raise
            raise CloisterError(
                "Expected a model that fits into memory, found none: choose a smaller one, or fewer classes."
            ) from error
    expect_type("what model() makes", made, nn.Module, "a torch module", "return one")
    return made


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CloisterError(
            f"Expected a device that torch can use here, found {name!r}: use cpu, or install a torch build for it."
        ) from error
    return device
