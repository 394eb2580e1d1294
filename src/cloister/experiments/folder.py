"""A run on disk. Every file is either append-only or replaced in one atomic step, and each is tied to others:

description.json        what is executed (its hash is the run's identity, which every other file names)
config.toml             the keys from which the command line can build the run again
ledger.jsonl            what was released, charged before it was computed
checkpoint.safetensors  the newest model and server state, with the seals of ledger and metrics at that time
metrics.jsonl           a line per round, with the ledger's seal at that time
model.safetensors       the final model, by parameter name
certificate.json, .txt  what was spent, with the ledger's last seal and hashes of the model and of the text

A file that was altered, cut short, or put back to an earlier state disagrees with another one, and whoever opens the
run is told so. (A whole folder that was put back agrees with itself: against that, keep a copy of the certificate.)
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cloister.errors import CloisterError, Corrupted
from cloister.experiments.files import new_folder, read_bytes, write_atomically
from cloister.experiments.metrics import Metrics
from cloister.privacy.accounts import Account, accounts_of
from cloister.privacy.certificate import Certificate, certify
from cloister.privacy.ledger import Budget, Ledger

if TYPE_CHECKING:
    from torch import Tensor


FORMAT = 2
"""Of a run folder; goes up whenever its files are to be read in another way."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: rounds done, the model, the server's state, and the ledger's seal at that time.

    `engine` (name, chunk, machines) lets a resumed run round its sums the way it did before, or notice that it cannot;
    `data` is the fingerprint of the data, which stays in here because whatever is published must not depend on it.
    `metrics` is the seal of the last round's line.
    """

    round: int
    w: Tensor
    state: dict[str, Tensor]
    seal: str
    engine: dict[str, Any]
    data: str
    metrics: str = ""


class Verified(NamedTuple):
    """The ledger of a run whose files agree, and its certificate, computed afresh, where the run has ended."""

    ledger: Ledger
    certificate: Certificate | None


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @classmethod
    def create(
        cls,
        path: Path,
        description: Mapping[str, Any],
        budgets: Mapping[str, Budget],
        start: Checkpoint,
        config: str | None,
    ) -> RunFolder:
        """Lay a new run out: all of it, or nothing."""
        cls.expect_new(path)
        with new_folder(path) as place:
            draft = cls(place)
            ledger = Ledger.create(place / "ledger.jsonl", configuration_hash(description), budgets)
            ledger.close()
            write_atomically(place / "description.json", _json(description))
            if config is not None:
                write_atomically(place / "config.toml", config.encode())
            write_atomically(place / "metrics.jsonl", b"")
            draft.save(replace(start, seal=ledger.seal), description)
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
        if not (path / "description.json").is_file():
            raise CloisterError(f"Expected the folder of a run, found no description.json in {path}: check the name.")
        folder = cls(path)
        found = folder.description().get("format", 1)
        if found != FORMAT:
            raise CloisterError(
                f"Expected a run folder of format {FORMAT}, found format {found} in {path}: use the version of "
                "Cloister that wrote it, or run it again."
            )
        return folder

    def ledger(self, *, writable: bool = False) -> Ledger:
        """The run's ledger, verified, and refused where it belongs to another run."""
        ledger = Ledger.open(self.path / "ledger.jsonl", writable=writable)
        if ledger.subject != configuration_hash(self.description()):
            raise Corrupted(
                f"Expected the ledger in {self.path} to belong to its description.json, found another run's: "
                "restore both files."
            )
        return ledger

    def description(self) -> dict[str, Any]:
        """What is executed."""
        try:
            found = json.loads(read_bytes(self.path / "description.json"))
            if isinstance(found, dict):
                return found
        except (ValueError, RecursionError) as error:
            if isinstance(error, CloisterError):
                raise
        raise Corrupted(f"Expected a readable description.json in {self.path}, found it damaged: restore it.")

    def verified(self) -> Verified:
        """The ledger, once all files of the run were found to agree.

        A run that is under way writes its ledger first and what refers to it later. So the files are read the other
        way round: whatever one of them refers to is there by the time it is looked for.
        """
        certificate = self._stored_certificate()
        at, metrics = self.load("cpu"), self.metrics_file()
        ledger = self.ledger()
        ledger.expect_continues(at.seal)
        metrics.up_to(at.round, at.metrics)
        metrics.expect_paid(ledger)
        if certificate is None:
            return Verified(ledger, None)
        return Verified(ledger, self._expect_ended(certificate, at, metrics, ledger))

    def _stored_certificate(self) -> dict[str, Any] | None:
        if not self.finished:
            return None
        try:
            found = json.loads(read_bytes(self.path / "certificate.json"))
        except (ValueError, RecursionError) as error:
            if isinstance(error, CloisterError):
                raise
            found = None
        if isinstance(found, dict):
            return found
        raise Corrupted(f"Expected a readable certificate.json in {self.path}, found it damaged: restore it.")

    def _expect_ended(self, stored: dict[str, Any], at: Checkpoint, metrics: Metrics, ledger: Ledger) -> Certificate:
        """The certificate is that of this ledger, and model, text, metrics and checkpoint are those of its end."""
        certificate = self._certify(ledger)
        wrong = _differs(stored, plain(certificate.to_json()))
        if wrong:
            raise Corrupted(
                f"Expected the certificate in {self.path} to follow from its ledger, found another {wrong}: one of the "
                "two was altered or put back, so restore both."
            )
        files = stored.get("files")
        contents = {name: read_bytes(self.path / name) for name in ("model.safetensors", "certificate.txt")}
        for name, content in contents.items():
            known = files.get(name) if isinstance(files, dict) else None
            told = name != "certificate.txt" or stored["versions"] != certificate.versions  # else computed again
            if hashlib.sha256(content).hexdigest() != known or not (told or content == _text(certificate)):
                raise Corrupted(
                    f"Expected the {name} that the certificate in {self.path} is about, found another: restore it."
                )
        if not self._is_model_of(at, contents["model.safetensors"]):
            raise Corrupted(f"Expected the model of the last checkpoint in {self.path}, found another: restore both.")
        whole = all(read_bytes(self.path / name)[-1:] in (b"", b"\n") for name in ("ledger.jsonl", "metrics.jsonl"))
        if at.seal != ledger.seal or at.metrics != metrics.seal or not whole:
            raise Corrupted(
                f"Expected the last checkpoint, ledger and metrics of {self.path}, which has ended, found others: "
                "restore checkpoint.safetensors, ledger.jsonl and metrics.jsonl."
            )
        return certificate

    def _is_model_of(self, at: Checkpoint, content: bytes) -> bool:
        """Whether a model's file holds the parameters of a checkpoint, to the bit."""
        from cloister.params import hash_of

        tensors, _ = _tensors_and_facts(content)
        names = self.description()["model"]["shapes"]
        if sorted(tensors) != sorted(names):
            return False
        start = 0
        for name in names:
            piece = tensors[name].flatten()
            same = at.w[start : start + len(piece)]
            if len(same) != len(piece) or hash_of({"w": piece}) != hash_of({"w": same}):
                return False
            start += len(piece)
        return start == len(at.w)

    def _certify(self, ledger: Ledger) -> Certificate:
        description = self.description()
        return certify(description, configuration_hash(description), ledger)

    def certificate(self) -> Certificate:
        """The certificate, computed afresh from the description and the ledger, when all files agree."""
        ledger, certificate = self.verified()
        return certificate or self._certify(ledger)

    def accounts(self) -> dict[str, Account]:
        """What was charged to whom, when all files agree."""
        return accounts_of(self.verified().ledger)

    def save(self, checkpoint: Checkpoint, description: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        from safetensors.torch import save

        tensors = {"w": checkpoint.w.detach().cpu().contiguous()}
        tensors |= {f"server.{k}": v.detach().cpu().contiguous() for k, v in checkpoint.state.items()}
        facts = {
            "round": str(checkpoint.round),
            "ledger_seal": checkpoint.seal,
            "metrics_seal": checkpoint.metrics,
            "engine": json.dumps(checkpoint.engine),
            "data": checkpoint.data,
            "configuration": configuration_hash(description),
        }
        facts["digest"] = _digest(tensors, facts)
        write_atomically(self.path / "checkpoint.safetensors", save(tensors, facts), private=True)

    def load(self, device: Any) -> Checkpoint:
        """The newest checkpoint, verified."""
        path = self.path / "checkpoint.safetensors"
        tensors, facts = _tensors_and_facts(read_bytes(path))
        found = facts.pop("digest", None)
        if found != _digest(tensors, facts) or facts["configuration"] != configuration_hash(self.description()):
            raise Corrupted(
                f"Expected an intact checkpoint of this run at {path}, found it damaged or another run's: restore it."
            )
        state = {k.removeprefix("server."): v.to(device) for k, v in tensors.items() if k != "w"}
        w, engine = tensors["w"].to(device), json.loads(facts["engine"])
        return Checkpoint(
            int(facts["round"]), w, state, facts["ledger_seal"], engine, facts["data"], facts["metrics_seal"]
        )

    def metrics_file(self) -> Metrics:
        """The lines so far, to be read or continued."""
        return Metrics.read(self.path / "metrics.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines so far, verified."""
        return self.metrics_file().public()

    def cut_metrics(self, at: Checkpoint) -> Metrics:
        """Forget the lines of rounds after the checkpoint: they will be computed again."""
        kept = self.metrics_file().up_to(at.round, at.metrics)
        write_atomically(kept.path, kept.lines.data)
        return kept

    def finish(self, certificate: Certificate, parameters: Mapping[str, Tensor]) -> None:
        """Write the final model, then the certificate (whose presence says that the run has ended)."""
        from safetensors.torch import save

        tensors = {name: value.detach().cpu().contiguous() for name, value in parameters.items()}
        files = {"model.safetensors": save(tensors), "certificate.txt": _text(certificate)}
        for name, content in files.items():
            write_atomically(self.path / name, content)
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        write_atomically(self.path / "certificate.json", _json({**certificate.to_json(), "files": hashes}))

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return (self.path / "certificate.json").is_file()


def _text(certificate: Certificate) -> bytes:
    return (str(certificate) + "\n").encode()


def _differs(stored: Mapping[str, Any], computed: Mapping[str, Any]) -> str | None:
    """What a stored certificate says that does not follow from the ledger, if anything.

    Prices are compared as numbers, because another processor may add otherwise. Software of other versions may say
    things in other words, and have closer bounds.
    """
    same_software = stored.get("versions") == computed["versions"]
    exact = ("configuration_sha256", "ledger_seal", "rounds_charged", "releases_charged", "budget", "noise_multiplier")
    for name in (key for key in computed if key not in ("prices", "filter", "claimed")) if same_software else exact:
        if stored.get(name) != computed[name]:
            return name
    pairs = [(stored.get(name), computed[name]) for name in ("prices", "filter", "claimed")]
    return None if all(_close(one, other, 1e-6 if same_software else 1e-2) for one, other in pairs) else "prices"


def _close(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two plain values are the same, numbers up to a relative tolerance."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_close(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(lambda a, b: _close(a, b, tolerance), one, other))
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return math.isclose(one, other, rel_tol=tolerance) if numbers else bool(one == other)


def configuration_hash(description: Mapping[str, Any]) -> str:
    """The identity of a run: a hash of all that has a bearing on its result or its price, except the data."""
    return hashlib.sha256(json.dumps(plain(description), sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """A value as strict JSON has it: infinities and NaN become words."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _json(value: Any) -> bytes:
    return (json.dumps(plain(value), indent=2) + "\n").encode()


def _tensors_and_facts(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What a safetensors file holds; nothing where it is damaged.

    From bytes that were read once: a library that opens a file twice by its name may find two files, because a run that
    is under way replaces its checkpoint.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return load(data), {str(key): str(value) for key, value in header.get("__metadata__", {}).items()}
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
        return {}, {}


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    from cloister.params import hash_of

    return hash_of(tensors, json.dumps(dict(facts), sort_keys=True))
