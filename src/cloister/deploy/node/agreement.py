"""What a node's operator is shown before it agrees to take part: everything that this node will hold the server to."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.deploy.terms.terms import Terms
from cloister.privacy.budgets import Budget


@dataclass(frozen=True)
class Agreement:
    """Terms, as they concern one node, and what its data have spent so far."""

    terms: Terms
    node: str
    run: str
    rows: int
    spent: float
    """Epsilon that any row has lost in all runs so far, at `delta`; infinite where some were in test mode."""
    delta: float
    limit: Budget | None
    """What the operator allows, in all runs together."""
    runs: tuple[str, ...] = ()
    """The runs in which it was spent."""

    @property
    def digest(self) -> str:
        """The terms' digest: what operators compare over the telephone."""
        return self.terms.digest

    @property
    def server_fingerprint(self) -> str:
        """The server's key, for people to compare."""
        return self.terms.register.server.fingerprint
