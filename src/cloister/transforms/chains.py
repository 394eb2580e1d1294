"""Transforms one after the other."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from cloister.errors import expect
from cloister.joints import Bound, Here, State, Transform
from cloister.params import Layout
from cloister.streams import Streams


def chain(*parts: Transform) -> Transform:
    """One after the other on the client; backwards on the server; the bound travels along.

    Every part keeps a state and tells clients something under names of its own, and knows how many numbers reach it.
    """
    afters = [number for number, part in enumerate(parts) if part.after is not None]
    expect(len(afters) < 2, "one transform that acts after the noise", len(afters), "leave one out")
    for part in parts[:-1]:
        expect(part.length is not None, f"{part.name} at the end of a chain", "something after it", "leave that out")
    ends = not parts or parts[-1].length is not None

    def sizes(size: int) -> list[int]:
        """How many numbers reach each part."""
        found = [size]
        for part in parts[:-1]:
            assert part.length is not None
            found.append(part.length(found[-1]))
        return found

    def heres(here: Here) -> list[Here]:
        """What each part knows."""
        return [
            Here(here.problem, here.public, here.expected, here.w, _own(here.said, number), here.key, size)
            for number, size in enumerate(sizes(here.size)[: len(parts)])
        ]

    def encode(update: Tensor, here: Here) -> Tensor:
        for part, known in zip(parts, heres(here), strict=True):
            update = part.encode(update, known)
        return update

    def decode(total: Tensor, here: Here, state: State) -> tuple[Tensor, State]:
        changed: State = {}
        for number, known in reversed(list(enumerate(heres(here)))):
            total, more = parts[number].decode(total, known, _own(state, number))
            changed |= _named(more, number)
        return total, changed

    def bound(known: Bound, layout: Layout) -> Bound:
        size = layout.size if known.size is None else known.size
        for part, numbers in zip(parts, sizes(size), strict=False):
            known = part.bound(replace(known, size=numbers), layout)
        return replace(known, size=None)

    def init(w: Tensor) -> State:
        return {k: v for number, part in enumerate(parts) for k, v in _named(part.init(w), number).items()}

    def announce(streams: Streams, round: int, here: Here, state: State) -> State:
        said: State = {}
        for number, known in enumerate(heres(here)):
            said |= _named(parts[number].announce(streams, round, known, _own(state, number)), number)
        return said

    def length(size: int) -> int:
        last = parts[-1].length if parts else None
        return size if last is None else last(sizes(size)[-1])

    def after(message: Tensor, here: Here) -> Tensor:
        act = parts[afters[0]].after
        assert act is not None
        return act(message, heres(here)[afters[0]])

    bits = next((part.bits for part in reversed(parts) if part.bits is not None), None)
    entries = next((part.entries for part in reversed(parts) if part.entries is not None), None)
    last = after if afters else None
    whole = length if ends else None
    return Transform("chain", {}, encode, bound, decode, init, announce, last, bits, entries, parts, whole)


def _named(values: State, number: int) -> State:
    """What a part keeps or says, under names that no other part has."""
    return {f"{number}.{name}": value for name, value in values.items()}


def _own(values: State, number: int) -> State:
    """The same, seen by the part itself."""
    mine = f"{number}."
    return {name.removeprefix(mine): value for name, value in values.items() if name.startswith(mine)}
