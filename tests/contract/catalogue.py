"""The methods under contract: one entry each. A new method is one more entry."""

from __future__ import annotations

from collections.abc import Callable

import cloister as cl
from cloister.joints import Method

CLIP = 0.05  # far below what a toy client sends, so that clipping is always at work

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": lambda **more: cl.methods.fedavg(**{"lr": 0.5, "batch": 4, "steps": 3, **more}),
    "fedavg epochs": lambda **more: cl.methods.fedavg(**{"lr": 0.5, "batch": 4, "epochs": 2, "momentum": 0.5, **more}),
    "dp_fedavg": lambda **more: cl.methods.dp_fedavg(
        **{"clip": CLIP, "lr": 0.5, "batch": 4, "steps": 3, "noise_multiplier": 1.3, **more}
    ),
    "dp_fedavg epochs": lambda **more: cl.methods.dp_fedavg(
        **{"clip": CLIP, "lr": 0.5, "batch": 4, "epochs": 2, "momentum": 0.9, "noise_multiplier": 0.6, **more}
    ),
    "dp_fedavg distributed": lambda **more: cl.methods.dp_fedavg(
        **{"clip": CLIP, "lr": 0.5, "batch": 4, "steps": 2, "noise_multiplier": 1.3, "noise": "distributed", **more}
    ),
    "dp_fedavg adam": lambda **more: cl.methods.dp_fedavg(
        **{"clip": CLIP, "lr": 0.5, "steps": 2, "noise_multiplier": 1.3, "server": cl.servers.adam(), **more}
    ),
}
PRIVATE = {name: make for name, make in METHODS.items() if name.startswith("dp_")}
# The audits undo the server's step to see the released sum, so they want a server that just adds it.
AUDITED = {name: make for name, make in PRIVATE.items() if "adam" not in name}

COHORTS = {"poisson": cl.poisson(0.6), "fixed": cl.fixed(5), "everyone": cl.everyone()}
