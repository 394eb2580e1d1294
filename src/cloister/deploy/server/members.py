"""The nodes as the server knows them: who takes part, who answered how often, and what each was told last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from cloister.deploy.wire.identity import Register

State = Literal["not heard of", "asked", "accepted", "refused", "done"]


@dataclass
class Member:
    """One node."""

    name: str
    client: int
    fingerprint: str
    state: State = "not heard of"
    known: int = 0
    """How many links of the history it is known to have."""
    replies: int = 0
    refusals: int = 0
    missed: int = 0
    epsilon: float | None = None
    spent: set[str] = field(default_factory=set)
    """Kinds of steps for which its budget is spent: it refuses them from now on."""

    def to_json(self, seen: float | None) -> dict[str, Any]:
        """For the status."""
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "state": self.state,
            "last_seen": seen,
            "replies": self.replies,
            "refusals": self.refusals,
            "missed": self.missed,
            "epsilon": self.epsilon,
        }


@dataclass
class Members:
    """All nodes of the register, by client number."""

    all: list[Member] = field(default_factory=list)

    @classmethod
    def of(cls, register: Register) -> Members:
        """Before anybody was heard of."""
        return cls([Member(name, i, key.fingerprint) for i, (name, key) in enumerate(register.nodes.items())])

    def __getitem__(self, name: str) -> Member:
        return next(member for member in self.all if member.name == name)

    def by_client(self, client: int) -> Member:
        """The node with a client number."""
        return self.all[client]

    @property
    def accepted(self) -> list[Member]:
        """Those who take part."""
        return [member for member in self.all if member.state in ("accepted", "done")]

    @property
    def undecided(self) -> list[Member]:
        """Those who have neither accepted nor refused."""
        return [member for member in self.all if member.state in ("not heard of", "asked")]
