"""`cloister.random.streams.coins` of many clients as one Triton kernel: the same bits, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cloister.engine.cuda.launches import Launch, submit

WIDE = 1024


@triton.jit
def _coins(keys, out, COUNT, LIMIT, WIDE: tl.constexpr):
    client = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    key = tl.load(keys + client)
    x = (~place).to(tl.uint32) * 1640531527 + key.to(tl.uint32)
    x = ((x ^ (x >> 16)) * 569420461) ^ (key >> 32).to(tl.uint32)
    x = (x ^ (x >> 15)) * 1935289751
    x = x ^ (x >> 15)
    tl.store(out + client * COUNT + place, (x >> 8) < LIMIT, mask=place < COUNT)


def _empty(keys: Tensor, count: int, limit: int) -> Tensor:
    return keys.new_empty((keys.shape[0], count), dtype=torch.bool)


def _drawn(keys: Tensor, count: int, limit: int) -> Tensor:
    out = _empty(keys, count, limit)
    submit(Launch(_coins, (triton.cdiv(count, WIDE), len(keys)), (keys, out, count, limit, WIDE)))
    return out


_LIBRARY = torch.library.Library("cloister", "FRAGMENT")
_LIBRARY.define("coins(Tensor keys, int count, int limit) -> Tensor")
_LIBRARY.impl("coins", _drawn, "CUDA")
torch.library.register_fake("cloister::coins", _empty, lib=_LIBRARY)
