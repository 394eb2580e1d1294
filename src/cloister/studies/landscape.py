"""The loss around a model, on a plane: filter-normalized directions (Li et al., NeurIPS 2018, "Visualizing the loss
landscape of neural nets").

    loss(w + alpha * a + beta * b)

where every filter of the random directions a and b has the norm of the model's filter, so that models of different
scale compare. Biases and the scales of normalization layers, which have one dimension, are left as they are. The same
seed gives the same directions for all models of one shape.

On test samples it is as exact as any test score, and no epsilon covers it. On training samples it is NOT PRIVATE.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cloister.client.population import Population
from cloister.core import Layout
from cloister.data.task import Task
from cloister.errors import CloisterError, expect, expect_count, expect_one_of, expect_positive, expect_type
from cloister.privacy.description import plain
from cloister.runs.evaluate import Scorer, scorer
from cloister.runs.files import read_json, write_atomically
from cloister.runs.folder import RunFolder
from cloister.runs.load import load
from cloister.runs.measurement_file import numbers
from cloister.runs.recorded import MARK, NOT_PRIVATE
from cloister.runs.result import Run
from cloister.runs.trained_model import TrainedModel
from cloister.studies.run_task import task_of
from cloister.studies.sharpness import Sharpness, largest_eigenvalue, rises

FILE = "landscape.json"
_FORMAT = 1
ON_TEST = "exact on test samples: no epsilon covers it"
_HESSIAN_SAMPLES = 500

Of = Literal["test", "train"]


@dataclass(frozen=True, repr=False)
class Landscape:
    """Loss and accuracy at `loss[i][j]`: at alpha[i] and beta[j]. On a line, beta is 0 alone."""

    alpha: list[float]
    beta: list[float]
    loss: list[list[float]]
    accuracy: list[list[float]] | None
    """None where labels are no classes."""
    sharpness: Sharpness
    of: Of
    samples: int
    seed: int
    parameters: int
    """How many the model has that are trained ..."""
    moved: int
    """... and how many of them the directions move."""
    note: str
    model: str | None = None
    """The hash of the configuration, where the model is that of a run in a folder."""

    def __repr__(self) -> str:
        shape = " x ".join(str(len(axis)) for axis in (self.alpha, self.beta))
        mark = f", {MARK}" if self.of == "train" else ""
        return f"<Landscape: {shape} points on {self.samples} {self.of} samples, loss {self.center:.4f}{mark}>"

    @property
    def center(self) -> float:
        """The loss of the model itself."""
        return self.loss[len(self.alpha) // 2][len(self.beta) // 2]

    def line(self, of: Literal["loss", "accuracy"] = "loss") -> list[float] | None:
        """Along alpha, where beta is 0."""
        found = self.loss if of == "loss" else self.accuracy
        return None if found is None else [row[len(self.beta) // 2] for row in found]

    def to_json(self) -> dict[str, Any]:
        """All of it, with its mark, as plain data."""
        mark = {"mark": MARK} if self.of == "train" else {}
        return {"format": _FORMAT, **mark, **plain(asdict(self))}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Landscape:
        """The inverse."""
        expect(found.get("format") == _FORMAT, f"a landscape of format {_FORMAT}", found.get("format"), "draw it again")
        known = {name: numbers(value) for name, value in found.items() if name not in ("format", "mark")}
        return cls(**{**known, "sharpness": Sharpness(**known["sharpness"])})

    def plot(self, path: str | Path) -> None:
        """Draw contours, the surface and the line through the middle."""
        from cloister.studies.landscape_plots import landscape_plot

        landscape_plot({"": self}, Path(path))


def landscape(
    model: nn.Module | Run | TrainedModel | str | Path,
    task: Task | None = None,
    points: int = 21,
    range: float = 1.0,
    samples: int | None = 1000,
    of: Of = "test",
    seed: int = 0,
    dimensions: int = 2,
    device: str = "cpu",
    hessian: bool = True,
    own_model: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Landscape:
    """The loss around a trained model, from -range to range along two directions, each as long as the model's filters.

    `model` is a module, a run, what `cl.load` returns, or the folder of a run. `task` can be left out where that folder
    has a config.toml, as those of `cloister run` have: its data are read again. `samples` of the test set (or of all
    clients' training samples) are drawn by the seed; None takes all. `hessian`: also the Hessian's largest eigenvalue.
    `own_model` is what makes the module of a run's folder, where no file can (as `model` of `cl.load`).

    >>> import cloister as cl
    >>> task = cl.data.digits(clients=10)
    >>> found = landscape(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), task, points=3, samples=50)
    >>> found
    <Landscape: 3 x 3 points on 50 test samples, ...>
    """
    _expect_settings(points, range, samples, of, dimensions)
    task = _given(task, model)
    subject = _subject(model, task, of, own_model)
    task = _on(replace(task, preprocessing=subject.preprocessing, local_test=None), of, samples, seed)
    module = subject.module.to(device)
    layout = Layout(subject.names, tuple(dict(module.named_parameters())[name].shape for name in subject.names))
    w = layout.flatten(dict(module.named_parameters()))
    score = scorer(module, layout, task, w)
    axes = [filter_normalized(w, layout, seed, number) for number in (0, 1)]
    alpha = np.linspace(-range, range, points).tolist()
    beta = alpha if dimensions == 2 else [0.0]
    losses, accuracies = _grid(score, w, axes, alpha, beta, progress)
    around = rises(lambda at: _loss(score, at), w, lambda number: filter_normalized(w, layout, seed, 2 + number), range)
    top = None
    if hessian:
        few = _on(task, "test", _HESSIAN_SAMPLES, seed)
        top = largest_eigenvalue(module, layout, few, w, seed)
    return Landscape(
        alpha,
        beta,
        losses,
        accuracies,
        Sharpness(around, top),
        of,
        len(task.test_labels),
        seed,
        layout.size,
        int((axes[0] != 0).sum()),
        NOT_PRIVATE if of == "train" else ON_TEST,
        subject.configuration,
    )


def filter_normalized(w: Tensor, layout: Layout, seed: int, number: int) -> Tensor:
    """A random direction [d]: normal draws, each filter (row of a weight) scaled to the norm that it has in the model.

    Weights of one dimension (biases, normalization) stay where they are. Draws are made on the CPU, so that they are
    the same on every device.
    """
    random = torch.Generator().manual_seed(seed * 1_000_003 + number)
    pieces = []
    for piece, shape in zip(layout.pieces(w), layout.shapes, strict=True):
        drawn = torch.randn(shape, generator=random, dtype=torch.float64)
        if len(shape) < 2:
            pieces.append(torch.zeros_like(piece))
            continue
        filters, own = drawn.flatten(1).to(w), piece.view(shape).flatten(1)
        scale = torch.linalg.vector_norm(own, dim=1) / torch.linalg.vector_norm(filters, dim=1).clamp(min=1e-12)
        pieces.append((filters * scale[:, None]).reshape(-1))
    return torch.cat(pieces)


def write_landscape(folder: Path, found: Landscape) -> Path:
    """Into a run's folder; no other file refers to it. What is not private is for its owner alone."""
    content = json.dumps(found.to_json(), indent=1).encode()
    write_atomically(folder / FILE, content, private=found.of == "train")
    return folder / FILE


