"""Tampered run folders: whatever was done to their files, no traceback, no smaller epsilon, no code executed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloister as cl
from cloister.errors import CloisterError
from cloister.privacy.ledger_file import hashed
from cloister.runs import training
from cloister.runs.folder import RunFolder
from conftest import look_whole
from torture.campaign import Campaign, Case, Tally
from torture.damage import changed, hostile, with_other_values
from torture.outcomes import Unexpected, of_command, of_library
from torture.tiny_runs import ROUNDS, go

NAMES = ("dp_fedavg", "pfl", "dp_ftrl", "ddgauss")


@dataclass(frozen=True)
class Base:
    """The folder of a run, ended or not, with what it has truly spent, and as it was after every round."""

    name: str
    path: Path
    ended: bool
    spent: float
    """Epsilon of all that was reported: of a round that nothing but the ledger knows, nobody has heard."""
    whole: float
    """Epsilon of all its rounds."""
    before: tuple[Path, ...]
    other: Path
    """The same files of a run with another seed."""


class _Stopped(BaseException):
    pass


def bases(folder: Path) -> list[Base]:
    """The runs that are tampered with."""
    return [base for name in NAMES for base in (_base(folder, name, True), _base(folder, name, False))]


def _base(folder: Path, name: str, ended: bool) -> Base:
    place = folder / f"{name}-{'ended' if ended else 'interrupted'}"
    shutil.rmtree(place, ignore_errors=True)
    path, earlier = place / "run", []
    real, after = training.run_round, {0: 0.0}

    def stepping(fed: Any, ledger: Any, engine: Any, number: int, *rest: Any) -> Any:
        earlier.append(place / f"before-{number}")
        shutil.copytree(path, earlier[-1])
        outcome = real(fed, ledger, engine, number, *rest)
        after[number] = ledger.most(1e-3)
        if number == ROUNDS and not ended:
            raise _Stopped
        return outcome

    training.run_round = stepping
    try:
        go(name, path)
    except _Stopped:
        pass
    finally:
        training.run_round = real
    go(name, place / "whole")
    go(name, place / "other", seed=1)
    whole = RunFolder.open(place / "whole").certificate().epsilon
    found = RunFolder.open(path).verified()
    told = max(found.at.round, len(found.metrics.lines.lines))
    return Base(name, path, ended, after[told], whole, tuple(earlier), place / "other")


Harm = Callable[[Base, Path, random.Random, Path], str]


def _file(path: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(file for file in path.iterdir() if file.is_file()))


def _bits(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    file = _file(path, chance)
    file.write_bytes(changed(file.read_bytes(), chance))
    return f"changed {file.name}"


def _values(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    file = chance.choice([one for one in sorted(path.iterdir()) if one.suffix in (".json", ".jsonl")])
    file.write_bytes(with_other_values(file.read_bytes(), chance))
    if file.name == "certificate.json" and chance.random() < 0.5:
        try:
            file.write_text(look_whole(json.loads(file.read_text())))
        except (ValueError, AttributeError):
            return f"values of {file.name}"
        return f"values of {file.name}, with its hash"
    return f"values of {file.name}"


def _torn(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    file = _file(path, chance)
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content) + 1)])
    return f"torn {file.name}"


def _lines(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    """Lines cut off, taken out, doubled or in another order; a newline missing."""
    file = path / chance.choice(("ledger.jsonl", "metrics.jsonl"))
    lines = file.read_bytes().splitlines(keepends=True)
    kind = chance.randrange(5)
    at = chance.randrange(len(lines)) if lines else 0
    if kind == 0:
        lines = lines[:at]
    elif kind == 1:
        lines = lines[:at] + lines[at + 1 :]
    elif kind == 2:
        lines = [*lines, *lines[at:]]
    elif kind == 3:
        chance.shuffle(lines)
    elif lines:
        lines[-1] = lines[-1].rstrip(b"\n")
    file.write_bytes(b"".join(lines))
    return f"lines of {file.name}"


def _forged(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    """A ledger that says less, with a chain of hashes that is right."""
    file = path / chance.choice(("ledger.jsonl", "metrics.jsonl"))
    contents = [json.loads(line) for line in file.read_bytes().splitlines()]
    kind = chance.randrange(4)
    if kind == 0 and len(contents) > 1:
        del contents[chance.randrange(1, len(contents))]
    for content in contents:
        event = content.get("event")
        if isinstance(event, dict) and kind == 1:
            event |= {key: 10 * value for key, value in event.items() if key == "noise_multiplier"}
            event |= {key: value / 10 for key, value in event.items() if key == "sampling_rate"}
        if kind == 2 and "count" in content:
            content["count"] = max(1, content["count"] // 2)
        if kind == 3 and "epsilon" in content:
            content["epsilon"] = 0.01
    previous, data = "", b""
    for content in contents:
        content.pop("hash", None)
        line, previous = hashed(previous, content)
        data += line
    same = data == file.read_bytes()
    file.write_bytes(data)
    return f"forged {file.name}{' (the same)' if same else ''}"


def _swapped(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    source = _file(base.other, chance)
    shutil.copy(source, path / source.name)
    return f"{source.name} of another run"


def _put_back(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    """One or two files as they were (all of them, a folder that was put back, would agree)."""
    earlier = chance.choice(base.before)
    count = chance.choice((1, 1, 2))
    names = chance.sample(sorted(file.name for file in earlier.iterdir() if file.is_file()), count)
    for name in names:
        shutil.copy(earlier / name, path / name)
    return f"put back: {', '.join(names)}"


def _gone(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    file = _file(path, chance)
    file.unlink()
    if chance.random() < 0.3:
        file.mkdir()
        return f"a folder for {file.name}"
    return f"without {file.name}"


def _hostile(base: Base, path: Path, chance: random.Random, mark: Path) -> str:
    file = _file(path, chance)
    file.write_bytes(hostile(chance, mark))
    return f"hostile {file.name}"


HARM: tuple[Harm, ...] = (_bits, _values, _torn, _lines, _forged, _swapped, _put_back, _gone, _hostile)


def folders(folder: Path, seed: int) -> Case:
    """One tampered folder: shown, loaded, and resumed."""
    known = bases(folder / "bases")
    mark = folder / "executed"

    def case(number: int, tally: Tally) -> None:
        chance = random.Random(f"{seed} {number}")
        base, path = chance.choice(known), folder / "tampered"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(base.path, path)
        done = [chance.choice(HARM)(base, path, chance, mark)]
        if chance.random() < 0.25:
            with suppress(OSError, ValueError, RecursionError, AttributeError, TypeError):  # little may be left
                done.append(chance.choice(HARM)(base, path, chance, mark))
        what = f"{base.name}, {'ended' if base.ended else 'interrupted'}, {'; '.join(done)}"
        try:
            tamper(base, path, chance, tally)
        except Exception as error:
            raise Unexpected(f"{what}: {type(error).__name__}: {error}") from error
        if mark.exists():
            mark.unlink()
            raise Unexpected(f"{what}: code was executed")

    return case


def tamper(base: Base, path: Path, chance: random.Random, tally: Tally) -> None:
    """Everything that looks at a folder looks at this one; no epsilon may be below what was spent."""
    found = of_library(lambda: RunFolder.open(path).certificate())
    _expect_no_less(found, base.spent, "certificate", tally)
    options = chance.choice(((), ("--json",), ("--clients",), ("--measurements",)))
    status, out, _ = of_command("show", path, *options)
    if options == ("--json",) and not status:
        shown = json.loads(out)["prices"][0]["epsilon_pld"]
        _expect(shown is None or shown >= base.spent * (1 - 1e-9), f"shown {shown} for {base.spent}")
    if (status == 0) != (not isinstance(found, CloisterError)) and options != ("--measurements",):
        tally.counts["show and certificate disagree"] += 1
    loaded = of_library(lambda: cl.load(path))
    tally.counts["loaded" if not isinstance(loaded, CloisterError) else "not loaded"] += 1
    if not isinstance(loaded, CloisterError):
        _expect_no_less(loaded.certificate, base.spent, "loaded", tally)
    resumed = of_library(lambda: go(base.name, path, resume=True))
    tally.counts["resumed" if not isinstance(resumed, CloisterError) else "not resumed"] += 1
    if not isinstance(resumed, CloisterError):
        _expect_no_less(resumed.certificate, base.whole, "resumed", tally)


def _expect_no_less(found: Any, spent: float, what: str, tally: Tally) -> None:
    if isinstance(found, CloisterError):
        tally.counts[f"{what} refused"] += 1
        return
    tally.counts[f"{what} given"] += 1
    _expect(found.epsilon >= spent * (1 - 1e-9), f"{what}: epsilon {found.epsilon} for {spent}")


def _expect(condition: bool, complaint: str) -> None:
    if not condition:
        raise Unexpected(complaint)


CAMPAIGN = Campaign("folders", "a tampered run folder, shown, loaded and resumed", 2000, folders, least=6)
