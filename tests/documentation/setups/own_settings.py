"""my.toml: a run on digits that leaves settings open, for tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEXT = """method = "dp_fedavg"
data = "digits"
clients = 60
clip_norm = 1.0
lr = 1.0
local_steps = 2
sampling_rate = 0.5
rounds = 3
epsilon = 4.0
delta = 1e-3
"""


def prepare(folder: Path, names: dict[str, Any]) -> None:
    (folder / "my.toml").write_text(TEXT, encoding="utf-8")
