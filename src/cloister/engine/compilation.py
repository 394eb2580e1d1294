"""A step of local training, for many clients at once, as one compiled function.

The batched step (`vmap` of a gradient and of what the local rule does with it) is traced once for a shape into a flat
list of operations. Run as they are, they spare the host the work of `vmap` and `grad`, which for small models is most
of it. `fusion.py` makes few and large kernels of them. The same for what turns states into a sum of messages. Local
rules and transforms stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

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
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # others may compile meanwhile
                self.outputs = run(*self.inputs)

    def __call__(self, *arguments: Tensor) -> Any:
        for mine, given in zip(self.inputs, arguments, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return self.outputs


class Compiled:
    """A function of tensors that returns a tuple of tensors, compiled for shapes of arguments that come again.

    The first `patience` times that a shape comes up it is computed plainly.
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
        self._made[shapes] = self.how(trace(self.function, arguments), list(arguments))
        return self._made[shapes](*arguments)


def trace(function: Callable[..., Any], arguments: Sequence[Tensor]) -> torch.fx.GraphModule:
    """The operations of a function. On a GPU nothing is computed for that: shapes suffice, and memory is dear."""
    from torch.fx.experimental.proxy_tensor import make_fx  # which imports torch's compiler, on its first call

    if arguments[0].is_cuda:
        return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
    return make_fx(function)(*arguments)
