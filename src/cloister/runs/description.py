"""A run described as plain values, when it is ready to begin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version

import torch
from torch import Tensor, nn

from cloister.client.losses import made_up_labels
from cloister.client.objective import explained
from cloister.client.population import Population
from cloister.core import Batching, describe
from cloister.core.hashing import hash_of
from cloister.data.task import Task
from cloister.engine import Loop
from cloister.models.weights import Weights
from cloister.privacy.budgets import Budget
from cloister.privacy.description import (
    ClaimDescription,
    CohortDescription,
    MechanismDescription,
    MethodDescription,
    ModelDescription,
    QueryDescription,
    RunDescription,
    TaskDescription,
    WeightsDescription,
)
from cloister.privacy.events import to_json
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.random.streams import Streams
from cloister.round import cohort_total
from cloister.round.bind import Federation, over_made_up_clients
from cloister.runs.folder import FORMAT
from cloister.runs.request import Request
from cloister.runs.selection import Selection

DRAWS = 5
"""Goes up whenever the same seed gives other cohorts, batches or noise: a run resumed by other code would compute a
round that was paid for with other bits."""
DRAWS_ON_A_GRID = 6
"""The same of runs whose noise is rounded, which goes up with the other one, and by itself."""
_WITH_ROUND_KEYS = 2
"""What batches that are drawn in secret add to either: the key of a round is drawn apart from those of its steps."""


def _draws(fed: Federation) -> int:
    secret = any(phase.batching.batch_sampling for phase in fed.method.local.phases)
    return (DRAWS_ON_A_GRID if fed.rounds else DRAWS) + (_WITH_ROUND_KEYS if secret else 0)


def describe_run(
    request: Request,
    fed: Federation,
    w: Tensor,
    budgets: Mapping[str, Budget],
    model: ModelDescription,
    selection: Selection,
    queries: tuple[QueryDescription, ...] = (),
) -> RunDescription:
    """The description of a run; its hash is the run's identity, and is published with its certificate."""
    method, options = fed.method, request.options
    return RunDescription(
        method=_method(fed),
        cohort=CohortDescription(fed.cohort.name, dict(fed.cohort.settings), fed.cohort.executed),
        batch_sampling=_batch_sampling(method.local.batching),
        task=_task(request.task, samples=method.unit == "sample"),
        model=model,
        rounds=request.rounds,
        delta=request.delta,
        budgets=dict(budgets),
        noise_multipliers=tuple(fed.multipliers),
        noise_schedule=method.noise_schedule is not None,
        sensitivity=_sensitivity(fed),
        assumed_sensitivity=fed.sensitivity.assumed_l2,
        denominator=fed.denominator,
        queries=queries,
        trust=method.trust or method.mechanism.trust,
        adjacency=method.adjacency,
        upload_bytes=_upload(fed, w),
        seed=options.seed,
        secure_rng=options.secure_rng,
        dtype=options.dtype,
        precision=fed.precision,
        device=w.device.type,
        software={name: version(name) for name in ("torch", "numpy")},
        draws=_draws(fed),
        format=FORMAT,
        selection=selection.to_json(),
        divided_by=method.divided_by(fed.denominator),
        tuned=tuple(options.tuned or ()),
        rounded_noise=fed.rounds,
    )


def _method(fed: Federation) -> MethodDescription:
    method, mechanism = fed.method, fed.method.mechanism
    return MethodDescription(
        name=method.name,
        unit=method.unit,
        released=method.released,
        notes=tuple(method.notes),
        claim=None if method.claims is None else _claim(fed, method.claims),
        local=describe(method.local),
        transform=describe(method.transform),
        mechanism=MechanismDescription(
            mechanism.name, mechanism.place, mechanism.noise_multiplier, dict(mechanism.settings_beside)
        ),
        server=describe(method.server),
    )


def _task(task: Task, samples: bool) -> TaskDescription:
    return TaskDescription(
        name=task.name,
        clients=task.clients,
        preprocessing={"name": task.preprocessing.name, **task.preprocessing.settings},
        copies=task.copies,
        public_samples=0 if task.public_samples is None else len(task.public_samples[1]),
        prepared_by=task.prepared_by,
        label_dependent=task.label_dependent,
        classes_inferred=task.classes_inferred,
        sample_notes=tuple(task.sample_notes),
        sizes=tuple(task.population.counts.tolist()) if samples else None,
        loss={"name": task.loss.name, **task.loss.settings},
        client_names=task.client_names,
    )


def describe_model(
    request: Request, fed: Federation, w: Tensor, module: nn.Module, weights: Weights | None
) -> ModelDescription:
    """The model: what is trained of it, and what it is beside that."""
    layout = fed.objective.layout
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    constants = {**frozen, **dict(module.named_buffers())}
    return ModelDescription(
        parameters=layout.size,
        behavior=_behavior(fed, w, request.task),
        shapes={name: tuple(shape) for name, shape in zip(layout.names, layout.shapes, strict=True)},
        frozen=sum(p.numel() for p in frozen.values()),
        constants_sha256=hash_of(constants) if constants else None,
        adaptation=request.adaptation.to_json(),
        weights=None if weights is None else WeightsDescription(weights.file, weights.sha256),
    )


