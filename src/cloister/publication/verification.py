"""`verify`: what the published files of a run prove by themselves, and what they only state.

First the bytes: certificate.json is as it was written (and signed), and names every other file by its hash. Nothing is
looked at further where a byte is wrong. Then what they say: the ledger's chain is whole and belongs to the description,
both accountants come to the certificate's prices again, attackers' chances and accounts follow, the pages for people
are written again and compared byte by byte, and the model has the shapes that are described.

Without a signature, somebody who rewrites all files at once, with hashes that fit, is found only where what they say
does not follow: another epsilon, other words. Another model, or a shorter ledger with the certificate that belongs to
it, is not. That is said.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from cloister.deploy.certificates.signed import signer_of
from cloister.deploy.wire.canonical import digest_of
from cloister.deploy.wire.identity import PublicKey
from cloister.errors import CloisterError, Corrupted
from cloister.privacy.certificate import Certificate
from cloister.privacy.certificate_text import round_up
from cloister.privacy.description import RunDescription, plain
from cloister.privacy.ledger import Ledger
from cloister.privacy.promised import Price
from cloister.publication import statements
from cloister.publication.contents import hash_of_file, names_in, read_plain, shapes_in
from cloister.publication.findings import Findings
from cloister.publication.people import is_for_people, people_of, renderers
from cloister.publication.publish import PAGES, PUBLISHED, RUN_FILES, hashes, render, run_page_of
from cloister.runs.certificate_file import StoredCertificate, read_certificate
from cloister.runs.folder import RunFolder, is_publication
from cloister.runs.model_json import ModelJson
from cloister.runs.verification import agrees, expect_follows, same_words, text_of

T = TypeVar("T")
Progress = Callable[[str], None]
_ANY = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, MemoryError, OSError)
"""What a file that somebody made up may lead to; it is told in one sentence, and never as a traceback."""


def verify_folder(folder: str | Path, key: PublicKey | None = None, progress: Progress = lambda _: None) -> Findings:
    """Look at a folder: of published files, or of a run that has ended. `key` is who must have signed."""
    path = Path(folder)
    found = Findings(str(path))
    stored = _guarded(found, "certificate.json", lambda: _certificate(path, found))
    if stored is None:
        return found
    signer = _guarded(found, "certificate.json", lambda: _signer(stored, key))
    _files(path, stored, found)
    if not found.good:
        return found
    if stored.circumstances is None:
        _only_stated(path, stored, found)
    else:
        _contents(_Read(path, stored, signer), found, progress)
    if found.good:
        statements.add(stored, signer, key, found)
    return found


def _guarded(found: Findings, name: str, look: Callable[[], T]) -> T | None:
    """What a look at a file gives; None, and a sentence that names the file, where it cannot be."""
    try:
        return look()
    except _ANY as error:
        reason = str(error) if isinstance(error, CloisterError) else "Expected what Cloister writes, found it damaged."
        found.wrong.append(f"{name}: {reason}")
        return None


def _certificate(path: Path, found: Findings) -> StoredCertificate:
    data = read_plain(path / "certificate.json")
    found.certificate_sha256 = digest_of(data)
    return read_certificate(data, path)


def _signer(stored: StoredCertificate, key: PublicKey | None) -> PublicKey | None:
    """Who signed; refused where it is not who must have."""
    if not stored.signed:
        if key is not None:
            raise Corrupted(f"Expected a signature by {key.text}, found none: it may be anybody's.")
        return None
    signer = signer_of(stored.values, "certificate.json")
    if key is not None and signer != key:
        raise Corrupted(
            f"Expected a signature by {key.text} ({key.fingerprint}), found one by {signer.text} "
            f"({signer.fingerprint}): somebody else signed it."
        )
    return signer


def _files(path: Path, stored: StoredCertificate, found: Findings) -> None:
    """Every file that is named is there, with its hash, and no other is."""
    needed = {"model.safetensors", "model.json", "certificate.txt"}
    if stored.circumstances is not None:
        needed |= {*RUN_FILES, *(PAGES if stored.people is not None else ())}
    elif stored.people is not None or {"description.json", "ledger.jsonl"} & stored.files.keys():
        found.wrong.append("certificate.json: Expected the circumstances beside a ledger, found none: restore it.")
    for name in sorted(needed - stored.files.keys()):
        found.wrong.append(f"{name}: Expected its hash in certificate.json, found none: it was left out.")
    for name, known in stored.files.items():
        if name not in PUBLISHED or name == "certificate.json":
            found.wrong.append(f"certificate.json: Expected names of published files, found {name!r}: do not open it.")
        else:
            _guarded(found, name, partial(_expect_hash, path / name, known))
    published = is_publication(path)
    if published:
        for name in sorted(names_in(path) - stored.files.keys() - {"certificate.json"}):
            found.wrong.append(f"{name}: Expected only files that certificate.json names, found this one: remove it.")
    alone = ", and no other file is there" if published else " (the run's own folder has more)"
    words = f"certificate.json is as it was written, and has the SHA-256 of each of the {len(stored.files)} others"
    found.proven.append(("files", f"{words}{alone}"))


def _expect_hash(path: Path, known: str) -> None:
    if hash_of_file(path) != known:
        raise Corrupted("Expected the file whose SHA-256 is in certificate.json, found that it was changed.")


@dataclass(frozen=True)
class _Read:
    """A publication whose bytes are right."""

    path: Path
    stored: StoredCertificate
    signer: PublicKey | None

    def bytes_of(self, name: str) -> bytes:
        """A file, which must still be the one that was hashed."""
        data = read_plain(self.path / name)
        if digest_of(data) != self.stored.files[name]:
            raise Corrupted("Expected a file that nobody is writing to, found that it changed: try again.")
        return data


def _contents(read: _Read, found: Findings, progress: Progress) -> None:
    """What the files say follows from description and ledger."""
    description = _guarded(found, "description.json", lambda: _description(read))
    ledger = _guarded(found, "ledger.jsonl", lambda: _ledger(read))
    if description is None or ledger is None:
        return
    _guarded(found, "ledger.jsonl", lambda: _belongs(ledger, description, found))
    _guarded(found, "model.json", lambda: _about(read, description))
    _guarded(found, "model.safetensors", lambda: _model(read, description, found))
    if not found.good:
        return
    progress("computing every price again, by two accountants")
    _guarded(found, "certificate.json", lambda: _prices(read.stored, description, ledger, found))
    if not found.good:
        return
    progress("writing the pages for people again")
    _pages(read, found)
    if found.good and not is_publication(read.path):
        _guarded(found, "checkpoint.safetensors", lambda: RunFolder.open(read.path).verified())
        found.proven.append(("run", "checkpoint and metrics of the run's own folder agree with all of this"))


def _description(read: _Read) -> RunDescription:
    return RunDescription.from_json(json.loads(read.bytes_of("description.json")))


def _ledger(read: _Read) -> Ledger:
    return Ledger.from_bytes(read.bytes_of("ledger.jsonl"), read.path / "ledger.jsonl")


def _belongs(ledger: Ledger, description: RunDescription, found: Findings) -> None:
    if ledger.subject != description.configuration_hash:
        raise Corrupted("Expected the ledger of the run in description.json, found another run's: ask for both again.")
    lines = f"{len(ledger.hashes):,} lines, whose chain of hashes is whole and ends where the certificate says"
    found.proven.append(("ledger", f"{lines}; it is the ledger of description.json ({ledger.subject[:12]})"))


def _about(read: _Read, description: RunDescription) -> None:
    ModelJson.from_bytes(read.bytes_of("model.json"), read.path).expect_of(description, read.path)


def _model(read: _Read, description: RunDescription, found: Findings) -> None:
    shapes, wanted = shapes_in(read.path / "model.safetensors"), description.model.shapes
    if any(shapes.get(name) != list(shape) for name, shape in wanted.items()):
        raise Corrupted("Expected the tensors that description.json describes, found others: it is another model.")
    what = f"has the {description.model.parameters:,} trained parameters, by name and shape, that are described"
    found.proven.append(("model", f"model.safetensors {what}"))


def _prices(stored: StoredCertificate, description: RunDescription, ledger: Ledger, found: Findings) -> None:
    assert stored.circumstances is not None
    computed = stored.circumstances.certify(description, ledger)
    expect_follows(stored, computed, Path(found.place))
    if stored.people is not None:
        people, same = (
            plain(people_of(computed, description, ledger, stored.circumstances)),
            same_words(stored, computed),
        )
        told = stored.people if is_for_people(stored.people) else {}
        wanted = {**people, "renderers": told.get("renderers")}  # by whom pages were written is looked at later
        if not agrees(told, wanted if same else {**wanted, "subject": told.get("subject")}, same):
            raise Corrupted("Expected accounts and attackers' chances that follow from the ledger, found others.")
    # Another version may have closer bounds. What this one does not come to, it has not proven.
    less = any(map(_less, stored.certificate.prices, computed.prices))
    proven = computed if less else stored.certificate
    found.headline = statements.headline(proven)
    releases = f"{computed.releases_charged:,} releases in {computed.rounds_charged:,} rounds"
    found.proven.append(("price", f"{_both(proven)} follow from the ledger's events ({releases})"))
    if less:
        found.stated.append(
            ("less", f"{_both(stored.certificate)}, as certificate.json says: this version proves more")
        )
    if not same_words(stored, computed):
        theirs = stored.certificate.versions.get("cloister")
        found.stated.append(("words", f"written by Cloister {theirs}; this version compared the numbers alone"))


def _less(stored: Price, computed: Price) -> bool:
    """Whether one of the stored epsilons (None: infinite) is below the computed one by more than rounding."""
    pairs = (stored.epsilon_pld, computed.epsilon_pld), (stored.epsilon_rdp, computed.epsilon_rdp)
    return any(one is not None and (other is None or one < other * (1 - 1e-6)) for one, other in pairs)


def _both(c: Certificate) -> str:
    """The prices, by both accountants."""
    spent = c.prices[0]
    pld, rdp = round_up(spent.epsilon_pld), round_up(spent.epsilon_rdp)
    if c.filter is not None:
        return f"epsilon {pld} at delta {spent.delta:g} (Renyi filter)"
    first = f"epsilon {pld} (PLD) and {rdp} (RDP)" if c.pld else f"epsilon {rdp} (RDP; it has no PLD)"
    return f"{first} at delta {spent.delta:g}"


def _pages(read: _Read, found: Findings) -> None:
    """What people read, written again."""
    stored = read.stored
    ours = [name for name in PAGES if name in stored.files]
    if any(name == "words" for name, _ in found.stated):
        return
    again = {"certificate.txt": text_of(stored.certificate)}
    if stored.people is not None:
        if stored.people["renderers"] != renderers():
            words = "were written by other versions of jinja2 or reportlab, so that they could not be written again"
            found.stated.append(("pages", f"certificate.html and certificate.pdf {words} and compared"))
            ours = ["certificate.txt"]
        else:
            page = run_page_of(stored.certificate, stored.people, hashes(stored, RUN_FILES), read.signer)
            again |= _guarded(found, "certificate.json", lambda: render(page)) or {}
    for name in ours:
        if _guarded(found, name, partial(read.bytes_of, name)) != again.get(name):
            found.wrong.append(f"{name}: Expected what certificate.json says, found other words: do not rely on it.")
    found.proven.append(("words", f"{', '.join(ours)}: what certificate.json says, written again to the same bytes"))


def _only_stated(path: Path, stored: StoredCertificate, found: Findings) -> None:
    """A certificate of something else than one run: its ledgers are elsewhere."""
    found.headline = f"states, and cannot prove by itself: {statements.headline(stored.certificate)}"
    found.stated.append(("price", statements.ELSEWHERE))
    _guarded(found, "model.safetensors", lambda: shapes_in(path / "model.safetensors"))
    about = _guarded(found, "model.json", lambda: ModelJson.from_bytes(read_plain(path / "model.json"), path))
    if about is not None and about.configuration_sha256 != stored.certificate.configuration_sha256:
        found.wrong.append("model.json: Expected the model of this certificate, found another's.")
    if _guarded(found, "certificate.txt", lambda: read_plain(path / "certificate.txt")) != text_of(stored.certificate):
        found.wrong.append("certificate.txt: Expected what certificate.json says, found other words.")
    found.proven.append(("words", "certificate.txt: what certificate.json says, written again to the same bytes"))
