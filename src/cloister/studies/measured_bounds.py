"""The papers' bounds beside what a run measured, as plain data: numbers, lists and dictionaries that JSON can hold.

    eq2_by_round       BLUR eq. 2: what clipping and noise change in an update, by recorded norms, and what they did
    eq2_over_clips     the same over other clips, and which would have been best
    clip_factors       DP-FedSAM's alpha-bar and alpha-tilde by round, and the terms of its Theorem 3 and of BLUR's
                       Theorem 2 that they weigh
    utility            PFL Theorem 3: utility over the number of clients

`of_run` has the first three of a run that was recorded with norms and clipping (and clients for single norms, signal
for what was measured beside). All of them are NOT PRIVATE, as the norms are; `utility` follows from test scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloister.errors import CloisterError, expect, expect_positive, expect_share
from cloister.privacy.description import RunDescription
from cloister.runs import measurement_file
from cloister.runs.folder import RunFolder
from cloister.runs.recorded import NOT_PRIVATE, Recorded
from cloister.theory import blur_lus, dp_fedsam, pfl

_CLIPS = 60
"""At so many clips eq. 2 is computed."""


@dataclass(frozen=True)
class Measured:
    """A run as the bounds see it."""

    recorded: Recorded
    noise_multiplier: float
    clients: float
    """P: what a sum is divided by, the expected size of a cohort."""
    parameters: int
    local_steps: int | None
    lr: float | None
    server_lr: float
    first_loss: float | None
    """On test samples, of the first round: what f(w_1) - f* is at most, of a loss that is not negative."""

    @classmethod
    def of(cls, path: Path) -> Measured:
        """From a run's folder; refused where there is nothing to compare."""
        folder, recorded = RunFolder.open(path), measurement_file.read(path)
        if recorded is None or not {"norms", "clipping"} <= set(recorded.names):
            raise CloisterError(
                f"Expected a run that recorded norms and clipping, found others in {path}: run it with record = norms, "
                "clipping (and clients, signal)."
            )
        about: RunDescription = folder.description()
        if not recorded.by_round("norms/clip_norm"):
            raise CloisterError(
                f"Expected a run that clips whole updates, found {about.method.name} in {path}, which does not: the "
                "bounds are those of user-level methods."
            )
        local = about.method.local
        losses = [line["loss"] for line in folder.metrics() if isinstance(line.get("loss"), float)]
        return cls(
            recorded,
            about.method.mechanism.noise_multiplier or 0.0,
            about.denominator,
            about.model.parameters,
            local.get("local_steps"),
            local.get("lr"),
            float(about.method.server.get("lr", 1.0)),
            losses[0] if losses else None,
        )

    def norms(self) -> dict[int, tuple[list[float], list[float]]]:
        """By round, norms of updates and how often each was there: one by one where clients were recorded, else the
        middles of the histogram's bins."""
        found: dict[int, tuple[list[float], list[float]]] = {}
        for number, rows in self.recorded.by_round("clients").items():
            own = [row["norm"] for row in rows.values() if "norm" in row]
            if own:
                found[number] = own, [1.0] * len(own)
        if found:
            return found
        for number, bins in self.recorded.by_round("norms/histogram").items():
            edges = np.array(bins["edges"] or [1.0])
            middles = np.sqrt(edges[:-1] * edges[1:]).tolist()
            found[number] = [*middles, 0.0], [*map(float, bins["counts"]), float(bins["zeros"])]
        return found


def of_run(path: Path) -> dict[str, Any]:
    """Everything that is drawn of a run: `eq2`, `over_clips` and `clip_factors`, with the mark."""
    run = Measured.of(Path(path))
    return {
        "mark": NOT_PRIVATE,
        "eq2": eq2_by_round(run),
        "over_clips": eq2_over_clips(run),
        "clip_factors": clip_factors(run),
    }


