"""Which model a run keeps: the newest, an average of those that were released, or the best in validation.

Everything here is computed from what was released and from public data alone. That is post-processing: it costs no
privacy, and no round costs more by it. Training itself goes on from the newest model in any case. (When a run ends by
what it has released, that it might have gone on counts, too: the certificate is for all planned rounds.)

    average       A <- A + (1 - decay) / (1 - decay^t) (w_t - A), which is decay A + (1 - decay) w_t with its bias
                  corrected: the weights of w_1 to w_t sum to one from the first round on
    validation    the watched metric of that model on public samples, or by a priced query on clients' own
    patience      the run ends after so many evaluations in a row without an improvement
    restore_best  the model that did best on them is kept

Validation on test samples is not offered: what is chosen by them is no longer tested by them. Validation on samples
that clients hold out of their own training data is a release, which is paid for (`private_validation.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cloister.errors import CloisterError, expect, expect_count, expect_not_negative, expect_one_of, expect_share

if TYPE_CHECKING:
    from torch import Tensor, nn

    from cloister.core import Layout
    from cloister.data.task import Task
    from cloister.runs.metric_catalogue import Metric, Watched
    from cloister.runs.request import Options

_PRIVATE_VALIDATIONS = 10
"""So many share what validation may spend, unless evaluate_every says otherwise."""

Validation = Literal["none", "public", "private"]
Validate = Callable[[int, "Tensor"], float]
"""(round, model) -> the watched number of that model."""


@dataclass(frozen=True)
class Kept:
    """What selection remembers from round to round; part of the checkpoint."""

    average: Tensor | None = None
    best: Tensor | None = None
    """The model that did best, where it is to be kept."""
    value: float | None = None
    """What the best one reached in validation, in round `round`; None before the first."""
    round: int = 0
    waited: int = 0
    """Evaluations in a row without an improvement."""


@dataclass(frozen=True)
class Selection:
    """How the model that is kept is chosen. `every`: rounds between validations."""

    average: float | None = None
    validation: Validation = "none"
    watch: str = "loss"
    """The metric that validation watches."""
    larger_is_better: bool = False
    patience: int | None = None
    min_delta: float = 0.0
    restore_best: bool = False
    every: int | None = None
    fraction: float | None = None
    """Of every client's samples, held out for private validation: what is trained on depends on it."""

    @classmethod
    def of(cls, options: Options, rounds: int, monitor: Metric | None = None) -> Selection:
        """What the options ask for; `monitor` is the metric to watch.

        When to validate must not depend on the clients' data, as when to test may.
        """
        most = _PRIVATE_VALIDATIONS if options.validation == "private" else 50
        every = options.evaluate_every or -(-rounds // most)
        if monitor is None or options.validation == "none":
            watch = ("loss", False)
        elif options.validation == "private" and monitor.name != "accuracy":
            watch = ("loss", False)  # what a sample contributes is between 0 and 1
        else:
            watch = (monitor.name, monitor.larger_is_better)
        return cls(
            options.average,
            options.validation,
            *watch,
            options.patience,
            options.min_delta,
            options.restore_best,
            None if options.validation == "none" else every,
            options.validation_fraction if options.validation == "private" else None,
        )

    def times(self, rounds: int) -> int:
        """How often a run of so many rounds validates."""
        return 0 if self.every is None else rounds // self.every + (rounds % self.every > 0)

    def to_json(self) -> dict[str, Any]:
        """All settings, for the run's identity; nothing where the newest model is kept."""
        if self == Selection():
            return {}
        return {name: value for name, value in asdict(self).items() if name != "fraction" or value is not None}

    def averaged(self, kept: Kept, round: int, w: Tensor) -> Kept:
        """With the model that a round released."""
        if self.average is None:
            return kept
        if kept.average is None:
            return replace(kept, average=w)
        weight = (1 - self.average) / (1 - self.average**round)
        return replace(kept, average=kept.average + weight * (w - kept.average))

    def judged(self, kept: Kept, round: int, w: Tensor, value: float) -> Kept:
        """With what a model reached in validation."""
        if not self._improves(value, kept.value):
            return replace(kept, waited=kept.waited + 1)
        return replace(kept, best=w if self.restore_best else None, value=value, round=round, waited=0)

    def _improves(self, value: float, best: float | None) -> bool:
        if math.isnan(value) or best is None:
            return not math.isnan(value)
        return value > best + self.min_delta if self.larger_is_better else value < best - self.min_delta

    def why_over(self, kept: Kept, round: int) -> str | None:
        """Why the run ends after this round, if its patience is at an end."""
        if self.patience is None or kept.waited < self.patience:
            return None
        best = "was never a number" if kept.value is None else f"was best in round {kept.round} ({kept.value:.6g})"
        times = "once" if kept.waited == 1 else f"{kept.waited} times in a row"
        watched = f"{self.watch} in {self.validation} validation"
        return f"after round {round} the {watched}, which {best}, had not improved {times}"


def public_validation(module: nn.Module, layout: Layout, task: Task, like: Tensor, watching: Watched) -> Validate:
    """The watched number on the task's public samples: a function of what is public and of released models."""
    from cloister.runs.evaluate import scorer

    assert task.public_samples is not None
    inputs, labels = task.public_samples
    public = replace(task, test_inputs=inputs, test_labels=labels, local_test=None)
    score = scorer(module, layout, public, like, watching)

    def validate(round: int, w: Tensor) -> float:
        found = score(w).metrics[watching.monitor.name]
        return math.nan if found is None else found

    return validate


def expect_selection(options: Options) -> None:
    """Refuse what cannot be, or must not be, chosen by."""
    if options.average is not None:
        expect_share("average", options.average, "0.9 is usual; leave it out to keep the newest model")
    expect_one_of("validation", options.validation, ("none", "public", "private"))
    expect_share("validation_fraction", options.validation_fraction, "0.1 holds out a tenth of every client's samples")
    expect_share("validation_share", options.validation_share, "the share of the budget that validation has")
    if options.patience is not None:
        expect_count("patience", options.patience, "evaluations without an improvement after which the run ends")
    expect_not_negative("min_delta", options.min_delta, "0 counts every improvement")
    whole = isinstance(options.restore_best, bool)
    expect(whole, "restore_best to be True or False", options.restore_best, "True keeps the best model")
    if options.validation != "private":
        for name, usual in (("validation_fraction", 0.1), ("validation_share", 0.1)):
            unused = getattr(options, name) == usual
            expect(unused, f"validation = private beside {name}", options.validation, f"add it, or leave {name} out")
    remedy = "add validation = public (or private), because nothing is chosen by test samples"
    for name in ("patience", "restore_best", "min_delta"):
        unused = getattr(options, name) in (None, False, 0)
        expect(unused or options.validation != "none", f"validation beside {name}", "none", remedy)


def expect_validated(options: Options, task: Task) -> None:
    """Refuse validation that the task has no samples or no numbers for."""
    if options.validation == "none":
        return
    if options.validation == "public":
        remedy = "set some aside (public_samples = 500), pay for validation = private, or leave it out"
        there = task.public_samples is not None and len(task.public_samples[1]) > 0
        expect(there, "public samples to validate on", f"none in {task.name}", remedy)
    elif task.loss.mixes_samples:
        raise CloisterError(
            f"Expected a loss for every sample by itself for private validation, found {task.loss.name}: validate on "
            "public samples."
        )
