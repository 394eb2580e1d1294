"""How help looks: plain text, brackets as they are, and a word about every argument."""

from __future__ import annotations

import inspect
import shutil
import textwrap
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command whose help is plain text.

    Typer escapes brackets for a markup that is not in use here, and with some versions of click it loses what is said
    of arguments.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        hints = typing.get_type_hints(inspect.unwrap(options["callback"]), include_extras=True)
        for argument in self.params:
            if isinstance(argument, TyperArgument) and argument.help is None and argument.name in hints:
                argument.help = hints[argument.name].__metadata__[0].help

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Nothing: typer lists them among the options, where newer versions of click would do so as well."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words as they were given: help on a command with keys is about these."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The help page."""
        return super().get_help(ctx).replace("\\[", "[")


_ORDER = (
    *("demo", "run", "resume", "plan", "show", "report", "studio", "audit", "attack", "predict", "export"),
    *("publish", "certificate", "verify"),
    *("compare", "tune", "reproduce", "landscape", "theory", "methods", "keys", "data"),
    *("federation", "serve", "join", "keys new", "keys show", "completion"),
)


class Commands(TyperGroup):
    """All commands, listed in the order in which one comes to need them: one run, many runs, what there is,
    and a federation of machines."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names; what is not in the order comes last."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Two words name a command where there is one: `keys` lists keys of runs, `keys new` makes a pair of keys."""
        both = " ".join(args[:2])
        return super().resolve_command(ctx, [both, *args[2:]] if len(args) > 1 and both in self.commands else args)


WIDEST = 100
"""Columns of a page of help, on a terminal that has as many."""


def page_width() -> int:
    """Of a page of help: that of the terminal, within reason."""
    return min(max(shutil.get_terminal_size((WIDEST, 40)).columns, 60), WIDEST)


def columns(rows: Sequence[Sequence[str]], widths: Sequence[int], width: int) -> Iterable[str]:
    """Rows of words, below each other; the last column is wrapped, so that nothing is cut off."""
    left = 2 + sum(widths) + 2 * len(widths)
    for row in rows:
        first = "  " + "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        if len(first) > left:  # a cell that is too wide has its line to itself
            yield first.rstrip()
            first = " " * left
        yield from textwrap.wrap(
            row[-1] or "-", width, initial_indent=first, subsequent_indent=" " * left, break_long_words=False
        )


def keys_page(groups: Mapping[str, Sequence[Any]], width: int) -> list[str]:
    """Keys under their headings: name, default and meaning, aligned over all groups."""
    everything = [key for keys in groups.values() for key in keys]
    widths = [min(max(len(cell) for cell in cells), 24) for cells in zip(*map(_cells, everything), strict=True)][:2]
    lines: list[str] = []
    for heading, keys in groups.items():
        lines += ["", f"{heading}:", *columns([_cells(key) for key in keys], widths, width)]
    return lines[1:]


def _cells(key: Any) -> tuple[str, str, str]:
    return key.name, key.shown_default, key.help
