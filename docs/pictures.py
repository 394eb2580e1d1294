"""The pictures of the concepts' pages, each for the light and for the dark theme: docs/pages/pictures/NAME-THEME.svg.

    python docs/pictures.py [NAME ...]

Curves are computed by the accountant and by `cloister.privacy.attacker`; what is drawn at random has a seed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle

from cloister.privacy.accountant import epsilon
from cloister.privacy.attacker import PROFILE_DELTAS, guessed, told_apart
from cloister.privacy.calibration import calibrate
from cloister.privacy.events import Gaussian, PoissonGaussian

FOLDER = Path(__file__).parent / "pages" / "pictures"


@dataclass(frozen=True)
class Theme:
    """Colors of one of the site's two themes."""

    name: str
    ink: str
    faint: str
    fill: str
    """Of boxes."""
    unit: str
    """Of what is protected."""
    noise: str
    """Of noise, and of what protects."""
    other: str


LIGHT = Theme("light", "#202330", "#9aa0ad", "#f1f3f8", "#c2410c", "#2f5fd0", "#0f8a6c")
DARK = Theme("dark", "#e6e8ee", "#767d8c", "#2a2e3a", "#ff9d5c", "#8fb1ff", "#4fd1ae")


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """A sheet whose unit is about a line of text, without axes."""
    figure = plt.figure(figsize=(width / 2, height / 2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")
    return figure, axes


def _box(axes: Axes, theme: Theme, x: float, y: float, width: float, height: float, color: str | None = None) -> None:
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.25", linewidth=1.2)
    shape.set(facecolor=theme.fill, edgecolor=color or theme.faint)
    axes.add_patch(shape)


def _arrow(axes: Axes, color: str, start: tuple[float, float], end: tuple[float, float], style: str = "-|>") -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle=style, mutation_scale=11, color=color, linewidth=1.3))


def _text(axes: Axes, x: float, y: float, words: str, color: str, size: float = 10, **how: object) -> None:
    axes.text(x, y, words, color=color, size=size, **{"ha": "center", "va": "center", **how})  # type: ignore[arg-type]


def one_round(theme: Theme) -> Figure:
    """What happens in a round, and in which order."""
    figure, axes = _canvas(12, 8.6)
    _box(axes, theme, 0.4, 6.6, 11.2, 1.7)
    _text(axes, 6, 7.85, "server", theme.ink, weight="bold")
    _text(axes, 2.5, 7.1, "1  draw the cohort,\ncharge the ledger", theme.ink, 9)
    _text(axes, 9.0, 7.1, "4  sum  +  noise,\nthen step", theme.noise, 9)
    for number in range(4):
        x, takes_part = 0.4 + 2.87 * number, number != 2
        _box(axes, theme, x, 0.4, 2.6, 2.9, theme.ink if takes_part else None)
        color = theme.ink if takes_part else theme.faint
        _text(axes, x + 1.3, 2.8, f"client {number + 1}", color, weight="bold")
        if not takes_part:
            _text(axes, x + 1.3, 1.5, "not drawn\nin this\nround", color, 9)
            continue
        for line in range(3):
            axes.add_patch(Rectangle((x + 0.4, 0.75 + 0.28 * line), 1.8, 0.16, color=theme.faint))
        _text(axes, x + 1.3, 1.98, "2  train\n3  clip", theme.ink, 9)
        _arrow(axes, theme.faint, (x + 0.8, 6.5), (x + 0.8, 3.4))
        _arrow(axes, theme.unit, (x + 1.8, 3.4), (x + 1.8, 6.5))
    _text(axes, 1.3, 5.3, "model", theme.ink, 9, ha="left")
    _text(axes, 2.35, 4.5, "update", theme.unit, 9, ha="left")
    return figure


def unit(theme: Theme) -> Figure:
    """The same clients, once with a client protected and once with a sample."""
    figure, axes = _canvas(12, 6.2)
    for panel, title in enumerate(("one client", "one sample")):
        left = 0.3 + 6.0 * panel
        _text(axes, left + 2.7, 5.75, f"protected: {title}", theme.ink, weight="bold")
        for client in range(3):
            x = left + 1.85 * client
            whole = panel == 0 and client == 1
            _box(axes, theme, x, 1.2, 1.65, 3.4, theme.unit if whole else None)
            _text(axes, x + 0.82, 4.95, f"client {client + 1}", theme.unit if whole else theme.ink, 9)
            for row in range(7):
                here = whole or (panel == 1 and client == 1 and row == 3)
                color = theme.unit if here else theme.faint
                axes.add_patch(Rectangle((x + 0.25, 1.5 + 0.42 * row), 1.15, 0.2, color=color))
        words = "all rows of a client may change:\nhides a person with a phone" if panel == 0 else ""
        words = words or "one row may change:\nhides a patient of a hospital"
        _text(axes, left + 2.7, 0.5, words, theme.ink, 9)
    return figure


