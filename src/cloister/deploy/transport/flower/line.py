"""One end of the line between the server and a node: what waits, what is on its way, what has arrived."""

from __future__ import annotations

import secrets
from collections import deque
from dataclasses import dataclass

from cloister.deploy.transport.flower.exchange import Batch, Parcel, Route

MOST_PARCELS, MOST_BYTES = 16, 256 * 2**20
"""What one batch carries at most; a longer message travels alone."""

_REMEMBERED = 256
_PATIENCE = 4
"""A message that the other side has not confirmed after so many of its batches is sent again."""


@dataclass
class _Waiting:
    data: bytes
    age: int | None = None  # batches that came back since it was sent; None: it waits


class Line:
    """Numbers messages, keeps them until they are confirmed, and drops those that came before.

    >>> from cloister.deploy.transport.flower.exchange import Route
    >>> server, node = Line(), Line()
    >>> server.put(b"offer")
    1
    >>> batch = server.batch(Route(1, 2), sender="server", recipient="cleveland")
    >>> node.accept(batch), node.accept(batch)
    ([b'offer'], [])
    >>> server.accept(node.batch(Route(1, 2), sender="cleveland", recipient="server"))
    []
    >>> server.idle
    True
    """

    def __init__(self) -> None:
        self.session = secrets.token_hex(8)
        self._peer = ""
        self._next = 0
        self._waiting: dict[int, _Waiting] = {}
        self._arrived: deque[int] = deque(maxlen=_REMEMBERED)

    @property
    def idle(self) -> bool:
        """Whether every message was confirmed."""
        return not self._waiting

    @property
    def ready(self) -> bool:
        """Whether a message waits to be sent."""
        return any(one.age is None for one in self._waiting.values())

    def put(self, data: bytes) -> int:
        """Queue a message; its number."""
        self._next += 1
        self._waiting[self._next] = _Waiting(data)
        return self._next

    def holds(self, number: int) -> bool:
        """Whether a message was not confirmed yet."""
        return number in self._waiting

    def is_on_its_way(self, number: int) -> bool:
        """Whether a message was sent and not confirmed yet."""
        return number in self._waiting and self._waiting[number].age is not None

    def drop(self, number: int) -> None:
        """Give up a message."""
        self._waiting.pop(number, None)

    def clear(self) -> None:
        """Give up all messages."""
        self._waiting.clear()

    def again(self) -> None:
        """What was on its way is lost: send it again."""
        for one in self._waiting.values():
            one.age = None

    def batch(self, route: Route, sender: str, recipient: str, answers: str = "", hold: float = 0.0) -> Batch:
        """The next batch to send: the messages that wait, and which of the other's arrived."""
        return Batch(
            route,
            sender,
            recipient,
            self.session,
            self._peer,
            tuple(self._arrived),
            self._next_parcels(),
            answers,
            hold,
        )

    def accept(self, batch: Batch) -> list[bytes]:
        """What is new in a batch that came."""
        if batch.session != self._peer:  # another process than before: it knows nothing of what the last one got
            self._peer = batch.session
            self._arrived.clear()
            self.again()
        self._confirm(batch)
        new = [parcel for parcel in batch.parcels if parcel.number not in self._arrived]
        self._arrived.extend(parcel.number for parcel in new)
        return [parcel.data for parcel in new]

    def _confirm(self, batch: Batch) -> None:
        if batch.peer == self.session:
            for number in batch.received:
                self.drop(number)
        for one in self._waiting.values():
            if one.age is not None:
                one.age = one.age + 1 if one.age + 1 < _PATIENCE else None

    def _next_parcels(self) -> tuple[Parcel, ...]:
        parcels: list[Parcel] = []
        size = 0
        for number, one in self._waiting.items():
            if one.age is not None:
                continue
            size += len(one.data)
            if len(parcels) == MOST_PARCELS or (parcels and size > MOST_BYTES):
                break
            one.age = 0
            parcels.append(Parcel(number, one.data))
        return tuple(parcels)
