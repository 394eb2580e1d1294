"""Signed messages: what they say, who sent them to whom, in which run and round, and what they answer.

A sealed message is, in this order:

| bytes | what                                                                                                 |
|-------|------------------------------------------------------------------------------------------------------|
| 19    | `cloister message 1` and a newline: the format and its version                                        |
| 1, n  | the length of the sender's name, the name: it tells the key before anything else is read              |
| 4     | the length of the header, big-endian                                                                  |
| 64    | the sender's ed25519 signature of the format line and the header                                      |
| h     | the header: canonical JSON of everything but the tensors, with the length and the SHA-256 of the body |
| b     | the body: safetensors, or nothing                                                                     |

A message is known by its digest: SHA-256 of the header, which fixes the body by its hash.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from cloister.deploy.wire import fields
from cloister.deploy.wire.bodies import Body, unpack
from cloister.deploy.wire.canonical import JSON, canonical, digest_of, parse_canonical
from cloister.deploy.wire.identity import SERVER, SIGNATURE_BYTES, PrivateKey, Register
from cloister.deploy.wire.refused import accept_if
from cloister.errors import expect

FORMAT = b"cloister message 1\n"
MOST_HEADER_BYTES = 4 * 2**20
MOST_ROUND = 10**9
_FIELDS = {"kind", "run", "round", "sender", "recipient", "answers", "content", "body"}


class Kind(StrEnum):
    """What a message is for."""

    HELLO = "hello"
    TERMS = "terms"
    ACCEPT = "accept"
    REFUSE = "refuse"
    OFFER = "offer"
    REPLY = "reply"
    ABSENT = "absent"
    KEYS = "keys"
    ROSTER = "roster"
    SHARES = "shares"
    MAILBOX = "mailbox"
    MASKED = "masked"
    SURVIVORS = "survivors"
    UNMASK = "unmask"
    RECEIPT = "receipt"
    STATEMENT = "statement"
    END = "end"


@dataclass(frozen=True)
class Message:
    """What is said; `answers` is the digest of the message that this one answers."""

    kind: Kind
    run: str
    round: int
    sender: str
    recipient: str
    answers: str = ""
    content: Mapping[str, JSON] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """A message whose signature, hashes and sizes were checked, with its digest and the bytes it came as."""

    message: Message
    digest: str
    data: bytes
    body_sha256: str


def seal(message: Message, key: PrivateKey, body: Body | None = None) -> bytes:
    """The message as bytes, signed by its sender; `body` are its tensors where they were packed before."""
    body = body or Body.borrowed(message.tensors)
    header = canonical(
        {
            "kind": str(message.kind),
            "run": message.run,
            "round": message.round,
            "sender": message.sender,
            "recipient": message.recipient,
            "answers": message.answers,
            "content": dict(message.content),
            "body": {"bytes": body.length, "sha256": body.sha256},
        }
    )
    expect(
        len(header) <= MOST_HEADER_BYTES,
        f"a header of at most {MOST_HEADER_BYTES} bytes",
        len(header),
        "send what is large as tensors",
    )
    sender = message.sender.encode()
    start = FORMAT + struct.pack("B", len(sender)) + sender + struct.pack(">I", len(header))
    return b"".join([start, key.sign(FORMAT + header), header, *body.pieces])


def open_message(data: bytes, register: Register, most_bytes: int | None = None) -> Opened:
    """The message in the bytes; raises `Refused` unless everything about it is as its sender signed it."""
    if most_bytes is not None:
        accept_if(len(data) <= most_bytes, f"a message of at most {most_bytes} bytes", len(data), "send less")
    message, stated, header, at = _signed(data, register)
    body = data[at:]
    length = fields.integer(stated, "bytes")
    accept_if(length == len(body), f"a body of {length} bytes", len(body), "send the whole message again")
    sha256 = digest_of(body)
    accept_if(fields.text(stated, "sha256") == sha256, "the body that was signed", "another", "send it again")
    tensors = unpack(body)
    return Opened(_with_tensors(message, tensors), digest_of(header), data, sha256)


def header_of(data: bytes) -> bytes:
    """A sealed message without its tensors: its sender's signature still proves that it was sent."""
    return data[: _split(data)[3]]


