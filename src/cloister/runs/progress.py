"""The bar that a run shows: round, the metric that is watched, epsilon spent, time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cloister.privacy.certificate_text import round_up
from cloister.runs.metric_text import figure

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Bar:
    """A rich progress bar on the terminal, or nothing: what `show` says, or on terminals alone."""

    def __init__(self, show: bool | None, make: Callable[[], RichProgress]) -> None:
        self._bar = make() if (show if show is not None else sys.stderr.isatty()) else None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


class Progress(Bar):
    """The bar of one run."""

    def __init__(self, show: bool | None, rounds: int, title: str, done: int = 0) -> None:
        super().__init__(show, _bar)
        if self._bar is not None:
            self._task = self._bar.add_task(title, total=rounds, completed=done, metric="accuracy -", epsilon="-")

    def advance(self, line: Mapping[str, Any]) -> None:
        """One round is done; `line` is its line of metrics."""
        if self._bar is None:
            return
        fields: dict[str, Any] = {"epsilon": round_up(line["epsilon"], 2)}
        name = line.get("monitor", "accuracy")
        if line.get(name) is not None:
            fields["metric"] = f"{name} {figure(name, line[name])}"
        self._bar.update(self._task, completed=line["round"], **fields)


def _bar() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    one_line = Column(no_wrap=True)
    return RichProgress(
        TextColumn("{task.description}", table_column=one_line),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TextColumn(
            "round {task.completed}/{task.total}  {task.fields[metric]}  epsilon {task.fields[epsilon]} ",
            table_column=one_line,
        ),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=one_line),
        console=Console(stderr=True),
        expand=True,
    )
