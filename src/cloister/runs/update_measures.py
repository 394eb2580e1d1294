"""Directions, signal and sparsity of a round's updates, from sums over its clients: exact, and so NOT PRIVATE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cloister.core import State
from cloister.engine.measure import measure
from cloister.engine.update_sums import Sent, UpdateSums
from cloister.round import Outcome, RoundPlan
from cloister.round.answer import expected_samples
from cloister.round.run_round import divisor, mean_of
from cloister.runs.summaries import distribution

NAMES = frozenset({"cosine", "signal", "sparsity"})


def update_measures(
    sums: UpdateSums, plan: RoundPlan, outcome: Outcome, state: State
) -> tuple[dict[str, Any], dict[int, dict[str, float]]]:
    """What was asked for of a round, and what is known of each client. `state` is the transform's, of before."""
    found: dict[str, Any] = {}
    rows: dict[int, dict[str, float]] = {}
    if "cosine" in sums.wants:

        def again(watch: Any) -> None:
            for _ in measure(plan, watch=watch):
                pass

        cosines = sums.cosines(again)
        found["cosine"] = cosine_of(sums, cosines, outcome.mean)
        rows = {client: {"cosine": value} for client, value in cosines.items()}
    if "signal" in sums.wants:
        found["signal"] = signal_of(sums, plan, outcome, state)
    if "sparsity" in sums.wants:
        found["sparsity"] = sparsity_of(sums)
        for client, (zeros, _) in sums.zeros.items():
            rows.setdefault(client, {})["zeros"] = zeros
    return found, rows


def cosine_of(sums: UpdateSums, cosines: Mapping[int, float], released: Tensor | None) -> dict[str, Any]:
    """How much updates agree: in pairs, with their mean; and the released mean with the exact one.

    The mean is over updates before clipping, weighted as the method weighs them. A zero vector has no direction.
    """
    exact = sums.updates
    fits = exact is not None and released is not None and released.shape == exact.shape
    return {
        "pairwise": sums.directions.mean_pairwise,
        "with_mean": distribution(list(cosines.values())),
        "released": _cosine(released.double(), exact) if fits and released is not None and exact is not None else None,
    }


def signal_of(sums: UpdateSums, plan: RoundPlan, outcome: Outcome, state: State) -> dict[str, Any]:
    """What noise and clipping change in the mean update.

    `signal` is the norm of the mean as it would be without noise, `noise` that of what noise changed in it,
    `expected_noise` the root of the noise's expected square, where that is known; `clipping_bias` the norm of the
    difference between the means of clipped and of unclipped updates, `unclipped` that of the latter.
    """
    fed, took_part = plan.fed, len(plan.clients)
    weighting = fed.method.transform.weighting
    samples = expected_samples(fed, plan.clients)
    by = divisor(fed, plan.offer, took_part, samples) * (1.0 if weighting is None else weighting.mean_weight)
    if weighting is not None and weighting.averages:
        by = max(sums.weights, 1.0)
    found: dict[str, Any] = {"signal": None, "noise": None, "ratio": None}
    if sums.messages is not None and outcome.mean is not None:
        encoded = fed.encoded(plan.offer.w, plan.offer.broadcast)
        exact, _ = mean_of(fed, plan.offer, sums.messages.to(encoded.dtype), took_part, samples, state)
        noise = _norm(outcome.mean - exact) if fed.method.mechanism.noise_multiplier else 0.0
        found = {"signal": _norm(exact), "noise": noise, "ratio": _norm(exact) / noise if noise else None}
    found["expected_noise"] = expected_noise(plan, took_part)
    clips = sums.clip_errors is not None
    found["clipping_bias"] = _norm(sums.clip_errors) / by if clips else None
    found["unclipped"] = None if sums.updates is None else _norm(sums.updates) / by
    return found


def sparsity_of(sums: UpdateSums) -> dict[str, Any]:
    """Which shares of the model's coordinates are zero in updates and in messages, in the mean over clients, and how
    much clients agree on the others.

    `overlap` is the mean over pairs of |A and B| / sqrt(|A| |B|), of the coordinates that two messages keep: what they
    share of what they keep, where they keep equally many (`by_chance` is what random choices would share). `union` is
    the share of a message's coordinates that somebody keeps.
    """
    if not sums.zeros or sums.kept_by is None:
        return {"count": 0}
    updates, messages = zip(*sums.zeros.values(), strict=True)
    kept = sums.kept_by.double()
    return {
        "count": len(updates),
        "updates": sum(updates) / len(updates),
        "messages": sum(messages) / len(messages),
        "overlap": sums.supports.mean_pairwise,
        "by_chance": float(kept.mean()) / len(updates),
        "union": float((kept > 0).double().mean()),
    }


def expected_noise(plan: RoundPlan, took_part: int) -> float | None:
    """sqrt(d) sigma / denominator: the root of the expected squared norm of the noise in the mean; None where that
    does not follow from the mechanism alone (noise in the steps, correlated noise, a sum that is cut afterwards)."""
    fed, mechanism, offer = plan.fed, plan.fed.method.mechanism, plan.offer
    transform = fed.method.transform
    if mechanism.place not in ("central", "distributed") or mechanism.correlate is not None or transform.after:
        return None
    settings = mechanism.settings
    if mechanism.honest_fraction is not None:  # all members' shares, of whom this fraction is counted on
        whole = (mechanism.noise_multiplier or 0.0) * fed.sensitivity.unit
        deviation = whole / math.sqrt(mechanism.honest_fraction)
    elif mechanism.name == "gaussian":
        deviation = (mechanism.noise_multiplier or 0.0) * fed.sensitivity.unit
    elif mechanism.name == "discrete_gaussian":
        deviation = settings["scale"] * math.sqrt(settings["shares"])
    else:
        return None
    numbers = fed.blank(offer.w, offer.broadcast).numel()
    for number, part in enumerate(transform.parts or (transform,)):
        if part.decode is None:
            continue
        told = offer.broadcast.get(str(number), {}) if transform.parts else offer.broadcast
        if part.name == "adaptive_clip":
            deviation, numbers = deviation * float(told["clip_norm"]), numbers - 1
        elif part.name == "quantize":
            deviation, numbers = deviation / part.settings["grid_scale"], offer.w.numel()
        elif part.name == "to_grid":
            deviation /= part.settings["points"]
        elif part.name == "capped_weights":
            deviation /= part.settings["mean_weight"]
        elif part.name not in ("random_mask", "public_mask"):
            return None
    return math.sqrt(numbers) * deviation / divisor(fed, offer, took_part, expected_samples(fed, plan.clients))


def watching(wanted: frozenset[str]) -> tuple[UpdateSums | None, Any]:
    """The sums that these measurements need, and what adds an update to them; neither where none is asked for."""
    if not wanted & NAMES:
        return None, None
    sums = UpdateSums(wanted & NAMES)

    def watch(client: int, sent: Sent) -> None:
        sums.add(client, sent)

    return sums, watch


def _norm(vector: Tensor | None) -> float:
    return 0.0 if vector is None else float(torch.linalg.vector_norm(vector.double()))


def _cosine(one: Tensor, other: Tensor) -> float | None:
    scale = _norm(one) * _norm(other)
    return float(one @ other) / scale if scale else None
