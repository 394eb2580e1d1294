"""Other modules in place of some of a model's."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replaced(model: nn.Module, change: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """The model itself, with `change(part)` in place of every part for which that is not None.

    A part that stands in several places has the same one in place of it in all of them.
    """
    parts = list(model.modules())
    found = {id(part): change(part) for part in parts}
    top = found[id(model)]
    if top is not None:
        return top
    for part in parts:
        for name, child in list(part._modules.items()):
            new = None if child is None else found[id(child)]
            if new is not None:
                setattr(part, name, new)
    return model