def read_landscape(folder: Path) -> Landscape | None:
    """What was written into a run's folder, if anything: for reports."""
    return Landscape.from_json(read_json(folder / FILE)) if (folder / FILE).is_file() else None


@dataclass(frozen=True)
class _Subject:
    """A model as it was trained: the module, what was trained of it, and how it sees inputs."""

    module: nn.Module
    names: tuple[str, ...]
    preprocessing: Any
    configuration: str | None = None


def _given(task: Task | None, model: Any) -> Task:
    if task is not None:
        return task
    remedy = "only the folder of a run says with which data it was trained: give task"
    expect(isinstance(model, (str, Path)), "a task", None, remedy)
    return task_of(Path(model))


def _subject(model: Any, task: Task, of: Of, own: Any) -> _Subject:
    if of == "train" and _is_deployed(model):
        raise CloisterError(
            "Expected a simulation for a landscape on training samples, found a run with secure randomness: it "
            "would be a release that nothing pays for, so use test samples (of = test)."
        )
    if isinstance(model, (str, Path)):
        model = load(model, own, loss=task.loss, preprocessing=task.preprocessing)
    if isinstance(model, TrainedModel):
        inner: Any = model.module.model
        about, named = model.about, dict(inner.named_parameters())
        if about.adaptation is not None:  # some of it may not have been trained
            named = {name: p for name, p in about.make(own).named_parameters() if p.requires_grad}
        return _Subject(inner, tuple(named), about.preprocessing_of(task.preprocessing), about.configuration_sha256)
    module, seen = model, task.preprocessing
    if isinstance(model, Run):
        module, seen = model.model, model.preprocessing or task.preprocessing
    expect_type("model", module, nn.Module, "a module, a run, or the folder of a run", "give one")
    return _Subject(module, Layout.of(module).names, seen)


