"""A new federation on the disk: terms, keys and TLS certificates, and what each site does with them.

    terms.toml          what everybody agrees to
    keys/server.key     the server's private key; keys/NODE.key those of nodes that have no key yet, for a trial
    tls/                the server's TLS certificate, and authority.pem, which nodes trust

In earnest every site makes its own key (`cloister keys new`) and sends the public line: then nobody else ever has it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.deploy.halves.prepared import prepare
from cloister.deploy.operation.terms_draft import Draft, terms_text
from cloister.deploy.operation.tls_certificates import TlsFolder, host_of, write_tls
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire.identity import SERVER, PrivateKey, PublicKey, expect_name
from cloister.errors import CloisterError, expect, expect_count
from cloister.runs.files import new_folder

MOST_NODES = 10_000


@dataclass(frozen=True)
class Wishes:
    """What somebody wants a federation to be; keys are made for whoever has none."""

    name: str
    nodes: Mapping[str, PublicKey | None]
    values: Mapping[str, Any]
    schema: str | None = None
    samples: Mapping[str, Any] = field(default_factory=dict)
    url: str = "https://127.0.0.1:8443"
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of `Draft`: min_replies, deadline, participation, threshold, test_mode."""


@dataclass(frozen=True)
class FederationFolder:
    """Where things are in the folder of a federation."""

    path: Path

    @property
    def terms(self) -> Path:
        """What everybody agrees to."""
        return self.path / "terms.toml"

    @property
    def tls(self) -> TlsFolder:
        """Certificates."""
        return TlsFolder(self.path / "tls")

    @property
    def server(self) -> Path:
        """What the server keeps: journal, ledger, checkpoints."""
        return self.path / "server"

    def key(self, name: str = SERVER) -> Path:
        """The private key of the server or of a node."""
        return self.path / "keys" / f"{name}.key"

    def node(self, name: str) -> Path:
        """What a node of a trial keeps: its ledger, its replies, its certificate."""
        return self.path / "nodes" / name

    def data(self) -> Path:
        """Made-up data of a trial."""
        return self.path / "made-up-data"


def nodes_of(text: str) -> dict[str, PublicKey | None]:
    """Names of nodes, perhaps with their public keys; a number stands for as many names.

    >>> list(nodes_of("2")), list(nodes_of("cleveland, va"))
    (['node-1', 'node-2'], ['cleveland', 'va'])
    """
    if text.strip().isdecimal():
        expect_count("the number of nodes", int(text), "name them, or say how many there are", most=MOST_NODES)
        return {f"node-{number}": None for number in range(1, int(text) + 1)}
    found: dict[str, PublicKey | None] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, key = (word.strip() for word in part.partition("="))
        expect_name(name)
        expect(name not in found, "every node once", name, "rename one of them")
        found[name] = PublicKey.from_text(key) if equals else None
    expect(bool(found), "names of nodes, or their number", text, 'such as --nodes 4, or --nodes "cleveland, va"')
    return found


def provision(path: Path, wishes: Wishes) -> FederationFolder:
    """Lay a federation out in a new folder. It is there whole or not at all; private keys are their owner's alone."""
    there = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if there:
        raise CloisterError(
            f"Expected a new or empty folder, found {path} with something in it: choose another name, or remove it."
        )
    made: dict[str, PrivateKey] = {
        name: PrivateKey.generate() for name in (SERVER, *wishes.nodes) if wishes.nodes.get(name) is None
    }
    public = {name: (made[name].public if key is None else key).text for name, key in wishes.nodes.items()}
    draft = Draft(
        name=wishes.name,
        url=wishes.url,
        server_key=made[SERVER].public.text,
        nodes=public,
        values=wishes.values,
        schema=wishes.schema,
        samples=wishes.samples,
        **wishes.more,
    )
    host = host_of(wishes.url)
    text = terms_text(draft)
    _expect_kept(Terms.from_tables(tomllib.loads(text)))
    with new_folder(path) as place:
        folder = FederationFolder(place)
        folder.key().parent.mkdir(mode=0o700)
        for name, key in made.items():
            key.save(folder.key(name))
        write_tls(folder.tls.path, [host], wishes.name)
        folder.terms.write_text(text, encoding="utf-8")
    return FederationFolder(path)


def _expect_kept(terms: Terms) -> None:
    """Refuse, before anything is written, terms that no server could keep: it prepares its half of the run."""
    if terms.public is None:
        prepare(terms)


def opened(path: Path) -> FederationFolder:
    """The folder of a federation that is there."""
    folder = FederationFolder(path)
    if not folder.terms.is_file():
        raise CloisterError(
            f"Expected terms.toml in {path}, found none: make a federation with `cloister federation init {path}`."
        )
    return folder


def next_steps(folder: FederationFolder, terms: Terms, program: str) -> str:
    """What each site does next, for whoever has just laid a federation out."""
    made = [name for name in terms.federation.names if folder.key(name).exists()]
    url = terms.federation.url
    epsilon = terms.values.get("epsilon")
    limit = f'"epsilon={epsilon or 2:g}, delta={_short(terms.values.get("delta") or 1e-5)}"'
    lines = [
        f"{terms.federation.name} is in {folder.path}:",
        "  terms.toml  what everybody agrees to",
        "  keys/       private keys: of the server" + (f", and of {len(made)} nodes for a trial" if made else ""),
        "  tls/        the server's TLS certificate, and authority.pem, which nodes trust",
        "",
        "The digest of the terms, to be compared by telephone:",
        f"  {terms.digest}",
        "",
    ]
    if len(made) == terms.clients:
        lines += ["Try it on this machine:", f"  {program} federation trial {folder.path}", ""]
    lines += [
        f"The server, at {url}:",
        f"  {program} serve {folder.terms}",
        "",
        f"Every node, with its own key and with tls/authority.pem ({', '.join(terms.federation.names)}):",
        f"  {program} join {url} --data FOLDER --key NODE.key \\",
        f"    --authority authority.pem --limit {limit}",
    ]
    if made:
        lines += [
            "",
            f"In earnest, every site makes its own key (`{program} keys new NAME.key`) and sends you the public line;",
            f'then `{program} federation init DIR --nodes "NAME=ed25519:..., NAME=ed25519:..."` needs no other key.',
        ]
    return "\n".join(lines)


def _short(number: Any) -> str:
    """As people write it: 1e-5."""
    return f"{number:g}".replace("e-0", "e-")
