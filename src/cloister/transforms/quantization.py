"""From real vectors to integers that can be summed modulo a power of two, and back (DDGauss)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from cloister.core import Context, Layout, Sensitivity, State, Transform
from cloister.random.streams import Streams
from cloister.transforms.hadamard import hadamard, padded, round_within


def quantize(scale: float, l2: float, bits: int) -> Transform:
    """Rotate the (clipped) update, scale it, round it to whole numbers; the server sums modulo 2^bits.

    The rotation (random signs, the same for everybody, then Walsh-Hadamard) spreads a vector evenly over its
    coordinates, so that few bits hold each. It is data-independent and keeps norms.

    Guarantee: a client's integers have norm at most `l2`, in units of the grid, whatever its data: rounding is tried
    again where they have not, and truncates in the end. Modular arithmetic is post-processing of their noisy sum.
    """

    def broadcast(streams: Streams, round: int, context: Context, state: State) -> State:
        return {"signs": streams.signs(padded(context.size), context.w, "signs", round)}

    def encode(update: Tensor, context: Context) -> Tensor:
        signs = context.broadcast["signs"]
        wide = F.pad(update, (0, signs.shape[0] - update.shape[0]))
        return round_within(hadamard(wide * signs) * scale, context.key, l2)

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        half = 1 << (bits - 1)
        wrapped = ((total + half) & (2 * half - 1)) - half
        wide = hadamard(wrapped.to(context.w.dtype) / scale) * context.broadcast["signs"]
        return wide[: context.size], {}

    def sensitivity(known: Sensitivity, layout: Layout) -> Sensitivity:
        return Sensitivity(l2, None if known.length is None else padded(known.length), integer=True)

    settings = {"grid_scale": scale, "grid_l2": l2, "bits": bits}
    return Transform("quantize", settings, encode, sensitivity, decode, broadcast=broadcast, bits=bits)
