"""`cloister join`: a node of a federation, beside its own data."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloister.cli import interrupts
from cloister.cli.output import program, say
from cloister.cli.serve import Attached, Log, LogLevel, Public, Secret
from cloister.cli.service import Service
from cloister.errors import CloisterError

if TYPE_CHECKING:
    from cloister.deploy.node.agreement import Agreement
    from cloister.deploy.terms.terms import Terms
    from cloister.deploy.transport.base import NodeTransport
    from cloister.privacy.budgets import Budget

REFUSED = 1
"""The exit status of a node whose operator does not agree."""


def join(
    url: Annotated[
        str,
        typer.Argument(help="https://server.example:8443, the server; or flower://127.0.0.1:9094, a SuperNode."),
    ],
    data: Annotated[Path, typer.Option(help="This node's own rows: a file or a folder. They stay here.")],
    key: Annotated[Path, typer.Option(help="This node's private key (cloister keys new).")],
    limit: Annotated[
        str | None, typer.Option(help='The most that your data may lose in all runs: "epsilon=2, delta=1e-5".')
    ] = None,
    no_limit: Annotated[bool, typer.Option("--no-limit", help="No limit of your own: the terms alone count.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Agree without being asked.")] = False,
    terms_digest: Annotated[
        str | None, typer.Option(help="Agree to the terms with this digest, and to no others; for services.")
    ] = None,
    terms: Annotated[Path | None, typer.Option(help="The terms as you know them [asked of the server].")] = None,
    authority: Annotated[
        Path | None, typer.Option(help="The certificate by which the server is trusted [the system's authorities].")
    ] = None,
    secret: Secret = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the ledger of these data is kept, for all runs [DATA.ledger].")
    ] = None,
    public: Public = None,
    log: Log = None,
    log_level: LogLevel = "info",
    attached: Attached = False,
) -> None:
    """Take part in a federation with your own data, which stay here: see what is asked, agree, compute, certify.

    Before anything is computed you see the terms in plain words, their digest, what your data have lost so far and what
    this run adds. The ledger belongs to the data: keep it with them. Stopped or killed, the same command goes on.
    """
    most = _limit(limit, no_limit)
    expect_somebody(yes, terms_digest)
    from cloister.deploy.halves.own_rows import Rows
    from cloister.deploy.node.join import join as run_node
    from cloister.deploy.node.join import name_of
    from cloister.deploy.operation.terms_exchange import fetch_terms
    from cloister.deploy.operation.tls_certificates import address_of
    from cloister.deploy.terms.terms import Terms
    from cloister.deploy.transport.flower.settings import FlowerAddress, flower_node
    from cloister.deploy.transport.https import HttpsNode
    from cloister.deploy.wire.identity import PrivateKey

    own = PrivateKey.load(key)
    place = folder or data.resolve().with_name(f"{data.resolve().name}.ledger")
    supernode = FlowerAddress.of_url(url, authority, secret)
    if supernode is None:
        address_of(url)
    elif terms is None:
        raise CloisterError("Expected --terms FILE for a federation over Flower, found none: get it from the server.")
    agreed = Terms.load(terms) if terms is not None else fetch_terms(url, own, authority, told=_tell)
    _expect_digest(agreed, terms_digest)
    name = name_of(agreed, own)
    rows = Rows.load(data, agreed)
    samples = None if public is None or agreed.public is None else agreed.public.read(public, agreed.samples)
    transport: NodeTransport
    with Service("node", place, log, log_level, attached) as service:
        if supernode is not None:
            transport = flower_node(supernode, name, own, agreed.register.server)
        else:
            transport = HttpsNode(url, name, own, authority, stop=service.stop)
        try:
            result = run_node(
                agreed,
                own,
                transport,
                rows,
                place,
                most,
                _asker(yes or terms_digest is not None),
                on_event=service.tell,
                stop=service.stop,
                public=samples,
            )
        finally:
            transport.close()
    if result.state == "stopped":
        service.leave(f"`{program()} {shlex.join(sys.argv[1:])}` goes on from here")
    if result.state == "refused":
        say("You did not agree: the server was told so, and nothing was computed.", err=True)
        raise typer.Exit(REFUSED)
    say(f"ended: {result.reason}")
    say((result.folder / "certificate.txt").read_text(encoding="utf-8").rstrip())
    say(f"\ncertificate: {result.folder / 'certificate.json'}")
    say(f"receipt:     {result.folder / 'receipt.json'} (compare it with the other nodes': {program()} verify)")


def _limit(limit: str | None, no_limit: bool) -> Budget | None:
    from cloister.deploy.operation.limits import limit_of

    if limit is not None and no_limit:
        raise CloisterError("Expected --limit or --no-limit, found both: choose one.")
    if limit is not None:
        return limit_of(limit)
    if no_limit:
        return None
    raise CloisterError(
        'Expected the most that your data may lose, found no --limit: write --limit "epsilon=2, delta=1e-5", or '
        "--no-limit to rely on the terms alone."
    )


def expect_somebody(yes: bool, digest: str | None) -> None:
    """There is somebody to ask, or somebody has agreed in advance."""
    if not (yes or digest is not None or sys.stdin.isatty()):
        raise CloisterError(
            "Expected somebody who agrees to the terms, found no terminal: give --terms-digest DIGEST, or --yes."
        )


def _expect_digest(terms: Terms, digest: str | None) -> None:
    if digest is not None and digest.strip().lower() != terms.digest:
        raise CloisterError(
            f"Expected the terms {digest[:16]}..., found {terms.digest}: they are not those you agreed to; compare "
            "with the other sites."
        )


def _asker(agreed: bool) -> Callable[[Agreement], bool]:
    """What is asked before anything is computed; whoever agreed in advance is shown what to, in short."""

    def ask(agreement: Agreement) -> bool:
        from cloister.deploy.operation.agreement_text import agreement_text, summary

        if agreed:
            say(summary(agreement), err=True)
            return True
        say(agreement_text(agreement))
        return _answer("\nDo you agree?")

    return ask


def _answer(question: str) -> bool:
    """Yes or no; Ctrl-C is neither, and ends the program."""
    with interrupts.working():
        try:
            return bool(typer.confirm(question, default=False))
        except (KeyboardInterrupt, typer.Abort):
            say("\ninterrupted; nothing was agreed to, and nothing was computed", err=True)
            raise typer.Exit(interrupts.INTERRUPTED) from None


def _tell(words: Any) -> None:
    say(str(words), err=True)
