"""From what a user asks for to a federation that is ready to run. Everything that can be refused is refused here."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from cloister.batches import Population
from cloister.data.task import Task
from cloister.engine import Loop
from cloister.errors import (
    CloisterError,
    expect,
    expect_count,
    expect_delta,
    expect_epsilon,
    expect_one_of,
    expect_type,
)
from cloister.experiments.evaluate import Score, scorer
from cloister.experiments.folder import FORMAT, configuration_hash
from cloister.experiments.noise import People, Target, expect_small_delta, settle, with_noise
from cloister.federation import Federation, account_of, bill_of, event_of, fitted, rehearsal
from cloister.joints import Batch, Batching, Cohort, Method, Problem, describe
from cloister.params import hash_of
from cloister.precision import expect_precision
from cloister.privacy.events import to_json
from cloister.privacy.ledger import Bill, Budget, Ledger
from cloister.problem import explained, problem_of
from cloister.round import cohort_total
from cloister.streams import Streams

DRAWS = 5
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
    _expect_samples_apart(method, task)
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

    def bill(method: Method, multiplier: float, samples: int) -> Bill:
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
    description = {
        "method": {
            "name": method.name,
            "unit": method.unit,
            "released": method.released,
            "notes": list(method.notes),
            "claim": None if method.claims is None else _claim(fed, method.claims),
            **{j: describe(getattr(method, j)) for j in ("local", "transform", "mechanism", "server")},
        },
        "cohort": {**describe(cohort), "executed": cohort.executed},
        "lots": _executed(method.local.batching),
        "task": {
            "name": task.name,
            "clients": task.clients,
            "view": {"name": task.view.name, **task.view.settings},
            "copies": task.copies,
            "public": 0 if task.public is None else len(task.public[1]),
            "prepared_by": task.prepared_by,
            "label_dependent": task.label_dependent,
            "classes_inferred": task.classes_inferred,
            "sample_notes": list(task.sample_notes),
            **({"sizes": task.population.counts.tolist()} if method.unit == "sample" else {}),
        },
        "model": {
            "parameters": problem.layout.size,
            "behaviour": _behaviour(fed, w),
            "shapes": {n: list(s) for n, s in zip(problem.layout.names, problem.layout.shapes, strict=True)},
        },
        "rounds": rounds,
        "delta": delta,
        "budgets": {unit: asdict(budget) for unit, budget in budgets.items()},
        "noise_multipliers": list(fed.multipliers),
        "adaptive_noise": method.tempered is not None,
        "bound_l2": _bound(fed),
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
        "format": FORMAT,
    }
    # Two runs that differ in anything must not share their noise: the difference would lay bare the signal.
    # A GPU may round differently the next time (kernels are chosen by timing), so nothing there counts as repeatable.
    fingerprint = task.fingerprint()
    run = hash_of({"w": w}, f"{configuration_hash(description)} {fingerprint}")
    fed = replace(fed, streams=replace(streams, run=run, repeatable=place.type == "cpu"))
    score = scorer(module, problem.layout, task, w)
    return Ready(fed, module, w, score, budgets, delta, description, fingerprint)


def _expect_samples_apart(method: Method, task: Task) -> None:
    """Refuse to price a sample where it went into other samples: a neighbour would differ in all of these."""
    if method.unit == "sample" and task.prepared_by != "sample":
        raise CloisterError(
            f"Expected data in which every sample was prepared by itself, for a method that protects samples, found "
            f"{task.name}, where statistics of a client's samples went into others: fill gaps with constants (impute = "
            "public), or choose a method that protects clients."
        )


def expect_request(
    method: object,
    task: object,
    rounds: int,
    epsilon: Any,
    delta: float | None,
    model: object,
    seed: int,
    randomness: str,
    device: object,
    dtype: str,
) -> None:
    """Refuse arguments of a wrong kind or size, before anything is computed or written."""
    expect_type("method", method, Method, "a Method such as cloister.methods.dp_fedavg(clip=1.0, lr=0.1, steps=5)")
    expect_type("task", task, Task, "a Task such as cloister.data.digits()")
    assert isinstance(method, Method)
    assert isinstance(task, Task)
    _expect_model(model)
    expect_count("rounds", rounds, "a run has at least one round")
    expect_count("seed", seed, "any whole number that is not negative", least=0, most=2**63 - 1)
    expect_one_of("randomness", randomness, RANDOMNESS)
    expect_type("device", device, str, "the name of a device", 'give "cpu", "cuda" or "cuda:1"')
    expect_one_of("dtype", dtype, DTYPES)
    for one in epsilon if isinstance(epsilon, (list, tuple)) else [epsilon]:
        number = isinstance(one, (int, float)) and not isinstance(one, bool)
        expect(one is None or number, "epsilon to be a number, or a list of one for each client", epsilon, "give that")
        if one is not None:
            expect_epsilon(one)
    if delta is not None:
        expect_delta(delta)
    _expect_local_work(method, task)


def _expect_model(model: object) -> None:
    """A module, or a function that makes one without being told anything."""
    if model is None or isinstance(model, nn.Module):
        return
    wanted = "model to be a torch module, or a function without arguments that makes one"
    expect(callable(model), wanted, model, "give a module, such as torch.nn.Linear(64, 10)")
    assert callable(model)
    try:
        inspect.signature(model).bind()
    except TypeError:
        expect(False, wanted, model, "call it with its arguments, or wrap it in a lambda")
    except ValueError:
        pass  # no signature is known, so that only trying tells


def _expect_local_work(method: Method, task: Task) -> None:
    """A round's batches of one client are laid out at once, so there is a limit to what they may hold."""
    largest, batching = max(task.population.counts.tolist(), default=0), method.local.batching
    samples = batching.steps_for(largest) * min(batching.batch, largest)
    remedy = "take fewer steps or epochs in a round, and more rounds"
    expect(samples <= MOST_LOCAL, f"at most {MOST_LOCAL:,} samples a client and round, batch by batch", samples, remedy)


