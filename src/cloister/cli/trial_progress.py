"""What a trial shows while it runs: one line on a terminal, a line for every round elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cloister.cli.output import say
from cloister.runs.progress import epsilon_part
from cloister.runs.progress_line import Part, ProgressLine

if TYPE_CHECKING:
    from cloister.deploy.operation.status import Status


class TrialProgress:
    """Rounds of a federation as they end; on stderr, since the certificates are the output."""

    def __init__(self, names: Sequence[str]) -> None:
        self.nodes = len(names)
        self.said = ""
        self.line = ProgressLine(None, 1)
        self.line.update(0, [Part("processes are starting", weight=9)])

    def __enter__(self) -> Self:
        self.line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.line.__exit__(kind, error, trace)

    def show(self, status: Status | None) -> None:
        """Where the federation stands, as far as anybody knows."""
        if status is None:
            return
        if self.line.shown:
            self.line.total = max(status.rounds, 1)
            done = 0 if status.phase == "waiting" else _ended(status)
            self.line.update(
                done, [Part(_described(status), weight=9), *_spent(status), Part(_nodes(status), weight=7)]
            )
            return
        line = f"{_described(status)}, {_nodes(status)}"
        if line != self.said:
            self.said = line
            say(line, err=True)


def _spent(status: Status) -> list[Part]:
    budget = status.budget
    return [] if budget is None or budget.spent is None else [epsilon_part(budget.spent, budget.limit)]


def _ended(status: Status) -> int:
    """Rounds that are over."""
    last = status.history[0] if status.history else None
    still_open = last is not None and last.state == "open" and last.what == "update"
    return status.round - 1 if still_open else status.round


def _described(status: Status) -> str:
    if status.phase == "waiting":
        return "waiting for nodes"
    return f"round {_ended(status)} of {status.rounds}" + (" (done)" if status.phase == "finished" else "")


def _nodes(status: Status) -> str:
    agreed = sum(one.state in ("accepted", "done") for one in status.nodes)
    refused = sum(one.state == "refused" for one in status.nodes)
    text = f"{agreed} of {len(status.nodes)} nodes take part"
    return f"{text}, {refused} refused" if refused else text
