"""How tables and pictures look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import expect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

# Okabe & Ito's palette, told apart by color-blind readers too.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def expect_plot(path: Path) -> None:
    """Refuse a picture that could not be written, before the work whose result it would show."""
    from matplotlib.backend_bases import FigureCanvasBase

    suffixes = sorted(f".{kind}" for kind in FigureCanvasBase.get_supported_filetypes())
    expect(path.suffix.lower() in suffixes, f"a picture that ends in {', '.join(suffixes)}", str(path), "rename it")
    expect(path.parent.is_dir(), "a picture in a folder that exists", str(path), "create the folder, or choose another")
    expect(not path.is_dir(), "a picture", f"the folder {path}", "choose another name")


def new_table(*columns: str) -> Table:
    from cloister.runs.report.plain_table import PlainTable

    table = PlainTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), caption_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", overflow="fold")
    return table


def new_figure(panels: int) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 3.6), dpi=140, layout="constrained")
    axes: Any = figure.subplots(1, panels, squeeze=False)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="0.92")
    return figure, axes


def line_colors(count: int) -> list[str]:
    return [_COLORS[index % len(_COLORS)] for index in range(count)]