def open_header(data: bytes, register: Register) -> Message:
    """The message of which `header_of` is left, without its tensors; refused unless its sender signed it."""
    message, _, _, at = _signed(data, register)
    accept_if(at == len(data), "a message without its body", f"{len(data) - at} bytes more", "send its header")
    return message


def _signed(data: bytes, register: Register) -> tuple[Message, Mapping[str, JSON], bytes, int]:
    """The message without its tensors, what it states of its body, its header, and where the body begins."""
    sender, signature, header, at = _split(data)
    signed = register.key_of(sender).verify(FORMAT + header, signature)
    accept_if(signed, f"the signature of {sender}", "another", "sign with the key that the register has")
    values = parse_canonical(header)
    accept_if(isinstance(values, dict) and set(values) == _FIELDS, "a header with its fields", values, "send them all")
    message = _message(values)
    accept_if(message.sender == sender, f"a header from {sender}", message.sender, "name one sender")
    known = message.recipient == SERVER or message.recipient in register.nodes
    accept_if(known, "a recipient in the register of keys", message.recipient, "send it to a member")
    return message, fields.mapping(values, "body"), header, at


def digest_of_sealed(data: bytes) -> str:
    """The digest by which a sealed message is known; nothing about it is verified."""
    return digest_of(_split(data)[2])


def unverified_content(data: bytes) -> Mapping[str, JSON]:
    """What a message says before anybody knows whose key to verify it with: that of terms, which hold the keys."""
    values = parse_canonical(_split(data)[2])
    accept_if(isinstance(values, dict), "a header with its fields", values, "send them all")
    return fields.mapping(values if isinstance(values, dict) else {}, "content")


def _split(data: bytes) -> tuple[str, bytes, bytes, int]:
    """The sender, its signature, the header, and where the body begins."""
    accept_if(data[: len(FORMAT)] == FORMAT, "a message of version 1", data[:19], "let both sides run the same release")
    at = len(FORMAT)
    length = data[at] if len(data) > at else 0
    name = data[at + 1 : at + 1 + length]
    at += 1 + length
    accept_if(len(data) >= at + 4 + SIGNATURE_BYTES, "a whole message", f"{len(data)} bytes", "send it again")
    (size,) = struct.unpack(">I", data[at : at + 4])
    accept_if(size <= MOST_HEADER_BYTES, f"a header of at most {MOST_HEADER_BYTES} bytes", size, "send less")
    signature = data[at + 4 : at + 4 + SIGNATURE_BYTES]
    at += 4 + SIGNATURE_BYTES
    accept_if(len(data) >= at + size, f"a header of {size} bytes", f"{len(data) - at}", "send the whole message again")
    return name.decode("ascii", errors="replace"), signature, data[at : at + size], at + size


def _message(values: Mapping[str, JSON]) -> Message:
    """The message of a header, without its tensors."""
    kind, number = fields.text(values, "kind"), fields.integer(values, "round")
    accept_if(kind in set(Kind), "a kind of message that is known", kind, "let both sides run the same release")
    accept_if(0 <= number <= MOST_ROUND, "the number of a round", number, "send it again")
    return Message(
        Kind(kind),
        fields.text(values, "run"),
        number,
        fields.text(values, "sender"),
        fields.text(values, "recipient"),
        fields.text(values, "answers"),
        fields.mapping(values, "content"),
    )


def _with_tensors(message: Message, tensors: Mapping[str, Tensor]) -> Message:
    return Message(
        message.kind,
        message.run,
        message.round,
        message.sender,
        message.recipient,
        message.answers,
        message.content,
        tensors,
    )
