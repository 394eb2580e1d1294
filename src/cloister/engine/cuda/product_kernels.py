"""A Triton kernel for products of a thin matrix and a large one, for many clients at once, in full float32.

A linear layer on a small batch reads its weights once and computes little: a library's float32 product, which has no
matrix units for it, takes three times as long as reading takes. Here factors are split in two, so that matrix units
give the same precision (see "tf32x3" in `tiles.py`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cloister.engine.cuda.launches import Launch, submit

_ENOUGH_PROGRAMS = 2112
"""About sixteen for each multiprocessor of a large device."""
_WIDE, _DEEP = 128, 32


@triton.jit
def _multiply(
    a, b, y, M, N, D, K, PART, A_ROW, A_M, A_D, B_ROW, B_D, B_N,
    HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    client, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    m, n = tl.arange(0, HIGH), tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    a += client * A_ROW
    b += client * B_ROW
    end = tl.minimum((part + 1) * PART, D)
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for start in range(part * PART, end, DEEP):
        d = start + tl.arange(0, DEEP)
        thin = tl.load(a + m[:, None] * A_M + d[None, :] * A_D, mask=(m < M)[:, None] & (d < end)[None, :], other=0.0)
        large = tl.load(b + d[:, None] * B_D + n[None, :] * B_N, mask=(d < end)[:, None] & (n < N)[None, :], other=0.0)
        total = tl.dot(thin, large, total, input_precision="tf32x3")
    y += (part * K + client) * M * N
    tl.store(y + m[:, None] * N + n[None, :], total, mask=(m < M)[:, None] & (n < N)[None, :])


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a [K, M, D] times b [K, D, N], of any layout; M is small."""
    (clients, high, deep), wide = a.shape, b.shape[2]
    across = triton.cdiv(wide, _WIDE)
    parts = max(1, min(_ENOUGH_PROGRAMS // (across * clients), deep // (4 * _DEEP)))
    part = triton.cdiv(triton.cdiv(deep, parts), _DEEP) * _DEEP
    parts = triton.cdiv(deep, part)
    y = a.new_empty(parts, clients, high, wide)
    arguments = (
        a, b, y, high, wide, deep, clients, part, *a.stride(), *b.stride(),
        max(16, triton.next_power_of_2(high)), _WIDE, _DEEP,
    )  # fmt: skip
    submit(Launch(_multiply, (across, parts, clients), arguments, warps=4, stages=3))
    return y.sum(0) if parts > 1 else y[0]  # added in a fixed order


_LIBRARY = torch.library.Library("cloister", "FRAGMENT")
_LIBRARY.define("multiply(Tensor a, Tensor b) -> Tensor")
_LIBRARY.impl("multiply", multiply, "CUDA")
torch.library.register_fake(
    "cloister::multiply", lambda a, b: a.new_empty(a.shape[0], a.shape[1], b.shape[2]), lib=_LIBRARY
)
