"""The files of `hospitals`, of which nobody has written a schema yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from documentation.setups import hospitals


def prepare(folder: Path, names: dict[str, Any]) -> None:
    hospitals.prepare(folder, names)
    (folder / "schema.toml").unlink()
