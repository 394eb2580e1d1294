"""Experiments and examples, as in a checkout of the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def prepare(folder: Path, names: dict[str, Any]) -> None:
    for name in ("experiments", "examples"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
