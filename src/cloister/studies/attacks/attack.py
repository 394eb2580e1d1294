"""Attacks on the run in a folder. They look at training samples: for simulations alone, and marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from cloister.core.arguments import flat_arguments
from cloister.data.task import Task
from cloister.errors import CloisterError, expect, expect_count, expect_one_of
from cloister.runs.config import build
from cloister.runs.config_file import load as load_config
from cloister.runs.folder import RunFolder
from cloister.runs.load import load
from cloister.runs.prepare import Ready, prepare
from cloister.runs.request import Request
from cloister.studies.attacks.found import Attacks, Membership
from cloister.studies.attacks.inversion import STEPS, several
from cloister.studies.attacks.membership import losses, membership

Kind = Literal["inversion", "membership"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_OF_RUNS = ("folder", "resume", "callbacks")


def attack(
    folder: str | Path,
    kinds: Sequence[Kind] = KINDS,
    *,
    images: int = 4,
    steps: int = STEPS,
    samples: int = 5000,
    seed: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> Attacks:
    """Attack the run in a folder: invert what some clients send in the first round, and guess from the final model who
    its members are. A run with secure randomness is not attacked: it would be a release that nothing pays for."""
    for kind in kinds:
        expect_one_of("kind", kind, KINDS)
    expect_count("images", images, "of as many clients one image is sought", most=64)
    expect_count("steps", steps, "400 are usual")
    expect_count("samples", samples, "members, and as many others", least=10)
    path = Path(folder)
    run = RunFolder.open(path)
    if run.description().secure_rng:
        raise CloisterError(
            "Expected a simulation to attack, found a run with secure randomness: what an attack shows of its training "
            "samples would be a release that nothing pays for."
        )
    ready, task = _made_again(path, run)
    certificate = run.certificate()
    private = certificate.private and certificate.epsilon != float("inf")
    return Attacks(
        path.resolve().name,
        certificate.epsilon if private else None,
        certificate.prices[0].delta if private else None,
        str(ready.fed.unit),
        several(ready, task, images, steps, seed, tick) if "inversion" in kinds else [],
        _members(path, task, samples, seed) if "membership" in kinds else None,
    )


def _made_again(path: Path, run: RunFolder) -> tuple[Ready, Task]:
    """The federation of a run as it stood before the first round, on the data with which it was trained."""
    if not (path / "config.toml").is_file():
        raise CloisterError(
            f"Expected config.toml in {path}, found none: attacks are for runs that were started by the command line."
        )
    start: Any = build(load_config(path / "config.toml")).start
    options = {name: value for name, value in start.keywords.items() if name not in _OF_RUNS}
    request = flat_arguments(Request)(*start.args, **options)
    same = request.task.fingerprint() == run.checkpoint().facts["data"]
    expect(same, f"the data with which {path} was trained", "others", "restore them")
    ready = prepare(request, run.description())
    if ready.asks_first:
        raise CloisterError(
            f"Expected a run that asks nothing before its first round, found {path}, which does: attacks do not know "
            "what it was told."
        )
    return ready, request.task


def _members(path: Path, task: Task, samples: int, seed: int) -> Membership:
    model = load(path, loss=task.loss, preprocessing=task.preprocessing)
    people = task.population
    owned = zip(people.starts.tolist(), people.counts.tolist(), strict=True)
    rows = torch.cat([torch.arange(start, start + count) for start, count in owned])
    count = min(samples, len(rows), len(task.test_labels))
    expect(count >= 10, "training and test samples to tell apart", count, "attack a run on more data")
    random = torch.Generator().manual_seed(seed)

    def some(inputs: Tensor, labels: Tensor, among: Tensor) -> Tensor:
        chosen = among[torch.randperm(len(among), generator=random)[:count]]
        return losses(model.module, task.loss, inputs[chosen], labels[chosen])

    inside = some(people.inputs, people.labels, rows)
    outside = some(task.test_inputs, task.test_labels, torch.arange(len(task.test_labels)))
    return membership(inside, outside)
