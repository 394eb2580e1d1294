"""A whole federation on one machine: the server and every node as a process, over TLS on loopback, with their keys.

What runs is what would run at the sites: `cloister serve` and `cloister join`. Everything is kept in the folder of the
federation (server/, nodes/NAME/, logs/), so that a trial that was interrupted goes on.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cloister.data.user.schema import Schema
from cloister.data.user.schema_files import read_toml
from cloister.data.user.tables import client_files
from cloister.deploy.operation import made_up_data
from cloister.deploy.operation.processes import Child, Children
from cloister.deploy.operation.provision import FederationFolder
from cloister.deploy.operation.status import Status
from cloister.deploy.operation.status_source import status_in
from cloister.deploy.operation.tls_certificates import address_of
from cloister.deploy.terms.terms import Terms
from cloister.errors import CloisterError, expect

Show = Callable[[Status | None], None]

HOST = "127.0.0.1"
USUAL_PORT = 8443
_TICK = 0.25


class PortTaken(CloisterError):
    """Somebody else listens where the server wanted to."""


@dataclass(frozen=True)
class Trial:
    """A federation that is ready to be run here."""

    folder: FederationFolder
    terms: Terms
    data: dict[str, Path]
    made_up: bool

    @classmethod
    def prepare(cls, folder: FederationFolder, data: Path | None) -> Trial:
        """What each process needs; whatever is missing is said before the first one starts."""
        terms = Terms.load(folder.terms)
        for name in ("server", *terms.federation.names):
            there = folder.key(name).is_file()
            expect(there, f"the private key {folder.key(name)}", "none", "a trial needs the keys of all, as init makes")
        found = data_of_nodes(terms, data) if data is not None else _made_up(folder, terms)
        return cls(folder, terms, found, data is None)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes."""
        return self.terms.federation.names

    @property
    def finished(self) -> bool:
        """Whether all certificates are there."""
        return all(path.is_file() for _, path in self._certificate_files())

    @property
    def introduction(self) -> str:
        """What is about to happen."""
        rows = "made-up data" if self.made_up else f"data in {next(iter(self.data.values())).parent}"
        begun = "going on with" if self.folder.server.exists() else "starting"
        nodes = f"{len(self.names)} nodes ({', '.join(self.names[:6])}{', ...' if len(self.names) > 6 else ''})"
        return f"{begun} {self.terms.federation.name!r}: a server and {nodes} with {rows}"

    def run(self, show: Show) -> None:
        """Run to the end. Raises `CloisterError` with what went wrong at whom; no process is left."""
        port = _port(self.terms.federation.url)
        try:
            self._run_at(port, show)
        except PortTaken:  # by somebody else, while the server was starting
            self._run_at(_any_port(), show)

    def _run_at(self, port: int, show: Show) -> None:
        with Children() as children:
            server = self._start_server(children, port)
            nodes = [self._start_node(children, name, port) for name in self.names]
            while server.status is None or any(node.status is None for node in nodes):
                show(self._status())
                _expect_well(server, nodes)
                time.sleep(_TICK)
            _expect_well(server, nodes)
            show(self._status())

    def certificates(self) -> Iterator[tuple[str, str]]:
        """A heading and the text of every certificate: the server's, then each node's."""
        for name, path in self._certificate_files():
            if path.is_file():
                yield f"Certificate of {name}", path.read_text(encoding="utf-8")

    def closing(self, program: str) -> str:
        """What is where, and what can be done with it."""
        model = self.folder.server / "model"
        return (
            (f"model:        {model}\n" if model.exists() else "")
            + f"certificates: {program} verify {self.folder.path}\n"
            f"status:       {program} federation status {self.folder.path}\n"
            f"logs:         {self.folder.path / 'logs'}"
        )

    def _certificate_files(self) -> list[tuple[str, Path]]:
        status = self._status()
        run = "none" if status is None else status.run
        nodes = [(name, self.folder.node(name) / "runs" / run / "certificate.txt") for name in self.names]
        return [("the server", self.folder.server / "certificate.txt"), *nodes]

    def _status(self) -> Status | None:
        try:
            return status_in(self.folder.server)
        except CloisterError:
            return None

    def _start_server(self, children: Children, port: int) -> Child:
        words = ["serve", str(self.folder.terms), "--folder", str(self.folder.server), "--host", HOST]
        words += ["--port", str(port), "--attached", "--log", str(self._log("server"))]
        return children.start("server", words, self.folder.path / "logs" / "server.txt")

    def _start_node(self, children: Children, name: str, port: int) -> Child:
        values = self.terms.values
        epsilon, delta = values.get("epsilon"), values.get("delta")
        limit = ["--limit", f"epsilon={epsilon}, delta={delta}"] if epsilon and delta else ["--no-limit"]
        words = ["join", f"https://{HOST}:{port}", "--data", str(self.data[name]), "--key", str(self.folder.key(name))]
        words += ["--authority", str(self.folder.tls.authority), "--folder", str(self.folder.node(name)), *limit]
        words += ["--terms-digest", self.terms.digest, "--attached", "--log", str(self._log(name))]
        return children.start(name, words, self.folder.path / "logs" / f"{name}.txt")

    def _log(self, name: str) -> Path:
        return self.folder.path / "logs" / f"{name}.jsonl"


