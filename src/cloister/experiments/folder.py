"""A run on disk. Every file is either append-only or replaced in one atomic step.

description.json        what is executed (its hash is the run's identity)
config.toml             the keys from which the command line can build the run again
ledger.jsonl            what was released, charged before it was computed
checkpoint.safetensors  the newest model and server state, with the ledger's seal at that time
metrics.jsonl           a line per round
model.safetensors       the final model, by parameter name
certificate.json, .txt  what was spent
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import CloisterError, Corrupted
from cloister.privacy.accounts import Account, accounts_of
from cloister.privacy.certificate import Certificate, certify
from cloister.privacy.ledger import Budget, Ledger

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: rounds done, the model, the server's state, and the ledger's seal at that time.

    `engine` (name and chunk) lets a resumed run round its sums the way it did before; `data` is the
    fingerprint of the data, which stays in here because whatever is published must not depend on it.
    """

    round: int
    w: Tensor
    state: dict[str, Tensor]
    seal: str
    engine: dict[str, int | str]
    data: str


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
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = cls(path.with_name(f".{path.name}.{os.getpid()}"))
        try:
            draft.path.mkdir()
            ledger = Ledger.create(draft.path / "ledger.jsonl", configuration_hash(description), budgets)
            ledger.close()
            write_atomically(draft.path / "description.json", _json(description))
            if config is not None:
                write_atomically(draft.path / "config.toml", config.encode())
            write_atomically(draft.path / "metrics.jsonl", b"")
            draft.save(replace(start, seal=ledger.seal), description)
            os.rename(draft.path, path)
        except BaseException:
            shutil.rmtree(draft.path, ignore_errors=True)
            raise
        _sync_folder(path.parent)
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
        """An existing run."""
        if not (path / "description.json").is_file():
            raise CloisterError(f"Expected the folder of a run, found no description.json in {path}: check the name.")
        return cls(path)

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
            found = json.loads((self.path / "description.json").read_text())
            if isinstance(found, dict):
                return found
        except (ValueError, OSError):
            pass
        raise Corrupted(f"Expected a readable description.json in {self.path}, found it damaged: restore it.")

    def certificate(self) -> Certificate:
        """The certificate, computed afresh from the description and the ledger (which must be whole)."""
        description, ledger = self.description(), self.ledger()
        ledger.expect_continues(self.load("cpu").seal)
        return certify(description, configuration_hash(description), ledger)

    def accounts(self) -> dict[str, Account]:
        """What was charged to whom (the ledger must be whole)."""
        ledger = self.ledger()
        ledger.expect_continues(self.load("cpu").seal)
        return accounts_of(ledger)

    def save(self, checkpoint: Checkpoint, description: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        from safetensors.torch import save

        tensors = {"w": checkpoint.w.detach().cpu().contiguous()}
        tensors |= {f"server.{k}": v.detach().cpu().contiguous() for k, v in checkpoint.state.items()}
        facts = {
            "round": str(checkpoint.round),
            "ledger_seal": checkpoint.seal,
            "engine": json.dumps(checkpoint.engine),
            "data": checkpoint.data,
            "configuration": configuration_hash(description),
        }
        facts["digest"] = _digest(tensors, facts)
        write_atomically(self.path / "checkpoint.safetensors", save(tensors, facts), private=True)

    def load(self, device: Any) -> Checkpoint:
        """The newest checkpoint, verified."""
        from safetensors import SafetensorError, safe_open

        path = self.path / "checkpoint.safetensors"
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                facts = dict(file.metadata() or {})
                names: list[str] = list(file.keys())
                tensors = {name: file.get_tensor(name) for name in names}
            found = facts.pop("digest", None)
            intact = found == _digest(tensors, facts)
        except (SafetensorError, OSError, ValueError):
            intact = False
        if not intact or facts.get("configuration") != configuration_hash(self.description()):
            raise Corrupted(
                f"Expected an intact checkpoint of this run at {path}, found it damaged or another run's: restore it."
            )
        state = {k.removeprefix("server."): v.to(device) for k, v in tensors.items() if k != "w"}
        w, engine = tensors["w"].to(device), json.loads(facts["engine"])
        return Checkpoint(int(facts["round"]), w, state, facts["ledger_seal"], engine, facts["data"])

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """One round's line; a line of the same round from before a crash is dropped on resume."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(plain(line)) + "\n")

    def metrics(self, up_to: float = math.inf) -> list[dict[str, Any]]:
        """The lines so far; a torn last one is not a line."""
        whole = (self.path / "metrics.jsonl").read_text().rpartition("\n")[0]
        lines = [json.loads(line) for line in whole.split("\n") if line]
        return [line for line in lines if line["round"] <= up_to]

    def cut_metrics(self, up_to: int) -> list[dict[str, Any]]:
        """Forget the lines of rounds after the checkpoint: they will be computed again."""
        kept = self.metrics(up_to)
        write_atomically(self.path / "metrics.jsonl", "".join(json.dumps(m) + "\n" for m in kept).encode())
        return kept

    def finish(self, certificate: Certificate, parameters: Mapping[str, Tensor]) -> None:
        """Write the final model, then the certificate (whose presence says that the run has ended)."""
        from safetensors.torch import save

        tensors = {name: value.detach().cpu().contiguous() for name, value in parameters.items()}
        write_atomically(self.path / "model.safetensors", save(tensors))
        write_atomically(self.path / "certificate.txt", (str(certificate) + "\n").encode())
        write_atomically(self.path / "certificate.json", _json(certificate.to_json()))

    @property
    def finished(self) -> bool:
        """Whether the run has ended."""
        return (self.path / "certificate.json").is_file()


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


def write_atomically(path: Path, data: bytes, private: bool = False) -> None:
    """The file has either its old content or the new one, whenever the power fails; `private`: for its owner alone."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _json(value: Any) -> bytes:
    return (json.dumps(plain(value), indent=2) + "\n").encode()


def _digest(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    from cloister.params import hash_of

    return hash_of(tensors, json.dumps(dict(facts), sort_keys=True))
