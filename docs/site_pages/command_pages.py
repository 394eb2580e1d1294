"""Every command's help, and every key of a run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import typer

from cloister.cli.app import app
from cloister.runs import catalogue
from cloister.runs.choices import PARTS
from cloister.runs.keys import Key, in_groups
from site_pages.markdown import fenced, table


def pages(root: Path) -> dict[str, str]:
    """Both."""
    return {"reference/commands.md": _commands(), "reference/keys.md": _keys()}


@contextmanager
def _on_a_terminal() -> Iterator[None]:
    """As wide as a page of help is at most, and called by its name."""
    given, columns = sys.argv, os.environ.get("COLUMNS")
    sys.argv, os.environ["COLUMNS"] = ["cloister"], "100"
    try:
        yield
    finally:
        sys.argv = given
        if columns is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = columns


def _commands() -> str:
    group = typer.main.get_command(app)
    parts = ["# Commands\n", "What `--help` says of every command.\n"]
    with _on_a_terminal():
        for name, command, context in _all(group, "cloister", None):
            parts += [f"## {name} {{ #{re.sub(r'[^a-z]+', '-', name)} }}\n", fenced(command.get_help(context))]
    return "\n".join(parts)


def _all(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, Any]]:
    """A command and those below it, each with a context in which it can be asked for help."""
    context = click.Context(command, info_name=name.rsplit(" ", 1)[-1] if parent else name, parent=parent)
    context.meta.setdefault("words", [])
    yield name, command, context
    for below in getattr(command, "list_commands", lambda _: [])(context):
        yield from _all(command.get_command(context, below), f"{name} {below}", context)


def _keys() -> str:
    known = catalogue.stored()
    parts = [
        "# Keys of a run\n",
        "A run is one flat TOML file; each key can also be given on the command line, as `KEY=VALUE`. `cloister keys "
        "METHOD` lists all that a run of a method may have. The keys of methods, data sets and models are on their own "
        "pages: [methods](../methods/index.md), [data](../data/index.md), [models](../models/index.md).\n",
        "## Choices\n",
        table(
            ("key", "default", "meaning", "options"),
            [
                (f"`{name}`", f"`{part.default}`", part.help, ", ".join(f"`{one}`" for one in known.choices[name]))
                for name, part in PARTS.items()
            ],
        ),
        "`method`, `data` and `model` can also be `package.module:function`, whose arguments are keys, and `data` the "
        "path of your own files.\n",
        "## Every run\n",
    ]
    for heading, keys in in_groups(known.run).items():
        parts += [f"### {heading.capitalize()}\n", _table(keys)]
    parts += ["## Your own files (`data = PATH`)\n", _table(known.own_data)]
    for part in ("partition", "cohort", "server"):
        parts.append(f"## {part.capitalize()}\n")
        for option, choice in known.choices[part].items():
            parts.append(f'**`{part} = "{option}"`**\n')
            parts.append(_table(choice.keys) if choice.keys else "No keys.\n")
    return "\n".join(parts)


def _table(keys: Any) -> str:
    return table(("key", "default", "meaning"), [(f"`{key.name}`", _default(key), key.help) for key in keys])


def _default(key: Key) -> str:
    shown = key.shown_default
    return "**required**" if shown == "required" else f"`{shown}`" if shown else "none"
