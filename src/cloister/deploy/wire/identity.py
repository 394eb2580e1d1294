"""Who somebody is: an ed25519 key pair, and the register that says which key belongs to which name."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from cloister.deploy.wire.canonical import digest_of
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError, expect, shown

SERVER = "server"
SIGNATURE_BYTES = 64
_PREFIX = "ed25519:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


@dataclass(frozen=True)
class PublicKey:
    """What others know of a key pair."""

    raw: bytes

    @classmethod
    def from_text(cls, text: str) -> PublicKey:
        """The key that `text` writes, and no other text for it."""
        raw = b""
        if isinstance(text, str) and text.startswith(_PREFIX) and text.isascii():
            rest = text.removeprefix(_PREFIX)
            try:
                raw = base64.b64decode(rest + "=" * (-len(rest) % 4), altchars=b"-_", validate=True)
            except ValueError:
                raw = b""
        key = cls(raw)
        if isinstance(text, str) and "PRIVATE KEY" in text:  # no message may show it
            raise CloisterError(
                "Expected a public key, found a private one: give the line that `cloister keys show FILE` prints."
            )
        expect(
            len(raw) == 32 and key.text == text,
            "a public key ('ed25519:' and 43 characters)",
            text,
            "copy the line that `cloister keys show FILE` prints",
        )
        return key

    @property
    def text(self) -> str:
        """The key on one line, for terms and for people to copy."""
        return _PREFIX + base64.urlsafe_b64encode(self.raw).decode().rstrip("=")

    @property
    def fingerprint(self) -> str:
        """Sixteen digits that two people can compare over the telephone."""
        digits = digest_of(self.raw)[:16]
        return " ".join(digits[at : at + 4] for at in range(0, 16, 4))

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether the owner of the key signed the data."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except (InvalidSignature, ValueError):
            return False
        return True


class PrivateKey:
    """What only its owner has."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls) -> PrivateKey:
        """A new key from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> PrivateKey:
        """The key of 32 given bytes: for tests, which must be repeatable."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load(cls, path: Path | str) -> PrivateKey:
        """The key in a file; refuses one that others can read."""
        path = Path(path)
        try:
            mode, data = path.stat().st_mode, path.read_bytes()
        except OSError as error:
            why = error.strerror or "it cannot be read"
            raise CloisterError(
                f"Expected a private key, found {str(path)!r} ({why}): make one with `cloister keys new`."
            ) from None
        try:
            key = load_pem_private_key(data, password=None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise CloisterError(f"Expected an ed25519 key in {path}, found something else: see `cloister keys new`.")
        if os.name == "posix":
            expect(not mode & 0o077, "a key that its owner alone can read", oct(mode & 0o777), f"chmod 600 {path}")
        return cls(key)

    def save(self, path: Path | str) -> None:
        """Write the key to a new file that its owner alone can read; a file that is there stays as it is."""
        data = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise CloisterError(f"Expected no file at {path}, found one: choose another name, or move it.") from None
        with os.fdopen(file, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())

    @cached_property
    def public(self) -> PublicKey:
        """The public half."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """The signature: 64 bytes; whoever signs puts into `data` what it is for, so that it fits nothing else."""
        return self._key.sign(data)

    def __repr__(self) -> str:
        return f"PrivateKey of {self.public.text}"


@dataclass(frozen=True)
class Register:
    """Whose key is whose; a node's client number is its position."""

    server: PublicKey
    nodes: Mapping[str, PublicKey]

    def __post_init__(self) -> None:
        for name in self.nodes:
            expect_name(name)
        folded = [name.casefold() for name in self.nodes]
        expect(len(set(folded)) == len(folded), "names that differ by more than case", folded, "rename a node")
        owners: dict[bytes, str] = {self.server.raw: SERVER}
        for name, key in self.nodes.items():
            other = owners.setdefault(key.raw, name)
            expect(
                other == name, "a key of its own for every member", f"one key of {other} and {name}", "make a new key"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes in the order of their client numbers."""
        return tuple(self.nodes)

    def key_of(self, name: str) -> PublicKey:
        """The key of the server or of a node."""
        if name == SERVER:
            return self.server
        key = self.nodes.get(name)
        if key is None:
            raise Refused(
                f"Expected a member of the federation, found {shown(name)}: it is not in the register of keys."
            )
        return key

    def number_of(self, name: str) -> int:
        """The client number of a node."""
        self.key_of(name)
        expect(name != SERVER, "a node", name, "the server has no client number")
        return self.names.index(name)


def expect_name(name: str) -> None:
    """Refuse a node's name that could not stand in a file name, a header or a log line.

    >>> expect_name("../etc")
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected 63 letters, digits or .-_ at most, found '../etc': choose another name.
    """
    fits = isinstance(name, str) and _NAME.fullmatch(name) is not None
    expect(fits, "63 letters, digits or .-_ at most", name, "choose another name")
    expect(name.casefold() != SERVER, "a node's name", name, "that is the name of the server")
