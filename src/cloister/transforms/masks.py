"""One mask for all clients of a round: k of d numbers are sent, and k are noised. Nobody's data make the mask."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cloister.core import Broadcast, Context, Layout, Sensitivity, Settings, State, Transform
from cloister.core.public_training import train_on_public
from cloister.core.sparsity import Scope, beside_default, expect_fraction, expect_scope, kept_of
from cloister.errors import CloisterError, expect, expect_count, expect_positive
from cloister.random.streams import Streams


def random_mask(keep_fraction: float) -> Transform:
    """Send k = keep * d coordinates, the same random ones for all clients of a round, times d/k (Fed-SMP-rand_k).

    The mask is drawn before anybody looks at data, so noise is needed on the k numbers alone. It comes before the
    clip_norm: scaling a clipped update would stretch its bound.
    """
    expect_fraction("keep_fraction", keep_fraction)

    def broadcast(streams: Streams, round: int, context: Context, state: State) -> State:
        size = context.size
        return {"mask": streams.subset(_count(keep_fraction, size), size, context.w.device, "mask", round)}

    def length(layout: Layout, size: int) -> int:
        return _count(keep_fraction, size)

    return _masked("random_mask", length, {"keep_fraction": keep_fraction}, broadcast, scaled=True)


def public_mask(keep_fraction: float, lr: float, steps: int, batch_size: int, scope: Scope = "model") -> Transform:
    """Send k = keep * d coordinates, the same for all clients of a round: those that public data would change most.

    The server trains on PUBLIC data from the round's model and takes the k largest |changes| (Fed-SMP-top_k), of
    the whole model or of each layer. No client's data enter the mask, so noise is needed on the k numbers alone.
    """
    expect_fraction("keep_fraction", keep_fraction)
    expect_scope(scope)
    expect_positive("public_lr", lr, "the server's learning rate on public data")
    expect_count("public_steps", steps, "the mask is what these steps change most", most=10**4)
    expect_count("public_batch_size", batch_size, "public samples in a mini-batch")

    def broadcast(streams: Streams, round: int, context: Context, state: State) -> State:
        w, key = context.w, streams.key("public", round)
        if context.public_samples is None:
            raise CloisterError("Expected public samples, found none: set some aside, such as public_samples = 500.")
        expect(context.size == len(w), f"updates of {len(w)} numbers for public_mask", context.size, "put it first")
        change = (train_on_public(context.objective, w, *context.public_samples, lr, steps, batch_size, key) - w).abs()
        pieces, first, kept = [change] if scope == "model" else context.objective.layout.pieces(change), 0, []
        for piece in pieces:
            kept.append(first + torch.topk(piece, _count(keep_fraction, len(piece)), sorted=False).indices)
            first += len(piece)
        return {"mask": torch.cat(kept).sort().values}

    def length(layout: Layout, size: int) -> int:
        """How many numbers are sent: of each layer at least one, where each has a mask of its own."""
        sizes = [size] if scope == "model" else layout.sizes
        return sum(_count(keep_fraction, one) for one in sizes)

    settings = {"keep_fraction": keep_fraction, "public_lr": lr, "public_steps": steps, "public_batch_size": batch_size}
    return _masked("public_mask", length, {**settings, **beside_default(scope, "model")}, broadcast, scaled=False)


def _count(keep_fraction: float, size: int) -> int:
    # Fed-SMP cuts off where LUS rounds (`sparsity.kept_of`); and 0.29 * 100 is a little less than 29.
    return max(1, math.floor(round(keep_fraction * size, 9)))


def _masked(
    name: str, length: Callable[[Layout, int], int], settings: Settings, broadcast: Broadcast, scaled: bool
) -> Transform:
    def encode(update: Tensor, context: Context) -> Tensor:
        mask: Tensor = context.broadcast["mask"]
        kept = update.index_select(0, mask)
        if not scaled:
            return kept
        most = torch.finfo(update.dtype).max
        return (kept * (update.shape[0] / mask.shape[0])).clamp(-most, most)  # what was finite stays so

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        return total.new_zeros(context.size).index_copy(0, context.broadcast["mask"], total), {}

    def sensitivity(known: Sensitivity, layout: Layout) -> Sensitivity:
        return Sensitivity(length=None if known.length is None else length(layout, known.length))

    return Transform(name, settings, encode, sensitivity, decode, broadcast=broadcast)


def common_part(keep_fraction: float) -> Transform:
    """Send the k coordinates that all clients of a round train, the same for everybody, and no others (Fed-SPA in a
    secure sum). The server draws them, tells them as a vector of ones and zeros ("active"), and scales by d/k.

    Whoever is given an update keeps within these coordinates: the bound that is known of it stays. It does so whatever
    a server tells: a coordinate that is named several times is divided by the root of how often.
    """
    expect_fraction("keep_fraction", keep_fraction)

    def broadcast(streams: Streams, round: int, context: Context, state: State) -> State:
        size = context.size
        mask = streams.subset(kept_of(size, keep_fraction), size, context.w.device, "mask", round)
        return {"mask": mask, "active": context.w.new_zeros(size).index_fill(0, mask, 1.0)}

    def encode(update: Tensor, context: Context) -> Tensor:
        mask: Tensor = context.broadcast["mask"]
        named = update.new_zeros(context.size).index_add(0, mask, torch.ones_like(mask, dtype=update.dtype))
        return update.index_select(0, mask) / named.index_select(0, mask).sqrt()

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        scaled = total * (context.size / kept_of(context.size, keep_fraction))
        return total.new_zeros(context.size).index_copy(0, context.broadcast["mask"], scaled), {}

    def sensitivity(known: Sensitivity, layout: Layout) -> Sensitivity:
        return Sensitivity(known.l2, None if known.length is None else kept_of(known.length, keep_fraction))

    return Transform(
        "common_part",
        {"keep_fraction": keep_fraction},
        encode,
        sensitivity,
        decode,
        broadcast=broadcast,
        bounds_distance=True,
    )


def active_part(keep_fraction: float) -> Transform:
    """Send the coordinates that the client was training, and no others: which they are, the server knows (Fed-SPA)."""
    expect_fraction("keep_fraction", keep_fraction)
    return Transform(
        "active_part",
        {"keep_fraction": keep_fraction},
        lambda update, context: update,
        lambda known, layout: known,
        entries=lambda size: kept_of(size, keep_fraction),
    )
