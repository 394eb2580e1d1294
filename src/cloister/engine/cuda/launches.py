"""Launches of kernels, which can be compiled ahead, side by side, before they are needed one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Launch(NamedTuple):
    """A Triton kernel with its arguments; to compile it, the tensors among them need not hold numbers."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    warps: int = 4
    stages: int = 3

    def __call__(self) -> None:
        self.kernel[self.grid](*self.arguments, num_warps=self.warps, num_stages=self.stages)

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The arguments, of tensors the types of their numbers."""
        return tuple(a.dtype if isinstance(a, Tensor) else a for a in self.arguments)

    @property
    def signature(self) -> Hashable:
        """What it is compiled for (and a little more: not every number makes another kernel)."""
        return str(self.kernel), self.kinds, self.warps, self.stages

    def compile(self) -> None:
        """Compile the kernel, and load it where Triton lets us, without running it."""
        made = self.kernel.warmup(*self.kinds, grid=self.grid, num_warps=self.warps, num_stages=self.stages)
        made._init_handles()


class _Thread(threading.local):
    noted: dict[Hashable, Launch] | None = None


_THREAD = _Thread()


def submit(launch: Launch) -> None:
    """Launch a kernel; or note it, to compile it ahead."""
    if _THREAD.noted is None:
        launch()
    else:
        _THREAD.noted[launch.signature] = launch


@contextmanager
def launching() -> Iterator[None]:
    """Kernels are launched in here, also while others are only noted: what times them must see them run."""
    noted, _THREAD.noted = _THREAD.noted, None
    try:
        yield
    finally:
        _THREAD.noted = noted


def warm_up(compute: Callable[[], object]) -> None:
    """Run a computation for the first time: whatever it needs is compiled and loaded afterwards.

    It runs without our kernels, to find out which they are; these are compiled side by side, and then run on whatever
    is in their arguments. Gradients are computed in this thread: another would launch what should be noted.
    """
    noted: dict[Hashable, Launch] = {}
    _THREAD.noted = noted
    try:
        with torch.autograd.set_multithreading_enabled(False):
            compute()
    finally:
        _THREAD.noted = None
    compile_all(noted.values())
    for launch in noted.values():
        launch()


def compile_all(launches: Iterable[Launch]) -> None:
    """Each in a thread: most of the work is done outside of the interpreter."""

    def compile(launch: Launch) -> None:
        with suppress(Exception):  # what cannot be compiled fails again, with its reason, where it is used
            launch.compile()

    several = list(launches)
    if several:
        with ThreadPoolExecutor(len(several)) as pool:
            list(pool.map(compile, several))
