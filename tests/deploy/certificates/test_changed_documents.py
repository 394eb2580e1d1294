"""Documents of a federation, byte by byte: a signature, a text and a model's files have one form; and pages of them."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from cloister.cli.verify import WRONG
from cloister.deploy.certificates.verification import verify
from cloister.publication.certificate import certificate_text, page_of
from cloister.publication.html import html
from cloister.publication.pdf import pdf
from deploy.halves.federations import FEDAVG, PFL
from deploy.loops import Threads, loop_terms


@pytest.fixture(scope="module")
def federation(tmp_path_factory) -> Path:
    """One round in which rows are protected, for real."""
    folder = tmp_path_factory.mktemp("federation")
    threads = Threads(loop_terms({**PFL, "rounds": 1}, test_mode=False), folder).start()
    threads.end()
    return folder


def documents(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*.json"))
        if path.name in ("certificate.json", "receipt.json") and path.parent.name != "model"
    ]


def test_changed_bytes_of_documents_and_texts_are_found(federation):
    files = documents(federation)
    assert verify(files).good
    assert len(files) > 3
    draw = random.Random(0)
    for _ in range(30):
        document = draw.choice(files)
        file = draw.choice([document, document.with_name("certificate.txt")])
        if not file.exists() or document.name == "receipt.json":
            file = document
        whole = file.read_bytes()
        at = draw.randrange(len(whole))
        changed = draw.choice(
            [
                whole[:at] + bytes([whole[at] ^ (1 << draw.randrange(8))]) + whole[at + 1 :],
                whole[:at] + whole[at + 1 :],
                whole[:at] + b" " + whole[at:],
            ]
        )
        if changed == whole:
            continue
        file.write_bytes(changed)
        assert not verify([document]).good, (file, at)
        file.write_bytes(whole)
    assert verify(files).good


def test_a_signature_has_one_text(federation):
    file = documents(federation)[-1]
    whole = file.read_text()
    signature = json.loads(whole)["signature"]
    try:
        file.write_text(whole.replace(signature, signature.upper()))
        assert not verify([file]).good
    finally:
        file.write_text(whole)


def test_the_model_that_the_server_signed_is_the_one_beside_its_certificate(federation, tmp_path):
    copy = Path(shutil.copytree(federation / "server", tmp_path / "server"))
    file = copy / "certificate.json"
    assert any("the one that the server signed" in line for line in verify([file]).confirmed)
    beside = copy / "model" / "certificate.json"
    beside.write_bytes(beside.read_bytes() + b"\n")
    assert "found others" in verify([file]).wrong[0]
    shutil.rmtree(copy / "model")
    found = verify([file])
    assert found.good
    assert any("not in model/" in line for line in found.notes)


def test_the_command_finds_what_is_in_a_folder_and_misses_nothing(command, federation, tmp_path):
    copy = Path(shutil.copytree(federation, tmp_path / "copy"))
    good = command("verify", str(copy))
    assert good.returncode == 0, good.stdout
    assert "files of a model that states" in good.stdout
    receipt = next(copy.rglob("receipt.json"))
    receipt.write_text(receipt.read_text().replace("cloister receipt 1", "cloister receipt 2"))
    bad = command("verify", str(copy))
    assert bad.returncode == WRONG
    assert f"WRONG  {receipt}" in bad.stdout


@pytest.mark.parametrize("who", ["server", "node", "model"])
def test_people_get_pages_of_a_federation(federation, who):
    files = documents(federation)
    path = {
        "server": federation / "server" / "certificate.json",
        "node": next(one for one in files if one.name == "certificate.json" and one.parent.name != "server"),
        "model": federation / "server" / "model",
    }[who]
    page = page_of(path)
    shown = html(page).decode()
    if who == "model":  # terms without an epsilon promise none, and nodes' ledgers are elsewhere
        assert [one.title for one in page.banners] == ["NO PRIVACY GUARANTEE"]
    else:
        assert float(page.epsilon) <= 4.0
        assert len(page.guesses) == 4
        assert "epsilons and deltas of this certificate" in shown
        assert not page.banners
    assert pdf(page).startswith(b"%PDF")
    assert "PRIVACY CERTIFICATE" in certificate_text(path)


def test_test_mode_is_a_banner_on_every_page(tmp_path):
    threads = Threads(loop_terms({**FEDAVG, "rounds": 1}), tmp_path).start()
    threads.end()
    for path in [*documents(tmp_path), tmp_path / "server" / "model"]:
        if path.name != "receipt.json":
            page = page_of(path)
            assert [one.title for one in page.banners] == ["TEST MODE: NOT PRIVATE"]
            assert not page.epsilon
            assert not page.guesses
