"""From what a user asks for to a federation that is ready to run. Everything that can be refused is refused here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch
from torch import Tensor, nn

from cloister.client.centering import Centering
from cloister.client.gradient_median import public_median
from cloister.client.losses import Loss, cross_entropy, made_up_labels
from cloister.client.objective import explained
from cloister.client.population import Population
from cloister.client.standardization import Standardization
from cloister.core import Batch, Objective, Tensors
from cloister.core.hashing import hash_of
from cloister.core.precision import multiplying
from cloister.data.task import Task
from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget
from cloister.privacy.description import RunDescription
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import ProtectedUnit
from cloister.round.bind import Federation, bind
from cloister.runs.description import describe_model, describe_run, made_of_noise
from cloister.runs.evaluate import Scorer, collector, scorer
from cloister.runs.metric_catalogue import Watched, watched
from cloister.runs.model_file import ModelFile
from cloister.runs.noise import Noise, expect_small_delta
from cloister.runs.personalization import Personalized, Settings, coordinates, personalized
from cloister.runs.placement import Placed, place
from cloister.runs.queries import Queries, described, expect_gaussian, plan_queries, standardized, with_validation
from cloister.runs.request import Request
from cloister.runs.selection import Selection, Validate, public_validation
from cloister.runs.terms import Terms


@dataclass(frozen=True)
class Ready:
    """A federation, the model it starts from, and the description that certifies it."""

    fed: Federation
    module: nn.Module
    w: Tensor
    score: Scorer
    personalize: Callable[[Tensor], Personalized] | None
    description: RunDescription
    fingerprint: str
    """Of the data; never part of what is published."""
    about: ModelFile
    """How the model is made and used, for whoever loads it later."""
    queries: Queries
    standardization: Standardization | Centering | None = None
    """Which queries set before the first round."""
    loss: Loss = cross_entropy
    selection: Selection = field(default_factory=Selection)
    validate: Validate | None = None
    """What a model is worth by data that are free to look at."""
    held_out: Population | None = None
    """Samples of the clients' for a validation that is paid for."""
    train_score: Scorer | None = None
    """How a model does on the clients' training samples, where that is recorded: NOT PRIVATE."""

    def noise_of_query(self, name: str) -> tuple[float, ...]:
        """The noise multipliers of one of the queries."""
        return next(query.noise_multipliers for query in self.description.queries if query.name == name)

    @property
    def asks_first(self) -> bool:
        """Whether something is asked of the data before the first round."""
        return self.standardization is not None or self.fed.method.first_query is not None

    def load_released(self, released: Tensors) -> None:
        """Put what was released before the first round in its place."""
        if self.standardization is not None:
            self.standardization.load(released)
        if self.fed.method.first_query is not None:
            self.fed.method.first_query.load(released)

    def model_at(self, w: Tensor) -> nn.Module:
        """The module with these parameters."""
        return self.fed.objective.layout.load(self.module, w.to(self.w.device)).eval()

    def tensors_at(self, w: Tensor) -> dict[str, Tensor]:
        """All that the model with these parameters consists of, by name: frozen parameters and buffers, too."""
        trained = self.fed.objective.layout.views(w)
        return {**dict(self.module.named_buffers()), **dict(self.module.named_parameters()), **trained}


def prepare(request: Request, known: RunDescription | None = None) -> Ready:
    """Check, calibrate and describe. `known` is the description of a run that is being resumed."""
    fingerprint = request.task.fingerprint()
    request, held_out = with_validation(request)
    request, standardization = standardized(request)
    placed = place(request)
    if request.method.unit is ProtectedUnit.CLIENT:
        _expect_padding_unseen(placed, request.task)
    queries = plan_queries(request)
    fed, noise = _federation(request, placed, queries, known)
    expect_gaussian(fed.method, queries)
    if not request.options.allow_large_delta:
        expect_small_delta(request.delta, noise, fed.population.counts.tolist())
    _expect_a_round(fed, noise.budgets)
    _expect_answerable(fed, placed, request.task)
    model = describe_model(request, fed, placed.w, placed.module, placed.weights)
    watching = watched(request.task, request.options.metrics, request.options.monitor)
    selection = Selection.of(request.options, request.rounds, watching.monitor)
    asked = described(queries, request)
    description = describe_run(request, fed, placed.w, noise.budgets, model, selection, asked)
    fed = _with_own_noise(fed, placed.w, description, fingerprint)
    score = scorer(placed.module, placed.objective.layout, request.task, placed.w, watching)
    made = request.task.model if request.model is None else request.model
    names = [metric.name for metric in watching.metrics]
    about = ModelFile.of(
        request.task, made, request.adaptation, names, request.options.dtype, description.configuration_hash
    )
    return Ready(
        fed,
        placed.module,
        placed.w,
        score,
        _personalization(request, placed, watching),
        description,
        fingerprint,
        about,
        queries,
        standardization,
        request.task.loss,
        selection,
        _validation(request, placed, watching),
        held_out and held_out.to(placed.w.device, placed.w.dtype),
        _on_training_samples(request, placed, watching),
    )


