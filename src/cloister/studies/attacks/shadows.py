"""Shadow models: the run made again by its own recipe, on other draws of who is in.

Of each pair of candidates a shadow trains on one, by a fair draw that knows nothing of who is in the run that is
attacked; every sample is in half of the shadows. Everything else is the run's: clients, sizes, method, noise, rounds.
Seeds are others, and with them the initial model, cohorts, batches and noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cloister.client.preprocessing import Preprocessing
from cloister.data.task import Task
from cloister.errors import expect
from cloister.runs.request import DTYPES
from cloister.runs.stored_inputs import WithPreprocessing
from cloister.studies.attacks import likelihood
from cloister.studies.attacks.candidates import Candidates

_QUIET = {"folder": None, "resume": False, "callbacks": (), "log": None, "record": None, "progress": False}
_FIRST_SEED = 1_000_003
"""Far from the seeds that runs have: a shadow that shared the run's noise would know it."""


def confidences(module: nn.Module, task: Task, pairs: Candidates) -> Tensor:
    """Of the members, then of the others; the module takes inputs as they are stored."""
    people = task.population
    inside = likelihood.confidences(module, task.loss, people.inputs[pairs.rows], people.labels[pairs.rows])
    return torch.cat([inside, likelihood.confidences(module, task.loss, pairs.inputs, pairs.labels)])


def train(
    start: Any, task: Task, pairs: Candidates, count: int, seed: int, tick: Callable[[], None] = lambda: None
) -> tuple[Tensor, Tensor]:
    """The confidences of so many shadows [count, 2 pairs], and which candidates each one saw.

    `start` is what starts the run (`runs.config.Experiment`)."""
    alone = task.copies == 1 and task.population.stored is None
    expect(alone, "clients whose samples lie in memory, each with one, for shadow models", "others", "use 0 shadows")
    random = torch.Generator().manual_seed(seed)
    half = torch.arange(count) < count // 2
    stays = torch.stack([half[torch.randperm(count, generator=random)] for _ in range(len(pairs.rows))], dim=1)
    found = []
    for number in range(count):
        own = _QUIET | {"seed": _FIRST_SEED + 1000 * seed + number, "evaluate_every": start.keywords["rounds"]}
        run = start.func(start.args[0], pairs.swapped(task, stays[number]), **{**start.keywords, **own})
        prepared: Preprocessing = run.preprocessing or task.preprocessing
        dtype = DTYPES[start.keywords.get("dtype", "float32")]
        found.append(confidences(WithPreprocessing(run.model, prepared, dtype).eval(), task, pairs))
        tick()
    return torch.stack(found), torch.cat([stays, ~stays], dim=1)
