"""Few and large kernels out of many small operations, by Inductor, kept on disk for the next run of the same shapes.

Inductor makes single kernels of runs of element-wise operations (normalization, activations, dropout and its random
numbers, the loss, the new parameters). That takes some ten seconds, so that a program is kept as a file that is named
by all that it was made from.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloister.engine.cuda.linear_updates import in_place
from cloister.engine.cuda.relu_in_pooling import relu_in_pooling
from cloister.engine.cuda.thin_products import replace_products
from cloister.engine.cuda.tiles import tune
from cloister.engine.disk_cache import cache_folder

OPTIONS = {"max_pointwise_cat_inputs": 1}
"""Inductor's: pieces of a concatenation are computed where they shall lie, each by a kernel of its own."""


def fused(graph: torch.fx.GraphModule, arguments: list[Any]) -> Callable[..., Any]:
    """Few and large kernels, by Inductor; from the disk, if they are there."""
    once(graph)
    if arguments[0].is_cuda:
        keep_caches()
        relu_in_pooling(graph)
        tune(graph)
    pieces_first(graph)
    complete = in_place(graph) if arguments[0].is_cuda else lambda program: program
    if arguments[0].is_cuda:
        replace_products(graph)
    constants = constants_as_inputs(graph)
    arguments = [*arguments, *constants]
    run = _load(graph, arguments) or _compile(graph, arguments)
    return complete((lambda *given: run(*given, *constants)) if constants else run)


def keep_caches() -> None:
    """Inductor and Triton keep what they compile beside our own, unless the user says where; by default some of it is
    in a folder that the next start of the machine empties."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder() / "triton"))


def start_workers() -> None:
    """Start the processes in which Inductor compiles kernels: they take seconds, in which other things can be done."""
    with suppress(Exception):  # of no consequence: they start when they are needed, and another torch has other names
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.warm_pool()


def constants_as_inputs(graph: torch.fx.GraphModule) -> list[Tensor]:
    """Make the tensors that a graph holds (frozen parameters, buffers) its last inputs: a program serves any."""
    nodes = [node for node in graph.graph.nodes if node.op == "get_attr"]
    constants: dict[str, Tensor] = {}
    after = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    made: dict[str, torch.fx.Node] = {}
    for node in nodes:
        name = str(node.target)
        if name not in made:
            constants[name] = getattr(graph, name)
            with graph.graph.inserting_after(after):
                made[name] = after = graph.graph.placeholder(f"constant_{len(made)}")
            after.meta["val"] = node.meta.get("val", constants[name])
        node.replace_all_uses_with(made[name])
        graph.graph.erase_node(node)
    for name in constants:  # or a compiler makes them inputs once more
        delattr(graph, name)
    graph.recompile()
    return list(constants.values())


def _compile(graph: torch.fx.GraphModule, arguments: list[Any]) -> Callable[..., Any]:
    from torch import _inductor as inductor  # which takes seconds to import

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # advice to whoever writes kernels, not to our users
        if not hasattr(inductor, "standalone_compile"):  # before torch 2.8
            return inductor.compile(graph, arguments, options=OPTIONS)
        path = _path(graph, arguments)
        options = {"config_patches": OPTIONS}
        if arguments[0].is_cuda:
            from torch._inductor.async_compile import AsyncCompile

            AsyncCompile.wakeup()
        made = inductor.standalone_compile(graph, arguments, dynamic_shapes="from_example_inputs", options=options)
        with suppress(OSError, RuntimeError, AssertionError):  # a full disk, or a part that cannot be written down
            path.parent.mkdir(parents=True, exist_ok=True)
            made.save(path=str(path), format="binary")
        return made


def _load(graph: torch.fx.GraphModule, arguments: list[Any]) -> Callable[..., Any] | None:
    """A program that was compiled before; None where there is none that can be used."""
    path = _path(graph, arguments)
    if not path.exists():
        return None
    from torch._inductor.standalone_compile import CompiledArtifact

    try:
        return CompiledArtifact.load(path=str(path), format="binary")
    except Exception:  # cut short, or of another torch: whatever is wrong with it, it can be made anew
        return None


def _path(graph: torch.fx.GraphModule, arguments: list[Tensor]) -> Path:
    """The file of a program: its operations, shapes and layouts, and what compiles it, where."""
    layouts = [(tuple(a.shape), a.stride(), str(a.dtype), a.device.type) for a in arguments]
    gpu = torch.cuda.get_device_name(arguments[0].device) if arguments[0].is_cuda else _processor()
    matmul = torch.backends.cuda.matmul.allow_tf32
    made_from = [graph.code, str(layouts), gpu, torch.__version__, _version("triton"), str(matmul), str(OPTIONS)]
    digest = hashlib.sha256("\n".join(made_from).encode()).hexdigest()
    return cache_folder() / "programs" / digest[:32]


def _processor() -> str:
    from cloister.engine.arithmetic import processor

    return processor()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def once(traced: torch.fx.GraphModule) -> None:
    """Compute what is computed twice only once: a gradient that two convolutions need, or a norm."""
    output = next(node for node in traced.graph.nodes if node.op == "output")
    calls = [node for node in traced.graph.nodes if node.op == "call_function"]
    if any(_changes_something(node) for node in calls):
        return
    known: dict[tuple[str, str, str], torch.fx.Node] = {}
    for node in calls:
        if output in node.users or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            continue  # results stay tensors of their own
        same = known.setdefault((str(node.target), repr(node.args), repr(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            traced.graph.erase_node(node)
    traced.recompile()


def _changes_something(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


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
