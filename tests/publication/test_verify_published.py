"""`cloister verify` of published files: what is whole verifies on one screen, every other byte or file is named."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest

import cloister as cl
from cloister.deploy.certificates.signed import NODE
from cloister.deploy.wire.identity import PrivateKey
from cloister.errors import CloisterError
from cloister.publication.publish import PUBLISHED, publish
from cloister.publication.recognition import Given, recognize
from cloister.publication.verification import verify_folder
from publication import published
from publication.forging import rehash, values_of, write_values

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def place() -> Path:
    return published.place()


@pytest.fixture
def copy(tmp_path):
    return lambda name, to="copy": published.copied(name, tmp_path / to)


@pytest.fixture(scope="module")
def changed_bytes():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import changed_bytes

        yield changed_bytes


@pytest.mark.parametrize("name", ["clients", "samples", "open"])
@pytest.mark.parametrize("how", ["unsigned", "signed"])
def test_what_was_published_verifies_on_one_screen(place, name, how):
    folder = place / f"{name}-{how}"
    assert {path.name for path in folder.iterdir()} == set(PUBLISHED)
    found = verify_folder(folder, published.KEY.public if how == "signed" else None)
    assert found.good, found.wrong
    lines = found.lines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    proven = dict(found.proven)
    assert {"files", "ledger", "model", "price", "words"} <= set(proven)
    assert ("signature" in proven) == (how == "signed")
    assert any("NOT SIGNED" in one for one in found.warnings) == (how == "unsigned")
    stated = dict(found.stated)
    assert {"execution", "all of it", "randomness", "people", "trust"} <= set(stated)
    assert ("A SIMULATION" in found.headline) == (name == "clients")
    assert ("NO PRIVACY" in found.headline) == (name == "open")


def test_thirty_changed_bytes_are_found_and_named(place, tmp_path, changed_bytes):
    draw = random.Random(1)
    folders = [Path(shutil.copytree(place / name, tmp_path / name)) for name in ("clients-signed", "samples-unsigned")]
    for _ in range(30):
        result = changed_bytes.tried(draw.choice(folders), draw)
        assert result.named, result
    assert all(verify_folder(folder).good for folder in folders), "all was put back"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format": ', b'"format":  '),
        (b"\n", b"\r\n"),
        (b"0.001", b"0.0010"),
        (b"0.001", b"1e-3"),
        (b'"unit"', b'"\\u0075nit"'),
        (b"{\n", b'{\n  "format": "cloister certificate 2",\n'),
    ],
)
def test_bytes_that_mean_the_same_are_found_as_well(copy, old, new):
    folder = copy("clients-signed")
    data = (folder / "certificate.json").read_bytes()
    assert old in data
    changed = data.replace(old, new, 1)
    assert json.loads(changed) == json.loads(data)
    (folder / "certificate.json").write_bytes(changed)
    (wrong,) = verify_folder(folder).wrong
    assert wrong.startswith("certificate.json: ")


def test_the_certificates_own_hash_counts(copy):
    folder = copy("clients-unsigned")
    values = values_of(folder)
    values["sha256"] = values["sha256"][::-1]
    (folder / "certificate.json").write_text(json.dumps(values, indent=2) + "\n")
    (wrong,) = verify_folder(folder).wrong
    assert wrong.startswith("certificate.json: ")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["unsigned", "signed"])
def test_every_byte_of_the_certificate_counts(copy, how, changed_bytes):
    folder, draw = copy(f"samples-{how}"), random.Random(0)
    whole = (folder / "certificate.json").read_bytes()
    for at in range(len(whole)):
        for change in changed_bytes.CHANGES.values():
            (folder / "certificate.json").write_bytes(change(whole, at, draw))
            assert not verify_folder(folder).good, at


@pytest.mark.slow
def test_a_thousand_changed_bytes_are_found_and_named(changed_bytes):
    found = changed_bytes.measured(1000, seed=7)
    assert found["named"] == found["changes"] == 1000, found["missed"]


def test_the_figure_in_the_documents_is_all_of_them():
    found = json.loads((ROOT / "docs" / "verify.json").read_text())
    assert found["found"] == found["named"] == found["changes"] == 1000


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_missing_file_is_named(copy, name):
    folder = copy("samples-signed")
    (folder / name).unlink()
    assert any(one.startswith(f"{name}: ") for one in verify_folder(folder).wrong)


def test_files_that_were_added_or_swapped_are_named(copy, place):
    folder = copy("samples-signed")
    (folder / "metrics.txt").write_text("accuracy 1.0")
    (folder / "more").mkdir()
    assert [one.split(":")[0] for one in verify_folder(folder).wrong] == ["metrics.txt", "more"]
    other = copy("clients-signed", "other")
    for name in PUBLISHED:
        own = (other / name).read_bytes()
        shutil.copy(place / "samples-signed" / name, other / name)
        wrong = verify_folder(other).wrong
        if name == "certificate.json":  # whose files are now all others
            assert len(wrong) == len(PUBLISHED) - 1
        else:
            assert [one.split(":")[0] for one in wrong] == [name]
        (other / name).write_bytes(own)
    assert verify_folder(other).good


def test_links_and_pipes_are_not_followed(copy, place):
    folder = copy("samples-signed")
    (folder / "certificate.pdf").unlink()
    (folder / "certificate.pdf").symlink_to(place / "samples-signed" / "certificate.pdf")
    (folder / "model.json").unlink()
    os.mkfifo(folder / "model.json")  # whoever opened it would wait for ever
    wrong = verify_folder(folder).wrong
    assert sorted(one.split(":")[0] for one in wrong) == ["certificate.pdf", "model.json"]
    assert all("do not follow it" in one for one in wrong)


HUGE = struct.pack("<Q", 2**62) + b"{"
DEEP = b"[" * 200_000
GARBAGE = [b"", b"\0", b"null", b"[]", b"{}", b"\xff\xfe", DEEP, b'{"a":' * 100_000, b"1e999999", HUGE, b"9" * 10_000]


@pytest.mark.parametrize("name", PUBLISHED)
def test_garbage_is_a_sentence(copy, name):
    """With the hashes that make it look whole: then it is read."""
    folder = copy("samples-unsigned")
    for data in [b"", DEEP] if name.endswith(("txt", "html", "pdf")) else GARBAGE:
        (folder / name).write_bytes(data)
        if name != "certificate.json":
            rehash(folder)
        found = verify_folder(folder)
        assert not found.good, data[:20]
        assert all("Expected" in one for one in found.wrong)


KINDS = [None, *(pytest.param(one, marks=pytest.mark.slow) for one in (3, -1.5, "x", [], {}, [None], {"a": []}, [{}]))]


@pytest.mark.parametrize("value", KINDS)
def test_values_of_any_kind_in_the_certificate_are_a_sentence(copy, value):
    folder = copy("clients-unsigned")
    whole = values_of(folder)
    for name in whole.keys() - {"sha256"}:
        if value != whole[name]:
            write_values(folder, {**whole, name: value})
            found = verify_folder(folder)
            assert not found.good, (name, value)
            assert all("Expected" in one for one in found.wrong)


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (0, {"budgets": {"x": 3}}),
        (0, {"budgets": None}),
        (0, {"subject": 3}),
        (1, {"count": 10**30}),
        (1, {"count": -1}),
        (1, {"count": "x"}),
        (1, {"units": 3}),
        (1, {"units": [["x"]]}),
        (1, {"event": {"kind": "no_op"}}),
        (1, {"event": {"kind": "gaussian", "noise_multiplier": 1e-300}}),
        (1, {"event": {"kind": "gaussian", "noise_multiplier": float("nan")}}),
        (1, {"event": {"kind": "nothing"}}),
        (1, {"event": []}),
        (1, {"round": {}}),
    ],
)
def test_a_ledger_that_somebody_made_up_is_a_sentence(copy, line, change):
    from publication.forging import chain_again

    folder = copy("samples-unsigned")
    chain_again(folder, lambda lines: [{**one, **(change if at == line else {})} for at, one in enumerate(lines)])
    rehash(folder)
    found = verify_folder(folder)
    assert not found.good
    assert all("Expected" in one for one in found.wrong)


def test_names_of_files_in_a_certificate_lead_nowhere_else(copy):
    folder = copy("samples-unsigned")
    values = values_of(folder)
    values["files"]["../../etc/passwd"] = "0" * 64
    write_values(folder, values)
    assert any("do not open it" in one for one in verify_folder(folder).wrong)
    del values["files"]["../../etc/passwd"], values["files"]["ledger.jsonl"]
    write_values(folder, values)
    assert any(one.startswith("ledger.jsonl: ") for one in verify_folder(folder).wrong)


def test_a_run_folder_is_verified_as_a_whole(place, tmp_path):
    assert "run" in dict(verify_folder(place / "clients").proven)
    folder = Path(shutil.copytree(place / "clients", tmp_path / "copy"))
    data = bytearray((folder / "checkpoint.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "checkpoint.safetensors").write_bytes(data)
    assert any(one.startswith("checkpoint.safetensors: ") for one in verify_folder(folder).wrong)


def test_published_files_are_loaded_and_refused_where_they_do_not_follow(copy, place):
    folder = copy("samples-signed")
    assert cl.load(folder).certificate == cl.load(place / "samples").certificate
    values = values_of(folder)
    values["prices"][0]["epsilon_pld"] = 0.1
    write_values(folder, values)
    with pytest.raises(CloisterError, match="follow from its ledger"):
        cl.load(folder)


def test_only_a_run_that_has_ended_is_published_and_only_once(place, tmp_path):
    with pytest.raises(CloisterError, match="new folder"):
        publish(place / "samples", place / "samples-signed")
    with pytest.raises(CloisterError, match="published"):
        publish(place / "samples-signed", tmp_path / "again")
    running = Path(shutil.copytree(place / "samples", tmp_path / "running"))
    (running / "certificate.json").unlink()
    with pytest.raises(CloisterError, match="has ended"):
        publish(running, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_nodes_ledger_beside_its_certificates_is_no_publication_that_lost_one(tmp_path):
    (tmp_path / "ledger.jsonl").write_text("{}\n")
    with pytest.raises(CloisterError, match="found none"):
        recognize([tmp_path])  # nothing has ended yet
    (tmp_path / "runs" / "one").mkdir(parents=True)
    own = tmp_path / "runs" / "one" / "certificate.json"
    own.write_text(json.dumps({"format": NODE}))
    assert recognize([tmp_path]) == Given(documents=[own])


def test_the_commands(command, place, tmp_path):
    key = tmp_path / "key.pem"
    PrivateKey.from_seed(bytes(range(32))).save(key)
    folder = tmp_path / "public"
    done = command("publish", str(place / "samples"), "-o", str(folder), "--key", str(key))
    assert done.returncode == 0, done.stderr
    assert f"--key {published.KEY.public.text}" in done.stdout
    good = command("verify", str(folder), "--key", published.KEY.public.text)
    assert good.returncode == 0, good.stdout
    assert "PROVEN" in good.stdout
    assert "ONLY STATED" in good.stdout
    assert command("verify", str(folder / "model.safetensors")).returncode == 0
    other = PrivateKey.from_seed(bytes(32)).public.text
    assert command("verify", str(folder), "--key", other).returncode == 1
    (folder / "certificate.txt").write_bytes((folder / "certificate.txt").read_bytes() + b" ")
    bad = command("verify", str(folder), str(place / "clients-unsigned"))
    assert bad.returncode == 1
    assert "WRONG  certificate.txt: " in bad.stdout
    assert "NOT VERIFIED" in bad.stdout
    (folder / "certificate.json").unlink()
    gone = command("verify", str(folder))
    assert gone.returncode == 1
    assert "certificate.json: Expected this file" in gone.stdout
    for words in (
        ["verify", str(key)],
        ["verify", str(folder), "--key", "x"],
        ["verify", str(folder), "--key", str(key)],
        ["verify", str(folder), "--terms", "nowhere.toml"],
        ["certificate", str(key)],
    ):
        slip = command(*words)
        assert slip.returncode == 2, words
        assert slip.stdout == "", words
        assert len(slip.stderr.strip().splitlines()) == 1
        assert key.read_text().splitlines()[1] not in slip.stderr, words  # the private key itself
