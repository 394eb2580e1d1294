"""The certificate for people: what must be on it is, names are harmless, and the same values give the same bytes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cloister.publication.certificate import page_of
from cloister.publication.fonts import markup
from cloister.publication.html import html
from cloister.publication.page import percent
from cloister.publication.pdf import pdf
from cloister.publication.publish import certified, run_page_of
from cloister.publication.run_page import meaning_of
from publication import published


@pytest.fixture(scope="module")
def place() -> Path:
    return published.place()


class Text(HTMLParser):
    """All that a page shows, and the elements that it has."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.shown, self.elements, self.attributes, self._style = "", set(), [], False
        self.feed(page.decode())

    def handle_starttag(self, tag, attrs):
        self._style = tag == "style"
        self.elements.add(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.shown += "" if self._style else data

    def __contains__(self, words: str) -> bool:
        return " ".join(words.split()) in " ".join(self.shown.split())


def page(place: Path, name: str) -> Text:
    return Text((place / name / "certificate.html").read_bytes())


@pytest.mark.parametrize(
    ("epsilon", "delta", "words"),
    [(0.1, 1e-5, "at most 1.106 times"), (10.0, 1e-5, "at most 22,030 times"), (14.0, 1e-6, "at most 10^7 times")],
)
def test_large_factors_and_small_chances_are_numbers_that_people_read(epsilon, delta, words):
    meaning = meaning_of(epsilon, delta, "client", "something")[0]
    assert words in meaning
    assert f"1 in {round(1 / delta):,})" in meaning


def test_it_says_what_epsilon_means_for_whom_and_who_signed(place):
    found = page(place, "samples-signed")
    certificate, people = certified(place / "samples")
    assert certificate.epsilon == pytest.approx(4.0, abs=0.01)
    for words in (
        "epsilon 4.000",
        "at delta 0.001, for each sample",
        "54.6 times",
        "1 in 1,000",
        "One sample: one row",
        "Who must be trusted",
        "nobody but the client itself",
        "a client as a whole: what is protected is any ONE of its samples",
        published.KEY.public.fingerprint,
        f"cloister verify FOLDER --key {published.KEY.public.text}",
        certificate.ledger_hash,
        certificate.configuration_sha256,
    ):
        assert words in found, words
    for one in people["guesses"]:
        assert 0 < one["before"] < one["after"] < 1
    assert "SIMULATION" not in found
    assert "NO PRIVACY" not in found


def test_every_client_has_its_own_spending(place):
    found = page(place, "samples-unsigned")
    _, people = certified(place / "samples")
    spent = {one["name"]: one["epsilon"] for one in people["accounts"]}
    assert list(spent) == sorted(published.NAMES)
    budgets = {one["name"]: one["budget"] for one in people["accounts"]}
    assert len(set(budgets.values())) == 5
    for one in people["accounts"]:
        assert 0.9 * one["budget"] < one["epsilon"] <= one["budget"]
        assert f"{one['samples']} samples" in found
        assert f"of {one['budget']:g}" in found
    assert "Not signed" in found


@pytest.mark.parametrize(
    ("name", "banner"),
    [("clients", "SIMULATION: NOT A PRIVATE RELEASE"), ("open", "NO PRIVACY GUARANTEE")],
)
def test_a_banner_stands_above_everything_that_is_no_private_release(place, name, banner):
    found = page(place, f"{name}-unsigned")
    shown = " ".join(found.shown.split())
    assert shown.index(banner) < shown.index("What this means")
    if name == "open":
        assert "no guarantee" in found
        assert "right beforehand" not in found


def test_test_mode_has_its_own_banner(place):
    certificate, people = certified(place / "clients")
    tested = replace(certificate, private=False, not_covered=["TEST MODE: seeded", *certificate.not_covered])
    found = run_page_of(tested, people, {}, None)
    assert [one.title for one in found.banners] == ["TEST MODE: NOT PRIVATE"]


def test_names_are_shown_and_never_executed(place):
    found = page(place, "samples-unsigned")
    for name in published.NAMES[:-1]:
        assert name in found
    assert "Klinik <U+202E>A" in found, "what turns letters around is shown instead"
    assert "script" not in found.elements
    assert not {"img", "link", "iframe", "object", "a", "form"} & found.elements, "nothing is loaded, nothing is sent"
    assert not [value for name, value in found.attributes if name.startswith("on") or "http" in str(value)]
    raw = (place / "samples-unsigned" / "certificate.html").read_text()
    assert "default-src 'none'" in raw
    assert "@import" not in raw
    assert "url(" not in raw


def test_a_pdf_has_one_page_that_matters_and_its_letters_inside(place):
    data = (place / "samples-unsigned" / "certificate.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type /Page\b", data)) <= 4
    assert b"DejaVuSans" in data
    assert b"/FontFile2" in data, "embedded"
    assert b"HeiseiKakuGo" in data, "Japanese names have a font that readers have"
    assert b"/JavaScript" not in data
    assert b"/URI" not in data


