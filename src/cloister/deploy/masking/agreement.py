"""Keys that two members share, what is sealed between them, and commitments: each bound to one session and one use.

A shared key is HKDF-SHA256 over the x25519 secret, with the session's digest as salt, and as information a label of its
use, run, round, step, both names and both public keys. It is used once, for one mask or one direction of shares.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cloister.deploy.masking.masks import KEY_BYTES
from cloister.deploy.masking.session import PROTOCOL, Session
from cloister.deploy.wire.refused import Refused

_NONCE_BYTES = 12


def new_secret() -> bytes:
    """32 bytes of the operating system's, whatever else is seeded: a private key, or the seed of a node's own mask."""
    return os.urandom(KEY_BYTES)


class KeyPair:
    """An x25519 key."""

    def __init__(self, secret: bytes) -> None:
        self.private = X25519PrivateKey.from_private_bytes(secret)
        self.public = self.private.public_key().public_bytes_raw()

    def exchange(self, public: bytes) -> bytes:
        """The secret that both owners have; `is_usable` was asked before."""
        return self.private.exchange(X25519PublicKey.from_public_bytes(public))


def is_usable(public: bytes) -> bool:
    """Whether a key agrees on a secret at all: with a point of small order, everybody would know it."""
    try:
        _ANY.exchange(public)
    except ValueError:
        return False
    return True


_ANY = KeyPair(bytes(32))


def pair_mask_key(session: Session, pair: KeyPair, own: str, peer: str, peer_public: bytes) -> bytes:
    """The key of the mask between two members: the same from both sides."""
    (one, first), (other, second) = sorted([(own, pair.public), (peer, peer_public)])
    return _derived(session, pair.exchange(peer_public), ["mask", one, other, first.hex(), second.hex()])


def own_mask_key(session: Session, name: str, seed: bytes) -> bytes:
    """The key of a member's own mask."""
    return _derived(session, seed, ["own mask", name])


def sealed(session: Session, pair: KeyPair, sender: str, recipient: str, public: bytes, data: bytes) -> bytes:
    """Data that the recipient alone can open, and that it knows to be the sender's, for this sum."""
    use = ["shares", sender, recipient, pair.public.hex(), public.hex()]
    nonce = os.urandom(_NONCE_BYTES)
    box = ChaCha20Poly1305(_derived(session, pair.exchange(public), use))
    return nonce + box.encrypt(nonce, data, _about(session, use))


def opened(session: Session, pair: KeyPair, sender: str, recipient: str, public: bytes, data: bytes) -> bytes:
    """What the sender sealed; refuses everything else."""
    use = ["shares", sender, recipient, public.hex(), pair.public.hex()]
    box = ChaCha20Poly1305(_derived(session, pair.exchange(public), use))
    try:
        return box.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _about(session, use))
    except (InvalidTag, ValueError):
        raise Refused(
            f"Expected shares that {sender} sealed for {recipient}, found others: it must deal anew."
        ) from None


def commitment(session: Session, use: Sequence[str], secret: bytes) -> str:
    """A hash that binds whoever publishes it to a secret of at least 256 random bits, and does not tell it."""
    return hashlib.sha256(_about(session, ["commitment", *use]) + secret).hexdigest()


def share_commitment(session: Session, kind: str, dealer: str, holder: str, share: bytes) -> str:
    """What a dealer publishes of every share, so that whoever reveals another one is known."""
    return commitment(session, ["share", kind, dealer, holder], share)


def _derived(session: Session, secret: bytes, use: Sequence[str]) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, bytes.fromhex(session.digest), _about(session, use)).derive(secret)


def _about(session: Session, use: Sequence[str]) -> bytes:
    """What a key or a hash is for: every part with its length before it, so that no two uses have one text."""
    parts = (PROTOCOL, session.digest, session.run, str(session.round), session.step, *use)
    return b"".join(len(data).to_bytes(4) + data for data in (part.encode() for part in parts))
