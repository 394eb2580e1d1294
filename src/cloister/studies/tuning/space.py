"""What is searched: for each tuned key a range of numbers, or some values to choose from."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloister.errors import CloisterError, expect, nearest
from cloister.runs.choices import PARTS, Catalogue
from cloister.runs.keys import Key, converted, kinds_of
from cloister.runs.resolution import resolve

_NEVER = {
    "epsilon": "a larger one is always better, so fix it",
    "delta": "a larger one is always better, so fix it",
    "noise_multiplier": "less noise is always better, so fix epsilon",
    "seed": "a lucky seed says nothing about the next one; average over --seeds instead",
    "secure_rng": "it changes nothing that could be better",
    "allow_large_delta": "it changes nothing that could be better",
    "tuned": "it names what was tuned",
}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})")
_LOG_FROM = 10.0
"""A range of positive numbers that spans so much is searched by its logarithm."""
_COUNTED_OUT = 10_000
"""So many candidates, as many as may be tried, are told apart; of more than that none comes twice but by bad luck."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    whole: bool = False

    @property
    def log(self) -> bool:
        """Whether factors count, and not differences: where it spans a power of ten."""
        return self.low > 0 and self.high >= _LOG_FROM * self.low

    def at(self, uniform: float) -> float | int:
        """The value that a draw from [0, 1) stands for."""
        low, high = (self.low, self.high + 1) if self.whole else (self.low, self.high)
        value = low * (high / low) ** uniform if self.log else low + uniform * (high - low)
        return min(int(value), int(self.high)) if self.whole else min(max(value, self.low), self.high)

    def suggest(self, trial: Any, name: str) -> float | int:
        """What an Optuna trial proposes."""
        if self.whole:
            return int(trial.suggest_int(name, int(self.low), int(self.high), log=self.log))
        return float(trial.suggest_float(name, self.low, self.high, log=self.log))

    @property
    def count(self) -> float:
        """How many values there are."""
        return self.high - self.low + 1 if self.whole else math.inf

    @property
    def all(self) -> Sequence[int]:
        """All of them, of whole numbers."""
        return range(int(self.low), int(self.high) + 1)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def at(self, uniform: float) -> Any:
        """The value that a draw from [0, 1) stands for."""
        return self.values[int(uniform * len(self.values))]

    def suggest(self, trial: Any, name: str) -> Any:
        """What an Optuna trial proposes."""
        return trial.suggest_categorical(name, list(self.values))

    @property
    def count(self) -> float:
        """How many values there are."""
        return len(self.values)

    @property
    def all(self) -> Sequence[Any]:
        """All of them."""
        return self.values

    def __str__(self) -> str:
        return ",".join(map(str, self.values))


Space = dict[str, Range | Choice]


def split_words(words: Iterable[str], catalogue: Catalogue) -> tuple[dict[str, str], list[str]]:
    """The words that say what is searched (KEY=LOW..HIGH, KEY=A,B,C), and the others, which fix a key.

    >>> from cloister.runs.catalogue import stored
    >>> split_words(["lr=0.1..1", "clip_norm=[1,2]", "rounds=3", "metrics=f1,auroc"], stored())
    ({'lr': '0.1..1', 'clip_norm': '1,2'}, ['rounds=3', 'metrics=f1,auroc'])
    """
    lists = {key.name for key in catalogue.all_keys() if str(key.kind).startswith("list[str]")}
    takes_lists = {key.name for key in catalogue.all_keys() if "list[" in str(key.kind)}
    searched: dict[str, str] = {}
    fixed = []
    for word in words:
        key, _, text = word.partition("=")
        if key not in lists and key not in takes_lists and re.fullmatch(r"\[[^\[\]\"]+\]", text):
            text = text[1:-1]  # as `cloister compare` has its lists
        several = ".." in text or ("," in text and text[:1] not in ("[", '"') and key not in lists)
        if not several or "/" in text:
            fixed.append(word)
            continue
        expect(key not in searched, f"one range or list for {key}", f"{searched.get(key)} and {text}", "give it once")
        searched[key] = text
    return searched, fixed


def space_of(catalogue: Catalogue, values: Mapping[str, Any], searched: Mapping[str, Any]) -> Space:
    """What is searched, checked against the keys of the run that has these values."""
    if not searched:
        odd = [f"{name}={one}" for name, one in values.items() if isinstance(one, str) and re.match(r"[\d.]", one)]
        raise CloisterError(
            f"Expected something to search, found {' and '.join(odd) or 'nothing'}: write a range (lr=0.03..0.3) or a "
            "list (sparsity=0.1,0.3)."
        )
    keys = _keys(catalogue, {name: one for name, one in values.items() if name not in searched}, searched)
    space: Space = {}
    budgeted = values.get("epsilon") is not None and "epsilon" not in searched
    for name, what in searched.items():
        # Under a budget that is fixed more noise buys more steps, or is where noise that falls begins.
        open_question = name not in _NEVER or (name == "noise_multiplier" and budgeted)
        expect(open_question, "keys that a method is better or worse with", name, _NEVER.get(name, ""))
        space[name] = _dimension(name, what, keys.get(name))
    return space


