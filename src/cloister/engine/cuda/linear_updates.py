"""Plain gradient descent on large linear layers, in place: the gradient of their weights is never written down.

The gradient of a linear layer's weights is a product of two thin matrices, as long as a batch. A compiled step writes
it, reads it, and writes new parameters beside the old: four passes over the largest part of a model. Here the traced
step is made to return the two factors instead, and a kernel subtracts their product from the parameters: two passes.

It is looked for in the traced operations, so that local rules know nothing of it. What is not of the form
`w - rate * (left @ right)` (momentum, weight decay, other optimizers) is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

_aten = torch.ops.aten
_VIEWS = {_aten.view.default, _aten._unsafe_view.default, _aten.transpose.int, _aten.permute.default}
_CONVERSION = _aten._to_copy.default
_LARGE = 300_000
"""Weights from which on it pays: of a layer of 820,000, half the time of what Inductor makes (on an H200)."""


@dataclass(frozen=True)
class _Outer:
    """Columns from `start` on move by -rate * left @ right; the factors are outputs of the program."""

    start: int
    rate: float
    left: Node
    right: Node
    live: Node | None


@dataclass(frozen=True)
class _Copied:
    """Columns from `start` on are replaced by an output of the program."""

    start: int
    new: Node


@dataclass(frozen=True)
class _State:
    """A state that is changed in place: which input it is, and how its columns change."""

    input: int
    pieces: tuple[_Outer | _Copied, ...]


Program = Callable[..., Any]


def in_place(graph: torch.fx.GraphModule) -> Callable[[Program], Program]:
    """Make a step return factors of gradients; what is returned turns the compiled step into one that returns states.

    Guarantee: that step computes the same states as the graph did, in the memory of those that it is given.
    """
    if find_spec("triton") is None:
        return lambda program: program
    output = next(node for node in graph.graph.nodes if node.op == "output")
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    given: Any = output.args[0]
    if len(given) > len(inputs):
        return lambda program: program
    own = inputs[len(inputs) - len(given) :]  # states are the last inputs, in the order in which they are returned
    results = [_changed(graph, node, base, inputs, given) or node for node, base in zip(given, own, strict=True)]
    if not any(isinstance(result, _State) for result in results):
        return lambda program: program
    wanted: dict[Node, int] = {}
    for result in results:
        for node in [result] if isinstance(result, Node) else _nodes(result):
            wanted.setdefault(node, len(wanted))
    output.args = (tuple(wanted),)
    graph.graph.eliminate_dead_code()
    graph.recompile()

    def completed(program: Program) -> Program:
        def run(*arguments: Tensor) -> tuple[Tensor, ...]:
            found = program(*arguments)

            def value(node: Node | None) -> Any:
                return None if node is None else found[wanted[node]]

            return tuple(
                value(result) if isinstance(result, Node) else _apply(result, arguments[result.input], value)
                for result in results
            )

        return run

    return completed


def _nodes(state: _State) -> list[Node]:
    pairs = [(p.left, p.right, p.live) if isinstance(p, _Outer) else (p.new,) for p in state.pieces]
    return [node for pair in pairs for node in pair if node is not None]


def _apply(state: _State, w: Tensor, value: Callable[[Node | None], Any]) -> Tensor:
    from cloister.engine.cuda.update_kernels import descend, multiplied

    for piece in state.pieces:
        if isinstance(piece, _Copied):
            new = value(piece.new)
            w[:, piece.start : piece.start + new.shape[1]].copy_(new)
        else:
            left, right, live = value(piece.left), value(piece.right), value(piece.live)
            descend(w[:, piece.start :], left, right, live, piece.rate, multiplied(left.dtype))
    return w


def _changed(
    graph: torch.fx.GraphModule, node: Node, base: Node, inputs: list[Node], results: list[Node]
) -> _State | None:
    """How a state that is concatenated from pieces follows from what it was, `base`.

    None where no piece is worth it, or where the old state is returned as well.
    """
    if node.target is not _aten.cat.default or node.meta["val"].dim() != 2 or _shown(base, results):
        return None
    if base.meta["val"].dim() != 2 or base.meta["val"].dtype != torch.float32:
        return None
    pieces: list[_Outer | _Copied] = []
    start, worth_it = 0, False
    pending: list[Node] = []
    joined: Any = node.args[0]
    for piece in joined:
        width = piece.meta["val"].shape[1]
        outer = _outer(piece, base, start, width)
        if outer is not None:
            worth_it = True
            pieces += _together(graph, node, pending, start)
            pieces.append(outer)
            pending = []
        else:
            pending.append(piece)
        start += width
    if not worth_it:
        return None
    used = base.meta["val"].shape[1]
    if pending and start > used:  # what only fills a row up stays as it is
        start -= pending.pop().meta["val"].shape[1]
    if start != used:
        return None
    pieces += _together(graph, node, pending, start)
    return _State(inputs.index(base), tuple(pieces))


def _together(graph: torch.fx.GraphModule, before: Node, pending: list[Node], end: int) -> list[_Outer | _Copied]:
    """Pieces that lie side by side, as one."""
    if not pending:
        return []
    width = sum(piece.meta["val"].shape[1] for piece in pending)
    with graph.graph.inserting_before(before):
        whole = graph.graph.call_function(_aten.cat.default, (list(pending), 1))
    whole.meta["val"] = before.meta["val"][:, :width]
    return [_Copied(end - width, whole)]


def _shown(base: Node, results: list[Node]) -> bool:
    """Whether an input, or a view of it, is returned as it was."""
    seen = [base]
    while seen:
        node = seen.pop()
        if node in results:
            return True
        seen += [user for user in node.users if user.target in {*_VIEWS, _aten.slice.Tensor, _aten.expand.default}]
    return False


def _outer(piece: Node, base: Node, start: int, width: int) -> _Outer | None:
    """A piece of the form w - rate * (left @ right), perhaps for live clients alone, of w's columns from `start` on."""
    live: Any = None
    moved: Any = piece
    if piece.target is _aten.where.self:
        live, moved, old = piece.args
        if not _is_column(old, base, start, width) or live.meta["val"].numel() != len(piece.meta["val"]):
            return None
    if width < _LARGE or moved.target is not _aten.sub.Tensor or not _is_column(moved.args[0], base, start, width):
        return None
    product = _product(moved.args[1])
    if product is None or len(product.meta["val"]) != len(base.meta["val"]):
        return None
    factors: Any = product.args
    left, right = factors
    if _shown(base, [left, right]):
        return None
    return _Outer(start, float(moved.kwargs.get("alpha", 1)), left, right, live)


def _is_column(node: Any, base: Node, start: int, width: int) -> bool:
    """Whether a node is the columns of an input that begin there."""
    if not isinstance(node, Node) or node.target is not _aten.slice.Tensor:
        return False
    of, dim, first, end = node.args
    return of is base and dim in (-1, 1) and (first, end) == (start, start + width)


def _product(flat: Any) -> Node | None:
    """The product of matrices [K, O, I] that a tensor [K, O * I] shows row by row, where nobody else needs it."""
    if not isinstance(flat, Node) or flat.target is not _aten.view.default:
        return None
    matrices: Any = flat.args[0]
    node: Any = flat
    while isinstance(node, Node) and (node.target in _VIEWS or node.target is _CONVERSION):
        if len(node.users) != 1:
            return None
        node = node.args[0]
    if not isinstance(node, Node) or node.target is not _aten.bmm.default or len(node.users) != 1:
        return None
    shown, product = matrices.meta["val"], node.meta["val"]  # turned round twice, it has its own rows again
    return node if shown.shape == product.shape and shown.stride() == product.stride() else None
