"""Figures as files, which documents quote: what a command found, with what it takes to find it again."""

from __future__ import annotations

import io
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from cloister import __version__
from cloister.engine import arithmetic
from cloister.runs import report
from cloister.runs.files import write_json
from cloister.runs.folder import RunFolder


def write_demo(folders: Mapping[str, RunFolder], path: Path, command: str) -> None:
    """The demonstration's figures and picture, beside its runs."""
    report.runs_plot(folders, path / "demo.png")
    write_figures(folders, path / "demo.json", command)


def write_figures(folders: Mapping[str, RunFolder], path: Path, command: str) -> None:
    """The figures of some runs, and the command that made them."""
    write_json(path, {**made_by(command), "rows": report.run_figures(folders)})


def made_by(command: str, device: str = "cpu") -> dict[str, Any]:
    """What it takes to find the same figures again: on another machine, the same seed draws other noise."""
    software = {"cloister": __version__, **{name: version(name) for name in ("torch", "numpy")}}
    return {"command": command, "software": software, "machine": arithmetic(torch.device(device))}


def demo_text(figures: Mapping[str, Any]) -> str:
    """The demonstration's table as it is printed, from its file."""
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=80, color_system=None, force_jupyter=False).print(report.figures_table(figures["rows"]))
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())
