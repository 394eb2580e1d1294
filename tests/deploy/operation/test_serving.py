"""A server that listens, nodes that know its address: terms, status and a whole run over HTTPS."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

import cloister as cl
from cloister.deploy.halves.own_rows import Rows
from cloister.deploy.node.agreement import Agreement
from cloister.deploy.node.join import join, name_of
from cloister.deploy.operation.agreement_text import agreement_text
from cloister.deploy.operation.made_up_data import EXAMPLE_SCHEMA, write_rows
from cloister.deploy.operation.provision import FederationFolder, Wishes, provision
from cloister.deploy.operation.serving import Listening, listening
from cloister.deploy.operation.status_source import status_at
from cloister.deploy.operation.terms_exchange import fetch_terms
from cloister.deploy.operation.tls_certificates import write_tls
from cloister.deploy.server.serve import serve
from cloister.deploy.terms.terms import Terms
from cloister.deploy.transport.https import HttpsNode, TlsFiles
from cloister.deploy.wire.identity import PrivateKey
from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget

VALUES = {"method": "pfl", "rounds": 1, "epsilon": 8.0, "delta": 1e-3, "batch_size": 32}


@pytest.fixture
def folder(tmp_path) -> FederationFolder:
    return provision(tmp_path / "fed", Wishes("two", {"north": None, "south": None}, VALUES, EXAMPLE_SCHEMA))


@pytest.fixture
def open_to(folder) -> Iterator[Listening]:
    tls = TlsFiles(folder.tls.certificate, folder.tls.key)
    with listening(Terms.load(folder.terms), folder.server, tls, None, 0) as found:
        yield found


def test_members_get_the_terms_and_strangers_do_not(folder, open_to, tmp_path):
    url, terms = open_to.transport.url, Terms.load(folder.terms)
    north = PrivateKey.load(folder.key("north"))
    assert fetch_terms(url, north, folder.tls.authority).digest == terms.digest
    for key in (PrivateKey.generate(), PrivateKey.load(folder.key())):
        with pytest.raises(CloisterError, match="that list the key"):
            fetch_terms(url, key, folder.tls.authority)
    other = write_tls(tmp_path / "other", ["127.0.0.1"], "other")
    with pytest.raises(CloisterError, match="that is trusted here"):
        fetch_terms(url, north, other.authority)
    with pytest.raises(CloisterError, match="Expected a certificate in"):
        fetch_terms(url, north, tmp_path / "nothing.pem")


def test_a_server_that_is_not_there_is_waited_for_and_then_told(folder):
    said = []
    with pytest.raises(CloisterError, match=r"Expected a server at https://127\.0\.0\.1:1, found none"):
        fetch_terms("https://127.0.0.1:1", PrivateKey.generate(), folder.tls.authority, 0.5, said.append)
    assert said == ["waiting for the server at https://127.0.0.1:1"]


def test_a_claimed_key_without_its_signature_is_not_enough(folder, open_to):
    liar = PrivateKey.generate()
    liar.public = PrivateKey.load(folder.key("north")).public  # what it says, but not what it signs with
    with pytest.raises(CloisterError, match="that list the key"):
        fetch_terms(open_to.transport.url, liar, folder.tls.authority)


def test_a_run_over_https_and_its_status(folder, open_to, tmp_path):
    terms, pages, results = Terms.load(folder.terms), [], {}

    def node(number: int, name: str) -> None:
        key, path = PrivateKey.load(folder.key(name)), tmp_path / f"{name}.csv"
        write_rows(path, terms.samples.schema, seed=number, rows=64)
        transport = HttpsNode(open_to.transport.url, name_of(terms, key), key, folder.tls.authority)
        limit = Budget(8.0, 1e-3)

        def agree(agreement: Agreement) -> bool:
            pages.append(agreement_text(agreement))
            return True

        results[name] = join(terms, key, transport, Rows.load(path, terms), folder.node(name), limit, agree)
        transport.close()

    threads = [threading.Thread(target=node, args=one) for one in enumerate(terms.federation.names)]
    for thread in threads:
        thread.start()
    result = serve(terms, PrivateKey.load(folder.key()), open_to.transport, folder.server)
    for thread in threads:
        thread.join(60)
    assert result.state == "finished"
    assert {name: one.state for name, one in results.items()} == {"north": "finished", "south": "finished"}
    assert cl.load(folder.server / "model").evaluate(tmp_path / "north.csv")["accuracy"] >= 0.0
    status = status_at(open_to.status, folder.tls.authority)
    assert (status.phase, status.round, [one.replies for one in status.nodes]) == ("finished", 1, [1, 1])
    with pytest.raises(CloisterError, match="its token is another one"):
        status_at(open_to.status + "x", folder.tls.authority)
    page = next(page for page in pages if "'north'" in page)
    for words in (terms.digest, terms.register.server.fingerprint, "any one row", "64 rows", "nothing was spent"):
        assert words in page
    assert "You need to trust nobody" in page
    assert re.search(r"this run adds +epsilon 7\.9\d+ at delta 0\.001|this run adds +epsilon 8\.000 at delta", page)
    assert "note" not in page
    assert max(map(len, page.splitlines())) <= 100
