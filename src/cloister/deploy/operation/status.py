"""What an operator wants to know of a federation at a glance, as plain values: for a terminal, a page and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

from cloister.errors import CloisterError

Phase = Literal["waiting", "running", "finished", "stopped"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(frozen=True)
class NodeStatus:
    """One node, as the server knows it."""

    name: str
    fingerprint: str = ""
    state: str = "not heard of"
    last_seen: float | None = None
    """Seconds since 1970."""
    replies: int = 0
    refusals: int = 0
    missed: int = 0
    """Offers that were not answered in time."""
    epsilon: float | None = None
    """What it says to have spent, signed by it; only sample-level methods have this."""


@dataclass(frozen=True)
class RoundStatus:
    """One step of the run; a query to the nodes before or between rounds is a step as well."""

    round: int
    what: str = "update"
    state: str = "open"
    asked: int = 0
    replies: int = 0
    refusals: int = 0
    seconds: float | None = None


@dataclass(frozen=True)
class Event:
    """Something that happened, in a sentence."""

    time: float
    text: str
    level: str = "info"


@dataclass(frozen=True)
class Budget:
    """What was spent of what may be spent, by the account that this server keeps."""

    unit: str
    spent: float | None
    limit: float | None
    delta: float | None
    kept_by: str = "server"
    """Who keeps the account: the server, or each node for its own samples."""


@dataclass(frozen=True)
class Status:
    """A federation at one time. Nothing in it is computed from anybody's samples."""

    name: str
    phase: Phase
    round: int
    rounds: int
    time: float
    method: str = ""
    run: str = ""
    terms_digest: str = ""
    head: str = ""
    """The hash of the server's signed history."""
    test_mode: bool = False
    min_replies: int = 1
    budget: Budget | None = None
    nodes: tuple[NodeStatus, ...] = ()
    history: tuple[RoundStatus, ...] = ()
    """The last steps, the newest first."""
    events: tuple[Event, ...] = field(default=())
    """The last events, the newest first."""

    def to_json(self) -> dict[str, Any]:
        """As JSON can say it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Status:
        """What `to_json` gave; a server of another version is told apart from one that is damaged."""
        try:
            known = dict(value) if isinstance(value, Mapping) else {}
            budget = known.pop("budget", None)
            parts: dict[str, type[Any]] = {"nodes": NodeStatus, "history": RoundStatus, "events": Event}
            lists = {name: tuple(_made(kind, one) for one in known.pop(name, ())) for name, kind in parts.items()}
            account = None if budget is None else _made(Budget, budget)
            made = _made(cls, {**known, **lists, "budget": account})
        except (TypeError, ValueError):
            made = None
        if made is None or made.phase not in PHASES:
            raise CloisterError("Expected the status of a federation, found something else: check the address.")
        return made


_Kind = TypeVar("_Kind")


def _made(kind: type[_Kind], value: Mapping[str, Any]) -> _Kind:
    return kind(**_of(kind, value))


def _of(kind: Any, value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that this version knows; a newer server may say more."""
    known = {one.name for one in fields(kind)}
    return {name: found for name, found in value.items() if name in known}


def ago(seconds: float | None, now: float) -> str:
    """How long ago something was, for people.

    >>> ago(1000.0, 1004.0), ago(1000.0, 1300.0), ago(None, 1.0), ago(0.0, 7200.0)
    ('4 s ago', '5 min ago', 'never', '2 h ago')
    """
    if seconds is None:
        return "never"
    gone = max(0.0, now - seconds)
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if gone >= 2 * size or (unit == "min" and gone >= 90):
            return f"{gone // size:.0f} {unit} ago"
    return f"{gone:.0f} s ago"