def adjacency(theme: Theme) -> Figure:
    """Two neighboring worlds, and what comes out of them."""
    figure, axes = _canvas(12, 7.0)
    for world, (y, present) in enumerate(((4.1, True), (0.5, False))):
        _box(axes, theme, 0.4, y, 4.6, 2.3)
        _text(axes, 2.7, y + 2.65, "with you" if present else "without you", theme.ink, weight="bold")
        for person in range(10):
            you = person == 6
            place = (1.1 + 0.8 * (person % 5), y + 1.6 - 0.95 * (person // 5))
            color = theme.unit if you else theme.faint
            shape = Circle(place, 0.28, facecolor=color if present or not you else "none", edgecolor=color)
            shape.set(linewidth=1.3, linestyle="--" if you and not present else "-")
            axes.add_patch(shape)
        _arrow(axes, theme.ink, (5.15, y + 1.15), (7.5, y + 1.15))
        _text(axes, 6.3, y + 1.6, "training", theme.ink, 9)
        grid = np.linspace(-3, 3, 200)
        height = np.exp(-((grid - (0.45 if present else -0.45)) ** 2) / 2)
        axes.plot(9.6 + 0.62 * grid, y + 0.25 + 1.7 * height, color=theme.noise, linewidth=1.6)
        axes.plot([7.7, 11.5], [y + 0.25] * 2, color=theme.faint, linewidth=1)
        if world == 0:
            _text(axes, 9.6, y + 2.45, "chances of what is released", theme.noise, 9)
    _text(axes, 9.6, 3.6, "almost the same", theme.noise, weight="bold")
    return figure


def sampling(theme: Theme) -> Figure:
    """Who takes part in which round, for the four kinds of cohort."""
    random = np.random.default_rng(3)
    clients, rounds, size = 12, 12, 3
    drawn = {
        "Poisson: each by a coin of its own": random.random((rounds, clients)) < size / clients,
        "fixed size: always three": np.stack(
            [np.isin(np.arange(clients), random.choice(clients, size, replace=False)) for _ in range(rounds)]
        ),
        "full: everybody, always": np.ones((rounds, clients), dtype=bool),
        "cyclic: in turns": np.stack(
            [np.arange(clients) // size == turn % (clients // size) for turn in range(rounds)]
        ),
    }
    figure, panels = plt.subplots(2, 2, figsize=(6.2, 5.4))
    for axes, (title, taken) in zip(panels.flat, drawn.items(), strict=True):
        for here, color in ((False, theme.fill), (True, theme.noise)):
            turns, places = np.nonzero(taken == here)
            axes.scatter(turns + 0.5, places + 0.5, s=68, marker="s", color=color, linewidths=0)
        axes.set(xlim=(0, rounds), ylim=(clients, 0), aspect="equal", xticks=[], yticks=[])
        axes.set_title(title, color=theme.ink, size=9.5)
        axes.set_xlabel("rounds", color=theme.ink, size=9)
        axes.set_ylabel("clients", color=theme.ink, size=9)
        for side in axes.spines.values():
            side.set_visible(False)
    figure.tight_layout()
    return figure


def clipping_and_noise(theme: Theme) -> Figure:
    """Updates before and after clipping, and the noisy sum."""
    random = np.random.default_rng(5)
    angles, lengths = random.normal(0.9, 0.7, 9), random.gamma(3, 0.45, 9)
    lengths[4] = 2.6
    updates = np.stack([np.cos(angles), np.sin(angles)], 1) * lengths[:, None]
    clipped = updates * np.minimum(1, 1 / lengths)[:, None]
    figure, panels = plt.subplots(1, 2, figsize=(6.2, 3.3))
    for axes in panels:
        axes.set(aspect="equal", xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set_visible(False)
    left, right = panels
    for whole, kept in zip(updates, clipped, strict=True):
        left.annotate("", whole, (0, 0), arrowprops={"arrowstyle": "-", "color": theme.faint, "linestyle": ":"})
        left.annotate("", kept, (0, 0), arrowprops={"arrowstyle": "-|>", "color": theme.unit})
    left.add_patch(Circle((0, 0), 1, fill=False, edgecolor=theme.ink, linewidth=1.3))
    left.set(xlim=(-1.4, 2.3), ylim=(-1.5, 2.3))
    left.text(-1.3, -1.4, "circle: clip_norm", color=theme.ink, size=9)
    left.set_title("every update is clipped ...", color=theme.ink, size=10)
    total = clipped.sum(0)
    cloud = total + random.normal(0, 1.6, (500, 2))
    right.scatter(*cloud.T, s=4, color=theme.noise, alpha=0.45, linewidths=0)
    right.annotate("", total, (0, 0), arrowprops={"arrowstyle": "-|>", "color": theme.ink, "linewidth": 1.6})
    without = total - clipped[4]
    right.annotate("", without, (0, 0), arrowprops={"arrowstyle": "-|>", "color": theme.unit, "linewidth": 1.2})
    right.set(xlim=(-3.5, 11), ylim=(-3.5, 11.5))
    right.text(-3.2, -2.6, "sum with and without one client;\nnoise hides the difference", color=theme.ink, size=9)
    right.set_title("... and the sum is noisy", color=theme.ink, size=10)
    figure.tight_layout()
    return figure


def trust(theme: Theme) -> Figure:
    """Where noise is added, and so who sees what without it."""
    figure, axes = _canvas(12, 8.4)
    panels = (
        ("the server", "each update,\nthen adds noise", "noise here"),
        ("a secure sum", "only the sum,\nnoise included", "a share\nof noise"),
        ("nobody", "each update,\nnoise included", "noise"),
    )
    for panel, (title, seen, _) in enumerate(panels):
        left = 0.2 + 4.0 * panel
        _text(axes, left + 1.8, 7.95, "trusted:", theme.ink, 9)
        _text(axes, left + 1.8, 7.4, title, theme.ink, weight="bold")
        _box(axes, theme, left, 4.7, 3.6, 2.2, theme.noise if panel == 0 else None)
        _text(axes, left + 1.8, 6.45, "server sees", theme.ink, 9)
        _text(axes, left + 1.8, 5.5, seen, theme.noise if panel == 0 else theme.ink, 9)
        if panel == 1:
            axes.add_patch(Circle((left + 1.8, 3.6), 0.42, facecolor=theme.fill, edgecolor=theme.other, linewidth=1.3))
            _text(axes, left + 1.8, 3.57, "+", theme.other, 13)
            _arrow(axes, theme.noise, (left + 1.8, 4.05), (left + 1.8, 4.65))
            _text(axes, left + 2.4, 3.75, "masks", theme.other, 9, ha="left")
        for client in range(3):
            x = left + 0.1 + 1.25 * client
            _box(axes, theme, x, 1.5, 0.95, 1.0, theme.noise if panel else None)
            _text(axes, x + 0.48, 2.0, "±" if panel else "", theme.noise, 13)
            color = (theme.unit, theme.other, theme.noise)[panel]
            end = (left + 1.5 + 0.3 * client, 3.25) if panel == 1 else (x + 0.48, 4.65)
            _arrow(axes, color, (x + 0.48, 2.55), end)
        _text(axes, left + 1.8, 1.05, "clients", theme.ink, 9)
    _text(axes, 0.2, 0.3, "orange: not protected", theme.unit, 9, ha="left")
    _text(axes, 4.4, 0.3, "green: masked", theme.other, 9, ha="left")
    _text(axes, 7.3, 0.3, "blue: with noise (± added here)", theme.noise, 9, ha="left")
    return figure


def _plot(theme: Theme, width: float = 6.0, height: float = 3.7) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height))
    for name, side in axes.spines.items():
        side.set(visible=name in ("left", "bottom"), color=theme.faint)
    axes.tick_params(colors=theme.ink, labelsize=9)
    axes.grid(color=theme.faint, alpha=0.3, linewidth=0.6)
    return figure, axes


def _label(axes: Axes, theme: Theme, x: str, y: str) -> None:
    axes.set_xlabel(x, color=theme.ink, size=10)
    axes.set_ylabel(y, color=theme.ink, size=10)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, labelcolor=theme.ink, fontsize=9)


def profile_of(target: float, delta: float = 1e-5) -> list[tuple[float, float]]:
    """The privacy profile of one release with Gaussian noise that has this epsilon at this delta."""
    noise = calibrate(Gaussian, rounds=1, epsilon=target, delta=delta)
    return [(epsilon(Gaussian(noise), 1, at), at) for at in PROFILE_DELTAS]


def attack(theme: Theme) -> Figure:
    """How often an attacker is right at most, over epsilon."""
    targets = np.array([0.05, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 7, 8])
    profiles = [profile_of(float(target)) for target in targets]
    figure, axes = _plot(theme)
    pure = [told_apart([(float(target), 1e-5)]) for target in targets]
    axes.plot(targets, pure, color=theme.faint, linestyle="--", label="took part? by epsilon and delta alone")
    took_part = [told_apart(profile) for profile in profiles]
    axes.plot(targets, took_part, color=theme.noise, marker="o", markersize=4, label="took part? Gaussian noise")
    guesses = [guessed(profile, 0.1) for profile in profiles]
    axes.plot(
        targets, guesses, color=theme.unit, marker="s", markersize=4, label="a secret that is guessed 1 in 10 times"
    )
    axes.set(ylim=(0, 1.02), xlim=(0, 8.2))
    _label(axes, theme, "epsilon at delta 1e-5", "right at most")
    figure.tight_layout()
    return figure


def composition(theme: Theme) -> Figure:
    """What rounds cost together, beside the sum of their prices; the budget, and the round that is refused."""
    noise, rate, delta, budget = 1.2, 0.1, 1e-5, 4.0
    event = PoissonGaussian(noise, rate)
    rounds = np.array([1, 2, 5, 10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200])
    together = [epsilon(event, int(count), delta) for count in rounds]
    figure, axes = _plot(theme)
    alone = together[0]
    few = rounds[rounds * alone < 8]
    axes.plot(few, few * alone, color=theme.faint, linestyle="--", label="prices added up")
    axes.plot(rounds, together, color=theme.noise, label="the accountant's bound for all of them")
    axes.axhline(budget, color=theme.unit, linewidth=1.2)
    last = max(count for count in range(1, 201) if epsilon(event, count, delta) <= budget)
    axes.plot([last], [epsilon(event, last, delta)], "o", color=theme.unit)
    axes.annotate(
        f"round {last + 1} is refused", (last, budget), (last - 8, budget + 0.75), color=theme.unit, size=9, ha="center"
    )
    axes.text(198, budget - 0.35, "budget", color=theme.unit, size=9, ha="right")
    axes.set(xlim=(0, 202), ylim=(0, 6))
    _label(axes, theme, f"rounds (noise multiplier {noise:g}, sampling rate {rate:g})", "epsilon at delta 1e-5")
    figure.tight_layout()
    return figure


def coverage(theme: Theme) -> Figure:
    """What a certificate covers, and what lies outside."""
    figure, axes = _canvas(12, 8.2)
    _box(axes, theme, 0.4, 2.9, 6.9, 4.6, theme.noise)
    _text(axes, 3.85, 7.05, "covered by epsilon", theme.noise, weight="bold")
    inside = (
        "the noisy sums, or the noisy updates",
        "every model computed from them",
        "predictions of that model",
        "private statistics and validation\nthat were charged",
    )
    for place, words in enumerate(inside):
        _text(
            axes,
            0.8,
            6.3 - 0.85 * place - (0.2 if "\n" in words else 0),
            "·  " + words.replace("\n", "\n    "),
            theme.ink,
            9,
            ha="left",
        )
    _text(axes, 9.7, 7.05, "not covered", theme.unit, weight="bold")
    outside = (
        "accuracies and losses",
        "tuning by results",
        "statistics made\nbeforehand",
        "other runs on\nthe same data",
        "seeded simulations",
    )
    y = 6.3
    for words in outside:
        _text(
            axes,
            7.75,
            y - (0.2 if "\n" in words else 0),
            "·  " + words.replace("\n", "\n    "),
            theme.ink,
            9,
            ha="left",
        )
        y -= 0.85 + (0.35 if "\n" in words else 0)
    _box(axes, theme, 0.4, 0.4, 6.9, 1.9)
    _text(
        axes,
        3.85,
        1.35,
        "assumed: those who must be trusted\ndo what they say, and the code runs\nas it was described",
        theme.ink,
        9,
    )
    return figure


PICTURES: dict[str, Callable[[Theme], Figure]] = {
    "round": one_round,
    "unit": unit,
    "adjacency": adjacency,
    "sampling": sampling,
    "clipping-and-noise": clipping_and_noise,
    "trust": trust,
    "attack": attack,
    "composition": composition,
    "coverage": coverage,
}


def main(names: list[str], folder: Path = FOLDER) -> None:
    """Write the named pictures, or all."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "cloister"  # the same file for the same picture
    for name in names or PICTURES:
        for theme in (LIGHT, DARK):
            figure = PICTURES[name](theme)
            path = folder / f"{name}-{theme.name}.svg"
            figure.savefig(path, transparent=True, metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main(sys.argv[1:])
