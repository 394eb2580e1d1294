"""From what a user asks for to a federation that is ready to run. Everything that can be refused is refused here."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from cloister.batches import Population
from cloister.data.task import Task
from cloister.engine import Loop
from cloister.errors import CloisterError, expect, expect_count, expect_delta
from cloister.experiments.evaluate import Score, scorer
from cloister.experiments.folder import configuration_hash
from cloister.federation import Federation, event_of, fitted, rehearsal
from cloister.joints import Batching, Cohort, Mechanism, Method, describe
from cloister.precision import expect_precision
from cloister.privacy.accounting import epsilon as epsilon_of
from cloister.privacy.calibrate import calibrate
from cloister.privacy.events import Event
from cloister.privacy.ledger import Budget
from cloister.problem import problem_of
from cloister.round import cohort_total
from cloister.streams import Streams

DRAWS = 3
"""Goes up whenever the same seed gives other cohorts, batches or noise: a run resumed by other code would compute a
round that was paid for with other bits."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}
RANDOMNESS = ("seeded", "secure")


@dataclass(frozen=True)
class Ready:
    """A federation, the model it starts from, and the description that certifies it."""

    fed: Federation
    module: nn.Module
    w: Tensor
    score: Callable[[Tensor], Score]
    budget: Budget | None
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
    epsilon: float | None,
    delta: float | None,
    model: nn.Module | Callable[[], nn.Module] | None,
    seed: int,
    randomness: str,
    device: str,
    dtype: str,
    precision: str = "exact",
    known: Mapping[str, Any] | None = None,
) -> Ready:
    """Check, calibrate and describe. `known` is the description of a run that is being resumed."""
    expect_count("rounds", rounds, "a run has at least one round")
    expect_count("seed", seed, "any whole number that is not negative", least=0)
    expect(randomness in RANDOMNESS, f"randomness to be one of {', '.join(RANDOMNESS)}", randomness, "choose one")
    expect(dtype in DTYPES, f"dtype to be one of {', '.join(DTYPES)}", dtype, "choose one")
    if delta is not None:
        expect_delta(delta)
    place, kind = _device(device), DTYPES[dtype]
    expect_precision(precision, place, kind)
    streams = Streams(seed, secure=randomness == "secure")

    module = _module(model if model is not None else task.model, streams).to(place, kind).train()
    population = task.population.to(place, kind)
    few = slice(0, 2)
    problem = problem_of(module, task.loss, population.inputs[few], population.labels[few], task.classes, task.view)
    public = None if task.public is None else _placed(task.public, place, kind)
    complete = partial(fitted, cohort=cohort, layout=problem.layout, clients=task.clients, public=public)
    price = partial(event_of, cohort=cohort, layout=problem.layout, clients=task.clients)
    releases = cohort.releases(rounds, task.clients)
    calibrated, budget = _with_noise(
        method, lambda known: price(complete(known)), task.clients, releases, epsilon, delta, known
    )
    fed = Federation(calibrated, cohort, problem, population, streams, precision, public)
    method = fed.method
    first = epsilon_of(fed.event, 1, delta or 0.5)  # refuses what has no price
    if budget is not None and first > budget.epsilon:
        raise CloisterError(
            f"Expected a budget that pays for one round at least, found epsilon {budget.epsilon:g} with noise "
            f"multiplier {method.mechanism.noise_multiplier:g}: leave the multiplier out to calibrate it."
        )
    w = problem.layout.flatten(dict(module.named_parameters()))
    description = {
        "method": {
            "name": method.name,
            "unit": method.unit,
            "released": method.released,
            "notes": list(method.notes),
            "claim": _claim(fed) if method.claims else None,
            **{j: describe(getattr(method, j)) for j in ("local", "transform", "mechanism", "server")},
        },
        "cohort": {**describe(cohort), "executed": cohort.executed},
        "task": {
            "name": task.name,
            "clients": task.clients,
            "view": {"name": task.view.name, **task.view.settings},
            "copies": task.copies,
            "public": 0 if task.public is None else len(task.public[1]),
        },
        "model": {
            "parameters": problem.layout.size,
            "behaviour": _behaviour(fed, w),
            "shapes": {n: list(s) for n, s in zip(problem.layout.names, problem.layout.shapes, strict=True)},
        },
        "rounds": rounds,
        "delta": delta,
        "budget": None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta},
        "bound_l2": fed.bound.l2,
        "bound_taken_for": fed.bound.taken_for,
        "denominator": fed.denominator,
        "trust": method.trust or method.mechanism.trust,
        "neighbours": method.neighbours,
        "upload_bytes": _upload(fed, w),
        "seed": seed,
        "randomness": randomness,
        "dtype": dtype,
        "precision": precision,
        "device": place.type,
        "software": {name: version(name) for name in ("torch", "numpy")},
        "draws": DRAWS,
    }
    # Two runs that differ in anything must not share their noise: the difference would lay bare the signal.
    # A GPU may round differently the next time (kernels are chosen by timing), so nothing there counts as repeatable.
    run = replace(streams, run=configuration_hash(description), repeatable=place.type == "cpu")
    fed = replace(fed, streams=run)
    score = scorer(module, problem.layout, task, w)
    return Ready(fed, module, w, score, budget, delta, description, task.fingerprint())


