"""From what a user asks for to a federation that is ready to run. Everything that can be refused is refused here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor, nn

from cloister.client.objective import explained, objective_of
from cloister.client.population import Population
from cloister.core import Batch, Objective, Samples
from cloister.core.hashing import hash_of
from cloister.core.precision import expect_precision
from cloister.errors import CloisterError, expect_type
from cloister.privacy.budgets import Budget
from cloister.privacy.description import RunDescription
from cloister.privacy.ledger import Ledger
from cloister.random.streams import Streams
from cloister.round.bind import Federation, bind
from cloister.runs.description import describe_run, made_of_noise
from cloister.runs.evaluate import Score, scorer
from cloister.runs.noise import Noise, expect_small_delta
from cloister.runs.request import DTYPES, Request
from cloister.runs.terms import Terms


@dataclass(frozen=True)
class Ready:
    """A federation, the model it starts from, and the description that certifies it."""

    fed: Federation
    module: nn.Module
    w: Tensor
    score: Callable[[Tensor], Score]
    description: RunDescription
    fingerprint: str
    """Of the data; never part of what is published."""

    def model_at(self, w: Tensor) -> nn.Module:
        """The module with these parameters."""
        return self.fed.objective.layout.load(self.module, w.to(self.w.device)).eval()


@dataclass(frozen=True)
class Placed:
    """Model and data on the device, in the dtype that was asked for."""

    module: nn.Module
    w: Tensor
    objective: Objective
    population: Population
    public_samples: Samples | None
    streams: Streams


def prepare(request: Request, known: RunDescription | None = None) -> Ready:
    """Check, calibrate and describe. `known` is the description of a run that is being resumed."""
    placed = _place(request)
    fed, noise = _federation(request, placed, known)
    if not request.options.allow_large_delta:
        expect_small_delta(request.delta, noise, fed.population.counts.tolist())
    _expect_a_round(fed, noise.budgets)
    description = describe_run(request, fed, placed.w, noise.budgets)
    fingerprint = request.task.fingerprint()
    fed = _with_own_noise(fed, placed.w, description, fingerprint)
    score = scorer(placed.module, placed.objective.layout, request.task, placed.w)
    return Ready(fed, placed.module, placed.w, score, description, fingerprint)


def _place(request: Request) -> Placed:
    """Model and data where they are computed with."""
    task, options = request.task, request.options
    device, dtype = _device(options.device), DTYPES[options.dtype]
    expect_precision(options.precision, device, dtype)
    streams = Streams(options.seed, secure=options.secure_rng)
    model = request.model if request.model is not None else task.model
    module = _module(model, streams).to(device, dtype).train()
    people = task.population.to(device, dtype)
    objective = objective_of(module, task.loss, people.inputs[:2], people.labels[:2], task.classes, task.preprocessing)
    public_samples = None if task.public_samples is None else _moved(task.public_samples, device, dtype)
    return Placed(
        module, objective.layout.flatten(dict(module.named_parameters())), objective, people, public_samples, streams
    )


def _federation(request: Request, placed: Placed, known: RunDescription | None) -> tuple[Federation, Noise]:
    """The federation with calibrated noise."""
    task, population = request.task, placed.population
    terms = Terms(
        request.cohort,
        request.rounds,
        placed.objective.layout,
        task.population.counts.tolist(),
        task.copies,
        placed.public_samples,
        cache(partial(_norms_on_noise, placed.objective, placed.w, population)),
    )
    noise = terms.noise(request.method, request.epsilon, request.delta, known)
    fed = bind(
        terms.complete(noise.method),
        request.cohort,
        placed.objective,
        population,
        placed.streams,
        placed.w,
        request.options.precision,
        placed.public_samples,
        noise.multipliers,
        task.copies,
    )
    return fed, noise


def _with_own_noise(fed: Federation, w: Tensor, description: RunDescription, fingerprint: str) -> Federation:
    """Two runs that differ in anything must not share their noise: the difference would lay bare the signal.

    A GPU may round differently the next time (kernels are chosen by timing), so nothing there counts as repeatable.
    """
    run = hash_of({"w": w}, f"{description.configuration_hash} {fingerprint}")
    return replace(fed, streams=replace(fed.streams, run=run, repeatable=w.device.type == "cpu"))


def _expect_a_round(fed: Federation, budgets: Mapping[str, Budget]) -> None:
    """Refuse what has no price, and budgets that do not pay for one round of anybody."""
    charges = fed.charges(list(range(fed.population.clients)))
    if not charges:
        raise CloisterError("Expected some client to have samples, found none: check the data.")
    ledger = Ledger.create(None, "trial", budgets)
    refused = ledger.charge_each(charges, round=1, repeatable=True)
    if len(refused) == len(charges):
        raise CloisterError(
            f"Expected a budget that pays for one round at least, found epsilon "
            f"{next(iter(budgets.values())).epsilon:g} with noise multiplier "
            f"{fed.method.mechanism.noise_multiplier:g}: leave the multiplier out to calibrate it."
        )


def _norms_on_noise(objective: Objective, w: Tensor, population: Population) -> Tensor:
    """The norms of the gradients of samples made of noise: what a threshold may start from without asking anybody."""
    random = torch.Generator().manual_seed(0)
    inputs = made_of_noise(population, _NOISE_SAMPLES, random)
    labels = population.labels[:1].repeat(_NOISE_SAMPLES, *[1] * (population.labels.dim() - 1)) * 0
    real = torch.ones(_NOISE_SAMPLES, dtype=torch.bool, device=w.device)
    key = torch.zeros((), dtype=torch.int64, device=w.device)
    batch = Batch(inputs, labels, real, real.sum(), key, real.any(), w.new_empty(0))
    return objective.clipped(w, batch, 1.0)[1]


_NOISE_SAMPLES = 64


def _moved(samples: Samples, device: torch.device, dtype: torch.dtype) -> Samples:
    inputs, labels = samples
    return inputs.to(device, dtype if inputs.is_floating_point() else None), labels.to(device)


def _module(model: nn.Module | Callable[[], nn.Module], streams: Streams) -> nn.Module:
    """A module of our own: a copy of the user's, or a new one initialized from the run's seed."""
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