def test_letters_have_fonts_and_others_are_shown_by_their_numbers():
    assert markup("Zürich & <b>") == "Zürich &amp; &lt;b&gt;"
    assert markup("東京 A") == '<font name="HeiseiKakuGo-W5">東京</font> A'
    assert markup("서울") == '<font name="HYGothic-Medium">서울</font>'
    assert markup("शिव") == "&lt;U+0936&gt;&lt;U+093F&gt;&lt;U+0935&gt;"
    assert markup("a\nb\u202e\0") == "a b&lt;U+202E&gt;&lt;U+0000&gt;"
    assert markup("שלום עולם!") == "שלום עולם"[::-1] + "!", "from right to left"


def test_another_process_writes_the_same_bytes_and_verifies_without_torch_or_pickle(place, tmp_path):
    """With other hashes of words, in another zone. Verifying is for auditors: nothing of training is imported, and
    nothing is unpickled."""
    code = f"""
import pickle, sys
def refuse(*args, **more): raise AssertionError("unpickled")
pickle.load = pickle.loads = pickle.Unpickler = refuse
from pathlib import Path
from cloister.publication.certificate import page_of
from cloister.publication.html import html
from cloister.publication.page import percent
from cloister.publication.pdf import pdf
from cloister.publication.verification import verify_folder
assert verify_folder({str(place / "samples-signed")!r}).good
page = page_of(Path({str(place / "samples")!r}))
Path({str(tmp_path)!r}, "a.html").write_bytes(html(page))
Path({str(tmp_path)!r}, "a.pdf").write_bytes(pdf(page))
print([name for name in ("torch", "sklearn", "fastapi", "pandas") if name in sys.modules])
"""
    given = {"PYTHONHASHSEED": "77", "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=given, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    for end in ("html", "pdf"):
        assert (tmp_path / f"a.{end}").read_bytes() == (place / "samples-unsigned" / f"certificate.{end}").read_bytes()


def test_chances_are_rounded_upwards():
    assert [percent(one) for one in (0.1001, 0.26, 0.2601, 0.01, 0.0101, 0.99996)] == [
        *("11 %", "26 %", "27 %", "1 %", "1.1 %", "100 %"),
    ]


def test_many_clients_are_cut_and_everything_still_fits(place):
    certificate, people = certified(place / "samples")
    (row, *_) = people["accounts"]
    many = [{**row, "name": f"Klinik {'lang ' * 30}{at}", "epsilon": at / 300} for at in range(300)]
    names = [one["name"] for one in many]
    found = run_page_of(replace(certificate, clients=names), {**people, "accounts": many}, {}, None)
    assert len(found.spending) == 40
    assert "of 300" in found.spending_note
    assert found.spending[0].epsilon == "0.997"
    assert html(found)
    assert pdf(found)


def test_a_page_of_published_files_is_the_published_page(place):
    found = page_of(place / "clients-signed")
    assert html(found) == (place / "clients-signed" / "certificate.html").read_bytes()
    assert pdf(found) == (place / "clients-signed" / "certificate.pdf").read_bytes()
