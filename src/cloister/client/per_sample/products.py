"""Sums of rows times factors, in which what is not finite counts as zero.

A factor of zero does not silence infinity, so that rows have to be cleaned. That takes as long as their product, and
almost never changes anything: on a CPU, where a look at the result costs nothing, it is done when the result says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cloister.client.per_sample.common import finite


def finite_product(factors: Tensor, rows: Tensor) -> Tensor:
    """factors [m, b] @ rows [b, n]; the factors are finite, and what is not in the rows counts as zero."""
    if rows.is_cuda:  # where a look at the result would wait for the device
        return factors @ finite(rows)
    found: Tensor = torch.ops.cloister.finite_product(factors, rows)
    return found


def _on_a_cpu(factors: Tensor, rows: Tensor) -> Tensor:
    """An infinite or undefined entry times any factor leaves a result that is not finite, and so a sum."""
    found = factors @ rows
    return found if found.sum().isfinite() else factors @ finite(rows)


def _empty(factors: Tensor, rows: Tensor) -> Tensor:
    return factors @ rows


def _batched(info: Any, dims: tuple[int | None, int | None], factors: Tensor, rows: Tensor) -> tuple[Tensor, int]:
    """Under `vmap` the products of all at once."""
    moved = [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip((factors, rows), dims, strict=True)
    ]
    return torch.ops.cloister.finite_product(*moved), 0


_LIBRARY = torch.library.Library("cloister", "FRAGMENT")  # by its schema: see `engine/cuda/conv_kernels.py`
_LIBRARY.define("finite_product(Tensor factors, Tensor rows) -> Tensor")
_LIBRARY.impl("finite_product", _on_a_cpu, "CPU")
torch.library.register_fake("cloister::finite_product", _empty, lib=_LIBRARY)
torch.library.register_vmap("cloister::finite_product", _batched, lib=_LIBRARY)
