"""Sessions: a node proves its key once, and then signs the number of each request.

To open a session a node signs a challenge. The server keeps nothing of challenges that nobody answered: a challenge
carries its own proof that the server made it, and when it ends. Every later request carries the session, a number that
was not used before, and the node's signature over both and what is asked. So nothing secret travels: a session that
somebody saw cannot be used, nor a request be sent again. A new session of a node ends its earlier one.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cloister.deploy.transport.https.refusals import Refusal
from cloister.deploy.wire.identity import PrivateKey, Register
from cloister.errors import shown

_CONTEXT = b"cloister https session 1\n"
_CHALLENGE_SECONDS = 60
_REMEMBERED = 1024
SCHEME = "Cloister"


def answer_to(challenge: str, node: str, key: PrivateKey) -> str:
    """A node's signature under a challenge."""
    return key.sign(_challenge_text(challenge, node)).hex()


def authorization(session: str, number: int, method: str, target: bytes, key: PrivateKey) -> str:
    """The header with which a node signs a request."""
    signature = key.sign(_request_text(session, number, method, target)).hex()
    return f"{SCHEME} {session} {number} {signature}"


@dataclass
class _Session:
    node: str
    used: set[int] = field(default_factory=set)
    highest: int = 0

    def use(self, number: int) -> bool:
        """Whether the number is new; of those long ago nothing is known, so they are not."""
        if number in self.used or number <= self.highest - _REMEMBERED or number < 1:
            return False
        self.used.add(number)
        self.highest = max(self.highest, number)
        if len(self.used) > 2 * _REMEMBERED:
            self.used = {one for one in self.used if one > self.highest - _REMEMBERED}
        return True


class Sessions:
    """The sessions of a server; called by its event loop alone."""

    def __init__(self, register: Register, clock: Callable[[], float] = time.time) -> None:
        self._register, self._clock = register, clock
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[str, _Session] = {}
        self._of_node: dict[str, str] = {}
        self._answered: dict[str, float] = {}

    def challenge(self, node: str) -> str:
        """What a node must sign."""
        self._expect_member(node)
        start = f"{secrets.token_hex(16)}.{int(self._clock()) + _CHALLENGE_SECONDS}"
        return f"{start}.{self._proof(start, node)}"

    def open(self, node: str, challenge: str, signature: str) -> str:
        """The session of a node that signed a challenge."""
        self._expect_member(node)
        start, _, proof = challenge.rpartition(".")
        now = self._clock()
        if not hmac.compare_digest(proof.encode(), self._proof(start, node).encode()):
            raise Refusal(401, "Expected a challenge of this server, found another: ask for a new one.")
        ends = float(start.rpartition(".")[2])
        if ends < now or challenge in self._answered:
            raise Refusal(401, "Expected a new challenge, found one that was answered or is old: ask for a new one.")
        if not self._register.nodes[node].verify(_challenge_text(challenge, node), _bytes(signature)):
            raise Refusal(403, f"Expected the signature of {node}, found another: use the key that the register has.")
        self._answered = {one: until for one, until in self._answered.items() if until >= now} | {challenge: ends}
        self.end(node)
        session = secrets.token_hex(16)
        self._sessions[session], self._of_node[node] = _Session(node), session
        return session

    def node_of(self, header: str, method: str, target: bytes) -> str:
        """The node whose request this is."""
        match header.split(" "):
            case [scheme, session, number, signature] if scheme == SCHEME and number.isdecimal() and len(number) < 16:
                pass
            case _:
                raise Refusal(401, "Expected a signed request, found one without: open a session.")
        found = self._sessions.get(session)
        if found is None:
            raise Refusal(401, "Expected a session that is open, found another: open a new one.")
        text = _request_text(session, int(number), method, target)
        if not self._register.nodes[found.node].verify(text, _bytes(signature)):
            raise Refusal(403, f"Expected a request signed by {found.node}, found another signature: use its key.")
        if not found.use(int(number)):
            raise Refusal(409, f"Expected a new request of {found.node}, found number {number} again: number it anew.")
        return found.node

    def end(self, node: str) -> None:
        """End a node's session."""
        self._sessions.pop(self._of_node.pop(node, ""), None)

    def _expect_member(self, node: str) -> None:
        if node not in self._register.nodes:
            raise Refusal(403, f"Expected a node of the federation, found {shown(node)}: it is not in the register.")

    def _proof(self, start: str, node: str) -> str:
        return hmac.new(self._secret, f"{start}.{node}".encode(), hashlib.sha256).hexdigest()


def _challenge_text(challenge: str, node: str) -> bytes:
    return _CONTEXT + f"open\n{challenge}\n{node}".encode()


def _request_text(session: str, number: int, method: str, target: bytes) -> bytes:
    return _CONTEXT + f"request\n{session}\n{number}\n{method}\n".encode() + target


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
