"""A table of rich whose cells are shown as they are."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text


class PlainTable(Table):
    """Words in brackets or between colons, in a list of metrics or in the name of a folder, are no markup here."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(Text(one) if isinstance(one, str) else one for one in cells), **options)
