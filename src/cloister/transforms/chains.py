"""Transforms one after the other."""

from __future__ import annotations

from torch import Tensor

from cloister.errors import expect
from cloister.joints import Bound, Here, State, Transform
from cloister.params import Layout
from cloister.streams import Streams


def chain(*parts: Transform) -> Transform:
    """One after the other on the client; backwards on the server; the bound travels along."""
    afters = [part.after for part in parts if part.after is not None]
    expect(len(afters) < 2, "one transform that acts after the noise", len(afters), "leave one out")

    def encode(update: Tensor, here: Here) -> Tensor:
        for part in parts:
            update = part.encode(update, here)
        return update

    def decode(total: Tensor, here: Here, state: State) -> tuple[Tensor, State]:
        changed: State = {}
        for part in reversed(parts):
            total, more = part.decode(total, here, state)
            changed |= more
        return total, changed

    def bound(known: Bound, layout: Layout) -> Bound:
        for part in parts:
            known = part.bound(known, layout)
        return known

    def init(w: Tensor) -> State:
        return {name: value for part in parts for name, value in part.init(w).items()}

    def announce(streams: Streams, round: int, here: Here, state: State) -> State:
        return {k: v for part in parts for k, v in part.announce(streams, round, here, state).items()}

    bits = next((part.bits for part in reversed(parts) if part.bits is not None), None)
    entries = next((part.entries for part in reversed(parts) if part.entries is not None), None)
    after = afters[0] if afters else None
    return Transform("chain", {}, encode, bound, decode, init, announce, after, bits, entries, parts)
