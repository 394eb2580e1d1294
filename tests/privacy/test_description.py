"""A description is what was written, or is refused: its hash is the identity of a run."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

import cloister as cl
from cloister.errors import Corrupted
from cloister.privacy.budgets import Budget
from cloister.privacy.description import RunDescription
from conftest import prepared, toy_task

METHODS = {
    "clients": cl.methods.dp_fedavg(clip_norm=1, local_steps=1, noise_multiplier=4),
    "samples": cl.methods.pfl(clip_norm=0.5, noise_multiplier=3.0),
    "nobody": cl.methods.fedavg(local_steps=1),
    "claim": cl.methods.fed_spa(0.5, local_steps=1, mode="as_published", noise_multiplier=4.0),
}


def described(name: str) -> RunDescription:
    return prepared(METHODS[name], toy_task(), epsilon=None if name == "nobody" else 50.0).description


def stored(description: RunDescription) -> dict:
    return json.loads(json.dumps(description.to_json(), allow_nan=False))


@pytest.mark.parametrize("name", METHODS)
def test_what_is_read_is_what_was_written(name):
    before = described(name)
    after = RunDescription.from_json(stored(before))
    assert after.configuration_hash == before.configuration_hash
    assert after.to_json() == before.to_json()
    assert after.budgets == before.budgets
    assert all(isinstance(budget, Budget) for budget in after.budgets.values())


def test_infinity_and_whole_numbers_stay_as_they_are():
    before = replace(described("clients"), sensitivity=math.inf)
    after = RunDescription.from_json(stored(before))
    assert after.sensitivity == math.inf
    whole, real = (replace(before, denominator=number) for number in (4, 4.0))
    assert RunDescription.from_json(stored(whole)).configuration_hash == whole.configuration_hash
    assert whole.configuration_hash != real.configuration_hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": "3"}, "rounds of a run to be of type int, found '3'"),
        ({"rounds": True}, "rounds of a run to be of type int, found True"),
        ({"secure_rng": 1}, "secure_rng of a run to be of type bool, found 1"),
        ({"delta": "few"}, "delta of a run to be of type float, found 'few'"),
        ({"noise_multipliers": 3.0}, "noise_multipliers of a run"),
        ({"cohort": {"name": "poisson"}}, "cohort of a run to have name, settings, executed"),
        ({"mood": "good"}, "to have method, cohort"),
        ({"budgets": {"client": {"epsilon": -1.0, "delta": 1e-3, "order": None}}}, "epsilon > 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(change, message):
    with pytest.raises(Corrupted) as refusal:
        RunDescription.from_json({**stored(described("clients")), **change})
    assert message in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1
    assert len(str(refusal.value)) < 800


def test_a_field_that_is_missing_is_refused():
    found = stored(described("samples"))
    del found["task"]["sizes"]
    with pytest.raises(Corrupted, match="task of a run to have name, clients"):
        RunDescription.from_json(found)
    with pytest.raises(Corrupted):
        RunDescription.from_json([])
