"""Measuring a round after it is over, where that was asked for. The run itself is the same with and without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloister.core import MethodState
from cloister.engine.measure import Measured, measure
from cloister.round import Federation, Outcome, RoundPlan
from cloister.runs.evaluate import Score
from cloister.runs.measurement_file import MeasurementFile
from cloister.runs.prepare import Ready
from cloister.runs.recorded import Recorded

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_PER_OCTAVE = 4
"""Bins of a histogram between a norm and twice that norm: the same in every round, so that rounds can be compared."""


@dataclass
class Recorder:
    """Measures rounds, and keeps what it finds in memory and in a file."""

    recorded: Recorded
    file: MeasurementFile | None = None
    _names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._names = frozenset(self.recorded.names)

    @classmethod
    def resume(cls, folder: Path, names: Sequence[str], rounds: int) -> Recorder:
        """That of a run which goes on after so many rounds."""
        file, recorded = MeasurementFile.resume(folder, names, rounds)
        return cls(recorded, file)

    def sync(self) -> None:
        """Onto the disk, before a checkpoint that counts these rounds as done."""
        if self.file is not None:
            self.file.sync()

    def add(self, ready: Ready, outcome: Outcome, before: MethodState, w: Tensor, test: Score | None) -> None:
        """Measure a round that is over. `before` is the state that it began with, w the model, if it was tested."""
        assert outcome.offer is not None
        assert outcome.clients is not None
        plan = RoundPlan.of(ready.fed, outcome.offer, outcome.clients, before.clients)
        released: dict[str, Any] = {}
        exact: dict[str, Any] = {}
        if "thresholds" in self._names:
            protected = released if ready.fed.method.mechanism.noise_multiplier else exact
            protected["thresholds"] = _thresholds(ready, plan)
        if self._names & {"norms", "clipping", "gradients"}:
            exact |= self._measured(ready, plan)
        if "train" in self._names and test is not None:
            assert ready.train_score is not None
            exact["train"] = _beside(ready.train_score(w), test)
        line = {"round": plan.offer.round, "released": released, "not_private": exact}
        self.recorded.lines.append(line)
        if self.file is not None:
            self.file.append(line)

    def _measured(self, ready: Ready, plan: RoundPlan) -> dict[str, Any]:
        """Norms, clip factors and gradients of a round, as far as they were asked for."""
        local = plan.fed.method.local
        private_steps = local.private is not None or local.sample_l2 is not None  # which clip single samples
        gradients = "gradients" in self._names or (private_steps and "clipping" in self._names)
        found = list(measure(plan, gradients))
        finite = [one for one in found if one.finite]
        each = {_name(ready, one.client): one for one in found}
        norms, nonfinite = [one.norm for one in finite], len(found) - len(finite)
        exact: dict[str, Any] = {}
        if "norms" in self._names:
            exact["norms"] = {"clip_norm": _limit(finite), **summary(norms), "nonfinite": nonfinite}
        if "clipping" in self._names:
            exact["clipping"] = _clipping(finite, private_steps)
        if "gradients" in self._names:
            exact["gradients"] = _gradients(each)
        return {**exact, "clients": self._of_each(each)} if "clients" in self._names else exact

    def _of_each(self, each: Mapping[str, Measured]) -> dict[str, Any]:
        """By client: the norm and the factor of its update, and of every sample's gradient."""
        found: dict[str, Any] = {}
        for name, one in each.items():
            row: dict[str, Any] = {"norm": one.norm, "clip_factor": one.factor} if one.finite else {}
            if "gradients" in self._names:
                row["gradient_norms"] = one.gradient_norms.tolist()
            found[name] = row
        return found


def _name(ready: Ready, client: int) -> str:
    names = ready.description.task.client_names
    return names[client] if names else str(client)


def summary(values: Sequence[float]) -> dict[str, Any]:
    """How numbers that are not negative are distributed, those that are finite; of none, only that there are none."""
    there = np.asarray(values, dtype=np.float64)
    there = there[np.isfinite(there)]
    if not len(there):
        return {"count": 0}
    quantiles = np.quantile(there, QUANTILES)
    return {
        "count": len(there),
        "mean": float(there.mean()),
        "least": float(there.min()),
        "most": float(there.max()),
        "quantiles": {f"{share:g}": float(value) for share, value in zip(QUANTILES, quantiles, strict=True)},
        "histogram": histogram(there),
    }