def candidates_of(space: Space) -> list[dict[str, Any]] | None:
    """All candidates, where lists and whole numbers are searched alone and they are few enough to be counted out."""
    if math.prod(one.count for one in space.values()) > _COUNTED_OUT:
        return None
    return [dict(zip(space, chosen, strict=True)) for chosen in itertools.product(*(one.all for one in space.values()))]


def first_of(space: Space) -> dict[str, Any]:
    """Some candidate: the middle of every range, the first of every list."""
    return {name: one.at(0.5) if isinstance(one, Range) else one.values[0] for name, one in space.items()}


def _keys(catalogue: Catalogue, values: Mapping[str, Any], searched: Mapping[str, Any]) -> dict[str, Key]:
    """The keys that can be searched, by name. What a choice of a searched part brings with it is known as well."""
    chosen = resolve_parts(catalogue, values)
    keys: dict[str, Key] = {key.name: key for key in catalogue.run}
    for part, option in chosen.items():
        if part in ("data", "partition"):
            continue
        keys |= {key.name: key for key in catalogue.keys_of(part, option)}
        keys[part] = Key(part, "choice", str, option, PARTS[part].help)
    for name in searched:
        if name in ("data", "partition") or (name not in keys and _of_data(catalogue, chosen, name)):
            raise CloisterError(
                f"Expected keys of the method, its cohort, its model or the run, found {name!r}, which belongs to the "
                "data: results on different data do not compare."
            )
        owners = dict.fromkeys(key.owner for key in catalogue.all_keys() if key.name == name)
        remedy = f"{' and '.join(list(owners)[:3])} would have it" if owners else nearest(name, keys)
        expect(name in keys, "keys of this run", name, remedy)
    return keys


def resolve_parts(catalogue: Catalogue, values: Mapping[str, Any]) -> dict[str, str]:
    """Which option each part is, by these keys."""
    words = {part: values[part] for part in PARTS if part in values}
    try:
        return resolve(catalogue, words, more=()).chosen
    except CloisterError:  # a part that needs keys: the options alone are asked for
        return {part: catalogue.option(part, words) for part in catalogue.part_names(words)}


def _of_data(catalogue: Catalogue, chosen: Mapping[str, str], name: str) -> bool:
    parts = [part for part in ("data", "partition") if part in chosen]
    return any(key.name == name for part in parts for key in catalogue.keys_of(part, chosen[part]))


def _dimension(name: str, what: Any, key: Key | None) -> Range | Choice:
    remedy = f"write {name}=0.1..1 for a range, or {name}=0.1,0.3 for a list"
    if isinstance(what, str):
        match = None if "..." in what else _RANGE.fullmatch(what.strip())  # 0.1...3 is 3 to most, and .3 to Python
        if match is None and ".." in what:
            raise CloisterError(f"Expected two numbers around .. for {name}, found {what!r}: {remedy}.")
        what = tuple(map(_number, match.groups())) if match else [_number(word) for word in what.split(",")]
    if isinstance(what, tuple):
        return _range(name, what, key, remedy)
    listed = isinstance(what, Sequence) and len(what) > 0
    expect(listed, f"a range or a list of values for {name}", what, remedy)
    values = tuple(one if key is None else converted(key, one) for one in what)
    expect(len(set(map(repr, values))) == len(values), f"different values for {name}", list(what), "give each once")
    return Choice(values)


def _range(name: str, what: tuple[Any, ...], key: Key | None, remedy: str) -> Range:
    numbers = [one for one in what if isinstance(one, (int, float)) and not isinstance(one, bool)]
    fine = len(what) == 2 and len(numbers) == 2 and all(map(math.isfinite, numbers)) and numbers[0] < numbers[1]
    expect(fine, f"a range from a smaller to a larger number for {name}", what, remedy)
    kinds = [] if key is None else kinds_of(key.kind)
    if key is not None and float not in kinds and int not in kinds:
        raise CloisterError(f"Expected a list of values for {name}, which is no number, found a range: {remedy}.")
    whole = float not in kinds and int in kinds
    if whole:
        fits = all(float(one).is_integer() for one in numbers)
        expect(fits, f"whole numbers for {name}", what, f"write {name}=1..10, say")
    return Range(float(numbers[0]), float(numbers[1]), whole)


def _number(word: str) -> Any:
    text = word.strip()
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if re.fullmatch(_NUMBER, text):
        return float(text)
    return {"true": True, "false": False}.get(text, text)
