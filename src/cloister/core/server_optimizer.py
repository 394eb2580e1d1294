"""How the server uses what was released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cloister.core.context import Context
from cloister.core.local_rule import Settings
from cloister.core.state import State


@dataclass(frozen=True)
class ServerOptimizer:
    """The mean update as a step of the model: `update(w, mean, state, context) -> (w, state)`.

    `takes_updates`: what it is given is as long as the model.
    """

    name: str
    settings: Settings
    init: Callable[[Tensor], State]
    update: Callable[[Tensor, Tensor, State, Context], tuple[Tensor, State]]
    takes_updates: bool = True
