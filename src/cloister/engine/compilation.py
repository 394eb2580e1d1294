"""A step of local training, for many clients at once, as one compiled function.

The batched step (`vmap` of a gradient and of what the local rule does with it) is traced once for a shape into a flat
list of operations. Run as they are, they spare the host the work of `vmap` and `grad`, which for small models is most
of it. On a GPU, Inductor can make single kernels of runs of element-wise ones (normalization, activations, dropout and
its random numbers, the loss, the new parameters). The same for what turns states into a sum of messages. Local rules
and transforms stay as they are.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

Lower = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]
"""From traced operations, and arguments like those to come, to something that runs them."""


def traced(graph: torch.fx.GraphModule, arguments: list[Any]) -> Callable[..., Any]:
    """The operations as they are, one after the other, without what `vmap` and `grad` do around them."""
    for node in graph.graph.nodes:
        if _does_nothing(node):
            node.replace_all_uses_with(node.all_input_nodes[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


_RESHAPES = {torch.ops.aten.expand.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}


def _does_nothing(node: torch.fx.Node) -> bool:
    """Whether a node returns what it is given, in the same shape and layout."""
    if node.target is torch.ops.aten.mul.Scalar:
        return isinstance(node.args[1], int) and node.args[1] == 1
    if node.target not in _RESHAPES:
        return False
    before, after = node.all_input_nodes[0].meta.get("val"), node.meta.get("val")
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return False
    return (before.shape, before.stride()) == (after.shape, after.stride())


def fused(graph: torch.fx.GraphModule, arguments: list[Any]) -> Callable[..., Any]:
    """Few and large kernels, by Inductor."""
    from torch._inductor import compile as inductor  # which takes two seconds to import

    pieces_first(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advice to whoever writes kernels, not to our users
        # Pieces of a concatenation are computed where they shall lie, each by a kernel of its own.
        return inductor(graph, arguments, options={"max_pointwise_cat_inputs": 1})


def captured(how: Lower) -> Lower:
    """The operations as a CUDA graph that is replayed; what it returns stays valid until it is replayed again."""

    def capture(graph: torch.fx.GraphModule, arguments: list[Any]) -> Callable[..., Any]:
        return _Captured(how(graph, arguments), arguments)

    return capture


class _Captured:
    def __init__(self, run: Callable[..., Any], arguments: list[Tensor]) -> None:
        # As they are laid out: rows of parameters may be longer than what is used of them.
        layouts = [(a.shape, a.stride(), a.dtype, a.device) for a in arguments]
        self.inputs = [torch.empty_strided(s, t, dtype=d, device=p) for s, t, d, p in layouts]
        for mine, given in zip(self.inputs, arguments, strict=True):
            mine.copy_(given)
        with torch.cuda.device(arguments[0].device):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # kernels are compiled, chosen and loaded before the capture
                run(*self.inputs)
            torch.cuda.current_stream().wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.outputs = run(*self.inputs)

    def __call__(self, *arguments: Tensor) -> Any:
        for mine, given in zip(self.inputs, arguments, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return self.outputs


class Compiled:
    """A function of tensors that returns a tuple of tensors, compiled for shapes of arguments that come again.

    The first `patience` times that a shape comes up it is computed plainly (and convolutions are tried and chosen,
    which cannot happen while tracing).
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], how: Lower, patience: int) -> None:
        self.function, self.how, self.patience = function, how, patience
        self._seen: Counter[Any] = Counter()
        self._made: dict[Any, Callable[..., Any]] = {}

    @torch.no_grad()
    def __call__(self, *arguments: Tensor) -> Any:
        shapes = tuple((argument.shape, argument.stride(), argument.dtype) for argument in arguments)
        if shapes in self._made:
            return self._made[shapes](*arguments)
        self._seen[shapes] += 1
        if self._seen[shapes] <= self.patience:
            return self.function(*arguments)
        if not self.patience:
            self.function(*arguments)
        self._made[shapes] = self.how(make_fx(self.function)(*arguments), list(arguments))
        return self._made[shapes](*arguments)


_ELEMENTWISE = {
    torch.ops.aten.add.Tensor,
    torch.ops.aten.sub.Tensor,
    torch.ops.aten.mul.Tensor,
    torch.ops.aten.where.self,
}


def pieces_first(traced: torch.fx.GraphModule) -> None:
    """Compute f(cat(pieces), w) as cat(f(piece, part of w), ...), for element-wise f, and cat(cat(a, b), c) as one.

    Gradients of the single layers are concatenated to a vector, and the next thing that happens to it is a sum with
    the parameters: this way it is never written down.
    """
    graph = traced.graph
    for node in list(graph.nodes):
        inner = [a for a in node.all_input_nodes if _is_join(a) and list(a.users) == [node]]
        if len(inner) != 1:
            continue
        join = inner[0]
        if _is_join(node) and node.args[1] == join.args[1]:
            pieces = [p for a in node.args[0] for p in (join.args[0] if a is join else [a])]
        elif node.target in _ELEMENTWISE and all(_fits(a, join) for a in node.all_input_nodes):
            with graph.inserting_before(node):
                pieces = _apart(graph, node, join)
        else:
            continue
        with graph.inserting_before(node):
            whole = graph.call_function(torch.ops.aten.cat.default, (pieces, join.args[1]))
        whole.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(whole)
        graph.erase_node(node)
        graph.erase_node(join)
    traced.recompile()


def _is_join(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.aten.cat.default and len(node.args) == 2


def _shape(node: torch.fx.Node) -> torch.Size | None:
    value = node.meta.get("val")
    return value.shape if isinstance(value, Tensor) else None


def _fits(node: torch.fx.Node, join: torch.fx.Node) -> bool:
    """Whether a tensor is as wide as what is concatenated along its last dimension, or the same for all of it."""
    shape, wide, last = _shape(node), join.meta["val"].shape[-1], join.meta["val"].dim() - 1
    return shape is not None and join.args[1] in (last, -1) and (shape == () or shape[-1] in (wide, 1))


def _apart(graph: torch.fx.Graph, node: torch.fx.Node, join: torch.fx.Node) -> list[torch.fx.Node]:
    """An element-wise operation on a concatenation, piece by piece."""
    pieces: Any = join.args[0]
    made, start = [], 0
    for piece in pieces:
        end = start + piece.meta["val"].shape[-1]
        arguments = []
        for a in node.args:
            if a is join:
                arguments.append(piece)
                continue
            wide = isinstance(a, torch.fx.Node) and (_shape(a) or (1,))[-1] > 1
            part: Any = graph.call_function(torch.ops.aten.slice.Tensor, (a, -1, start, end)) if wide else a
            arguments.append(part)
        operation: Any = node.target
        made.append(graph.call_function(operation, tuple(arguments), node.kwargs))
        made[-1].meta["val"] = piece.meta["val"]
        start = end
    return made
