"""Transforms one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from cloister.errors import CloisterError, expect
from cloister.joints import Bound, Here, State, Transform
from cloister.params import Layout
from cloister.streams import Streams


def chain(*parts: Transform) -> Transform:
    """One after the other on the client; backwards on the server; bound and length travel along.

    Each part has a state and announcements of its own, named by its place, so that a part may occur twice.
    """
    afters = [(number, part) for number, part in enumerate(parts) if part.after is not None]
    expect(len(afters) < 2, "one transform that acts after the noise", len(afters), "leave one out")

    def each(here: Here) -> Iterator[tuple[int, Transform, Here]]:
        """Every part, with what it knows."""
        length: int | None = here.length
        for number, part in enumerate(parts):
            if length is None:
                raise CloisterError(
                    f"Expected {parts[number - 1].name} to be the last of a chain, found {part.name} after it: how "
                    "many numbers it makes is not known in advance, so leave the other out."
                )
            yield number, part, replace(here, said=_own(here.said, number), length=length)
            length = part.size(length)

    def encode(update: Tensor, here: Here) -> Tensor:
        for _, part, known in each(here):
            update = part.encode(update, known)
        return update

    def decode(total: Tensor, here: Here, state: State) -> tuple[Tensor, State]:
        changed: State = {}
        for number, part, known in reversed(list(each(here))):
            total, more = part.decode(total, known, _own(state, number))
            changed |= _named(more, number)
        return total, changed

    def bound(known: Bound, layout: Layout) -> Bound:
        for part in parts:
            known = part.bound_of(known, layout)
        return known

    def init(w: Tensor) -> State:
        return {k: v for number, part in enumerate(parts) for k, v in _named(part.init(w), number).items()}

    def announce(streams: Streams, round: int, here: Here, state: State) -> State:
        said: State = {}
        for number, part, known in each(here):
            said |= _named(part.announce(streams, round, known, _own(state, number)), number)
        return said

    def size(length: int) -> int | None:
        found: int | None = length
        for part in parts:
            found = None if found is None else part.size(found)
        return found

    def after(message: Tensor, here: Here) -> Tensor:
        number, part = afters[0]
        assert part.after is not None
        return part.after(message, next(known for place, _, known in each(here) if place == number))

    bits = next((part.bits for part in reversed(parts) if part.bits is not None), None)
    entries = next((part.entries for part in reversed(parts) if part.entries is not None), None)
    return Transform(
        "chain",
        {},
        encode,
        bound,
        decode,
        init,
        announce,
        after if afters else None,
        bits,
        entries,
        parts,
        size,
    )


def _named(own: State, number: int) -> State:
    return {f"{number}/{name}": value for name, value in own.items()}


def _own(state: State, number: int) -> State:
    prefix = f"{number}/"
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
