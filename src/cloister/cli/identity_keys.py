"""`cloister keys new` and `cloister keys show`: who somebody is in a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.output import say


def new(file: Annotated[Path, typer.Argument(help="Where to keep the private key: a new file.")]) -> None:
    """Make a key pair for a federation: the private key stays in FILE, the public one is printed to be sent.

    Whoever has the private key can speak in your name: nobody else can read the file, and it is never sent.
    """
    from cloister.deploy.wire.identity import PrivateKey

    key = PrivateKey.generate()
    key.save(file)
    say(f"private key: {file} (keep it to yourself, and keep a copy in a safe place)", err=True)
    _say_public(key.public.text, key.public.fingerprint)


def show(file: Annotated[Path, typer.Argument(help="A private key's file.")]) -> None:
    """Print the public key that belongs to a private one, and its fingerprint."""
    from cloister.deploy.wire.identity import PrivateKey

    key = PrivateKey.load(file)
    _say_public(key.public.text, key.public.fingerprint)


def _say_public(text: str, fingerprint: str) -> None:
    say(text)
    say(f"fingerprint, to compare by telephone: {fingerprint}", err=True)
