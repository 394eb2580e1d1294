"""The status of a federation as one HTML page: no script, nothing from elsewhere, and every word in it escaped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from cloister.deploy.operation.status import Budget, Event, NodeStatus, RoundStatus, Status, ago
from cloister.deploy.operation.status_style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""The page's Content-Security-Policy: should a word slip through unescaped, a browser runs nothing of it."""

REFRESH = 5
"""Seconds after which a browser asks again, as long as there is something to come."""

_PHASES = {
    "waiting": "Waiting for nodes",
    "running": "Running",
    "finished": "Finished",
    "stopped": "Stopped",
}


def page(status: Status, refresh: int = REFRESH) -> str:
    """The page. A federation that is over is not asked for again."""
    again = f'<meta http-equiv="refresh" content="{refresh}">' if status.phase in ("waiting", "running") else ""
    title = f"{escape(status.name)}: {_PHASES[status.phase].lower()}"
    parts = [
        _heading(status),
        _tiles(status),
        _nodes(status),
        _rounds(status.history),
        _events(status.events),
        _details(status),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="robots" content="noindex">\n{again}\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n{''.join(parts)}</body>\n</html>\n"
    )


def _heading(status: Status) -> str:
    mood = {"finished": "good", "stopped": "bad"}.get(status.phase, "muted")
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(status.time))
    lines = [
        f"<header><h1>{escape(status.name)}</h1>",
        f'<p><strong class="{mood}">{_PHASES[status.phase]}</strong> <span class="muted">as of {now} UTC</span></p>',
    ]
    if status.test_mode:
        lines.append(
            '<p class="warning"><strong>Test mode: NOT PRIVATE.</strong> All random numbers follow from a seed that '
            "everybody knows.</p>"
        )
    return "\n".join([*lines, "</header>\n"])


def _tiles(status: Status) -> str:
    known = sum(one.last_seen is not None for one in status.nodes)
    most = max(status.rounds, 1)
    tiles = [
        _tile(
            "Rounds",
            f"{status.round} of {status.rounds}",
            f'<progress max="{most}" value="{min(status.round, most)}">{status.round} of {status.rounds}</progress>',
            escape(f"method {status.method}") if status.method else "",
        ),
        _tile(
            "Nodes heard of",
            f"{known} of {len(status.nodes)}",
            f'<progress max="{max(len(status.nodes), 1)}" value="{known}">{known} of {len(status.nodes)}</progress>',
            f"a round needs {status.min_replies} {'reply' if status.min_replies == 1 else 'replies'}",
        ),
    ]
    if status.budget is not None:
        tiles.append(_budget(status.budget, [one.epsilon for one in status.nodes if one.epsilon is not None]))
    return f'<section class="tiles" aria-label="Overview">\n{"".join(tiles)}</section>\n'


def _budget(budget: Budget, stated: Sequence[float]) -> str:
    """By the server's account, or by what nodes state at the end, where each keeps its own."""
    delta = "" if budget.delta is None else f" at delta {budget.delta:g}"
    by_nodes = budget.kept_by != "server"
    whose = f"for each {escape(budget.unit)}{delta}" + ("; every node keeps its own account" if by_nodes else "")
    if by_nodes and stated:
        return _tile("Privacy spent, as nodes state", f"epsilon {max(stated):.2f} at most", "", whose)
    if budget.limit is None:
        return _tile("Privacy spent", "stated at the end" if by_nodes else _epsilon(budget.spent), "", whose)
    spent = budget.spent or 0.0
    left = max(0.0, budget.limit - spent)
    bar = f'<progress max="{budget.limit:g}" value="{min(spent, budget.limit):g}">{spent:g}</progress>'
    figure = f"epsilon {spent:.2f} of {budget.limit:g}" if budget.spent is not None else f"epsilon {budget.limit:g}"
    return _tile("Privacy spent", figure, bar, f"{left:.2f} left, {whose}")


def _tile(heading: str, figure: str, bar: str, more: str) -> str:
    below = f'<p class="muted">{more}</p>' if more else ""
    return f'<div class="tile"><h2>{heading}</h2><p class="figure">{figure}</p>{bar}{below}</div>\n'


def _nodes(status: Status) -> str:
    with_price = any(one.epsilon is not None for one in status.nodes)
    names = ["Node", "State", "Last heard of", "Replies", "Missed", "Refusals", *(["Epsilon"] if with_price else [])]
    rows = [_node(one, status.time, with_price) for one in status.nodes]
    return f"<section><h2>Nodes</h2>\n{_table(names, rows, numbers=range(3, 7))}</section>\n"


def _node(node: NodeStatus, now: float, with_price: bool) -> list[str]:
    cells = [
        escape(node.name),
        escape(node.state),
        ago(node.last_seen, now),
        str(node.replies),
        str(node.missed),
        f'<span class="bad">{node.refusals}</span>' if node.refusals else "0",
    ]
    return [*cells, "" if node.epsilon is None else f"{node.epsilon:.2f}"] if with_price else cells


def _rounds(history: Sequence[RoundStatus]) -> str:
    if not history:
        return ""
    names = ["Round", "What", "State", "Asked", "Replies", "Refusals", "Seconds"]
    rows = [
        [
            str(one.round) if one.round else "before",
            escape(one.what),
            escape(one.state),
            str(one.asked),
            str(one.replies),
            f'<span class="bad">{one.refusals}</span>' if one.refusals else "0",
            "" if one.seconds is None else f"{one.seconds:.1f}",
        ]
        for one in history
    ]
    return f"<section><h2>Last rounds</h2>\n{_table(names, rows, numbers=range(3, 7))}</section>\n"


def _events(events: Sequence[Event]) -> str:
    if not events:
        return ""
    lines = [
        f"<li><time>{time.strftime('%H:%M:%S', time.gmtime(one.time))}</time>"
        f'<span class="{"bad" if one.level in ("warning", "error") else "plain"}">{escape(one.text)}</span></li>'
        for one in events
    ]
    return f"<section><h2>Last events</h2>\n<ul>{''.join(lines)}</ul></section>\n"


def _details(status: Status) -> str:
    found = {"Terms": status.terms_digest, "Run": status.run, "Head of the history": status.head}
    lines = [f"<dt>{name}</dt><dd><code>{escape(text)}</code></dd>" for name, text in found.items() if text]
    lines += [
        f"<dt>Key of {escape(one.name)}</dt><dd><code>{escape(one.fingerprint)}</code></dd>"
        for one in status.nodes
        if one.fingerprint
    ]
    return f"<section><h2>To compare with the nodes</h2>\n<dl>{''.join(lines)}</dl></section>\n" if lines else ""


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int]) -> str:
    """Cells are HTML already."""
    right = set(numbers)
    head = "".join(
        f'<th scope="col"{" class=number" if place in right else ""}>{name}</th>' for place, name in enumerate(names)
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell, names[place], place in right) for place, cell in enumerate(row)) + "</tr>\n"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"


def _cell(cell: str, name: str, number: bool) -> str:
    """On a phone a cell says what it is by itself; one that is empty is not there."""
    kinds = [*(["number"] if number else []), *([] if cell else ["none"]), *(["round"] if name == "Round" else [])]
    marked = f' class="{" ".join(kinds)}"' if kinds else ""
    return f'<td data-name="{name.lower()}"{marked}>{cell}</td>'


def _epsilon(value: float | None) -> str:
    return "not yet known" if value is None else f"epsilon {value:.2f}"