def histogram(values: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """How many values lie between edges that go up by the same factor, and how many are zero.

    >>> histogram(np.array([0.0, 1.0, 1.1, 1.2]))
    {'edges': [1.0, 1.189207115002721, 1.4142135623730951], 'counts': [2, 1], 'zeros': 1}
    """
    positive = values[values > 0]
    if not len(positive):
        return {"edges": [], "counts": [], "zeros": len(values)}
    bins = np.floor(_PER_OCTAVE * np.log2(positive) + 1e-12).astype(np.int64)
    edges = [2.0 ** (number / _PER_OCTAVE) for number in range(int(bins.min()), int(bins.max()) + 2)]
    counts = np.bincount(bins - bins.min())
    return {"edges": edges, "counts": counts.tolist(), "zeros": len(values) - len(positive)}


def clip_factors(factors: Sequence[float]) -> dict[str, Any]:
    """The mean factor (alpha-bar), the mean distance from it (alpha-tilde), and how many are clipped at all.

    >>> clip_factors([1.0, 0.5])
    {'count': 2, 'mean': 0.75, 'spread': 0.25, 'least': 0.5, 'clipped': 0.5}
    """
    there = np.asarray(factors, dtype=np.float64)
    if not len(there):
        return {"count": 0}
    mean = float(there.mean())
    return {
        "count": len(there),
        "mean": mean,
        "spread": float(np.abs(there - mean).mean()),
        "least": float(there.min()),
        "clipped": float((there < 1).mean()),
    }


def _clipping(found: Sequence[Measured], private_steps: bool) -> dict[str, Any]:
    """Factors of the updates; of the samples' gradients, where it is those that are clipped."""
    if private_steps:
        joined = [factor for one in found for factor in one.gradient_factors.tolist()]
        return {"of": "gradients", **clip_factors(joined)}
    limit = _limit(found)
    factors = clip_factors([one.factor for one in found])
    return {"of": "nothing" if limit is None else "updates", "clip_norm": limit, **factors}


def _limit(found: Sequence[Measured]) -> float | None:
    """The norm to which updates are clipped, the same for all of a round; None where they are not."""
    return next((one.clip_norm for one in found if one.clip_norm is not None), None)


def _gradients(each: Mapping[str, Measured]) -> dict[str, Any]:
    """Norms of single samples' gradients: of all together, and by client how they are distributed."""
    joined = [norm for one in each.values() for norm in one.gradient_norms.tolist()]
    rows = {}
    for name, one in each.items():
        found = summary(one.gradient_norms.tolist())
        row: dict[str, Any] = {"samples": found["count"]}
        if found["count"]:
            row |= {"mean": found["mean"], "median": found["quantiles"]["0.5"], "most": found["most"]}
        if len(one.gradient_factors):
            row["mean_clip_factor"] = float(one.gradient_factors.mean())
        rows[name] = row
    return {**summary(joined), "by_client": rows}


def _thresholds(ready: Ready, plan: RoundPlan) -> dict[str, Any]:
    """The noise multiplier sigma_t and the threshold C_t that the round began with.

    Both are known before the round: they follow from public settings, released models, and answers to queries that
    were paid for together with the gradients. (Without noise nothing was, and what follows the data is exact.)
    """
    fed, local = plan.fed, plan.fed.method.local
    own = [fed.noise_of(int(client)) for client in plan.clients] if fed.multipliers else []
    noise = fed.method.mechanism.noise_multiplier if not own else sum(own) / len(own)
    found: dict[str, Any] = {"noise_multiplier": None if noise is None else noise * plan.offer.noise_scale}
    if "threshold" in local.client_state:
        rows = plan.client_state["threshold"][plan.clients.to(plan.offer.w.device)].double().flatten().cpu()
        names = [_name(ready, client) for client in plan.clients.tolist()]
        each = {"by_client": dict(zip(names, rows.tolist(), strict=True))}
        spread = {"least": float(rows.min()), "most": float(rows.max())} if len(rows) else {}
        return {**found, "clip_norm": float(rows.mean()) if len(rows) else None, **spread, **each}
    return {**found, "clip_norm": _public_threshold(fed, plan)}


def _public_threshold(fed: Federation, plan: RoundPlan) -> float | None:
    """The norm to which everybody clips in this round; None where nothing is clipped."""
    private, clipped, w = fed.method.local.private, fed.method.transform.clipped, plan.offer.w
    if private is not None and private.clip_norm is None:  # a query released it before the first round
        released = fed.method.local.init(w).get("threshold")
        return None if released is None else float(released)
    if private is not None:
        return private.clip_norm
    if fed.method.local.sample_l2 is not None:
        return fed.method.local.sample_l2
    if clipped is None:
        return None
    found = float(clipped(torch.zeros_like(w), fed.context(w, plan.offer.broadcast))[1])
    return found if math.isfinite(found) else None


def _beside(train: Score, test: Score) -> dict[str, Any]:
    """Scores on training samples, and how far those on test samples are from them."""
    found: dict[str, Any] = {"loss": train.loss, "accuracy": train.accuracy, **train.metrics}
    if train.accuracy is not None and test.accuracy is not None:
        found["accuracy_gap"] = train.accuracy - test.accuracy
    if train.loss is not None and test.loss is not None:
        found["loss_gap"] = test.loss - train.loss
    return found
