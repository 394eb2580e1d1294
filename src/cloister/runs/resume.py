"""What a resumed run repeats to the bit, and what it releases, and pays for, anew."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cloister import engine as engines
from cloister.errors import CloisterError, Corrupted, RepeatedRounds
from cloister.privacy.description import json_hash
from cloister.privacy.ledger import Ledger
from cloister.random.streams import Streams
from cloister.round import Engine
from cloister.runs.checkpoint import Checkpoint
from cloister.runs.folder import RunFolder
from cloister.runs.prepare import Ready


def expect_same(old: RunFolder, ready: Ready) -> None:
    """Refuse to go on with other settings than those with which a run was started."""
    before, now = old.description(), ready.description
    if before.configuration_hash != now.configuration_hash:
        was, found = before.to_json(), now.to_json()
        names = dict.fromkeys([*found, *was])
        changed = ", ".join(name for name in names if json_hash(found.get(name)) != json_hash(was.get(name)))
        raise Corrupted(
            f"Expected the settings and data with which {old.path} was started, found that {changed} changed: "
            "resume with the same, or start a new run."
        )


def expect_same_data(old: RunFolder, at: Checkpoint, ready: Ready) -> None:
    """Refuse to go on with other data."""
    if at.data != ready.fingerprint:
        raise Corrupted(
            f"Expected the data with which {old.path} was started, found that the task's data changed: "
            "resume with the same, or start a new run."
        )


def expect_same_record(old: RunFolder, at: Checkpoint, record: Sequence[str]) -> None:
    """Refuse to measure something else from now on: a file of measurements has every round, or none."""
    if set(at.recorded) != set(record):
        was, found = (", ".join(names) or "nothing" for names in (at.recorded, record))
        raise CloisterError(
            f"Expected record = {was}, as {old.path} was started, found {found}: resume with the same, or start a new "
            "run."
        )


def engine_facts(ready: Ready, engine: Engine, machines: list[engines.Arithmetic]) -> dict[str, Any]:
    """What decides which bits a round comes to, as a checkpoint remembers it."""
    streams = ready.fed.streams
    renewed = not streams.repeatable
    return {**engines.describe(engine), "machines": machines, "renewed": renewed, "noise": streams.run}


def with_streams(ready: Ready, streams: Streams) -> Ready:
    """The same run with other random numbers."""
    return replace(ready, fed=replace(ready.fed, streams=streams))


def renewed(streams: Streams, ledger: Ledger) -> Streams:
    """Other noise than any that the run has had, under which nothing counts as repeatable any more."""
    return replace(streams, run=f"{streams.run}/{len(ledger.entries)}", repeatable=False)


def continued(
    ready: Ready, at: Checkpoint, engine: Engine, machines: list[engines.Arithmetic], ledger: Ledger
) -> tuple[Ready, tuple[int, ...]]:
    """A resumed run with its noise: what it has had, or new where rounds that were charged would have other bits.

    Two releases with the same noise that are rounded differently would show by their difference what was rounded, which
    nothing protects. So rounds after the checkpoint that were charged are then new releases: cohorts and noise are
    drawn anew, and paid for. Which these are is returned, too.
    """
    asked = ready.asks_first and not at.released  # before the first round, and perhaps charged
    charged = charged_from(0 if asked else at.round + 1, ledger)
    streams = replace(ready.fed.streams, run=str(at.engine["noise"]))  # whatever the model that it was resumed with
    same = engines.same_bits(at.engine, engine, machines)
    if not same and (charged or at.engine["renewed"]):
        streams = renewed(streams, ledger)
    again = () if streams.repeatable and not streams.secure else charged
    return with_streams(ready, streams), again


def charged_from(number: int, ledger: Ledger) -> tuple[int, ...]:
    """Which rounds from this one on were charged."""
    return tuple(sorted({entry.round for entry in ledger.entries if entry.round >= number}))


def why_not_repeated(streams: Streams) -> str:
    """Why rounds that were charged are not computed again to the bit."""
    if streams.secure:
        return "secure randomness cannot be drawn again"
    return (
        "this process would not compute the same bits (another machine, another number of threads or processes, a GPU, "
        "or noise that was renewed before)"
    )


def warn_of_repeated(rounds: tuple[int, ...], why: str) -> None:
    """Rounds that are paid for twice are never so without a word."""
    if not rounds:
        return
    first, last = rounds[0], rounds[-1]
    warnings.warn(
        f"Expected to repeat {f'round {first}' if first == last else f'rounds {first} to {last}'}, charged before the "
        f"run was interrupted, to the bit, found that {why}: what is computed again has new noise, and is charged.",
        RepeatedRounds,
        stacklevel=6,  # whoever called run
    )
