"""A Triton kernel that descends along the gradient of a linear layer's weights without writing the gradient down."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cloister.engine.cuda.conv_kernels import product
from cloister.engine.cuda.launches import Launch, submit


@triton.jit
def _descend(
    w, left, right, live, RATE, B, O, I, W_ROW, L_ROW, L_O, L_B, R_ROW, R_B, R_I,
    LIVE: tl.constexpr, PRECISION: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    if LIVE:
        if not tl.load(live + client):
            return
    o = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    i = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    place = w + client * W_ROW + o[:, None] * I + i[None, :]
    inside = (o < O)[:, None] & (i < I)[None, :]
    old = tl.load(place, mask=inside)  # on its way while the product is computed
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for first in range(0, B, DEEP):
        b = first + tl.arange(0, DEEP)
        known = (o < O)[:, None] & (b < B)[None, :]
        factor = tl.load(left + client * L_ROW + o[:, None] * L_O + b[None, :] * L_B, mask=known, other=0.0)
        known = (b < B)[:, None] & (i < I)[None, :]
        other = tl.load(right + client * R_ROW + b[:, None] * R_B + i[None, :] * R_I, mask=known, other=0.0)
        total = product(factor, other, total, PRECISION)
    tl.store(place, old - RATE * total, mask=inside)


def descend(w: Tensor, left: Tensor, right: Tensor, live: Tensor | None, rate: float, precision: str) -> None:
    """w[k] <- w[k] - rate * left[k] @ right[k] in place, for every client k that is live.

    w is [K, O * I], with rows that may be longer; left is [K, O, B] and right [K, B, I], of any layout.
    """
    (clients, out, batch), into = left.shape, right.shape[2]
    high, wide = min(32, max(16, triton.next_power_of_2(out))), 128
    deep = 16 if batch <= 16 else 32
    grid = (triton.cdiv(into, wide), triton.cdiv(out, high), clients)
    arguments = (
        w, left, right, w if live is None else live, rate, batch, out, into, w.stride(0), *left.stride(),
        *right.stride(), live is not None, precision, high, wide, deep,
    )  # fmt: skip
    submit(Launch(_descend, grid, arguments, warps=4, stages=2))  # small: its reads and writes overlap others'


def multiplied(dtype: torch.dtype) -> str:
    """How factors of that type are multiplied under torch's switches: see `conv_kernels`."""
    if dtype == torch.bfloat16:
        return "bf16"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
