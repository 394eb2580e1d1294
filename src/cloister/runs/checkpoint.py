"""Where a run stands, in one file that is replaced in one step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloister.errors import Corrupted
from cloister.privacy.description import plain
from cloister.runs.files import read_bytes, write_atomically
from cloister.runs.selection import Kept
from cloister.runs.tensor_file import StoredTensor, hash_of_stored, read_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from cloister.core import MethodState, Tensors


@dataclass(frozen=True)
class Stop:
    """Why a run ended before its last round, and who decided it: the validation, or a callback."""

    reason: str
    by: Literal["validation", "callback"]

    @property
    def gap(self) -> tuple[str, ...]:
        """What the certificate has to say about it, beside that it is for all planned rounds."""
        if self.by == "validation":
            return ()
        return (
            "a callback ended the run: where it looked at what is not private (test results, cohort sizes), the "
            "number of rounds is a release that was not charged",
        )


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: rounds done, the model, the server's state, and the ledger's hash at that time.

    `engine` (name, chunk, machines) lets a resumed run round its sums the way it did before, or notice that it cannot;
    `data` is the fingerprint of the data, which stays in here because whatever is published must not depend on it.
    `metrics` is the hash of the last round's line. `kept` is what the choice of the model that is kept remembers, and
    `stop` is there once a run is to end early. `scores` are those of the final model on the test set, once the run has
    ended: they stay in here because nothing protects the samples that it was tested on.
    """

    round: int
    w: Tensor
    state: MethodState
    hash: str
    engine: dict[str, Any]
    data: str
    metrics: str = ""
    released: Tensors = field(default_factory=dict)
    """What queries beside training have released so far."""
    kept: Kept = field(default_factory=Kept)
    stop: Stop | None = None
    scores: dict[str, Any] | None = None
    recorded: tuple[str, ...] = ()
    """What is measured beside the run (`recorded.py`): not part of its identity, for it changes nothing."""

    @property
    def newest(self) -> Tensor:
        """The model that is evaluated: the newest, or the average up to it."""
        return self.w if self.kept.average is None else self.kept.average

    @property
    def gaps(self) -> tuple[str, ...]:
        """What happened on the way and is not covered."""
        return () if self.stop is None else self.stop.gap

    @property
    def result(self) -> Tensor:
        """The model that the run is for."""
        return self.newest if self.kept.best is None else self.kept.best


def write(path: Path, checkpoint: Checkpoint, configuration: str) -> None:
    """Replace the checkpoint of the run with this identity."""
    from safetensors.torch import save

    from cloister.core.hashing import hash_of
    from cloister.core.state import flatten

    kept, stop = checkpoint.kept, checkpoint.stop
    models = {"w": checkpoint.w, "average": kept.average, "best": kept.best}
    named = {name: model.clone() for name, model in models.items() if model is not None}  # one may be two of them
    named |= flatten({"state": vars(checkpoint.state), "released": checkpoint.released})
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
    facts = {
        "round": str(checkpoint.round),
        "ledger_hash": checkpoint.hash,
        "metrics_hash": checkpoint.metrics,
        "engine": json.dumps(checkpoint.engine),
        "data": checkpoint.data,
        "configuration": configuration,
        "kept": json.dumps([kept.value, kept.round, kept.waited]),
        "stop": json.dumps(None if stop is None else asdict(stop)),
        "scores": json.dumps(plain(checkpoint.scores)),
        "recorded": json.dumps(checkpoint.recorded),
    }
    facts["digest"] = hash_of(tensors, _text(facts))
    write_atomically(path, save(tensors, facts), private=True)


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint as its file holds it, verified. What the words of it say needs no torch."""

    tensors: Mapping[str, StoredTensor]
    facts: Mapping[str, str]

    @property
    def round(self) -> int:
        """Rounds done."""
        return int(self.facts["round"])

    @property
    def hash(self) -> str:
        """The ledger's at that time."""
        return self.facts["ledger_hash"]

    @property
    def metrics(self) -> str:
        """The hash of the last round's line."""
        return self.facts["metrics_hash"]

    @property
    def stop(self) -> Stop | None:
        """Why the run is to end early, where it is."""
        found = json.loads(self.facts["stop"])
        return None if found is None else Stop(**found)

    @property
    def gaps(self) -> tuple[str, ...]:
        """What happened on the way and is not covered."""
        return () if self.stop is None else self.stop.gap

    @property
    def scores(self) -> dict[str, Any] | None:
        """Those of the final model on the test set."""
        found: dict[str, Any] | None = json.loads(self.facts["scores"])
        return found

    @property
    def recorded(self) -> tuple[str, ...]:
        """What is measured beside the run."""
        return tuple(json.loads(self.facts.get("recorded", "[]")))

    @property
    def best_round(self) -> int | None:
        """The round whose model did best in validation, where that is the one that is kept."""
        return int(json.loads(self.facts["kept"])[1]) if "best" in self.tensors else None

    @property
    def result(self) -> StoredTensor:
        """The model that the run is for."""
        return next(self.tensors[name] for name in ("best", "average", "w") if name in self.tensors)

    def to(self, device: Any) -> Checkpoint:
        """With its tensors on a device."""
        from cloister.core.state import MethodState, unflatten

        found = unflatten({name: stored.tensor().to(device) for name, stored in self.tensors.items()})
        return Checkpoint(
            round=self.round,
            w=found["w"],
            state=MethodState(**found.get("state", {})),
            hash=self.hash,
            engine=json.loads(self.facts["engine"]),
            data=self.facts["data"],
            metrics=self.metrics,
            released=found.get("released", {}),
            kept=Kept(found.get("average"), found.get("best"), *json.loads(self.facts["kept"])),
            stop=self.stop,
            scores=self.scores,
            recorded=self.recorded,
        )


def read(path: Path, configuration: str) -> StoredCheckpoint:
    """The newest checkpoint, verified to be whole and of the run with this identity."""
    tensors, facts = read_tensors(read_bytes(path))
    digest = facts.pop("digest", None)
    if digest != hash_of_stored(tensors, _text(facts)) or facts["configuration"] != configuration:
        raise Corrupted(
            f"Expected an intact checkpoint of this run at {path}, found it damaged or another run's: restore it."
        )
    return StoredCheckpoint(tensors, facts)


def _text(facts: Mapping[str, str]) -> str:
    return json.dumps(dict(facts), sort_keys=True)
