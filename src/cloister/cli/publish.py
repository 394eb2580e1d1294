"""`cloister publish` and `cloister certificate`: what leaves the house, and what people read of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.output import say, working
from cloister.errors import expect


def publish(
    run: Annotated[Path, typer.Argument(help="The folder of a run that has ended.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A new folder for the files to be published.")],
    key: Annotated[
        Path | None, typer.Option(help="Sign with this private key (cloister keys new), so that nobody can rewrite it.")
    ] = None,
) -> None:
    """Write exactly the files of a run that may be published, with a certificate that binds every byte of them.

    The model, what was executed, the ledger, and the certificate for programs (.json) and people (.txt, .html, .pdf).
    What is not protected (checkpoint, metrics, measurements, scores of clients) stays behind. Whoever gets the files
    checks them with `cloister verify`.
    """
    from cloister.deploy.wire.identity import PrivateKey
    from cloister.publication.publish import PUBLISHED
    from cloister.publication.publish import publish as written
    from cloister.publication.statements import headline

    private = None if key is None else PrivateKey.load(key)
    with working("writing what is published"):
        found = written(run, output, private)
    say(f"{output}: {headline(found.certificate)}")
    say(f"{len(PUBLISHED)} files: {', '.join(PUBLISHED)}")
    if found.key is None:
        say("not signed: whoever can write these files can rewrite all of them; --key signs", err=True)
        say(f"check them: cloister verify {output}")
    else:
        say(f"check them: cloister verify {output} --key {found.key.text}")


def certificate(
    path: Annotated[
        Path,
        typer.Argument(help="A run, its published files, or certificate.json of a federation's server or node."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A page for people: .html, .pdf or .txt [default: print it].")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """The certificate for people: what epsilon means here, who is protected, what was spent, what is not covered."""
    expect(path.exists(), "a run, published files or a certificate", str(path), "check the path")
    from cloister.runs.files import expect_new_file

    if output is not None:
        expect_new_file(output, (".html", ".pdf", ".txt"), force)
    from cloister.publication.certificate import certificate_text, page_of
    from cloister.publication.html import html
    from cloister.publication.pdf import pdf
    from cloister.runs.files import write_atomically

    if output is None:
        say(certificate_text(path))
        return
    if output.suffix == ".txt":
        content = (certificate_text(path) + "\n").encode()
    else:
        with working("writing the page"):
            content = html(page_of(path)) if output.suffix == ".html" else pdf(page_of(path))
    write_atomically(output, content)
    say(f"certificate of {path}, kept in {output}")
