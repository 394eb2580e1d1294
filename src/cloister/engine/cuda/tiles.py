"""Tiles of the convolution kernels: the usual ones, and the fastest for a shape, which are tried once and kept on disk.

A captured graph takes the usual tiles, so that its first round waits for nothing. A compiled program is there for many
rounds: its convolutions are tried with every tile, and what was fastest is kept by shape, device and versions.
"""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from cloister.engine.cuda.launches import Launch, compile_all, launching
from cloister.engine.disk_cache import DiskCache

Tile = tuple[int, ...]
Choice = tuple[str, Tile]
"""How numbers are multiplied, and a tile: pixels, channels and terms of the sum; warps; stages."""

_GATHER: list[Tile] = [(128, 64, 32, 4, 3), (128, 128, 32, 8, 3), (64, 64, 32, 4, 1), (128, 64, 32, 4, 1)]
_REDUCE: list[Tile] = [(64, 64, 32, 2, 3), (128, 64, 32, 2, 3), (128, 128, 32, 4, 3)]
_TILES: dict[tuple[str, str], list[Choice]] = {
    ("convolve", "exact"): [
        ("tf32x3", (128, 64, 32, 8, 3)),
        ("tf32x3", (64, 64, 32, 4, 4)),
        ("tf32x3", (64, 64, 32, 4, 1)),
        ("tf32x3", (128, 64, 32, 4, 1)),
    ],
    ("weight_gradient", "exact"): [
        ("tf32x3", (64, 64, 32, 4, 3)),
        ("tf32x3", (64, 64, 32, 2, 3)),
        ("ieee", (64, 64, 16, 4, 3)),
    ],
    **{("convolve", coarse): [(coarse, tile) for tile in _GATHER] for coarse in ("tf32", "bf16")},
    **{("weight_gradient", coarse): [(coarse, tile) for tile in _REDUCE] for coarse in ("tf32", "bf16")},
}
"""By operation and precision: tiles that were fastest on some shape, the usual one first.

Exact float32 is also had from tf32 units ("tf32x3"): each factor is split in two and three products are added, which
comes out closer to the true sum than the vendor's float32 (2e-7 against 3e-7 to 2e-6; a test compares)."""

CHOSEN: dict[str, list[Any]] = {}
"""What was found fastest, by operation and shapes. It is kept with a run, so that a resumed one rounds alike."""

_ON_DISK = DiskCache("tiles.json")


def default_tile(operation: str, precision: str, channels: int = 16) -> Choice:
    """What an operation on images of so many channels is computed with before anything was tried."""
    choices = _TILES[operation, precision]
    unstaged = [choice for choice in choices if choice[1][-1] == 1]  # color images: a third of the time
    return unstaged[0] if 1 < channels < 16 and unstaged else choices[0]


def tune(graph: torch.fx.GraphModule) -> None:
    """Give every convolution of a program the tile that is fastest for its shape."""
    keys = {node: _key(node) for node in _convolutions(graph)}
    unknown: dict[str, torch.fx.Node] = {}
    for node, key in keys.items():
        known = CHOSEN.get(key) or _ON_DISK.recall(_versioned(key))
        if known is None:
            unknown[key] = node
        else:
            CHOSEN[key] = known
    launches = [_launch(node, choice) for node in unknown.values() for choice in _options(node)]
    compile_all({launch.signature: launch for launch in launches}.values())
    for key, node in unknown.items():
        with launching():
            _, (how, tile) = min((_milliseconds(node, choice), choice) for choice in _options(node))
        CHOSEN[key] = [how, list(tile)]
        _ON_DISK.remember(_versioned(key), CHOSEN[key])
    for node, key in keys.items():
        how, tile = CHOSEN[key]
        node.args = (*node.args[:-2], list(tile), how)
    graph.recompile()


def _convolutions(graph: torch.fx.GraphModule) -> list[torch.fx.Node]:
    names = {f"cloister.{operation}.default" for operation, _ in _TILES}
    return [node for node in graph.graph.nodes if str(node.target) in names]


def _operation(node: torch.fx.Node) -> str:
    return str(node.target).split(".")[1]


def _options(node: torch.fx.Node) -> list[Choice]:
    """All tiles of the precision that a node's usual tile belongs to."""
    operation, how = _operation(node), str(node.args[-1])
    return _TILES[operation, how if (operation, how) in _TILES else "exact"]


def _key(node: torch.fx.Node) -> str:
    """An operation with the shapes and types that it is computed on, and how it is if nothing was tried."""
    described = [f"{a.dtype}{tuple(a.shape)}" if isinstance(a, Tensor) else str(a) for a in _arguments(node)]
    return " ".join([_operation(node), *described])


def _versioned(key: str) -> str:
    return f"{key} on {torch.cuda.get_device_name()}, torch {torch.__version__}, triton {version('triton')}"


def _arguments(node: torch.fx.Node) -> list[Any]:
    """What a node is called with; tensors as they were traced, which have a shape and no numbers."""
    return [argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument for argument in node.args]


def _launch(node: torch.fx.Node, choice: Choice) -> Launch:
    from cloister.engine.cuda import conv_kernels

    arguments, (how, tile) = _arguments(node), choice
    if _operation(node) == "weight_gradient":
        gy, x, kernel, stride, padding, *_ = arguments
        return conv_kernels.weight_gradient_launch(gy, x, kernel, stride, padding, tile, how)[0]
    x, w, bias, _, stride, padding, dilation, *_ = arguments
    return conv_kernels.convolve_launch(x, w, bias, node.meta["val"], stride, padding, dilation, tile, how)


def _milliseconds(node: torch.fx.Node, choice: Choice, repeats: int = 10) -> float:
    """The best time of a tile on random numbers, since other work may share the device; endless if it does not fit."""
    *arguments, _, _ = [
        torch.randn(a.shape, dtype=a.dtype, device="cuda") if isinstance(a, Tensor) else a for a in _arguments(node)
    ]
    operation: Any = node.target
    graph, best = torch.cuda.CUDAGraph(), math.inf
    try:
        operation(*arguments, list(choice[1]), choice[0])
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # where the host's share does not count
            for _ in range(_TIMES):
                operation(*arguments, list(choice[1]), choice[0])
        for _ in range(repeats):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end))
    except Exception:  # out of memory, or of the kernel's shared memory: Triton's errors have no type in common
        return math.inf
    return best


_TIMES = 4
