"""Where a server stands, as plain values that are on disk while it runs: for a terminal, a page and programs."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.deploy.events import event_sentence
from cloister.runs.files import read_json

if TYPE_CHECKING:
    from cloister.deploy.server.server import Server

_EVERY = 0.2
"""Seconds between two writings, at least."""
_LAST_STEPS = 50


@dataclass
class StepStatus:
    """One step, for people."""

    round: int
    what: str
    state: str = "open"
    asked: int = 0
    replies: int = 0
    refusals: int = 0
    seconds: float | None = None
    began: float = field(default_factory=time.monotonic)

    def to_json(self) -> dict[str, Any]:
        """Without when it began, which is of this process."""
        return {name: value for name, value in asdict(self).items() if name != "began"}


class Status:
    """Writes where a server stands, at most every so often."""

    def __init__(self) -> None:
        self.steps: list[StepStatus] = []
        self.phase = "waiting"
        self._written = 0.0

    def begin(self, round: int, what: str, asked: int) -> None:
        """A step is open."""
        self.steps = [StepStatus(round, what, asked=asked), *self.steps][:_LAST_STEPS]

    def end(self, state: str) -> None:
        """The newest step is closed."""
        self.steps[0].state = state
        self.steps[0].seconds = time.monotonic() - self.steps[0].began

    def write(self, server: Server, now: bool = False) -> None:
        """For whoever reads the folder."""
        if now or time.monotonic() - self._written > _EVERY:
            self._written = time.monotonic()
            server.folder.write_status(self.value(server))

    def value(self, server: Server) -> dict[str, Any]:
        """The status as plain values."""
        terms, seen = server.terms, server.post.transport.seen()
        return {
            "name": terms.federation.name,
            "phase": self.phase,
            "round": self.steps[0].round if self.steps else 0,
            "rounds": terms.rounds,
            "time": time.time(),
            "method": str(terms.values.get("method", "")),
            "run": server.folder.run,
            "terms_digest": terms.digest,
            "head": server.folder.history.chain.head,
            "test_mode": terms.federation.test_mode,
            "min_replies": terms.federation.fewest,
            "budget": server.budget(),
            "nodes": [member.to_json(seen.get(member.name)) for member in server.members.all],
            "history": [step.to_json() for step in self.steps],
            "events": [
                {"time": one["time"], "text": event_sentence(one), "level": one["level"]} for one in server.events.last
            ],
        }


def server_status(folder: Path | str) -> dict[str, Any]:
    """Where the server with this folder stands, or stood when it ended; it may be read while it runs."""
    return read_json(Path(folder) / "status.json")
