"""How matrix products and convolutions multiply float32 numbers on a GPU. Exactly, unless the user says otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from cloister.errors import expect

PRECISIONS = ("exact", "tf32", "bf16")
"""exact: in the model's dtype; tf32: factors rounded to 10 bits; bf16: to 7 bits. Sums are always float32."""


def expect_precision(precision: str, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a precision that does not exist or that the device does not have."""
    expect(precision in PRECISIONS, f"precision to be one of {', '.join(PRECISIONS)}", precision, "choose one")
    if precision != "exact":
        there = device.type == "cuda" and dtype == torch.float32
        expect(there, f"a GPU and dtype float32 for precision {precision}", f"{device.type}, {dtype}", "use exact")


@contextmanager
def multiplying(precision: str, device: torch.device) -> Iterator[None]:
    """Within this, matrix products and convolutions are computed in this precision; afterwards as before.

    Threads may be within it at the same time (one computes, one compiles): the first to come changes torch's switches,
    which are the process's, and the last to leave changes them back.
    """
    if device.type != "cuda":
        yield
        return
    _SWITCHES.enter(coarse=precision != "exact")
    try:
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if precision == "bf16" else nullcontext():
            yield
    finally:
        _SWITCHES.leave()


class _Switches:
    """torch's, for tf32, and how they were before."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.before: list[tuple[bool, bool]] = []

    def enter(self, coarse: bool) -> None:
        with self.lock:
            self.before.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
            self._set(coarse, coarse)

    def leave(self) -> None:
        with self.lock:
            before = self.before.pop()
            self._set(*before)

    @staticmethod
    def _set(products: bool, convolutions: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions


_SWITCHES = _Switches()
