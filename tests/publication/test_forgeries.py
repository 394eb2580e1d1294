"""Attacks by somebody who recomputes hashes: what is found without a signature, and what only a signature finds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from cloister.deploy.wire.identity import PrivateKey
from cloister.privacy.certificate_text import round_up
from cloister.publication.verification import verify_folder
from publication import published
from publication.forging import (
    all_again,
    chain_again,
    pages_again,
    rehash,
    values_of,
    write_values,
)

THIEF = PrivateKey.from_seed(bytes(32))


@pytest.fixture(scope="module")
def place() -> Path:
    return published.place()


@pytest.fixture
def copy(tmp_path):
    return lambda name, to="copy": published.copied(name, tmp_path / to)


def other_model(folder):
    path = folder / "model.safetensors"
    save_file({name: tensor + 1.0 for name, tensor in load_file(path).items()}, path)


def smaller_epsilon(folder):
    values = values_of(folder)
    for price in values["prices"]:
        price["epsilon_pld"], price["epsilon_rdp"] = 0.1, 0.1
    write_values(folder, values)
    pages_again(folder)


def slightly_smaller_epsilon(folder):
    values = values_of(folder)
    values["prices"][0]["epsilon_pld"] *= 0.9999
    write_values(folder, values)
    pages_again(folder)


def other_shapes(folder):
    path = folder / "model.safetensors"
    save_file({name: tensor[:1].clone() for name, tensor in load_file(path).items()}, path)


def shorter_ledger(folder):
    chain_again(folder, lambda lines: lines[:-1])


def larger_noise(folder):
    """In the description alone."""
    path = folder / "description.json"
    about = json.loads(path.read_text())
    about["method"]["mechanism"]["noise_multiplier"] *= 10
    path.write_text(json.dumps(about, indent=2) + "\n")


def larger_noise_everywhere(folder):
    larger_noise(folder)

    def change(lines):
        for line in lines[1:]:
            line["event"]["noise_multiplier"] *= 10
        return lines

    chain_again(folder, change)


def other_words(folder):
    values = values_of(folder)
    values["trusted"], values["not_covered"] = "nobody", ["nothing"]
    write_values(folder, values)
    pages_again(folder)


def better_chances(folder):
    values = values_of(folder)
    values["people"]["told_apart"] = 0.5
    write_values(folder, values)
    pages_again(folder)


def said_to_be_secure(folder):
    values = values_of(folder)
    values["secure_rng"] = True
    write_values(folder, values)
    pages_again(folder)


def other_text(folder):
    path = folder / "certificate.txt"
    path.write_text(path.read_text().replace("4.000", "0.100"))


def other_page(folder):
    path = folder / "certificate.html"
    path.write_text(path.read_text().replace("4.000", "0.100"))


def test_a_model_that_was_replaced_is_found(copy):
    folder = copy("clients-unsigned")
    other_model(folder)
    (wrong,) = verify_folder(folder).wrong
    assert wrong.startswith("model.safetensors: ")


@pytest.mark.parametrize("change", [shorter_ledger, larger_noise, other_text, other_page])
def test_what_was_changed_without_the_certificate_is_found(copy, change):
    folder = copy("clients-unsigned")
    change(folder)
    assert not verify_folder(folder).good


@pytest.mark.parametrize(
    ("change", "named", "why"),
    [
        (smaller_epsilon, "certificate.json", "prices"),
        (slightly_smaller_epsilon, "certificate.json", "prices"),
        (other_shapes, "model.safetensors", "another model"),
        (other_words, "certificate.json", "trusted"),
        (said_to_be_secure, "certificate.json", "secure_rng"),
        (better_chances, "certificate.json", "attackers' chances"),
        (shorter_ledger, "certificate.json", "follow from its ledger"),
        (larger_noise, "ledger.jsonl", "another run's"),
        (other_text, "certificate.txt", "other words"),
        (other_page, "certificate.html", "other words"),
    ],
)
def test_what_does_not_follow_is_found_without_a_signature(copy, change, named, why):
    """All hashes fit: what is said does not."""
    folder = copy("clients-unsigned")
    change(folder)
    rehash(folder)
    wrong = verify_folder(folder).wrong
    assert any(one.startswith(f"{named}: ") and why in one for one in wrong), wrong


def test_the_ledger_of_another_run_is_found_without_a_signature(copy, place):
    folder = copy("clients-unsigned")
    shutil.copy(place / "samples" / "ledger.jsonl", folder)
    rehash(folder)
    assert "ledger.jsonl: " in verify_folder(folder).wrong[0]
    assert "another run's" in verify_folder(folder).wrong[0]


@pytest.mark.parametrize("change", [other_model, shorter_ledger, larger_noise_everywhere])
def test_what_agrees_with_itself_is_found_by_a_signature_alone_and_that_is_said(copy, change):
    folder = copy("clients-unsigned")
    before = values_of(folder)["prices"][0]["epsilon_pld"]
    change(folder)
    all_again(folder)
    found = verify_folder(folder)
    assert found.good, "nothing in the files tells"
    if change is not other_model:
        assert values_of(folder)["prices"][0]["epsilon_pld"] < before
    page = " ".join("\n".join(found.lines()).split())
    assert "NOT SIGNED" in page
    assert "another model, or a shorter ledger and the smaller epsilon" in page
    assert not any(name == "signature" for name, _ in found.proven)
    (wrong,) = verify_folder(folder, published.KEY.public).wrong
    assert wrong.startswith("certificate.json: Expected a signature by ed25519:")


@pytest.mark.parametrize("change", [other_model, shorter_ledger, larger_noise_everywhere])
def test_a_signature_finds_what_agrees_with_itself(copy, change):
    folder = copy("clients-signed")
    was = {name: values_of(folder)[name] for name in ("key", "signature")}
    change(folder)
    all_again(folder)
    write_values(folder, {**values_of(folder), **was})  # the signature that was there
    (wrong,) = verify_folder(folder).wrong
    assert wrong.startswith("certificate.json: Expected certificate.json as it was signed")


def test_another_signature_is_found_where_the_key_is_known(copy):
    folder = copy("clients-signed")
    shorter_ledger(folder)
    all_again(folder, THIEF)
    found = verify_folder(folder)
    assert found.good
    assert "whose key that is" in dict(found.proven)["signature"]
    (wrong,) = verify_folder(folder, published.KEY.public).wrong
    assert wrong.startswith("certificate.json: ")
    assert "somebody else signed it" in wrong


def test_a_signature_that_was_taken_off_is_found_where_the_key_is_known(copy):
    folder = copy("clients-signed")
    write_values(folder, {name: value for name, value in values_of(folder).items() if name not in ("key", "signature")})
    assert not verify_folder(folder).good, "the pages still name the signer"
    all_again(folder)
    assert verify_folder(folder).good
    assert not verify_folder(folder, published.KEY.public).good


def test_a_page_of_other_software_is_told_and_not_proven(copy):
    folder = copy("clients-unsigned")
    values = values_of(folder)
    values["people"]["renderers"]["reportlab"] = "0.1"
    write_values(folder, values)
    found = verify_folder(folder)
    assert found.good
    assert "could not be written again" in dict(found.stated)["pages"]
    assert "certificate.pdf" not in dict(found.proven)["words"]


def test_words_of_another_version_are_told_and_not_proven(copy):
    folder = copy("clients-unsigned")
    values = values_of(folder)
    values["versions"]["cloister"], values["trusted"] = "99", "nobody"
    write_values(folder, values)
    found = verify_folder(folder)
    assert found.good
    assert "compared the numbers alone" in dict(found.stated)["words"]
    assert "words" not in dict(found.proven)


def test_less_than_this_version_computes_is_told_and_not_proven(copy):
    """Whoever claims another version may claim its words, and a slightly smaller epsilon; not a proof of it."""
    folder = copy("clients-unsigned")
    values = values_of(folder)
    values["versions"]["cloister"], values["noise_arithmetic"] = "99", "as nobody has it"
    honest = round_up(values["prices"][0]["epsilon_pld"])
    for price in values["prices"]:
        price["epsilon_pld"] *= 0.992
    write_values(folder, values)
    pages_again(folder)
    found = verify_folder(folder)
    claimed = round_up(values["prices"][0]["epsilon_pld"])
    assert found.good, found.wrong
    assert claimed != honest
    assert f"epsilon {honest} (PLD)" in dict(found.proven)["price"]
    assert f"epsilon {honest} " in found.headline
    assert f"epsilon {claimed} (PLD)" in dict(found.stated)["less"]


def test_that_releases_did_not_end_a_run_is_only_stated(copy):
    """Of the rounds that were run, or of all that were planned: which price holds follows from no file."""
    folder = copy("clients-unsigned")
    shorter_ledger(folder)
    all_again(folder)
    found = verify_folder(folder)
    assert found.good, found.wrong
    assert "nothing that was released decided when to stop: 2 of 3 planned" in dict(found.stated)["rounds"]
