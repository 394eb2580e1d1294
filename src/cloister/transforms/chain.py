"""Transforms one after the other."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from cloister.core import Context, Layout, Sensitivity, State, Transform
from cloister.errors import CloisterError, expect
from cloister.random.streams import Streams


def chain(*parts: Transform) -> Transform:
    """One after the other on the client; backwards on the server; the sensitivity travels along.

    Every part keeps a state and tells clients something in a scope of its own, and knows how many numbers reach it.
    """
    afters = [number for number, part in enumerate(parts) if part.after is not None]
    expect(len(afters) < 2, "one transform that acts after the noise", len(afters), "leave one out")
    weightings = [part.weighting for part in parts if part.weighting is not None]
    expect(len(weightings) < 2, "one transform that weighs messages", len(weightings), "leave one out")

    def stages(size: int | None, layout: Layout, known: Sensitivity | None = None) -> list[Sensitivity]:
        """What reaches each part, and what leaves the last."""
        found = [Sensitivity(length=size) if known is None else known]
        for before, part in zip((None, *parts), parts, strict=False):
            if before is not None and found[-1].length is None:
                raise CloisterError(
                    f"Expected {before.name} at the end of a chain, found {part.name} after it: leave that out."
                )
            found.append(part.sensitivity(found[-1], layout))
        return found

    def contexts(context: Context) -> list[Context]:
        """What each part knows."""
        reaching = stages(context.size, context.objective.layout)[: len(parts)]
        return [
            replace(context, size=known.length or 0, broadcast=context.broadcast.get(str(number), {}))
            for number, known in enumerate(reaching)
        ]

    def encode(update: Tensor, context: Context) -> Tensor:
        for part, known in zip(parts, contexts(context), strict=True):
            update = part.encode(update, known)
        return update

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        new = dict(state)
        for number, known in reversed(list(enumerate(contexts(context)))):
            back = parts[number].decode
            if back is not None:
                total, new[str(number)] = back(total, known, state.get(str(number), {}))
        return total, new

    def sensitivity(known: Sensitivity, layout: Layout) -> Sensitivity:
        return stages(None, layout, known)[-1]

    def init(w: Tensor) -> State:
        return {str(number): part.init(w) for number, part in enumerate(parts) if part.init is not None}

    def broadcast(streams: Streams, round: int, context: Context, state: State) -> State:
        return {
            str(number): part.broadcast(streams, round, known, state.get(str(number), {}))
            for number, (part, known) in enumerate(zip(parts, contexts(context), strict=True))
            if part.broadcast is not None
        }

    def after(message: Tensor, context: Context) -> Tensor:
        act = parts[afters[0]].after
        assert act is not None
        return act(message, contexts(context)[afters[0]])

    def clipped(update: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """What the first part that clips does to what reaches it."""
        for part, known in zip(parts, contexts(context), strict=True):
            if part.clipped is not None:
                return part.clipped(update, known)
            update = part.encode(update, known)
        raise AssertionError("no part clips")

    def clip_error(update: Tensor, context: Context) -> Tensor:
        """What the same part takes from what reaches it, times the weight that follows."""
        error: Tensor | None = None
        for part, known in zip(parts, contexts(context), strict=True):
            if error is None and part.clip_error is None:
                update = part.encode(update, known)
            elif error is None and part.clip_error is not None:
                error = part.clip_error(update, known)
            elif error is not None and part.weighting is not None:
                beside = known.size - error.shape[0]  # numbers that were sent beside the update
                error = part.encode(F.pad(error, (0, beside)), known)[: error.shape[0]]
        assert error is not None, "no part clips"
        return error

    return Transform(
        "chain",
        {},
        encode,
        sensitivity,
        decode if any(part.decode is not None for part in parts) else None,
        init if any(part.init is not None for part in parts) else None,
        broadcast if any(part.broadcast is not None for part in parts) else None,
        after if afters else None,
        next((part.bits for part in reversed(parts) if part.bits is not None), None),
        next((part.entries for part in reversed(parts) if part.entries is not None), None),
        parts,
        weightings[0] if weightings else None,
        all(part.stays_finite for part in parts),
        clipped if any(part.clipped is not None for part in parts) else None,
        clip_error if any(part.clip_error is not None for part in parts) else None,
        all(part.bounds_distance for part in parts),
    )