def _batch_sampling(batching: Batching) -> str | None:
    """How batches are drawn, in words."""
    if batching.sample_rate == 1:
        return "every sample of every client who takes part is in the batch of every round"
    if batching.sample_rate is not None:
        return (
            f"each sample joins its client's batch of a round independently, with probability {batching.sample_rate:g}"
        )
    if batching.batch_sampling == "poisson":
        exact = f"{batching.batch_size}/(samples of the client), at most 1"
        of_a_pass = f"1/(steps of a pass in batches of {batching.batch_size})"
        rate = exact if batching.poisson_rate == "exact" else of_a_pass
        return f"in every step each sample joins its client's batch independently, with probability {rate}"
    if batching.batch_sampling == "fixed_size":
        return (
            f"in every step {batching.batch_size} of a client's samples (or all), drawn uniformly without replacement"
        )
    return None


def _sensitivity(fed: Federation) -> float:
    """Of a client's message; or, where samples are protected, of a sample's part in the sum of a step (or round)."""
    private = fed.method.local.private
    if private is None:
        return fed.sensitivity.l2
    return math.inf if private.clip_norm is None else private.clip_norm


def _claim(fed: Federation, arithmetic: str) -> ClaimDescription:
    """What the paper would claim: the noise as a multiple of what it takes for the bound, over Poisson draws."""
    if fed.method.unit is not ProtectedUnit.SAMPLE:
        sampling_rate = min(1.0, fed.denominator / fed.population.clients)
        return ClaimDescription(
            arithmetic, fed.method.mechanism.noise_multiplier or 0.0, sampling_rate, (fed.method.unit,)
        )
    sizes = fed.population.counts.tolist()
    most, largest = max(sizes), sizes.index(max(sizes))  # of the largest client, noise and rate alike
    own = fed.noise_of(largest)
    alike = [sample_account(client) for client, n in enumerate(sizes) if n == most and fed.noise_of(client) == own]
    event = fed.charges([largest], round=1)[sample_account(largest)].event
    sampling_rate = fed.method.local.batching.expected(most) / most
    return ClaimDescription(arithmetic, own, sampling_rate, tuple(alike), to_json(event))


def _upload(fed: Federation, w: Tensor) -> int:
    """Bytes that a client sends in a round."""
    told = fed.broadcast(1, w, fed.method.init(w).transform)
    message, transform = fed.encoded(w, told), fed.method.transform
    numbers = message.numel() if transform.entries is None else transform.entries(message.numel())
    return -(-numbers * (transform.bits or 8 * message.element_size()) // 8)


def _behavior(fed: Federation, w: Tensor, task: Task) -> tuple[float, ...]:
    """What model, loss, local rule and transform do to a made-up client, as a few rounded numbers.

    Code has no name that could be compared, so this is how a resumed run notices that it would compute
    something else than what was charged.
    """
    random = torch.Generator().manual_seed(0)
    real = fed.population
    inputs = made_of_noise(real, 8, random)
    ones = torch.tensor([8], device=w.device)
    labels = made_up_labels(task.loss, real.labels, 8, task.classes)
    made_up = Population(inputs, labels, ones * 0, ones)
    somewhere = 0.1 * torch.randn(w.shape, generator=random).to(w)
    local = fed.method.local
    batching = replace(local.batching, batch_size=4, local_steps=3, local_epochs=None, by_round=())
    few = replace(local.phases[0], batching=batching)
    others = (replace(phase, batching=replace(phase.batching, batch_size=4)) for phase in local.phases[1:])
    brief = replace(local, phases=(few, *others))
    # Without noise, which would drown what is to be told apart.
    silent = replace(fed.method.mechanism, place="nowhere", noise_multiplier=0.0)
    small = replace(fed.method, local=brief, mechanism=silent)
    small_fed = over_made_up_clients(replace(fed, method=small, streams=Streams(0)), made_up)
    with explained("a model that can be trained client by client"):
        message, _ = cohort_total(small_fed, Loop(), 1, somewhere, torch.tensor([0]))
    pieces = [piece.double().norm().item() for piece in torch.tensor_split(message, 8)]
    return tuple(float(f"{piece:.3g}") for piece in pieces)


def made_of_noise(population: Population, samples: int, random: torch.Generator) -> Tensor:
    """Inputs of the right shape and kind that are nobody's."""
    shape = (samples, *population.inputs.shape[1:])
    small = torch.randint(0, 2, shape, generator=random)  # pixels and tokens are small whole numbers
    real = torch.randn(shape, generator=random) if population.inputs.is_floating_point() else small
    return real.to(population.inputs)