def _on_training_samples(request: Request, placed: Placed, watching: Watched) -> Scorer | None:
    """What measures models on the clients' own samples, where that is to be recorded; and what cannot be measured is
    found out before anything is charged."""
    record, people = request.options.record or (), placed.population
    if "gradients" in record:
        norms_on_noise(placed.objective, placed.w, people, request.task.loss)
    if "train" not in record:
        return None
    inputs, labels = people.inputs, people.labels
    if int(people.counts.sum()) < len(labels):  # some rows are nobody's
        owned = zip(people.starts.tolist(), people.counts.tolist(), strict=True)
        rows = torch.cat([torch.arange(start, start + count) for start, count in owned])
        inputs, labels = inputs[rows.to(inputs.device)], labels[rows.to(labels.device)]
    trained = replace(request.task, test_inputs=inputs, test_labels=labels, local_test=None)
    return scorer(placed.module, placed.objective.layout, trained, placed.w, watching)


def _validation(request: Request, placed: Placed, watching: Watched) -> Validate | None:
    """What is watched beside the test set, where something is."""
    if request.options.validation != "public":
        return None
    return public_validation(placed.module, placed.objective.layout, request.task, placed.w, watching)


def _personalization(request: Request, placed: Placed, watching: Watched) -> Callable[[Tensor], Personalized] | None:
    """What is done with the final model beside every client's data, if anything."""
    options = request.options
    if options.personalize == "none":
        return None
    which = {"fine_tune": "all", "head": "head"}[options.personalize]
    settings = Settings(
        options.personalize_steps, options.personalize_lr, options.personalize_batch_size, which, options.seed
    )
    collect = collector(placed.module, placed.objective.layout, request.task, placed.w, watching)
    active = coordinates(which, placed.module, placed.objective.layout, placed.w)
    return partial(personalized, request.task, placed.objective, placed.population, collect, watching, settings, active)


def _federation(
    request: Request, placed: Placed, queries: Queries, known: RunDescription | None
) -> tuple[Federation, Noise]:
    """The federation with calibrated noise."""
    task, population, public = request.task, placed.population, placed.public_samples
    terms = Terms(
        request.cohort,
        request.rounds,
        placed.objective.layout,
        task.population.counts.tolist(),
        task.copies,
        placed.public_samples,
        cache(partial(norms_on_noise, placed.objective, placed.w, population, task.loss)),
        None if public is None else cache(lambda: public_median(placed.objective, placed.w, public)),
        queries,
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
        request.options.rounded_noise,
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
    charges = fed.charges(list(range(fed.population.clients)), round=1)
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


def _expect_padding_unseen(placed: Placed, task: Task) -> None:
    """Refuse a model or a loss that mixes samples: batches are filled up to the size of other clients', and what a
    client computes would depend on how much data those have. Tried on samples of nobody."""
    random, w, people = torch.Generator().manual_seed(2), placed.w, placed.population
    if not len(people.labels):
        return
    inputs, labels = made_of_noise(people, 4, random), made_up_labels(task.loss, people.labels, 4, task.classes)
    key, real = torch.zeros((), dtype=torch.int64, device=w.device), torch.arange(8, device=w.device) < 4
    somewhere = w + 0.1 * torch.randn(w.shape, generator=random).to(w)
    wide = [0, 1, 2, 3, 0, 0, 0, 0]
    # exactly: batches of another size may be multiplied by other kernels, and coarse ones differ by as much as mistakes
    with multiplying("exact", w.device), explained("a model that can be trained client by client"):
        alone, filled = (
            placed.objective.gradient(
                somewhere, Batch(inputs[rows], labels[rows], mask, real.sum(), key, real.any(), w.new_empty(0))
            )
            for rows, mask in ((wide[:4], real[:4]), (wide, real))
        )
    if bool(alone.isfinite().all()) and float((alone - filled).norm()) > 1e-3 * float(alone.norm()) + 1e-6:
        raise CloisterError(
            "Expected a model and a loss that look at every sample by itself, found that what fills up a batch changes "
            "the gradient: a client's update would depend on how much data others have, so do not compute statistics "
            "over the batch (cox is told what counts)."
        )


def _expect_answerable(fed: Federation, placed: Placed, task: Task) -> None:
    """Refuse a question before the first round that this model has no answer to, before anybody pays for one. Tried on
    samples of nobody."""
    asked, people = fed.method.first_query, placed.population
    if asked is None or not len(people.labels):
        return
    inputs = made_of_noise(people, 2, torch.Generator().manual_seed(3))
    labels = made_up_labels(task.loss, people.labels, 2, task.classes)
    with explained(f"a model of which the {asked.name} query can be answered", "give a public bound instead"):
        found = asked.vectors(placed.objective, placed.w, inputs, labels)
    if found.shape != (2, asked.length):
        raise CloisterError(
            f"Expected {asked.length} numbers of every sample for the {asked.name} query, found a tensor of shape "
            f"{tuple(found.shape)}: fix its vectors."
        )


def norms_on_noise(objective: Objective, w: Tensor, population: Population, loss: Loss) -> Tensor:
    """The norms of the gradients of samples made of noise: what a threshold may start from without asking anybody."""
    random = torch.Generator().manual_seed(0)
    inputs = made_of_noise(population, _NOISE_SAMPLES, random)
    labels = loss.made_up(population.labels[:1].repeat(_NOISE_SAMPLES, *[1] * (population.labels.dim() - 1)))
    real = torch.ones(_NOISE_SAMPLES, dtype=torch.bool, device=w.device)
    key = torch.zeros((), dtype=torch.int64, device=w.device)
    batch = Batch(inputs, labels, real, real.sum(), key, real.any(), w.new_empty(0))
    return objective.clipped(w, batch, 1.0)[1]


_NOISE_SAMPLES = 64
