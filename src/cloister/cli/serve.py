"""`cloister serve`: the server of a federation."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.output import program, say
from cloister.cli.service import Service

Log = Annotated[
    str | None, typer.Option("--log", help="Where JSON logs go: a file, or - for stderr [log.jsonl in the folder].")
]
LogLevel = Annotated[str, typer.Option(help="What is logged at least: debug, info, warning or error.")]
Attached = Annotated[bool, typer.Option("--attached", hidden=True)]
Secret = Annotated[Path | None, typer.Option(help="Over Flower: the secret file that its program was started with.")]
Public = Annotated[Path | None, typer.Option(help="The file of public samples, where the terms name one.")]


def serve(
    terms: Annotated[Path, typer.Argument(help="The terms: a TOML file, or the folder of a federation.")],
    key: Annotated[
        Path | None, typer.Option(help="The server's private key [keys/server.key beside the terms].")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="What the server keeps [server beside the terms].")] = None,
    host: Annotated[
        str | None, typer.Option(help="Where to listen [all addresses; loopback if the terms say so].")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port [that of the terms].")] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate [tls/server.pem beside the terms].")] = None,
    private_key: Annotated[Path | None, typer.Option(help="Its key [tls/server.key beside the terms].")] = None,
    superlink: Annotated[
        str | None, typer.Option(help="Serve over Flower: the SuperLink's address, as host:port [over https].")
    ] = None,
    authority: Annotated[
        Path | None, typer.Option(help="Over Flower: the certificate by which the SuperLink is trusted.")
    ] = None,
    secret: Secret = None,
    wait: Annotated[
        float | None, typer.Option(help="Begin after so many seconds with those who agreed [when all have].")
    ] = None,
    public: Public = None,
    log: Log = None,
    log_level: LogLevel = "info",
    attached: Attached = False,
) -> None:
    """Run the server of a federation: ask nodes, add up what they reply, certify what was released.

    It has no data. Stopped or killed at any time, the same command goes on where it was.
    """
    from cloister.deploy.operation.provision import FederationFolder
    from cloister.deploy.operation.serving import listening, over_flower
    from cloister.deploy.server.serve import serve as run_server
    from cloister.deploy.terms.terms import Terms
    from cloister.deploy.transport.flower.settings import FlowerAddress
    from cloister.deploy.transport.https import TlsFiles
    from cloister.deploy.wire.identity import PrivateKey

    file = terms / "terms.toml" if terms.is_dir() else terms
    beside = FederationFolder(file.parent)
    agreed = Terms.load(file)
    samples = None if public is None or agreed.public is None else agreed.public.read(public, agreed.samples)
    own = PrivateKey.load(key or beside.key())
    place = folder or beside.server
    if superlink is not None:
        reached = over_flower(agreed, place, own, FlowerAddress(superlink, authority, secret))
    else:
        tls = TlsFiles(certificate or beside.tls.certificate, private_key or beside.tls.key)
        reached = listening(agreed, place, tls, host, port, samples)
    with Service("server", place, log, log_level, attached) as service, reached as open_to:
        say(f"serving {agreed.federation.name!r} at {open_to.where}, terms {agreed.digest}", err=True)
        say(f"status: {open_to.status}", err=True)
        result = run_server(
            agreed,
            own,
            open_to.transport,
            place,
            on_event=service.tell,
            stop=service.stop,
            wait=wait,
            public=samples,
        )
    if result.state == "stopped":
        service.leave(f"`{program()} {shlex.join(sys.argv[1:])}` goes on from here")
    say(f"ended: {result.reason}")
    say(f"certificate: {place / 'certificate.txt'}")
    if (place / "model").exists():
        say(f"model:       {place / 'model'}")
