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
    }
    facts["digest"] = _digest(tensors, facts)
    write_atomically(path, save(tensors, facts), private=True)


def read(path: Path, device: Any, configuration: str) -> Checkpoint:
    """The newest checkpoint, verified to be whole and of the run with this identity."""
    tensors, facts = tensors_and_facts(read_bytes(path))
    digest = facts.pop("digest", None)
    if digest != _digest(tensors, facts) or facts["configuration"] != configuration:
        raise Corrupted(
            f"Expected an intact checkpoint of this run at {path}, found it damaged or another run's: restore it."
        )
    from cloister.core.state import MethodState, unflatten

    found = unflatten({name: tensor.to(device) for name, tensor in tensors.items()})
    stop = json.loads(facts["stop"])
    return Checkpoint(
        round=int(facts["round"]),
        w=found["w"],
        state=MethodState(**found.get("state", {})),
        hash=facts["ledger_hash"],
        engine=json.loads(facts["engine"]),
        data=facts["data"],
        metrics=facts["metrics_hash"],
        released=found.get("released", {}),
        kept=Kept(found.get("average"), found.get("best"), *json.loads(facts["kept"])),
        stop=None if stop is None else Stop(**stop),
        scores=json.loads(facts["scores"]),
    )


def tensors_and_facts(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
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
    from cloister.core.hashing import hash_of

    return hash_of(tensors, json.dumps(dict(facts), sort_keys=True))
