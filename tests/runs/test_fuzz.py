"""Every key of every choice with values that nobody should give: it works, or it is refused in one sentence.

A refusal leaves no folder behind. Values are drawn from a seed; long training is left out, its preparation is not.
"""

from __future__ import annotations

import inspect
import math
import random
from datetime import date
from functools import cache
from pathlib import Path

import pytest
import sklearn.datasets

from cloister.errors import CloisterError
from cloister.methods import REGISTRY
from cloister.runs import run as running
from cloister.runs.choices import PARTS
from cloister.runs.config import build
from cloister.runs.keys import Key
from cloister.runs.signatures import MAKERS, introspected
from contract.catalogue import ENTRIES

NASTY = [
    *(10**400, 10**40, 2**64, 2**63, 2**62, 2**31, 10**9, 10**5, -1, 0, 1, 2, -(2**63)),
    *(0.0, -0.0, -1.5, 0.5, 0.999999999, 1e-3, 1e-30, 1e-45, 1e-300, 5e-324, 1e15, 1e30, 1e40, 1e300, 1e308),
    *(math.nan, math.inf, -math.inf, True, False, date(2020, 1, 1), {}, {"a": 1}),
    *("", "x", "1/0", "1/3", "1e400", "nan", "-inf", "\0", "é" * 300, [], [1.0], [1e308], ["a"], [[1]], [True]),
]
SMALL = {"data": ("digits",), "model": ("logistic", "mlp", "cnn")}
KEYS = [
    key
    for key in introspected().all_keys()
    if key.owner.split()[-1] in SMALL.get(key.owner.split()[0], (key.owner.split()[-1],))
]


class Prepared(Exception):
    """Everything was accepted, and training would begin."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The digits are read once, and nothing is trained."""
    monkeypatch.setattr(sklearn.datasets, "load_digits", cache(sklearn.datasets.load_digits))

    def begin(*_):
        raise Prepared

    monkeypatch.setattr(running.Training, "begin", begin)


def base(method: str = "dp_fedavg", **choices: str) -> dict[str, object]:
    """A small run of a method that works."""
    takes = inspect.signature(MAKERS["method"].functions[method]).parameters
    unit = REGISTRY[method].unit
    usual = REGISTRY[method].defaults.get("cohort", "poisson")
    values = {
        "method": method,
        "cohort": usual,
        "clients": 8,
        "public_samples": 40,
        "rounds": 1,
        "engine": "loop",
        **choices,
    }
    values |= {"clients_per_round": 2} if values["cohort"] in ("fixed_size", "cyclic") else {}
    values |= {"sampling_rate": 0.5} if values["cohort"] == "poisson" else {}
    values |= {} if unit == "nobody" else {"delta": 1e-3}
    values |= {key: value for key, value in ENTRIES[method].settings.items() if value is not None}
    if values.get("partition") == "natural":
        del values["clients"]
    return values if "server" in takes else {key: value for key, value in values.items() if key != "server"}


def beside(key: Key) -> dict[str, object]:
    """The small run in which a key has a meaning."""
    part, _, option = key.owner.partition(" ")
    if part == "method":
        return base(option)
    return base(**{part: option}) if part in PARTS else base()


def attempt(values: dict[str, object], folder: Path) -> str:
    try:
        experiment = build(values)
        experiment.start(folder=folder, config=experiment.toml, progress=False)
    except Prepared:
        return "prepared"
    except CloisterError as error:
        message = str(error)
        assert len(message.splitlines()) == 1, message
        assert len(message) < 800, message
        assert not folder.exists()
        return "refused"
    raise AssertionError("nothing is trained here")


def changed(values: dict[str, object], name: str, value: object) -> dict[str, object]:
    values = {**values, name: value}
    if name in ("local_epochs", "local_steps"):
        values.pop("local_steps" if name == "local_epochs" else "local_epochs", None)
    if name == "epsilon":
        values.pop("noise_multiplier", None)
    return values


def test_the_runs_beside_which_keys_are_tried_work(tmp_path):
    for method in MAKERS["method"].functions:
        assert attempt(base(method), tmp_path / "run") == "prepared", method


@pytest.mark.parametrize("share", range(4))
def test_any_value_of_any_key_is_taken_or_refused(share, tmp_path):
    tried = {"refused": 0, "prepared": 0}
    for key in KEYS[share::4]:
        for value in random.Random(f"{key.owner} {key.name}").sample(NASTY, 2):
            given = f"{key.owner}: {key.name} = {value!r:.40}"
            try:
                tried[attempt(changed(beside(key), key.name, value), tmp_path / "run")] += 1
            except Exception as error:
                raise AssertionError(given) from error
    assert min(tried.values()) > 5


@pytest.mark.parametrize("seed", range(80))
def test_several_at_once_are_taken_or_refused(seed, tmp_path):
    chance = random.Random(seed)
    values = base(
        chance.choice(list(MAKERS["method"].functions)), cohort=chance.choice(list(MAKERS["cohort"].functions))
    )
    mild = [value for value in NASTY if isinstance(value, (int, float)) and not isinstance(value, bool)]
    for key in chance.sample([key for key in KEYS if key.name in values], min(3, len(values))):
        values = changed(values, key.name, chance.choice(mild))
    attempt(values, tmp_path / "run")