MOST_LOCAL = 2**27
"""Samples in all batches of one client in one round, repetitions included: some gigabytes of row numbers."""


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


def _executed(batching: Batching) -> str | None:
    """How lots are drawn, in words."""
    if batching.lots == "poisson":
        return (
            "in every step each sample joins its client's lot independently, with probability 1/(steps of a pass in "
            f"batches of {batching.batch})"
        )
    if batching.lots == "fixed":
        return f"in every step {batching.batch} of a client's samples (or all), drawn uniformly without replacement"
    return None


def _bound(fed: Federation) -> float:
    """Of a client's message; or, where samples are protected, of a sample's part in the sum of a step."""
    private = fed.method.local.private
    if private is None:
        return fed.bound.l2
    return math.inf if private.clip is None else private.clip


def _norms_on_noise(problem: Problem, w: Tensor, population: Population) -> Tensor:
    """The norms of the gradients of samples made of noise: what a threshold may start from without asking anybody."""
    random = torch.Generator().manual_seed(0)
    inputs = _made_of_noise(population, _NOISE_SAMPLES, random)
    labels = population.labels[:1].repeat(_NOISE_SAMPLES, *[1] * (population.labels.dim() - 1)) * 0
    real = torch.ones(_NOISE_SAMPLES, dtype=torch.bool, device=w.device)
    key = torch.zeros((), dtype=torch.int64, device=w.device)
    batch = Batch(inputs, labels, real, real.sum(), key, real.any(), w.new_empty(0))
    return problem.clipped(w, batch, 1.0)[1]


_NOISE_SAMPLES = 64


def _made_of_noise(population: Population, samples: int, random: torch.Generator) -> Tensor:
    shape = (samples, *population.inputs.shape[1:])
    small = torch.randint(0, 2, shape, generator=random)  # pixels and tokens are small whole numbers
    real = torch.randn(shape, generator=random) if population.inputs.is_floating_point() else small
    return real.to(population.inputs)


def _placed(samples: tuple[Tensor, Tensor], place: torch.device, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    inputs, labels = samples
    return inputs.to(place, kind if inputs.is_floating_point() else None), labels.to(place)


def _claim(fed: Federation, arithmetic: str) -> dict[str, Any]:
    """What the paper would claim: the noise as a multiple of what it takes for the bound, over Poisson draws."""
    noise = fed.method.mechanism.noise_multiplier or 0.0
    about: dict[str, Any] = {"arithmetic": arithmetic, "noise_multiplier": noise}
    if not fed.each:
        rate = min(1.0, fed.denominator / fed.population.clients)
        return {**about, "rate": rate, "accounts": [fed.method.unit]}
    batching, sizes = fed.method.local.batching, fed.population.counts.tolist()
    most, own = max(sizes), fed.noise_of(sizes.index(max(sizes)))  # of the largest client, noise and rate alike
    alike = [account_of(client) for client, n in enumerate(sizes) if n == most and fed.noise_of(client) == own]
    event = bill_of(fed.method, own, most, 1).event
    rate = batching.expected(most) / most
    return {**about, "noise_multiplier": own, "rate": rate, "event": to_json(event), "accounts": alike}


def _upload(fed: Federation, w: Tensor) -> int:
    """Bytes that a client sends in a round."""
    said = fed.method.transform.announce(fed.streams, 1, fed.here(w, {}), fed.method.init(w))
    message, transform = fed.blank(w, said), fed.method.transform
    numbers = message.numel() if transform.entries is None else transform.entries(message.numel())
    return -(-numbers * (transform.bits or 8 * message.element_size()) // 8)


def _behaviour(fed: Federation, w: Tensor) -> list[float]:
    """What model, loss, local rule and transform do to a made-up client, as a few rounded numbers.

    Code has no name that could be compared, so this is how a resumed run notices that it would compute
    something else than what was charged.
    """
    random = torch.Generator().manual_seed(0)
    real = fed.population
    inputs = _made_of_noise(real, 8, random)
    ones = torch.tensor([8], device=w.device)
    made_up = Population(inputs, real.labels[:1].repeat(8, *[1] * (real.labels.dim() - 1)) * 0, ones * 0, ones)
    somewhere = 0.1 * torch.randn(w.shape, generator=random).to(w)
    local = fed.method.local
    few = replace(local.phases[0], batching=Batching(batch=4, steps=3, lots=local.batching.lots))
    brief = replace(local, phases=(few, *(replace(p, batching=_small(p.batching)) for p in local.phases[1:])))
    # Without noise, which would drown what is to be told apart.
    silent = replace(fed.method.mechanism, place="nowhere", noise_multiplier=0.0)
    small = replace(fed.method, local=brief, mechanism=silent)
    small_fed = rehearsal(replace(fed, method=small, streams=Streams(0)), made_up)
    with explained("a model that can be trained client by client"):
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
