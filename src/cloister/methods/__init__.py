"""The catalogue of methods: one paper per file, each a short composition of joints."""

from __future__ import annotations

from collections.abc import Callable

from cloister.joints import Method
from cloister.methods.dp_fedavg import dp_fedavg
from cloister.methods.fedavg import fedavg

CATALOGUE: dict[str, Callable[..., Method]] = {"fedavg": fedavg, "dp_fedavg": dp_fedavg}

__all__ = ["CATALOGUE", "dp_fedavg", "fedavg"]
