"""Methods and keys, for whoever chooses among them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cloister.runs.report.style import new_table

if TYPE_CHECKING:
    from rich.table import Table

    from cloister.runs.choices import MethodFacts
    from cloister.runs.keys import Key


def methods_table(known: Mapping[str, MethodFacts]) -> Table:
    """What is known of every method."""
    table = new_table("method", "protects", "paper", "must be trusted", "what is proven")
    for column in table.columns:
        column.justify = "left"
    table.columns[0].no_wrap = True
    for name, info in known.items():
        table.add_row(name, info.unit, info.paper, info.trust, info.proven)
    return table


def keys_table(keys: Sequence[Key]) -> Table:
    """Keys with their defaults and what they mean."""
    table = new_table("key", "default", "meaning")
    table.columns[0].no_wrap = True
    table.columns[1].justify = table.columns[2].justify = "left"
    for key in keys:
        default = (
            "required" if key.default is inspect.Parameter.empty else "" if key.default is None else str(key.default)
        )
        table.add_row(key.name, default, key.help)
    return table
