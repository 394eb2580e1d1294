"""A status as tables for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from cloister.deploy.operation.status import Budget, Status, ago

_LAST = 8


def status_tables(status: Status, now: float | None = None) -> Iterator[str | Table]:
    """What to print, in order: lines and tables."""
    when = time.time() if now is None else now
    yield f"{status.name}: {status.phase}, round {status.round} of {status.rounds} ({ago(status.time, when)})"
    if status.test_mode:
        yield "TEST MODE: everything follows from a seed, nothing is private."
    if status.budget is not None:
        yield budget_text(status.budget)
    yield ""
    yield _nodes(status, when)
    if status.history:
        yield ""
        yield _steps(status)
    if status.events:
        yield "\nLast events:"
    for event in status.events[:_LAST]:
        yield f"  {time.strftime('%H:%M:%S', time.localtime(event.time))}  {event.text}"
    if status.terms_digest:
        yield f"\nterms {status.terms_digest}"


def budget_text(budget: Budget) -> str:
    """What was spent, and by whose account."""
    delta = "" if budget.delta is None else f" at delta {budget.delta:g}"
    limit = "" if budget.limit is None else f" of {budget.limit:g}"
    if budget.spent is not None:
        return f"epsilon {budget.spent:.3f}{limit} spent, for each {budget.unit}{delta}"
    whose = "every node keeps its own account" if budget.kept_by != "server" else "nothing is spent yet"
    planned = f"epsilon {budget.limit:g} planned for each {budget.unit}{delta}; " if budget.limit else ""
    return planned + whose


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place < 3 else "right", no_wrap=True)
    return table


def _nodes(status: Status, now: float) -> Table:
    with_price = any(one.epsilon is not None for one in status.nodes)
    more = ["epsilon"] if with_price else []
    table = _table("node", "state", "last heard of", "replies", "missed", "refusals", *more)
    for one in status.nodes:
        price = ["-" if one.epsilon is None else f"{one.epsilon:.3f}"] if with_price else []
        seen = ago(one.last_seen, now)
        counts = (str(one.replies), str(one.missed), str(one.refusals))
        table.add_row(escape(one.name), escape(one.state), seen, *counts, *price)
    return table


def _steps(status: Status) -> Table:
    table = _table("round", "what", "state", "asked", "replies", "refusals", "seconds")
    for one in status.history[:_LAST]:
        seconds = "-" if one.seconds is None else f"{one.seconds:.1f}"
        counts = (str(one.asked), str(one.replies), str(one.refusals))
        table.add_row(str(one.round), escape(one.what), escape(one.state), *counts, seconds)
    return table