def eq2_by_round(run: Measured) -> dict[str, list[Any]]:
    """BLUR eq. 2 with the norms of every round: squared error of an update, per coordinate, by clipping and by noise.

    `clipping_measured` is the squared bias of the MEAN update by clipping, per coordinate, which is at most the mean of
    the single ones (Jensen); `noise_measured` the square of the noise in it, times P, which is an agent's share. Both
    are None in rounds in which no signal was recorded.
    """
    limits, signal = run.recorded.by_round("norms/clip_norm"), run.recorded.by_round("signal")
    found: dict[str, list[Any]] = {
        name: [] for name in ("round", "clipping", "noise", "clipping_measured", "noise_measured")
    }
    for number, (norms, counts) in run.norms().items():
        if number not in limits or not sum(counts):
            continue
        error = _error(run, norms, counts, limits[number])
        seen, d = signal.get(number, {}), run.parameters
        bias, noise = seen.get("clipping_bias"), seen.get("noise")
        scale = sum(counts) / run.clients  # sums are divided by P, however many came
        row = (
            number,
            error.clipping,
            error.noise,
            None if bias is None else bias**2 / d / scale**2,
            None if noise is None else noise**2 / d * run.clients,
        )
        for name, value in zip(found, row, strict=True):
            found[name].append(value)
    return found


def eq2_over_clips(run: Measured) -> dict[str, Any]:
    """BLUR eq. 2 with the norms of all rounds, over clips S; the S of the run (of its last round) and the best one.

    Both terms are about an update of the same model: what another clip would have made of the later rounds it cannot
    tell.
    """
    every = run.norms().values()
    norms = [norm for values, _ in every for norm in values]
    counts = [count for _, several in every for count in several]
    least, most = min(n for n in norms if n > 0), max(norms)
    clips = np.geomspace(least / 100, most * 2, _CLIPS).tolist()
    errors = [_error(run, norms, counts, clip) for clip in clips]
    totals = [error.total for error in errors]
    return {
        "clip_norm": clips,
        "clipping": [error.clipping for error in errors],
        "noise": [error.noise for error in errors],
        "total": totals,
        "used": list(run.recorded.by_round("norms/clip_norm").values())[-1],
        "best": clips[int(np.argmin(totals))],
    }


def clip_factors(run: Measured, smoothness: float = 1.0, deviation: float = 1.0) -> dict[str, Any]:
    """alpha-bar and alpha-tilde as recorded, and after every round the terms of the bounds that they weigh.

    `theorem_3` (DP-FedSAM) and `theorem_2` (BLUR) are orders of magnitude: the constants that nobody knows are in
    `assumed`. Theorem 2 needs a number of local steps; it is None where clients count epochs.
    """
    means, spreads = run.recorded.mean_clip_factor, run.recorded.clip_factor_spread
    limits = run.recorded.by_round("norms/clip_norm")
    rounds = [number for number in means if number in limits and means[number] > 0]
    gap, steps = run.first_loss or 1.0, run.local_steps or 1
    clients = max(1, round(run.clients))
    three: dict[str, list[float]] = {"fedsam": [], "clipping": [], "noise": []}
    two: dict[str, list[float]] = {"fedavg": [], "noise": [], "over_alpha_bar": []}
    for last in range(1, len(rounds) + 1):
        bar, tilde = ([values[number] for number in rounds[:last]] for values in (means, spreads))
        clip = limits[rounds[last - 1]]
        bound = dp_fedsam.convergence(
            *(bar, tilde, steps, smoothness, gap, deviation, deviation),
            *(run.noise_multiplier, clip, clients, run.parameters),
        )
        for name, terms in three.items():
            terms.append(getattr(bound, name))
        if run.local_steps and run.lr:
            other = blur_lus.convergence(
                last, steps, run.lr, run.server_lr, clients, run.noise_multiplier, clip, run.parameters, bar
            )
            for name, value in zip(two, (other.fedavg, other.noise, other.total), strict=True):
                two[name].append(value)
    return {
        "round": rounds,
        "alpha_bar": [means[number] for number in rounds],
        "alpha_tilde": [spreads[number] for number in rounds],
        "theorem_3": three,
        "theorem_2": two if two["noise"] else None,
        "assumed": {"smoothness": smoothness, "deviations": deviation, "gap": gap},
    }


