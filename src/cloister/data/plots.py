"""Who holds which labels: a picture and a table, for ten clients and for thousands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.data.raw import Array
from cloister.data.task import Task
from cloister.errors import expect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

_FEW_CLIENTS, _FEW_LABELS = 40, 26  # what bubbles have room for
_INK = "#0072B2"  # Okabe & Ito's blue
_SHADES = "Blues"  # one hue from white to dark, so that it reads the same to color-blind readers


def label_counts(task: Task) -> Array:
    """How many samples of each class a client has [clients, classes]; of one column where labels are no classes."""
    owners = np.repeat(np.arange(task.clients), task.population.sizes.numpy())
    classes = task.classes if task.loss.classes else None
    labels = np.zeros(len(owners), dtype=np.int64) if classes is None else task.population.labels.numpy()
    counts = np.zeros((task.clients, classes or 1), dtype=np.int64)
    owner = np.broadcast_to(owners[:, None], labels.shape) if labels.ndim > 1 else owners
    np.add.at(counts, (owner[labels >= 0], labels[labels >= 0]), 1)  # below 0 is padding
    return counts


def labels_plot(counts: Array, path: Path, title: str = "") -> None:
    """Labels per client, from counts [clients, classes]: bubbles for few of them, a sorted heat map for many.

    Above it, how many samples each client has.
    """
    _check(counts)
    clients, classes = counts.shape
    few = clients <= _FEW_CLIENTS and classes <= _FEW_LABELS
    figure, top, main = _figure(classes)
    if few:
        order = np.arange(clients)
        _bubbles(figure, main, counts)
    else:
        order = _by_main_label(counts)
        _heat_map(figure, main, counts[order])
    top.bar(np.arange(clients), counts.sum(1)[order], width=0.8 if few else 1.0, color=_INK, linewidth=0)
    top.set(ylabel="samples", xlim=(-0.5, clients - 0.5))
    top.set_title(title or f"{clients:,} clients, {classes:,} labels", fontsize=11, loc="left")
    main.set(xlabel="client" if few else f"{clients:,} clients, sorted by their main label", ylabel="label")
    main.set_yticks(_ticks(classes))
    main.set_ylim(-0.6, classes - 0.4)
    if few:
        main.set_xticks(range(0, clients, 1 if clients <= 20 else 2))
    figure.savefig(path)


def labels_table(
    counts: Array, names: Sequence[str] | None = None, most: int = 20, clients: Sequence[str] = ()
) -> Table:
    """The first clients: samples, labels present, the three commonest; the last line is on all clients.

    `names` are the labels' names, `clients` the clients'.

    >>> table = labels_table(np.array([[3, 1], [0, 2]]), names=["cat", "dog"])
    >>> list(table.columns[-1].cells)
    ['cat 75%, dog 25%', 'dog 100%', 'smallest 2, median 3, largest 4 samples']
    """
    from rich.table import Table

    _check(counts)
    people, classes = counts.shape
    called = [str(label) for label in range(classes)] if names is None else list(names)
    expect(len(called) == classes, f"a name for each of {classes} labels", len(called), "give as many")
    sizes = counts.sum(1)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("client", "samples", "labels", "commonest"):
        table.add_column(name, justify="left" if name == "commonest" else "right", overflow="fold")
    for client in range(min(people, most)):
        held = counts[client]
        first = [label for label in np.argsort(-held, kind="stable")[:3] if held[label]]
        shares = ", ".join(f"{called[label]} {held[label] / sizes[client]:.0%}" for label in first)
        table.add_row(
            clients[client] if clients else str(client),
            f"{sizes[client]:,}",
            str(np.count_nonzero(held)),
            shares or "-",
        )
    if people > most:
        table.add_row("...", "", "", f"and {people - most:,} more clients")
    spread = f"smallest {sizes.min():,}, median {np.median(sizes):,.0f}, largest {sizes.max():,} samples"
    table.add_row("all", f"{sizes.sum():,}", str(np.count_nonzero(counts.sum(0))), spread)
    return table


def _check(counts: Array) -> None:
    expect(
        counts.ndim == 2 and counts.size > 0 and counts.min() >= 0,
        "counts [clients, classes] of at least zero",
        f"an array of shape {counts.shape}" + (f" with {counts.min()}" if counts.size else ""),
        "count the labels of each client",
    )


def _figure(classes: int) -> tuple[Figure, Axes, Axes]:
    from matplotlib.figure import Figure

    height = min(3.0 + 0.18 * classes, 9.0)
    figure = Figure(figsize=(9.0, height + 1.2), dpi=140, layout="constrained")
    panels: Any = figure.subplots(2, 1, sharex=True, height_ratios=(1.0, height - 0.4))
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
    panels[0].grid(axis="y", color="0.92")
    panels[0].locator_params(axis="y", nbins=3)
    return figure, panels[0], panels[1]


def _bubbles(figure: Figure, axes: Axes, counts: Array) -> None:
    clients, classes = counts.shape
    width, height = figure.get_size_inches() * 72
    largest = 0.9 * min(
        0.8 * width / clients, 0.65 * height / classes, 40.0
    )  # points; bubbles touch but do not overlap
    who, label = np.nonzero(counts)
    axes.grid(color="0.94")
    top = int(counts.max()) or 1
    axes.scatter(who, label, s=largest**2 * counts[who, label] / top, color=_INK, alpha=0.85, linewidths=0)
    for amount in sorted({top, round(top / 4), round(top / 16)} - {0}, reverse=True):
        axes.scatter([], [], s=largest**2 * amount / top, color=_INK, alpha=0.85, linewidths=0, label=f"{amount:,}")
    axes.legend(
        title="samples",
        frameon=False,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
        labelspacing=max(0.6, largest / 14),
        handletextpad=max(0.6, largest / 18),
        borderpad=max(0.4, largest / 20),
    )


def _heat_map(figure: Figure, axes: Axes, counts: Array) -> None:
    from matplotlib.colors import PowerNorm

    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    drawn = axes.imshow(
        shares.T,
        aspect="auto",
        origin="lower",
        cmap=_SHADES,
        norm=PowerNorm(0.6, vmin=0, vmax=float(shares.max()) or 1.0),  # small shares are to be seen beside none
        interpolation="nearest" if len(counts) <= 1000 else "antialiased",
    )
    figure.colorbar(
        drawn, ax=axes, label="share of the client's samples", format=lambda value, _: f"{100 * value:.3g}%", pad=0.015
    )


def _by_main_label(counts: Array) -> Array:
    """Clients of one main label side by side, and among them those where it weighs most first.

    >>> _by_main_label(np.array([[0, 9], [2, 1], [5, 0]])).tolist()
    [2, 1, 0]
    """
    weight = counts.max(1) / np.maximum(counts.sum(1), 1)
    order: Array = np.lexsort((-weight, counts.argmax(1)))
    return order


def _ticks(classes: int) -> list[int]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, classes) if classes / step <= 26)
    return list(range(0, classes, step))
