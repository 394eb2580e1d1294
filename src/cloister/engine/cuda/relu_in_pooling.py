"""ReLU followed by max-pooling as one operation of a traced step, forward and backward.

The largest pixel of a window is the same before and after ReLU, and where none is above zero the gradient is zero. So
pooling can read what a convolution wrote, and its gradient needs no pass over all pixels that asks for their sign.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from cloister.engine.cuda.pooling import POOL, SPREAD

_aten = torch.ops.aten
_VIEWS = {_aten.view.default, _aten._unsafe_view.default, _aten.permute.default, _aten.clone.default}


def relu_in_pooling(graph: torch.fx.GraphModule) -> None:
    """Join each ReLU of which nothing but a pooling, and its own gradient behind that pooling's, makes use."""
    for pool in [node for node in graph.graph.nodes if node.target is POOL and not node.args[1]]:
        relu = _behind_views(pool.args[0])
        if relu.target is not _aten.relu.default:
            continue
        gradients = [user for user in relu.users if user.target is _aten.threshold_backward.default]
        others = [user for user in relu.users if user not in gradients]
        if len(others) == 1 and _leads_only_to(others[0], pool) and all(_is_spread(g, relu, pool) for g in gradients):
            for gradient in gradients:
                gradient.replace_all_uses_with(gradient.args[0])
                graph.graph.erase_node(gradient)
            relu.replace_all_uses_with(relu.args[0])
            graph.graph.erase_node(relu)
            pool.args = (pool.args[0], True)
    graph.recompile()


def _behind_views(node: Any) -> Any:
    """What a node shows: itself, or what it is a view of; views that others use as well are not looked behind."""
    while node.target in _VIEWS and len(node.users) == 1:
        node = node.args[0]
    return node


def _leads_only_to(node: Node, pool: Node) -> bool:
    while node is not pool:
        if node.target not in _VIEWS or len(node.users) != 1:
            return False
        node = next(iter(node.users))
    return True


def _is_spread(gradient: Node, relu: Node, pool: Node) -> bool:
    """Whether a gradient of ReLU is that of what this pooling spreads, and of nothing else."""
    given, at, threshold = gradient.args
    spread = _behind_views(given)
    if at is not relu or threshold != 0 or spread.target is not SPREAD or len(spread.users) != 1:
        return False
    which = spread.args[1]
    while which.target in _VIEWS:
        which = which.args[0]
    return which.args[0] is pool
