"""The terms of a new federation as a TOML file that people read: what is learned, at what price, by whom."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloister.data.user.schema_files import toml_value

DEFAULTS: Mapping[str, Any] = {
    "method": "pfl",
    "rounds": 20,
    "epsilon": 2.0,
    "delta": 1e-5,
}
"""What is learned unless somebody says otherwise: any one row is protected, and nobody is trusted."""

_SAID = {
    "method": "`cloister methods` lists them, and whom they protect",
    "rounds": "how often all nodes are asked",
    "epsilon": "the most that anybody can lose by the whole run ...",
    "delta": "... but for this probability",
}


@dataclass(frozen=True)
class Draft:
    """What there is to say in the terms."""

    name: str
    url: str
    server_key: str
    nodes: Mapping[str, str]
    """Public keys by name; the order is that of the clients' numbers."""
    values: Mapping[str, Any]
    """The keys of a run."""
    schema: str | None = None
    """The text of a schema's file."""
    samples: Mapping[str, Any] = field(default_factory=dict)
    min_replies: int | None = None
    deadline: float = 60.0
    participation: str | None = None
    threshold: int | None = None
    sizes: tuple[int, ...] | None = None
    """The nodes' numbers of rows, where everybody may know them."""
    test_mode: bool = False


def least_replies(nodes: int) -> int:
    """How many replies a round needs, unless somebody says: three of four.

    >>> [least_replies(nodes) for nodes in (1, 2, 3, 4, 10)]
    [1, 2, 3, 3, 8]
    """
    return nodes - nodes // 4


def terms_text(draft: Draft) -> str:
    """The file."""
    lines = [
        f"# The terms of the federation {draft.name!r}: what is learned, what it costs, and who takes part.",
        "# Whoever takes part agrees to this file by its digest; a change of any value is another federation.",
        "",
        "# What is learned: the keys of `cloister run`, without those of data (`cloister keys METHOD` explains all).",
        *(_line(key, value, _SAID.get(key, "")) for key, value in draft.values.items()),
        "",
        "[federation]",
        _line("name", draft.name),
        _line("url", draft.url, "where nodes find the server"),
        _line("server_key", draft.server_key, "the server's public key"),
        _line(
            "min_replies",
            least_replies(len(draft.nodes)) if draft.min_replies is None else draft.min_replies,
            "a round with fewer is charged and not released",
        ),
        _line("deadline", draft.deadline, "seconds that a round waits for replies"),
    ]
    if draft.participation is not None:
        said = "who draws the coin: the server in secret, or every node for itself"
        lines.append(_line("participation", draft.participation, said))
    if draft.threshold is not None:
        lines.append(_line("threshold", draft.threshold, "members whose shares together open a mask"))
    if draft.sizes is not None:
        lines.append(_line("sizes", draft.sizes, "how many rows nodes have, which makes it public"))
    said = "true: random numbers follow from a seed, and nothing is private" if draft.test_mode else ""
    lines.append(_line("test_mode", draft.test_mode, said))
    lines += ["", "[federation.nodes]  # public keys; the order is that of the clients' numbers"]
    lines += [_line(name, key) for name, key in draft.nodes.items()]
    if draft.samples:
        lines += ["", "[samples]  # what every node's rows look like"]
        lines += [_line(key, value) for key, value in draft.samples.items()]
    text = "\n".join(lines) + "\n"
    return text if draft.schema is None else f"{text}\n{_schema_table(draft.schema)}"


def _line(key: str, value: object, comment: str = "") -> str:
    name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)
    return f"{name} = {toml_value(value)}" + (f"  # {comment}" if comment else "")


def _schema_table(text: str) -> str:
    """The schema's file as a table of the terms; its comments stay where they can."""
    moved = "[schema]\n" + re.sub(r"^[ \t]*\[(?!\[)[ \t]*", "[schema.", text, flags=re.MULTILINE)
    values = tomllib.loads(text)
    try:
        same = tomllib.loads(moved)["schema"] == values
    except tomllib.TOMLDecodeError:
        same = False
    if same:
        return moved
    lines = [_line(key, value) for key, value in values.items() if key != "columns"]
    columns = [
        "\n".join(["", f"[schema.columns.{toml_value(name)}]", *(_line(key, value) for key, value in column.items())])
        for name, column in values.get("columns", {}).items()
    ]
    return "\n".join(["[schema]", *lines, *columns]) + "\n"
