"""From real vectors to whole numbers of few values, and back (cpSGD)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cloister.core import Context, Layout, Sensitivity, State, Transform
from cloister.errors import expect_count, expect_positive
from cloister.privacy.binomial import message_norm
from cloister.random.streams import Streams, fold, uniform, uniform_pairs
from cloister.transforms.hadamard import hadamard, padded

_ROUNDING, _COIN = -1, -1000  # places under a client's key that no step has: draws must not depend on the update


def quantize_to_levels(
    range: float, levels: int, rotate: bool = False, trials: int = 0, messages: int = 1
) -> Transform:
    """Cut every number of the (clipped) update off at +-range and round it at random to one of `levels` equally
    spaced points, which are numbered from -(levels - 1)/2 to (levels - 1)/2.

    Numbered like this, a sum of messages needs no offset, however many they are: the server scales it back. If `levels`
    is odd, 0 is one of them. If it is even (2^b, for b bits), points lie at -1/2, 1/2, 3/2 and so on; one fair coin
    toss, of 1/2 or -1/2, makes them whole numbers, right in the mean: the first of the coins that cpSGD adds. It is not
    secret, and nothing is priced for it. `rotate` spreads a vector evenly over its coordinates first (random signs, the
    same for everybody, then Walsh-Hadamard), so that a smaller range suffices. On the wire, numbers take the bits that
    a sum of so many `messages` can need, with the noise of `trials` coins in each; 1 where messages are sent as they
    are.

    Guarantee: numbers lie within +-levels/2, rounded down, whatever the data, and are right in the mean where nothing
    is cut off. What rounding adds to the distance of neighbors is bounded but for a small chance
    (`privacy/binomial.py`): the draws need not be secret for that, but they must not depend on data, so they are made
    of the client's `key`.
    """
    expect_positive("range", range, "give the largest number that is not cut off")
    expect_count("levels", levels, "two points are the fewest to round to", least=2)
    expect_count("trials", trials, "the coins in one message's noise", least=0)
    expect_count("messages", messages, "how many messages are summed before anybody sees them")
    even, half, scale = levels % 2 == 0, (levels - 1) / 2, (levels - 1) / (2 * range)
    bits = (messages * (levels - 1 + trials + even)).bit_length()

    def broadcast(streams: Streams, round: int, context: Context, state: State) -> State:
        return {"signs": streams.signs(padded(context.size), context.w, "signs", round)}

    def encode(update: Tensor, context: Context) -> Tensor:
        if rotate:
            signs = context.broadcast["signs"]
            update = hadamard(F.pad(update, (0, signs.shape[0] - update.shape[0])) * signs)
        steps = (update * scale).nan_to_num(0.0).clamp(-half, half)  # no whole number stands for NaN
        if even:
            steps = steps + 0.5  # whole numbers stand for points that are 1/2 below
        floor, count = steps.floor(), steps.shape[0]
        found = (floor + (uniform_pairs(fold(context.key, _ROUNDING), count) < steps - floor)).to(torch.int64)
        return found - (uniform(fold(context.key, _COIN), (count,)) < 0.5).to(torch.int64) if even else found

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        found = total.to(context.w.dtype) / scale
        return (hadamard(found) * context.broadcast["signs"])[: context.size] if rotate else found, {}

    def sensitivity(known: Sensitivity, layout: Layout) -> Sensitivity:
        if known.length is None:  # nothing is known of a sum of so many roundings
            return Sensitivity(integer=True)
        length = padded(known.length) if rotate else known.length
        return Sensitivity(message_norm(known.l2, range, levels, length), length, integer=True, rounded=(levels, range))

    settings = {"range": range, "levels": levels, "rotate": rotate, "bits": bits}
    told = broadcast if rotate else None
    return Transform("quantize_to_levels", settings, encode, sensitivity, decode, broadcast=told, bits=bits)