def _placed(samples: tuple[Tensor, Tensor], place: torch.device, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    inputs, labels = samples
    return inputs.to(place, kind if inputs.is_floating_point() else None), labels.to(place)


def _claim(fed: Federation) -> dict[str, float]:
    """What the paper would claim: the noise as a multiple of what it takes for the bound, over Poisson cohorts."""
    noise = fed.method.mechanism.noise_multiplier or 0.0
    return {"noise_multiplier": noise, "rate": min(1.0, fed.denominator / fed.population.clients)}


def _upload(fed: Federation, w: Tensor) -> int:
    """Bytes that a client sends in a round."""
    said = fed.method.transform.announce(fed.streams, 1, fed.here(w, {}), fed.method.init(w))
    message = fed.blank(w, said)
    return -(-message.numel() * (fed.method.transform.bits or 8 * message.element_size()) // 8)


def _with_noise(
    method: Method,
    price: Callable[[Method], Event],
    clients: int,
    releases: int,
    epsilon: float | None,
    delta: float | None,
    known: Mapping[str, Any] | None,
) -> tuple[Method, Budget | None]:
    """The method with its noise settled, and the budget that the ledger enforces."""
    mechanism: Mechanism = method.mechanism
    if epsilon is not None and delta is None:
        raise CloisterError(
            f"Expected a delta beside epsilon {epsilon:g}, found none: choose one well below 1/{clients}, such as 1e-5."
        )
    budget = Budget(epsilon, delta) if epsilon is not None and delta is not None else None
    if mechanism.place == "nowhere" or mechanism.noise_multiplier == 0:
        if budget is not None:
            raise CloisterError(
                f"Expected a private method for epsilon {epsilon:g}, found {method.name} without noise: choose "
                "dp_fedavg, or leave epsilon out."
            )
        return method, None
    if mechanism.noise_multiplier is None:
        if known is not None:
            multiplier = float(known["method"]["mechanism"]["noise_multiplier"])
        elif budget is None:
            raise CloisterError(
                f"Expected epsilon and delta, or a noise_multiplier, for {method.name}, found neither: say how private "
                "the run shall be."
            )
        else:

            def event(noise: float) -> Event:
                return price(replace(method, mechanism=replace(mechanism, noise_multiplier=noise)))

            multiplier = calibrate(event, releases, budget.epsilon, budget.delta)
        mechanism = replace(mechanism, noise_multiplier=multiplier)
    if delta is None:
        raise CloisterError(
            f"Expected a delta for {method.name}, found none: choose one well below 1/{clients}, such as 1e-5."
        )
    return replace(method, mechanism=mechanism), budget


def _behaviour(fed: Federation, w: Tensor) -> list[float]:
    """What model, loss, local rule and transform do to a made-up client, as a few rounded numbers.

    Code has no name that could be compared, so this is how a resumed run notices that it would compute
    something else than what was charged.
    """
    random = torch.Generator().manual_seed(0)
    real = fed.population
    shape = (8, *real.inputs.shape[1:])
    small = torch.randint(0, 2, shape, generator=random)  # pixels and tokens are small whole numbers
    inputs = (torch.randn(shape, generator=random) if real.inputs.is_floating_point() else small).to(real.inputs)
    ones = torch.tensor([8], device=w.device)
    made_up = Population(inputs, real.labels[:1].repeat(8, *[1] * (real.labels.dim() - 1)) * 0, ones * 0, ones)
    somewhere = 0.1 * torch.randn(w.shape, generator=random).to(w)
    local = fed.method.local
    few = replace(local.phases[0], batching=Batching(batch=4, steps=3))
    brief = replace(local, phases=(few, *(replace(p, batching=_small(p.batching)) for p in local.phases[1:])))
    small_fed = rehearsal(replace(fed, method=replace(fed.method, local=brief), streams=Streams(0)), made_up)
    message, _ = cohort_total(small_fed, Loop(), 1, somewhere, torch.tensor([0]))
    pieces = [piece.double().norm().item() for piece in torch.tensor_split(message, 8)]
    return [float(f"{piece:.3g}") for piece in pieces]


def _small(batching: Batching) -> Batching:
    return replace(batching, batch=4)


def _module(model: nn.Module | Callable[[], nn.Module], streams: Streams) -> nn.Module:
    """A module of our own: a copy of the user's, or a new one initialised from the run's seed."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key("init") & (2**63 - 1))
        return model()


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CloisterError(
            f"Expected a device that torch can use here, found {name!r}: use cpu, or install a torch build for it."
        ) from error
    return device
