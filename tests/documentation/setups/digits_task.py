"""In Python: `task`, digits of 60 clients with test samples of their own, and `method`, DP-FedAvg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloister as cl


def prepare(folder: Path, names: dict[str, Any]) -> None:
    names["cl"] = cl
    names["task"] = cl.data.digits(clients=60)
    names["method"] = cl.methods.dp_fedavg(clip_norm=1.0, lr=1.0, local_steps=2)
