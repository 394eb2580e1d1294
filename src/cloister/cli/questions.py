"""What `cloister federation init` asks for on a terminal, where it was not said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from cloister.cli.output import say
from cloister.errors import CloisterError


def asked(path: Path, given: dict[str, Any], values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same with answers; whoever only presses Enter gets a federation that can be tried at once."""
    from cloister.deploy.operation.provision import nodes_of
    from cloister.deploy.operation.terms_draft import DEFAULTS
    from cloister.deploy.operation.tls_certificates import address_of
    from cloister.runs import catalogue

    said, chosen = dict(given), dict(values)
    say("A new federation. Enter takes what stands in brackets.\n")
    if said["name"] is None:
        said["name"] = typer.prompt("Its name", default=path.resolve().name)
    if said["nodes"] is None:
        said["nodes"] = _until_fine("Nodes: their number, or their names with commas", "4", nodes_of)
    if said["url"] is None:
        said["url"] = _until_fine("Address of the server", "https://127.0.0.1:8443", address_of)
    if said["schema"] is None and said["shape"] is None:
        answer = _until_fine("Schema of the tables, a TOML file (none: a made-up example)", "none", _schema)
        said["schema"] = None if answer == "none" else Path(answer)
    if "method" not in chosen:
        say("Methods: pfl protects any one row, and nobody is trusted; `cloister methods` lists all.")
        chosen["method"] = _until_fine(
            "Method", DEFAULTS["method"], lambda name: catalogue.ask(lambda known: known.method_keys(name))
        )
    for key, kind in (("epsilon", float), ("rounds", int)):
        if key not in chosen:
            chosen[key] = typer.prompt(key.capitalize(), default=DEFAULTS[key], type=kind)
    say("")
    return said, chosen


def _schema(answer: str) -> None:
    from cloister.data.user.schema_files import read_toml

    if answer != "none":
        read_toml(answer)


def _until_fine(question: str, default: str, check: Callable[[str], object]) -> str:
    """Ask until the answer is one that can be used."""
    while True:
        answer = str(typer.prompt(question, default=default)).strip()
        try:
            check(answer)
        except CloisterError as error:
            say(f"error: {error}", err=True)
        else:
            return answer