def utility(accuracies: Mapping[int, Sequence[float]], ideal: float, distance: float = 0.1) -> dict[str, Any]:
    """PFL Theorem 3 beside accuracies of runs that differ in their number of clients k, several seeds of each.

    The risk is 1 - accuracy, that of the ideal model 1 - `ideal`. l-utility (Definition 2) is the share of runs whose
    risk is less than l = `distance` from that. The bound 1 - sigma^2 beta^2 / (l^2 k) has a product sigma beta that
    nobody knows: it is taken from the runs with the fewest clients, as the root of k times the mean squared distance
    there, and `predicted` is how far from the ideal the others would then be, at most, in the root of the mean square.

    >>> found = utility({4: [0.5, 0.7], 16: [0.8, 0.8]}, ideal=0.9, distance=0.25)
    >>> found["clients"], found["utility"], [round(one, 3) for one in found["predicted"]]
    ([4, 16], [0.5, 1.0], [0.316, 0.158])
    >>> [round(one, 3) for one in found["bound"]]
    [0.0, 0.6]
    """
    expect_share("ideal", ideal, "the accuracy of the ideal model, such as 0.98", zero=True, one=True)
    expect_positive("distance", distance, "how far from the ideal a risk may be, such as 0.1")
    expect(len(accuracies) > 0, "accuracies by number of clients", "none", "give runs of several federations")
    clients = sorted(accuracies)
    apart = {k: np.abs(np.asarray(accuracies[k], dtype=np.float64) - ideal) for k in clients}
    squares = {k: float(np.mean(apart[k] ** 2)) for k in clients}
    product = math.sqrt(clients[0] * squares[clients[0]])
    return {
        "clients": clients,
        "accuracies": [list(accuracies[k]) for k in clients],
        "accuracy": [float(np.mean(accuracies[k])) for k in clients],
        "ideal": ideal,
        "distance": distance,
        "apart": [math.sqrt(squares[k]) for k in clients],
        "predicted": [product / math.sqrt(k) for k in clients],
        "utility": [pfl.utility(1 - np.asarray(accuracies[k]), 1 - ideal, distance) for k in clients],
        "bound": [pfl.least_utility(k, distance, product, 1.0) for k in clients],
    }


def utility_of(paths: Sequence[Path], ideal: float | None = None, distance: float = 0.1) -> dict[str, Any] | None:
    """The same of runs' folders, by their number of clients; None where there are fewer than three such numbers.

    The ideal is given, or that of runs without noise, or else the best mean of all.
    """
    found: dict[int, list[float]] = {}
    silent: list[float] = []
    for path in paths:
        folder = RunFolder.open(path)
        about, last = folder.description(), folder.checkpoint().scores or {}
        accuracy = last.get("accuracy")
        if accuracy is None:
            continue
        noisy = about.method.mechanism.noise_multiplier or any(about.noise_multipliers)
        found.setdefault(about.task.clients, []).append(accuracy) if noisy else silent.append(accuracy)
    if len(found) < 3:
        return None
    if ideal is None:
        ideal = float(np.mean(silent)) if silent else max(float(np.mean(several)) for several in found.values())
    return utility(found, ideal, distance)


def _error(run: Measured, norms: list[float], counts: list[float], clip: float) -> blur_lus.UpdateError:
    """Eq. 2, in the mean over norms that were there so often."""
    repeated = np.repeat(norms, np.asarray(counts, dtype=np.int64))
    clients = max(1, round(run.clients))
    return blur_lus.update_error(repeated, clip, run.noise_multiplier, clients, run.parameters)
