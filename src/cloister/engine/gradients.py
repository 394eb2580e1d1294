"""`torch.func.grad` without torch's compiler, whose import, at the first gradient, takes longer than a first round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

try:
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _undo_create_differentiable,
        _wrap_all_tensors,
        grad_increment_nesting,
    )
except ImportError:  # another torch has them elsewhere
    grad: Callable[..., Callable[..., Any]] = torch.func.grad
else:

    def grad(function: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
        """The gradient of a scalar function with respect to its first argument, a tensor or a tuple of tensors."""

        def gradient(*arguments: Any) -> Any:
            with grad_increment_nesting() as level, torch.enable_grad():
                arguments = _wrap_all_tensors(arguments, level)
                leaves, structure = tree_flatten(arguments[0])
                for leaf in leaves:
                    _create_differentiable(leaf, level)
                found = function(*arguments)
                value = found[0] if has_aux else found
                gradients: Any = tree_unflatten(_differentiated(value, leaves), structure)
                gradients = _undo_create_differentiable(gradients, level)
                return (gradients, _undo_create_differentiable(found[1], level)) if has_aux else gradients

        return gradient


def _differentiated(value: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves, strict=True)]
