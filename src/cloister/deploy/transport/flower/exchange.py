"""What the server and a node say to each other through Flower: signed batches of messages.

Flower knows questions of a server and answers of its nodes, nothing else. So the server always has a question open at
each node; question and answer each carry a batch: the messages that wait, and which of the other's arrived. A batch
is, in this order:

| bytes | what                                                                            |
|-------|---------------------------------------------------------------------------------|
| 17    | `cloister flower 1`: the format and its version                                  |
| 4     | the length of the header, big-endian                                             |
| 64    | the sender's ed25519 signature of the format and the header                      |
| h     | the header: canonical JSON, with the lengths of the messages and their SHA-256   |
| b     | the messages, one after the other                                                |

A node answers only questions that the server signed for this run and this node of Flower: whoever else starts a run
on the same network gets nothing from it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import canonical, digest_of, parse_canonical
from cloister.deploy.wire.identity import SIGNATURE_BYTES, PrivateKey, PublicKey
from cloister.deploy.wire.refused import accept_if

FORMAT = b"cloister flower 1"
MOST_HEADER_BYTES = 2**20
_START = len(FORMAT) + 4 + SIGNATURE_BYTES


@dataclass(frozen=True)
class Route:
    """Where a batch travels: a run of Flower and a node, by Flower's numbers."""

    run: int
    node: int


@dataclass(frozen=True)
class Parcel:
    """A message and its number, which says whether it was there before."""

    number: int
    data: bytes


@dataclass(frozen=True)
class Batch:
    """What one question or one answer carries."""

    route: Route
    sender: str
    recipient: str  # empty: the server does not know yet who is there
    session: str  # the sender's process
    peer: str = ""  # the recipient's process, as far as the sender knows it
    received: tuple[int, ...] = ()  # numbers of that process's messages which arrived
    parcels: tuple[Parcel, ...] = ()
    answers: str = ""  # the digest of the question
    hold: float = 0.0  # how long a node may keep the question while it has nothing to say


@dataclass(frozen=True)
class OpenedBatch:
    """A batch whose signature was checked, and the digest of its header."""

    batch: Batch
    digest: str


def seal_batch(batch: Batch, key: PrivateKey) -> tuple[bytes, str]:
    """The batch as signed bytes, and its digest."""
    body = b"".join(parcel.data for parcel in batch.parcels)
    header = canonical(
        {
            "run": str(batch.route.run),
            "node": str(batch.route.node),
            "sender": batch.sender,
            "recipient": batch.recipient,
            "session": batch.session,
            "peer": batch.peer,
            "received": list(batch.received),
            "numbers": [parcel.number for parcel in batch.parcels],
            "lengths": [len(parcel.data) for parcel in batch.parcels],
            "body": digest_of(body),
            "answers": batch.answers,
            "hold": float(batch.hold),
        }
    )
    signature = key.sign(FORMAT + header)
    return FORMAT + len(header).to_bytes(4, "big") + signature + header + body, digest_of(header)


def open_batch(data: bytes, route: Route, key_of: Callable[[str], PublicKey]) -> OpenedBatch:
    """The batch that came along a route; refuses what its sender did not sign for that route."""
    accept_if(data[: len(FORMAT)] == FORMAT, "a batch of Cloister", data[:20], "this executor runs nothing else")
    accept_if(len(data) >= _START, f"at least {_START} bytes", len(data), "send it whole")
    length = int.from_bytes(data[len(FORMAT) : len(FORMAT) + 4], "big")
    accept_if(length <= MOST_HEADER_BYTES, f"a header of at most {MOST_HEADER_BYTES} bytes", length, "send less")
    signature, header = data[len(FORMAT) + 4 : _START], data[_START : _START + length]
    value = parse_canonical(header)
    accept_if(isinstance(value, dict), "a header with fields", value, "send a mapping")
    sender = fields.text(value, "sender")
    signed = key_of(sender).verify(FORMAT + header, signature)
    accept_if(signed, f"the signature of {sender}", "another", "the batch was changed, or somebody else sent it")
    meant = Route(_number(value, "run"), _number(value, "node"))
    accept_if(meant == route, f"a batch for run {route.run} and node {route.node}", meant, "it was sent before")
    return OpenedBatch(_batch(value, route, data[_START + length :]), digest_of(header))


def _batch(value: dict[str, object], route: Route, body: bytes) -> Batch:
    numbers, lengths = fields.integers(value, "numbers"), fields.integers(value, "lengths")
    fits = len(numbers) == len(lengths) and all(length >= 0 for length in lengths) and sum(lengths) == len(body)
    accept_if(fits, "a body as long as the header says", len(body), "send it whole")
    accept_if(digest_of(body) == fields.text(value, "body"), "the body that was signed", "another", "send it again")
    ends = list(accumulate(lengths))
    parcels = [Parcel(n, body[end - size : end]) for n, size, end in zip(numbers, lengths, ends, strict=True)]
    return Batch(
        route=route,
        sender=fields.text(value, "sender"),
        recipient=fields.text(value, "recipient"),
        session=fields.text(value, "session"),
        peer=fields.text(value, "peer"),
        received=tuple(fields.integers(value, "received")),
        parcels=tuple(parcels),
        answers=fields.text(value, "answers"),
        hold=fields.number(value, "hold"),
    )


def _number(value: dict[str, object], field: str) -> int:
    text = fields.text(value, field)
    accept_if(text.isascii() and text.isdigit() and len(text) <= 20, f"digits as {field!r}", text, "send a number")
    return int(text)
