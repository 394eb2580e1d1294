"""Measuring a round after it is over, where that was asked for. The run itself is the same with and without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloister.core import MethodState
from cloister.engine.measure import Measured, measure
from cloister.round import Federation, Outcome, RoundPlan
from cloister.runs.evaluate import Score
from cloister.runs.measurement_file import MeasurementFile
from cloister.runs.prepare import Ready
from cloister.runs.recorded import Recorded
from cloister.runs.summaries import clip_factors, summary
from cloister.runs.update_measures import NAMES as OF_UPDATES
from cloister.runs.update_measures import update_measures, watching


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
        if self._names & ({"norms", "clipping", "gradients"} | OF_UPDATES):
            exact |= self._measured(ready, plan, outcome, before)
        if "train" in self._names and test is not None:
            assert ready.train_score is not None
            exact["train"] = _beside(ready.train_score(w), test)
        line = {"round": plan.offer.round, "released": released, "not_private": exact}
        self.recorded.lines.append(line)
        if self.file is not None:
            self.file.append(line)

    def _measured(self, ready: Ready, plan: RoundPlan, outcome: Outcome, before: MethodState) -> dict[str, Any]:
        """What a round's updates and gradients were like, as far as that was asked for."""
        local = plan.fed.method.local
        private_steps = local.private is not None or local.sample_l2 is not None  # which clip single samples
        gradients = "gradients" in self._names or (private_steps and "clipping" in self._names)
        sums, watch = watching(self._names)
        found = list(measure(plan, gradients, watch))
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
        rows: dict[int, dict[str, float]] = {}
        if sums is not None:
            more, rows = update_measures(sums, plan, outcome, before.transform)
            exact |= more
        return {**exact, "clients": self._of_each(each, rows)} if "clients" in self._names else exact

    def _of_each(self, each: Mapping[str, Measured], more: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
        """By client: the norm and the factor of its update, and of every sample's gradient; and `more`."""
        found: dict[str, Any] = {}
        for name, one in each.items():
            row: dict[str, Any] = {"norm": one.norm, "clip_factor": one.factor} if one.finite else {}
            row |= more.get(one.client, {})
            if "gradients" in self._names:
                row["gradient_norms"] = one.gradient_norms.tolist()
            found[name] = row
        return found


def _name(ready: Ready, client: int) -> str:
    names = ready.description.task.client_names
    return names[client] if names else str(client)


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
            row["clipped"] = float((one.gradient_factors < 1).double().mean())
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
