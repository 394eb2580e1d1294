"""A run on disk. Every file is either append-only or replaced in one atomic step, and each is tied to others:

description.json        what is executed (its hash is the run's identity, which every other file names)
config.toml             the keys from which the command line can build the run again
ledger.jsonl            what was released, charged before it was computed
checkpoint.safetensors  the newest model and server state, with the hashes of ledger and metrics at that time
metrics.jsonl           a line per round, with the ledger's hash at that time
model.safetensors       the final model: parameters and buffers, by name
model.json              how the model is made and used (`model_file.py`)
clients.json            exact scores client by client, which are not private; nothing refers to it
measurements.jsonl      what `record` asked for, a line per round, most of it not private; nothing refers to it
landscape.json, .png    what `cloister landscape` found around the final model; nothing refers to them
certificate.json, .txt  what was spent, with hashes of the model's two files, description, ledger and text

A file that was altered, cut short, or put back to an earlier state disagrees with another one, and whoever opens the
run is told so. (A whole folder that was put back agrees with itself: against that, keep a copy of the certificate.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloister.errors import CloisterError, Corrupted
from cloister.privacy.accounts import Account, accounts_of
from cloister.privacy.certificate import Certificate
from cloister.privacy.description import RunDescription
from cloister.privacy.ledger import Ledger
from cloister.runs import checkpoint as checkpoints
from cloister.runs.certificate_file import Circumstances, certificate_bytes, certificate_values, read_certificate
from cloister.runs.checkpoint import Checkpoint, StoredCheckpoint
from cloister.runs.files import new_folder, read_bytes, read_json, write_atomically, write_json
from cloister.runs.measurement_file import MeasurementFile
from cloister.runs.metrics import Metrics
from cloister.runs.verification import circumstances_at, expect_ended, text_of

if TYPE_CHECKING:
    from torch import Tensor


FORMAT = 5
"""Of a run folder; goes up whenever its files are to be read in another way."""


class Verified(NamedTuple):
    """The files of a run that agree, and its certificate, computed afresh, where the run has ended."""

    ledger: Ledger
    at: StoredCheckpoint
    metrics: Metrics
    certificate: Certificate | None


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @classmethod
    def create(
        cls,
        path: Path,
        description: RunDescription,
        start: Checkpoint,
        config: str | None,
    ) -> RunFolder:
        """Lay a new run out: all of it, or nothing."""
        cls.expect_new(path)
        with new_folder(path) as place:
            draft = cls(place)
            ledger = Ledger.create(place / "ledger.jsonl", description.configuration_hash, description.budgets)
            ledger.close()
            write_json(place / "description.json", description)
            if config is not None:
                write_atomically(place / "config.toml", config.encode())
            write_atomically(place / "metrics.jsonl", b"")
            if start.recorded:
                MeasurementFile.create(place, start.recorded)
            draft.save(replace(start, hash=ledger.hash), description)
        return cls(path)

    @staticmethod
    def expect_new(path: Path) -> None:
        """Refuse a folder that exists, whatever is in it."""
        if path.is_symlink() or path.exists():
            what = "" if path.is_dir() else " and is no folder"
            run = (path / "description.json").is_file()
            remedy = f"choose another, or continue it with `cloister resume {path}`" if run else "choose another"
            raise CloisterError(f"Expected a new folder, found that {path} exists{what}: {remedy}.")

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run, laid out as this version does."""
        inside = next(path.glob("*/description.json"), None) if path.is_dir() else None
        if inside is not None and not (path / "description.json").is_file():
            raise CloisterError(
                f"Expected the folder of one run, found several in {path}: name one, such as {inside.parent}, or show "
                f"all of them with `cloister report {path}`."
            )
        if not path.exists():
            raise CloisterError(
                f"Expected the folder of a run, found no folder {path}: check the name; a run interrupted before its "
                "first round has none, and is started again with `cloister run`."
            )
        if not (path / "description.json").is_file():
            raise CloisterError(f"Expected the folder of a run, found no description.json in {path}: check the name.")
        if is_publication(path):
            raise CloisterError(
                f"Expected the folder of a run, found files that were published of one in {path}: `cloister verify "
                f"{path}` checks them, and `cloister certificate {path}` shows their certificate."
            )
        found = read_json(path / "description.json").get("format", 1)
        if found != FORMAT:
            raise CloisterError(
                f"Expected a run folder of format {FORMAT}, found format {found} in {path}: use the version of "
                "Cloister that wrote it, or run it again."
            )
        return cls(path)

    def ledger(self, *, writable: bool = False) -> Ledger:
        """The run's ledger, verified, and refused where it belongs to another run."""
        ledger = Ledger.open(self.path / "ledger.jsonl", writable=writable)
        if ledger.subject != self.description().configuration_hash:
            raise Corrupted(
                f"Expected the ledger in {self.path} to belong to its description.json, found another run's: "
                "restore both files."
            )
        return ledger

    def description(self) -> RunDescription:
        """What is executed."""
        return RunDescription.from_json(read_json(self.path / "description.json"))

    def verified(self, ledger: Ledger | None = None) -> Verified:
        """What the run consists of, once all its files were found to agree. A ledger that is open is taken as it is.

        A run that is under way writes its ledger first and what refers to it later. So the files are read the other
        way round: whatever one of them refers to is there by the time it is looked for.
        """
        stored = read_certificate(read_bytes(self.path / "certificate.json"), self.path) if self.finished else None
        at, metrics = self.checkpoint(), self.metrics_file()
        ledger = ledger or self.ledger()
        ledger.expect_continues(at.hash)
        metrics.up_to(at.round, at.metrics)
        metrics.expect_paid(ledger)
        if stored is None:
            return Verified(ledger, at, metrics, None)
        description = self.description()
        certificate = _certified(description, ledger, at)
        expect_ended(self.path, stored, certificate, description, at, metrics, ledger)
        return Verified(ledger, at, metrics, certificate)

    def certificate(self) -> Certificate:
        """The certificate, computed afresh from the description and the ledger, when all files agree."""
        found = self.verified()
        return found.certificate or _certified(self.description(), found.ledger, found.at)

    def accounts(self) -> dict[str, Account]:
        """What was charged to whom, when all files agree."""
        return accounts_of(self.verified().ledger)

    def save(self, checkpoint: Checkpoint, description: RunDescription) -> None:
        """Replace the checkpoint."""
        checkpoints.write(self.path / "checkpoint.safetensors", checkpoint, description.configuration_hash)

    def checkpoint(self) -> StoredCheckpoint:
        """The newest checkpoint, verified."""
        return checkpoints.read(self.path / "checkpoint.safetensors", self.description().configuration_hash)

    def load(self, device: Any) -> Checkpoint:
        """The same, with its tensors on a device."""
        return self.checkpoint().to(device)

    def metrics_file(self) -> Metrics:
        """The lines so far, to be read or continued."""
        return Metrics.read(self.path / "metrics.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines so far, verified.

        A run that its budget ends after a line was written has tested its model all the same: the checkpoint has the
        scores, and the last line has them here.
        """
        lines = self.metrics_file().public()
        if lines and "loss" not in lines[-1] and self.finished:
            at = self.checkpoint()
            if at.best_round in (None, lines[-1]["round"]):
                lines[-1] |= at.scores or {}
        return lines

    def finish(
        self,
        certificate: Certificate,
        tensors: Mapping[str, Tensor],
        about: bytes,
        circumstances: Circumstances | None = None,
    ) -> None:
        """Write the final model, then the certificate (whose presence says that the run has ended).

        `tensors` are all that the model consists of, what was not trained included; `about` is its model.json.
        """
        from safetensors.torch import save

        kept = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
        files = {"model.safetensors": save(kept), "model.json": about, "certificate.txt": text_of(certificate)}
        for name, content in files.items():
            write_atomically(self.path / name, content)
        for name in ("description.json", "ledger.jsonl"):  # the model of a federation has none beside it
            if (self.path / name).is_file():
                files[name] = read_bytes(self.path / name)
        values = certificate_values(certificate, files, circumstances)
        write_atomically(self.path / "certificate.json", certificate_bytes(values))

    @property
    def finished(self) -> bool:
        """Whether the run has ended. (Where there is something that is no file, it cannot be read, and is refused.)"""
        return (self.path / "certificate.json").exists()


def is_publication(path: Path) -> bool:
    """Whether a folder has what was published of a run: its certificate, and nothing of what stays with its owner."""
    names = ("checkpoint.safetensors", "metrics.jsonl", "config.toml")
    return (path / "certificate.json").is_file() and not any((path / name).exists() for name in names)


def _certified(description: RunDescription, ledger: Ledger, at: StoredCheckpoint) -> Certificate:
    """With what the checkpoint knows of the gaps."""
    return circumstances_at(at).certify(description, ledger)
