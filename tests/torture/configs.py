"""Fuzzed configs, as TOML files and as words on the command line: they work, or they are refused in one sentence."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import sklearn.datasets

from cloister.runs import run as running
from cloister.runs.config_file import toml_text
from cloister.runs.signatures import MAKERS
from runs.test_fuzz import KEYS, NASTY, base, beside, changed
from torture.campaign import Campaign, Case, Tally
from torture.damage import changed as damaged
from torture.damage import hostile
from torture.outcomes import Unexpected, of_command

WORDS = ("", "=", "a=", "=1", "--", "--lr", "--lr=", "lr", "x.toml", "\0", "lr=1 lr=2", "é=1", "[a]=1", "lr=[", "lr='")
SHIPPED = sorted((Path(__file__).parents[2] / "experiments").glob("*.toml"))


_DIGITS = cache(sklearn.datasets.load_digits)


class Prepared(BaseException):
    """Everything was accepted, and training would begin."""


@contextmanager
def nothing_trained() -> Iterator[None]:
    """Runs in here are prepared, and no round is computed; the digits are read once."""
    began, read = running.Training.begin, sklearn.datasets.load_digits

    def begin(*_: Any, **__: Any) -> Any:
        raise Prepared

    running.Training.begin, sklearn.datasets.load_digits = begin, _DIGITS
    try:
        yield
    finally:
        running.Training.begin, sklearn.datasets.load_digits = began, read


def configs(folder: Path, seed: int) -> Case:
    """One config, through the command line."""
    folder.mkdir(parents=True, exist_ok=True)
    mark, file, run = folder / "executed", folder / "config.toml", folder / "run"

    def case(number: int, tally: Tally) -> None:
        chance = random.Random(f"{seed} {number}")
        words = drawn(chance, file, mark)
        command = "plan" if chance.random() < 0.03 else "run"
        try:
            with nothing_trained(), contextlib.chdir(folder):  # where a plan draws its picture
                status, _, _ = of_command(command, *words, *([] if command == "plan" else ["--folder", run]))
        except Prepared:
            tally.counts["prepared"] += 1
        except Exception as error:
            shown = " ".join(words)[:300]
            raise Unexpected(f"{command} {shown}: {type(error).__name__}: {str(error)[:300]}") from error
        else:
            tally.counts["planned" if status == 0 else "refused"] += 1
        if run.exists() or mark.exists():
            raise Unexpected(f"{' '.join(words)[:300]}: {'a folder is left' if run.exists() else 'code was executed'}")

    return case


def drawn(chance: random.Random, file: Path, mark: Path) -> list[str]:
    """The words of a command; a config file among them, if there is one."""
    kind = chance.random()
    if kind < 0.25:
        key = chance.choice(KEYS)
        return _as_words(changed(beside(key), key.name, chance.choice(NASTY)), chance, file)
    if kind < 0.6:
        values = base(chance.choice(list(MAKERS["method"].functions)))
        numbers = [name for name, value in values.items() if isinstance(value, (int, float))]
        for name in chance.sample(numbers, min(len(numbers), chance.choice((1, 2, 4)))):
            values = changed(values, name, _near(values[name], chance))
        return _as_words(values, chance, file)
    if kind < 0.75:
        values = base(
            chance.choice(list(MAKERS["method"].functions)), cohort=chance.choice(list(MAKERS["cohort"].functions))
        )
        for key in chance.sample(KEYS, 3):
            values = changed(values, key.name, chance.choice(NASTY))
        return _as_words(values, chance, file)
    if kind < 0.92:
        whole = toml_text(_plain(base())) if chance.random() < 0.7 else chance.choice(SHIPPED).read_text()
        file.write_bytes(damaged(whole.encode(), chance))
        return [str(file), *chance.choice(([], ["rounds=1"], ["data=digits", "engine=loop"]))]
    if kind < 0.96:
        file.write_bytes(hostile(chance, mark))
        return [str(file)]
    good = _as_words(base(), random.Random(0), file)
    return [*good[: chance.randrange(len(good) + 1)], chance.choice(WORDS), *chance.choice(([], ["rounds=1"]))]


def _near(value: Any, chance: random.Random) -> object:
    """A number that somebody might give, or nearly."""
    if isinstance(value, bool):
        return not value
    factor = chance.choice((0, 0.1, 0.5, 0.99, 1, 2, 3, 10, 1e3, 1e9, -1))
    return round(value * factor) if isinstance(value, int) and chance.random() < 0.9 else value * factor


def _as_words(values: dict[str, object], chance: random.Random, file: Path) -> list[str]:
    """Values as KEY=VALUE, or as a file."""
    if chance.random() < 0.5:
        return [f"{key}={_word(value)}" for key, value in values.items()]
    file.write_text(toml_text(_plain(values)), errors="replace")
    return [str(file)]


def _plain(values: dict[str, object]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _word(value: object) -> str:
    return toml_text({"x": value}).removeprefix("x = ").rstrip("\n")  # type: Any


CAMPAIGN = Campaign("configs", "a fuzzed config, as TOML or as key=value", 10_000, configs, least=20)