def _is_deployed(model: Any) -> bool:
    """Whether a run, in memory or in a folder, or what was loaded of one, had secure randomness."""
    if isinstance(model, (str, Path)):
        return RunFolder.open(Path(model)).description().secure_rng
    certificate = getattr(model, "certificate", None)
    return certificate is not None and certificate.secure_rng


def _expect_settings(points: int, range: float, samples: int | None, of: str, dimensions: int) -> None:
    expect_count("points", points, "21 is usual", least=3, most=1001)
    expect(points % 2 == 1, "an odd number of points, one of them the model itself", points, "give one more")
    expect_positive("range", range, "1 goes as far as the model's filters are long")
    if samples is not None:
        expect_count("samples", samples, "give None for all")
    expect_one_of("of", of, ("test", "train"))
    expect(dimensions in (1, 2), "1 or 2 dimensions", dimensions, "choose one")


def _on(task: Task, of: str, samples: int | None, seed: int) -> Task:
    """The task whose test samples are those that the loss is computed on."""
    inputs, labels = (task.test_inputs, task.test_labels) if of == "test" else _owned(task.population)
    expect(len(labels) > 0, f"{of} samples to compute the loss on", 0, "give a task that has some")
    if samples is not None and samples < len(labels):
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))[:samples].sort().values
        inputs, labels = inputs[rows.to(inputs.device)], labels[rows.to(labels.device)]
    return replace(task, test_inputs=inputs, test_labels=labels)


def _owned(people: Population) -> tuple[Tensor, Tensor]:
    """All clients' training samples; rows that are nobody's stay out."""
    owned = zip(people.starts.tolist(), people.counts.tolist(), strict=True)
    rows = torch.cat([torch.arange(start, start + count) for start, count in owned])
    return people.inputs[rows.to(people.inputs.device)], people.labels[rows.to(people.labels.device)]


def _loss(score: Scorer, w: Tensor) -> float:
    found = score(w).loss
    return float("nan") if found is None else found


def _grid(
    score: Scorer,
    w: Tensor,
    axes: list[Tensor],
    alpha: list[float],
    beta: list[float],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[list[float]], list[list[float]] | None]:
    """One point after the other: a model and its activations are in memory, and no more."""
    losses: list[list[float]] = []
    accuracies: list[list[float | None]] = []
    for number, one in enumerate(alpha):
        found = [score(w + one * axes[0] + other * axes[1]) for other in beta]
        losses.append([float("nan") if at.loss is None else at.loss for at in found])
        accuracies.append([at.accuracy for at in found])
        if progress is not None:
            progress(number + 1, len(alpha))
    known = [[value for value in row if value is not None] for row in accuracies]
    return losses, known if all(len(row) == len(beta) for row in known) else None
