"""Where a run stands, in one file that is replaced in one step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import Corrupted
from cloister.privacy.description import plain
from cloister.runs.files import read_bytes, write_atomically

if TYPE_CHECKING:
    from torch import Tensor

    from cloister.core import MethodState


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: rounds done, the model, the server's state, and the ledger's hash at that time.

    `engine` (name, chunk, machines) lets a resumed run round its sums the way it did before, or notice that it cannot;
    `data` is the fingerprint of the data, which stays in here because whatever is published must not depend on it.
    `metrics` is the hash of the last round's line. `scores` are those of the final model on the test set, once the run
    has ended: they stay in here because nothing protects the samples that it was tested on.
    """

    round: int
    w: Tensor
    state: MethodState
    hash: str
    engine: dict[str, Any]
    data: str
    metrics: str = ""
    scores: dict[str, Any] | None = None


def write(path: Path, checkpoint: Checkpoint, configuration: str) -> None:
    """Replace the checkpoint of the run with this identity."""
    from safetensors.torch import save

    from cloister.core.state import flatten

    tensors = {"w": checkpoint.w.detach().cpu().contiguous()}
    kept = flatten({"state": vars(checkpoint.state)})
    tensors |= {name: tensor.detach().cpu().contiguous() for name, tensor in kept.items()}
    facts = {
        "round": str(checkpoint.round),
        "ledger_hash": checkpoint.hash,
        "metrics_hash": checkpoint.metrics,
        "engine": json.dumps(checkpoint.engine),
        "data": checkpoint.data,
        "configuration": configuration,
        "scores": json.dumps(plain(checkpoint.scores)),
    }
    facts["digest"] = _digest(tensors, facts)
    write_atomically(path, save(tensors, facts), private=True)


def read(path: Path, device: Any, configuration: str) -> Checkpoint:
    """The newest checkpoint, verified to be whole and of the run with this identity."""
    tensors, facts = tensors_and_facts(read_bytes(path))
    found = facts.pop("digest", None)
    if found != _digest(tensors, facts) or facts["configuration"] != configuration:
        raise Corrupted(
            f"Expected an intact checkpoint of this run at {path}, found it damaged or another run's: restore it."
        )
    from cloister.core.state import MethodState, unflatten

    kept = unflatten({name: tensor.to(device) for name, tensor in tensors.items() if name != "w"})
    state = MethodState(**kept.get("state", {}))
    return Checkpoint(
        round=int(facts["round"]),
        w=tensors["w"].to(device),
        state=state,
        hash=facts["ledger_hash"],
        engine=json.loads(facts["engine"]),
        data=facts["data"],
        metrics=facts["metrics_hash"],
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
