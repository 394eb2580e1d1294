"""Personalization: every client goes on training a copy of the model, or the last layer of one, on its own samples.

It happens beside a client's data and releases nothing. A personalized model is as private as the data that it was
trained on, which is not at all: it must stay with its client. Scores client by client are not private either.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn

from cloister.client.objective import objective_of
from cloister.client.population import Population
from cloister.core import Batch, Layout, Objective
from cloister.data.task import Task
from cloister.errors import CloisterError, expect, expect_count, expect_positive, expect_type
from cloister.random.streams import Streams
from cloister.runs.client_scores import ClientScores, name_of, scored_by_client, summed_up
from cloister.runs.evaluate import Collector, collector
from cloister.runs.metric_catalogue import Watched, watched
from cloister.runs.request import expect_own_tests

if TYPE_CHECKING:
    from cloister.runs.result import Run


@dataclass(frozen=True)
class Settings:
    """How clients train their copies: plain SGD on shuffled batches."""

    steps: int
    lr: float
    batch_size: int
    parameters: str
    seed: int

    def __post_init__(self) -> None:
        expect_count("steps", self.steps, "steps on every client's own samples")
        expect_positive("lr", self.lr, "the learning rate of these steps")
        expect_count("batch_size", self.batch_size, "samples in each of these steps")
        wanted = '"all", "head", or a pattern of names'
        expect_type("parameters", self.parameters, str, wanted, 'such as "classifier.*"')
        expect_count("seed", self.seed, "any whole number that is not negative", least=0, most=2**63 - 1)


@dataclass(frozen=True)
class Personalized:
    """The watched metric on every client's own test samples, before and after. Not private."""

    before: ClientScores
    after: ClientScores
    settings: Settings
    parameters: Mapping[str, Mapping[str, Tensor]] | None = None
    """What each client trained, by its name, where that was asked for: in memory, and never written."""

    def __repr__(self) -> str:
        first, second = self.before.summary, self.after.summary
        return (
            f"<Personalized {self.settings.parameters}, {self.settings.steps} steps, not private: before, "
            f"{summed_up(self.before.metric, first)}; after, {summed_up(self.after.metric, second)}>"
        )

    def to_json(self) -> dict[str, Any]:
        """The scores after it, and how it was done."""
        return {**self.after.to_json(), "settings": asdict(self.settings)}


def personalize(
    model: Annotated[Run | nn.Module, "a run, or a model"],
    task: Annotated[Task, "whose clients train on"],
    *,
    steps: Annotated[int, "steps on every client"] = 20,
    lr: Annotated[float, "learning rate"] = 0.1,
    batch_size: Annotated[int, "samples in a step, or all that a client has"] = 32,
    parameters: Annotated[str, "all, head (the last module that has some), or a pattern of names"] = "all",
    metric: Annotated[str | None, "what is scored (by default what the run watched, or the loss's first)"] = None,
    seed: Annotated[int, "of batches and dropout"] = 0,
    keep: Annotated[bool, "true: also return what each client trained"] = False,
) -> Personalized:
    """Let every client that has test samples train its own copy, and score all of them before and after.

    Nothing is released, and nothing is charged. The scores are exact, hence not private, and a personalized model must
    stay with its client.
    """
    expect_type("task", task, Task, "a Task such as cloister.data.digits()")
    expect_own_tests(task)
    settings = Settings(steps, lr, batch_size, parameters, seed)
    module = model if isinstance(model, nn.Module) else getattr(model, "model", None)
    if not isinstance(module, nn.Module):
        raise CloisterError(f"Expected a run or a torch module to personalize, found {type(model).__name__}: give one.")
    name = metric or (None if isinstance(model, nn.Module) else model.monitor)
    if not isinstance(model, nn.Module) and model.preprocessing is not None:  # the inputs of this run were standardized
        task = replace(task, preprocessing=model.preprocessing)
    watching = watched(task, None if name is None else [name])
    module = copy.deepcopy(module).train()
    like = next(module.parameters())
    people = task.population.to(like.device, like.dtype)
    objective = objective_of(module, task.loss, people.inputs[:2], people.labels[:2], task.classes, task.preprocessing)
    w = objective.layout.flatten(dict(module.named_parameters()))
    active = coordinates(parameters, module, objective.layout, w)
    collect = collector(module, objective.layout, task, w, watching)
    return personalized(task, objective, people, collect, watching, settings, active, w, keep=keep)


def coordinates(parameters: str, module: nn.Module, layout: Layout, like: Tensor) -> Tensor:
    """Which coordinates of the flat vector are trained: 1 for these, 0 for the others."""
    names = [name for name in layout.names if parameters == "all" or fnmatchcase(name, parameters)]
    if parameters == "head":
        names = _head(module, layout)
    remedy = f"parameters are {', '.join(layout.names[-4:])}"
    expect(bool(names), "a pattern that some trainable parameter's name fits", parameters, remedy)
    pieces = [torch.full((size,), float(name in names)) for name, size in zip(layout.names, layout.sizes, strict=True)]
    return torch.cat(pieces).to(like)


def _head(module: nn.Module, layout: Layout) -> list[str]:
    """The trainable parameters of the last module that has some of its own."""
    found: list[str] = []
    for place, part in module.named_modules():
        own = [f"{place}.{name}".lstrip(".") for name, _ in part.named_parameters(recurse=False)]
        found = [name for name in own if name in layout.names] or found
    return found


def personalized(
    task: Task,
    objective: Objective,
    people: Population,
    collect: Collector,
    watching: Watched,
    settings: Settings,
    active: Tensor,
    w: Tensor,
    keep: bool = False,
) -> Personalized:
    """Train and score client by client. What a client gets depends on its own samples, its number and the seed."""
    assert task.local_test is not None
    rows, owners = (part.cpu() for part in task.local_test)
    before = scored_by_client(task, watching, collect(w))
    assert before is not None
    scores: dict[str, float | None] = {}
    kept: dict[str, dict[str, Tensor]] = {}
    for client in sorted(set(owners.tolist())):
        own = trained(objective, people, client, settings, active, w)
        columns = collect(own, rows[owners == client])
        name = name_of(task, client)
        scores[name] = watching.monitor(columns, watching.kind, watching.classes)
        if keep:
            changed = zip(objective.layout.pieces(active), objective.layout.views(own).items(), strict=True)
            kept[name] = {parameter: value.clone() for flags, (parameter, value) in changed if bool(flags.any())}
    after = ClientScores(before.metric, scores, before.samples)
    return Personalized(before, after, settings, kept if keep else None)


def trained(
    objective: Objective, people: Population, client: int, settings: Settings, active: Tensor, w: Tensor
) -> Tensor:
    """A client's own parameters after so many steps on its own samples; without samples, those of all."""
    start, count = int(people.starts[client]), int(people.counts[client])
    streams = Streams(settings.seed)
    random = torch.Generator().manual_seed(streams.key("personalize", client) & (2**63 - 1))
    size = min(settings.batch_size, count)
    order = torch.empty(0, dtype=torch.int64)
    for step in range(settings.steps if count else 0):
        while len(order) < size:
            order = torch.cat([order, torch.randperm(count, generator=random)])
        rows, order = (start + order[:size]).to(w.device), order[size:]
        key = torch.tensor(streams.key("personalize dropout", client, step), device=w.device)
        there = torch.ones(size, dtype=torch.bool, device=w.device)
        batch = Batch(people.inputs[rows], people.labels[rows], there, there.sum(), key, there.any(), w.new_empty(0))
        w = w - settings.lr * active * objective.gradient(w, batch)
    return w