def data_of_nodes(terms: Terms, data: Path) -> dict[str, Path]:
    """Whose data are where: files or folders named after nodes, or as many as there are nodes, in their order."""
    names = terms.federation.names
    found = _by_client(data, terms.samples.schema)
    if set(names) <= set(found):
        return {name: found[name] for name in names}
    if len(found) == len(names) and not set(names) & set(found):
        return dict(zip(names, found.values(), strict=True))
    missing = next(name for name in names if name not in found)
    raise CloisterError(
        f"Expected a file or a folder in {data} for the node {missing!r}, found {', '.join(found) or 'none'}: name "
        "them after the nodes, or put one there for each."
    )


def names_in(data: Path | None, schema: Path | None) -> str | None:
    """The nodes that a folder of data speaks of, as `--nodes` would name them."""
    if data is None:
        return None
    return ",".join(_by_client(data, None if schema is None else read_toml(schema))) or None


def _by_client(data: Path, schema: Schema | None) -> dict[str, Path]:
    expect(data.is_dir(), "a folder with a file or a folder for every node", str(data), "check --data")
    folders = {path.name: path for path in sorted(data.iterdir()) if path.is_dir() and path.name[0] != "."}
    if folders:
        return folders
    return dict(client_files(data, None if schema is None else schema.files))


def free_url() -> str:
    """An address on this machine that nobody uses."""
    return f"https://{HOST}:{USUAL_PORT if _is_free(USUAL_PORT) else _any_port()}"


def _port(url: str) -> int:
    """The port that the terms name, or another one if it is taken or not for everybody."""
    port = address_of(url)[1]
    return port if port >= 1024 and _is_free(port) else _any_port()


def _is_free(port: int) -> bool:
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((HOST, port))
        except OSError:
            return False
    return True


def _any_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _made_up(folder: FederationFolder, terms: Terms) -> dict[str, Path]:
    """Files of made-up rows, which are written once."""
    schema = terms.samples.schema
    if schema is None:
        raise CloisterError(
            "Expected --data for a federation without a schema, found none: give a folder with one folder of arrays or "
            "images for every node."
        )
    found = {}
    for number, name in enumerate(terms.federation.names):
        path = folder.data() / name / made_up_data.file_name(schema, name)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            made_up_data.write_rows(path, schema, seed=number)
        found[name] = path.parent
    return found


def _expect_well(server: Child, nodes: list[Child]) -> None:
    """Nobody has failed. A node that ends because it refuses is not a failure of the others."""
    for child in (server, *nodes):
        if child.status:
            said = child.last_words().removesuffix(".")
            kind = PortTaken if said.startswith("Expected to listen on") else CloisterError
            raise kind(f"{said} (the process of {child.name}; see {child.output}).")
