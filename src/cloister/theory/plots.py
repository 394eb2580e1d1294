"""Pictures of the bounds, at the papers' own settings: one for each paper, a panel for each bound.

    python benchmarks/documents.py --theory      draws all of them into docs/theory/

`points` says at how many places the costly curves (true prices) are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import PoissonGaussian
from cloister.theory import adap_dp_fl, blur_lus, dp_fedsam, fed_spa, pfl
from cloister.theory.claims import mnist_schedule
from cloister.theory.update_norms import clip_factors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette, told apart by color-blind readers too.
_BLUE, _RED, _GREEN, _PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
_COLORS = (_BLUE, _RED, _GREEN, _PINK)
_DPI = 72  # these lie in the repository


def panel_grid(panels: int, columns: int, size: tuple[float, float], dpi: int) -> tuple[Figure, list[Axes]]:
    """A picture with so many panels of this size, in rows of so many."""
    from matplotlib.figure import Figure

    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), dpi=dpi, layout="constrained")
    every: Any = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for unused in every[panels:]:
        unused.set_axis_off()
    for axes in every[:panels]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.93")
    return figure, list(every[:panels])


def _picture(path: Path, *panels: Callable[[Axes], None]) -> None:
    figure, axes = panel_grid(len(panels), 2 if len(panels) in (2, 4) else 3, (4.2, 3.3), _DPI)
    for one, draw in zip(axes, panels, strict=True):
        draw(one)
        one.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def _lines(axes: Axes, x: Sequence[float], curves: Mapping[str, Sequence[float]], mark: str = "") -> None:
    for color, (label, y) in zip(_COLORS, curves.items(), strict=False):
        axes.plot(x, y, label=label, color=color, marker=mark, markersize=4, linewidth=1.8)


def _title(axes: Axes, title: str, x: str, y: str, *, log: str = "") -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")


def _counts(least: int, most: int, points: int) -> list[int]:
    """Whole numbers, evenly spread."""
    return [int(one) for one in np.unique(np.linspace(least, most, points).round())]


def blur_lus_bounds(path: Path, points: int = 7) -> None:
    """Eq. 2 over the clip, Lemma 2, Theorem 1 beside the noise that is needed, Theorem 2 and Corollary 1."""
    parameters, clients, population, delta = 1_018_174, 136, 3400, 1 / 3400

    def error(axes: Axes) -> None:
        clips = np.geomspace(1e-5, 1e-1, 200)
        found = [blur_lus.update_error(0.1, float(clip), 1.46, clients, parameters) for clip in clips]
        curves = {
            "clipping": [one.clipping for one in found],
            "noise": [one.noise for one in found],
            "both": [one.total for one in found],
        }
        _lines(axes, clips.tolist(), curves)
        axes.axvline(blur_lus.best_clip_norm(0.1, 1.46, clients, parameters), color="0.6", linestyle=":")
        axes.set_ylim(1e-12, 1e-3)
        _title(
            axes, "eq. 2: an update of norm 0.1; dotted: best clip", "clip S", "squared error a coordinate", log="xy"
        )

    def noise(axes: Axes) -> None:
        epsilons = np.linspace(1.0, 8.0, points)
        closed = [blur_lus.noise_multiplier(float(one), delta, 1000, 0.04).noise_multiplier for one in epsilons]
        true = [
            blur_lus.true_constant(float(one), delta, 1000, 0.04) / 2 * sigma
            for one, sigma in zip(epsilons, closed, strict=True)
        ]
        _lines(axes, epsilons.tolist(), {"Theorem 1, c2 = 2": closed, "needed (PLD)": true}, "o")
        _title(axes, "Theorem 1: EMNIST, T = 1000, q = 0.04", "epsilon", "noise multiplier")

    def terms(axes: Axes) -> None:
        rounds = _counts(10, 3000, 200)
        found = [
            blur_lus.private_convergence(t, 30, 0.001, 1.0, clients, population, 6.0, delta, parameters, 0.03, 1.0)
            for t in rounds
        ]
        curves = {
            "steps": [one.steps for one in found],
            "drift": [one.drift for one in found],
            "variance": [one.variance for one in found],
            "noise": [one.noise for one in found],
        }
        _lines(axes, rounds, curves)
        best = blur_lus.best_rate(population, 6.0, delta, parameters)
        axes.axhline(best, color="0.6", linestyle=":")
        _title(axes, "Corollary 1, without constants; dotted: best rate", "rounds", "term", log="xy")

    def discounts(axes: Axes) -> None:
        active = [step >= 10 for step in range(30)]  # BLUR pulls from the tenth step on
        exact = blur_lus.discounts(active, 0.1, 0.4)
        printed = [0.96**step if pulls else 1.0 for step, pulls in enumerate(active)]
        _lines(axes, range(30), {"exact": exact, "as printed": printed})
        _title(axes, "Lemma 2: BLUR pulls from step 10 on", "local step", "weight of its gradient")

    def weighted(axes: Axes) -> None:
        norms = np.random.default_rng(0).lognormal(math.log(0.1), 0.5, 1000)
        clips = np.geomspace(0.003, 1.0, 60)
        found = [
            blur_lus.convergence(
                1000, 30, 0.001, 1.0, clients, 1.15, float(clip), parameters, clip_factors(norms, float(clip)).mean
            )
            for clip in clips
        ]
        curves = {
            "1 / alpha-bar": [1 / one.least_factor for one in found],
            "bound over alpha-bar": [one.total for one in found],
            "noise term": [one.noise for one in found],
        }
        _lines(axes, clips.tolist(), curves)
        _title(axes, "Theorem 2: norms about 0.1", "clip S", "without constants", log="xy")

    _picture(path, error, discounts, noise, weighted, terms)


def dp_fedsam_bounds(path: Path, points: int = 5) -> None:
    """Theorem 1 for SAM and SGD, Theorem 2 beside true prices, the terms of Theorem 3, Theorems 4 and 5."""

    def sensitivity(axes: Axes) -> None:
        rounds = _counts(10, 1000, 100)
        rates = [1 / math.sqrt(30 * t) for t in rounds]
        curves = {
            "SAM, rho = 1/sqrt(T)": [
                dp_fedsam.sensitivity_of_sam(lr, 1 / math.sqrt(t), 30, 1.0) for lr, t in zip(rates, rounds, strict=True)
            ],
            "SGD, sigma_l = 1": [dp_fedsam.sensitivity_of_sgd(lr, 1.0, 30, 1.0) for lr in rates],
        }
        _lines(axes, rounds, curves)
        _title(axes, "Theorem 1: before the clip, L = 1, K = 30", "rounds T", "expected squared distance", log="xy")

    def privacy(axes: Axes) -> None:
        rounds = _counts(20, 300, points)
        found = [dp_fedsam.privacy(t, 50, 500, 0.95, 1 / 500) for t in rounds]
        curves = {
            "as printed": [one.printed for one in found],
            "corrected": [one.corrected for one in found],
            "Poisson cohorts (PLD)": [one.poisson for one in found],
            "cohorts of 50, as run": [one.fixed_size for one in found],
        }
        _lines(axes, rounds, curves, "o")
        axes.set_ylim(0.3, 3000)  # room for the legend
        _title(axes, "Theorem 2: sigma 0.95, delta 1/500", "rounds", "epsilon", log="y")

    def convergence(axes: Axes) -> None:
        rounds = _counts(5, 300, 60)
        found = [
            dp_fedsam.convergence([0.6] * t, [0.2] * t, 30, 1.0, 2.0, 1.0, 1.0, 0.95, 0.2, 50, 11_173_962, 0.4)
            for t in rounds
        ]
        curves = {
            "FedSAM": [one.fedsam for one in found],
            "clipping": [one.clipping for one in found],
            "noise": [one.noise for one in found],
        }
        _lines(axes, rounds, curves)
        _title(axes, "Theorem 3, without constants", "rounds", "term", log="xy")

    def one_round(axes: Axes) -> None:
        noises = np.linspace(0.2, 3.0, 50)
        curves = {
            f"m = {m}": [
                dp_fedsam.round_privacy(200, m, 88_800, float(s), 0.2, 1000, 1.0, 0.5, 1e-3).epsilon for s in noises
            ]
            for m in (20, 50, 100)
        }
        _lines(axes, noises.tolist(), curves)
        _title(axes, "Theorem 4, as printed (no guarantee)", "noise multiplier", "epsilon of a round", log="y")

    def generalization(axes: Axes) -> None:
        rounds = _counts(20, 400, 60)
        one = dp_fedsam.RoundPrivacy(0.002, 1e-9)
        found = [dp_fedsam.generalization(one, t, 10**7, 1e-2) for t in rounds]
        probabilities = [each.probability for each in found]
        _lines(axes, rounds, {"gap": [each.gap for each in found], "with probability above": probabilities})
        axes.set_ylim(0, 1)
        _title(axes, "Theorem 5: rounds of (0.002, 1e-9)", "rounds", "training - test risk")

    _picture(path, sensitivity, privacy, convergence, one_round, generalization)


def fed_spa_bounds(path: Path, points: int = 6) -> None:
    """Theorem 1 beside true prices, zeta_dp^2 over the share p, the terms of Theorem 2 and Lemma 3."""
    batches = fed_spa.Batches(batch_size=10, samples=600, steps=1350)
    problem = fed_spa.Problem(1.0, 1.0, 21_840, 2.0, 1.0, 0.1)

    def privacy(axes: Axes) -> None:
        epsilons = np.linspace(0.5, 3.0, points)
        found = [fed_spa.privacy(batches, fed_spa.noise_for(float(one), 1e-3, batches), 1e-3) for one in epsilons]
        curves = {
            "Theorem 1, any order": [one.printed for one in found],
            "within its range": [one.within_range for one in found],
            "true, batches of 10": [one.fixed_size for one in found],
            "true, Poisson": [one.poisson for one in found],
        }
        _lines(axes, epsilons.tolist(), curves, "o")
        _title(axes, "Theorem 1: MNIST, B = 10, 1,350 steps", "epsilon by the formula", "epsilon", log="y")

    def variance(axes: Axes) -> None:
        shares = np.linspace(0.02, 1.0, 100)
        noise = 0.02
        same = [fed_spa.private_variance(1.0, 1.0, float(p), 21_840, noise) for p in shares]
        priced = [fed_spa.private_variance(1.0, 1.0, float(p), 21_840, noise * math.sqrt(p)) for p in shares]
        true = [fed_spa.masked_variance(1.0, 1.0, float(p), 21_840, noise * math.sqrt(p)) for p in shares]
        curves = {
            "printed, same noise": same,
            "printed, same epsilon (noise ~ sqrt p)": priced,
            "by eq. 5, same epsilon": true,
        }
        _lines(axes, shares.tolist(), curves)
        axes.axvline(fed_spa.best_keep_fraction(1.0, 1.0, 21_840, noise), color="0.6", linestyle=":")
        axes.set_ylim(0, 40)
        _title(axes, "zeta_dp^2, d = 21,840; dotted: least", "share p", "variance of a step")

    def terms(axes: Axes) -> None:
        rounds = _counts(10, 3000, 100)
        most = fed_spa.largest_lr(problem, 50, 1.0, 0.01)
        found = [fed_spa.convergence(problem, 100, t, 50, most, 1.0, 0.01, 0.4, 0.01) for t in rounds]
        _lines(axes, rounds, _spa_terms(found))
        _title(axes, "Theorem 2 at its largest lr, without constant", "rounds", "term", log="xy")

    def rate(axes: Axes) -> None:
        rounds = _counts(10, 3000, 100)
        varies = fed_spa.private_variance(1.0, 1.0, 0.4, 21_840, 0.01)
        found = [fed_spa.rate(problem, 100, t, 50, varies) for t in rounds]
        _lines(axes, rounds, _spa_terms(found))
        _title(axes, "Lemma 3, without constant", "rounds", "term", log="xy")

    _picture(path, privacy, variance, terms, rate)


def _spa_terms(found: Sequence[fed_spa.Convergence]) -> Mapping[str, Sequence[float]]:
    return {
        "start": [one.start for one in found],
        "drift": [one.drift for one in found],
        "variance": [one.variance for one in found],
        "adaptive": [one.adaptive for one in found],
    }


def pfl_bounds(path: Path, points: int = 6) -> None:
    """Observation 1 beside the true price, Theorem 2 for one round and for all, Theorem 3 over clients."""

    def intermediate(axes: Axes) -> None:
        epochs = _counts(1, 20, points)
        true = [epsilon_of(PoissonGaussian(0.96, 1 / 94), 94 * done, 1e-5) for done in epochs]
        claimed = [pfl.intermediate_epsilon(2.93, 20, done) for done in epochs]
        _lines(axes, epochs, {"Observation 1": claimed, "true (PLD)": true}, "o")
        _title(axes, "Observation 1: MNIST, epsilon 2.93", "epochs done", "epsilon")

    def degradation(axes: Axes) -> None:
        splits = [1, 2, 4, 5, 10, 20]
        one = [pfl.degradation(e, 0.3, 1.0, 0.96, 64, 10_650, 1.0, 0.3, 5.0) for e in splits]
        every = [pfl.degradation(e, 0.3, 1.0, 0.96, 64, 10_650, 1.0, 0.3, 5.0, rounds=20 // e) for e in splits]
        _lines(axes, splits, {"one round (as printed)": one, "all rounds, E R = 20": every}, "o")
        axes.set_ylim(bottom=0)
        _title(axes, "Theorem 2: distance from SGD", "local epochs E", "bound")

    def utility(axes: Axes) -> None:
        clients = _counts(1, 100, 100)
        curves = {
            f"l = {distance:g}": [pfl.least_utility(k, distance, 0.5, 1.0) for k in clients]
            for distance in (0.1, 0.2, 0.4)
        }
        _lines(axes, clients, curves)
        _title(axes, "Theorem 3: sigma 0.5, beta 1", "clients k", "l-utility, at least")

    _picture(path, intermediate, degradation, utility)


def adap_dp_fl_bounds(path: Path, points: int = 5) -> None:
    """Theorem 1 over the rounds of the paper's MNIST schedule, beside true prices; and the schedule."""
    schedule = mnist_schedule()

    def privacy(axes: Axes) -> None:
        rounds = _counts(len(schedule) // points, len(schedule), points)
        curves = {
            "Theorem 1": [adap_dp_fl.privacy(schedule[:t], 0.013, 1e-5).epsilon for t in rounds],
            "true, without the query": [
                adap_dp_fl.true_price(schedule[:t], 0.013, 1e-5, threshold_query=False) for t in rounds
            ],
            "true, with the query": [adap_dp_fl.true_price(schedule[:t], 0.013, 1e-5) for t in rounds],
        }
        _lines(axes, rounds, curves, "o")
        _title(axes, "Theorem 1: MNIST, q = 0.013, delta 1e-5", "rounds", "epsilon")

    def noise(axes: Axes) -> None:
        axes.plot(schedule, color=_BLUE, label="sigma", linewidth=1.8)
        axes.set_ylim(bottom=0)
        _title(axes, "a schedule from 6 to 3.03", "rounds", "noise multiplier")

    _picture(path, privacy, noise)


PICTURES: dict[str, Callable[[Path, int], None]] = {
    "blur-lus": blur_lus_bounds,
    "dp-fedsam": dp_fedsam_bounds,
    "fed-spa": fed_spa_bounds,
    "pfl": pfl_bounds,
    "adap-dp-fl": adap_dp_fl_bounds,
}
"""By the name of their file."""
