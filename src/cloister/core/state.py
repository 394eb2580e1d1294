"""What is kept from round to round: tensors by name, each part of a method in a scope of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cloister.errors import expect

Tensors = dict[str, Tensor]

State = dict[str, Any]
"""Tensors by name; of a part that is made of parts, their states by name. No part sees another's."""


@dataclass(frozen=True)
class MethodState:
    """The state of a method, by part. What its clients keep lies with the clients, a row for each."""

    transform: State = field(default_factory=dict)
    mechanism: State = field(default_factory=dict)
    server: State = field(default_factory=dict)
    clients: Tensors = field(default_factory=dict)


def flatten(state: Mapping[str, Any], scope: str = "") -> Tensors:
    """Nested states as one level of tensors.

    >>> import torch
    >>> list(flatten({"transform": {"0": {"clip_norm": torch.ones(1)}}}))
    ['transform/0/clip_norm']
    """
    found: Tensors = {}
    for name, value in state.items():
        expect("/" not in name, "names without a slash in a state", name, "rename it")
        found |= flatten(value, f"{scope}{name}/") if isinstance(value, Mapping) else {f"{scope}{name}": value}
    return found


def unflatten(tensors: Mapping[str, Tensor]) -> State:
    """The inverse of `flatten`; scopes without a tensor are gone."""
    found: State = {}
    for path, tensor in tensors.items():
        *scopes, name = path.split("/")
        place = found
        for scope in scopes:
            place = place.setdefault(scope, {})
        place[name] = tensor
    return found
