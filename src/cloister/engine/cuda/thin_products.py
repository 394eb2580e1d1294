"""Products of small batches with large layers, in full float32: which of a traced step's are computed by a kernel."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch

_MOST_ROWS, _LEAST_WEIGHTS = 16, 500_000


def replace_products(graph: torch.fx.GraphModule) -> None:
    """Compute products of a thin matrix with a large one by `product_kernels`, where float32 is not rounded."""
    if torch.backends.cuda.matmul.allow_tf32 or find_spec("triton") is None:
        return
    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.bmm.default and _is_thin(*node.args):
            importlib.import_module("cloister.engine.cuda.product_kernels")
            node.target = torch.ops.cloister.multiply.default
    graph.recompile()


def _is_thin(left: Any, right: Any) -> bool:
    thin, large = left.meta["val"], right.meta["val"]
    float32 = thin.dtype == large.dtype == torch.float32
    return float32 and thin.shape[1] <= _MOST_ROWS and large.shape[1] * large.shape[2] >= _LEAST_WEIGHTS
