"""Ten methods on a toy task, and what a run of each has to come to, however it was interrupted."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import cloister as cl
from cloister.errors import RepeatedRounds
from cloister.privacy.ledger import Ledger
from cloister.runs import training
from cloister.runs.folder import RunFolder
from conftest import toy_task
from contract.catalogue import ENTRIES

ROUNDS = 3
COHORTS = {"poisson": cl.poisson(0.6), "full": cl.full(), "cyclic": cl.cyclic(3), "fixed_size": cl.fixed_size(3)}
# Clients are protected in the first five, samples in the others; central, shared, discrete and correlated noise,
# states of servers, transforms and clients, secure sums, cohorts of every kind.
METHODS = {
    "dp_fedavg": "poisson",
    "dp_fedavg distributed": "full",
    "ddgauss": "poisson",
    "adaptive_clipping": "poisson",
    "dp_ftrl": "cyclic",
    "pfl": "full",
    "fed_spa": "fixed_size",
    "adap_dp_fl": "full",
    "pfl sum discrete": "full",
    "cpsgd": "full",
}
SECURE = " secure"
"""After a method's name: with the system's randomness, so that what is repeated is a release of its own."""
NAMES = (*METHODS, *(f"{name}{SECURE}" for name in ("dp_fedavg", "pfl")))


@dataclass
class Releases:
    """What left rounds, as whoever looks on sees it: (round, how often)."""

    seen: Counter[int] = field(default_factory=Counter)


@contextmanager
def watched(releases: Releases, tell: Callable[[int], None] = lambda number: None) -> Iterator[None]:
    """Note every round that comes to an end in here: then its model may have been looked at."""
    real = training.run_round

    def noting(fed: Any, ledger: Any, engine: Any, number: int, *rest: Any) -> Any:
        outcome = real(fed, ledger, engine, number, *rest)
        releases.seen[number] += 1
        tell(number)
        return outcome

    training.run_round = noting  # type: Any
    try:
        yield
    finally:
        training.run_round = real


@cache
def _task() -> cl.data.Task:
    return toy_task()


def go(name: str, folder: Path, resume: bool = False, **more: Any) -> cl.Run:
    """A run of one of the methods, or the rest of it."""
    method = name.removesuffix(SECURE)
    entry = ENTRIES[method]
    settings: dict[str, Any] = {"epsilon": 50.0} if method == "adap_dp_fl" else {}
    own = {key: value for key, value in entry.settings.items() if not settings or key != "noise_multiplier"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepeatedRounds)
        return cl.run(
            entry.make(**own),
            _task(),
            rounds=ROUNDS,
            cohort=COHORTS[METHODS[method]],
            delta=1e-3,
            folder=folder,
            resume=resume,
            engine="loop",
            evaluate_every=ROUNDS,
            checkpoint_every=2,
            secure_rng=name.endswith(SECURE),
            progress=False,
            **{"allow_large_delta": True, **settings, **more},
        )


@dataclass(frozen=True)
class Ended:
    """What a run came to: everything of it that must not depend on how often it was interrupted."""

    model: dict[str, bytes]
    ledger: bytes
    certificate: str
    epsilon: float

    @classmethod
    def of(cls, folder: Path) -> Ended:
        """From its folder, all of whose files were found to agree."""
        certificate = RunFolder.open(folder).certificate()
        tensors = load_file(folder / "model.safetensors")
        bits = {name: value.contiguous().numpy().tobytes() for name, value in tensors.items()}
        told = json.loads((folder / "certificate.json").read_text())
        return cls(bits, (folder / "ledger.jsonl").read_bytes(), json.dumps(told), certificate.epsilon)


@cache
def reference(name: str, base: Path) -> Ended:
    """What the run comes to when nothing happens to it."""
    folder = base / "undisturbed" / name.replace(" ", "-")
    go(name, folder)
    return Ended.of(folder)


def wrong_end(name: str, folder: Path, base: Path, releases: Releases) -> list[str]:
    """What is wrong with a run that was interrupted and has ended, in words."""
    expected, found = reference(name, base), Ended.of(folder)
    if name.endswith(SECURE):
        return uncounted(name, folder, releases) + (
            ["certified for less than the undisturbed run"] if found.epsilon < expected.epsilon - 1e-9 else []
        )
    differ = [part for part in ("model", "ledger", "certificate") if getattr(found, part) != getattr(expected, part)]
    return [f"{part} of the resumed run is not that of the undisturbed one" for part in differ]


def uncounted(name: str, folder: Path, releases: Releases) -> list[str]:
    """Rounds that were released and that the ledger in a folder does not show as often as it must, in words."""
    ledger = Ledger.open(folder / "ledger.jsonl", writable=False)
    lines = {(entry.round, tuple_of) for entry in ledger.entries for tuple_of in [entry.unit]}
    shown: Counter[int] = Counter()
    if name.endswith(SECURE):  # every account that took part has a line for each time; the least of them counts
        for number in releases.seen:
            per_unit = Counter(entry.unit for entry in ledger.entries if entry.round == number)
            shown[number] = max(per_unit.values(), default=0)
    else:
        shown = Counter({number: 1 for number, _ in lines})
    needed = {number: times if name.endswith(SECURE) else 1 for number, times in releases.seen.items()}
    return [
        f"round {number} was released {times} times and charged {shown[number]} times"
        for number, times in needed.items()
        if shown[number] < times
    ]
