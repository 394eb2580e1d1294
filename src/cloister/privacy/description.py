"""A run as plain values: all that has a bearing on its result or its price, and nothing of what is protected.

It is written when a run begins. Its hash is the run's identity, and a certificate follows from it and the ledger alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from typing import Any

from cloister.errors import CloisterError, Corrupted, shown
from cloister.privacy.budgets import Budget

Part = dict[str, Any]
"""The name of a part of a method, and its settings: part of a run's identity, and otherwise not read."""


@dataclass(frozen=True)
class ClaimDescription:
    """What a paper that is replicated claims its own arithmetic for: noise multiplier, sampling rate, accounts."""

    arithmetic: str
    noise_multiplier: float
    sampling_rate: float
    accounts: tuple[str, ...] = ()
    event: dict[str, Any] | None = None
    """A step of the largest client, where samples are protected."""


@dataclass(frozen=True)
class MechanismDescription:
    """Where noise is added, and how much of it in multiples of the sensitivity."""

    name: str
    place: str
    noise_multiplier: float | None
    settings: dict[str, Any]


@dataclass(frozen=True)
class MethodDescription:
    """What is run. `notes` go into the certificate."""

    name: str
    unit: str
    released: str
    notes: tuple[str, ...]
    claim: ClaimDescription | None
    local: Part
    transform: Part
    mechanism: MechanismDescription
    server: Part


@dataclass(frozen=True)
class CohortDescription:
    """Who takes part in a round; `executed` says in words how they are drawn."""

    name: str
    settings: dict[str, Any]
    executed: str


@dataclass(frozen=True)
class TaskDescription:
    """What is known of the data: of samples only where these are protected, and then how many each client has."""

    name: str
    clients: int
    preprocessing: Part
    copies: int
    """With how many clients a sample may lie."""
    public_samples: int
    prepared_by: str
    label_dependent: bool
    classes_inferred: bool
    sample_notes: tuple[str, ...]
    sizes: tuple[int, ...] | None
    loss: Part
    client_names: tuple[str, ...]
    """What clients are called, by number, where they have names: the roster is public."""


@dataclass(frozen=True)
class WeightsDescription:
    """The file that a model started from, by its name, and the hash of its bytes."""

    file: str
    sha256: str


@dataclass(frozen=True)
class ModelDescription:
    """The parameters that are trained, in the order of the flat vector, and what the model does to made-up data."""

    parameters: int
    behavior: tuple[float, ...]
    shapes: dict[str, tuple[int, ...]]
    frozen: int
    """How many parameters are not trained: public constants of the run."""
    constants_sha256: str | None
    """Of all that the model holds and does not train: frozen parameters and buffers."""
    adaptation: Part
    """What was done to the model before it was trained."""
    weights: WeightsDescription | None


@dataclass(frozen=True)
class QueryDescription:
    """A priced query beside training: what it releases, how often at most, and under which noise.

    There is one noise multiplier for all clients, or one for each where samples are protected.
    """

    name: str
    released: str
    times: int
    noise_multipliers: tuple[float, ...]


@dataclass(frozen=True)
class RunDescription:
    """What is executed."""

    method: MethodDescription
    cohort: CohortDescription
    batch_sampling: str | None
    """How clients draw batches, in words, where samples are protected by it."""
    task: TaskDescription
    model: ModelDescription
    rounds: int
    delta: float | None
    budgets: dict[str, Budget]
    noise_multipliers: tuple[float, ...]
    """Every client's, where these differ."""
    noise_schedule: bool
    """Whether noise depends on what was released before."""
    sensitivity: float
    """The most that one unit can move what noise is added to, in L2 norm."""
    assumed_sensitivity: float | None
    """What a replicated paper takes it for, and scales its noise to."""
    denominator: float
    queries: tuple[QueryDescription, ...]
    """What is asked of the data beside training, each for a share of the budget."""
    trust: str
    adjacency: str | None
    """What the price is about, where it is not what the cohort says."""
    upload_bytes: int
    seed: int
    secure_rng: bool
    dtype: str
    precision: str
    device: str
    software: dict[str, str]
    draws: int
    format: int
    selection: Part = field(default_factory=dict, metadata={"may_be_missing": True})
    """How the model that is kept is chosen, where it is not the newest: from released models and public data."""
    divided_by: str = field(default="", metadata={"may_be_missing": True})
    """What a round's sum is divided by, in words, where that is not the usual."""
    tuned: tuple[str, ...] = field(default=(), metadata={"may_be_missing": True})
    """Keys that were chosen by results on the same data, for which nothing was charged."""
    rounded_noise: bool = field(default=False, metadata={"may_be_missing": True})
    """Whether Gaussian noise is rounded to a grid where that is post-processing (`core/noise_grid.py`)."""

    def to_json(self) -> dict[str, Any]:
        """Values as strict JSON has them."""
        return {name: plain(value) for name, value in _values(self).items()}

    @classmethod
    def from_json(cls, found: Any) -> RunDescription:
        """The inverse; refuses what does not fit."""
        try:
            description: RunDescription = _read(cls, found, "a run")
        except Corrupted:
            raise
        except CloisterError as error:  # values that no run has, such as a negative budget
            raise Corrupted(f"Expected the description of a run, found a damaged one ({error}): restore it.") from error
        return description

    @cached_property
    def configuration_hash(self) -> str:
        """The identity of a run: a hash of all that has a bearing on its result or its price, except the data."""
        return json_hash(self)


def json_hash(value: Any) -> str:
    """A hash of a value's JSON."""
    return hashlib.sha256(json.dumps(plain(value), sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """A value as strict JSON has it: infinities and NaN become words."""
    if is_dataclass(value):
        value = _values(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _values(value: Any) -> dict[str, Any]:
    """By name; what may be missing is left out where it is empty, so that runs without it have the identity, and the
    noise, that they have always had."""
    found = {one.name: getattr(value, one.name) for one in fields(value)}
    empty = {one.name for one in fields(value) if one.metadata.get("may_be_missing") and not found[one.name]}
    return {name: one for name, one in found.items() if name not in empty}


def _read(kind: Any, found: Any, name: str) -> Any:
    """What JSON has, as a value of this type. A number stays as it was written, or its hash would be another."""
    outer, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return found
    if outer is types.UnionType:  # something, or None
        return None if found is None else _read(inner[0], found, name)
    named = _fields(kind)
    if named and isinstance(found, dict) and named.keys() - _missing(kind) <= found.keys() <= named.keys():
        return kind(**{one: _read(named[one], value, f"{one} of {name}") for one, value in found.items()})
    if outer is tuple and isinstance(found, list):
        return tuple(_read(inner[0], one, name) for one in found)
    if outer is dict and isinstance(found, dict):
        return {key: _read(inner[1], one, name) for key, one in found.items()}
    if kind is float and found in ("inf", "-inf", "nan"):
        return float(found)
    number = type(found) is int and abs(found) < 2**63
    if number if kind is int else type(found) is kind or (kind is float and number):
        return found
    wanted = f"have {', '.join(named)}" if named else f"be of type {getattr(kind, '__name__', kind)}"
    raise Corrupted(f"Expected the description of {name} to {wanted}, found {shown(found)}: restore description.json.")


def _missing(kind: Any) -> set[str]:
    """The fields of a dataclass that may be missing."""
    return {one.name for one in fields(kind) if one.metadata.get("may_be_missing")}


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """The fields of a dataclass with their types; none of anything else."""
    return typing.get_type_hints(kind) if is_dataclass(kind) else {}
