"""What an operator allows, as it is typed."""

from __future__ import annotations

import pytest

from cloister.deploy.operation.limits import limit_of
from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget


@pytest.mark.parametrize(
    "text",
    ["epsilon=2, delta=1e-5", "delta=1e-5,epsilon=2", " epsilon = 2.0 ; delta = 1/100000 ", "epsilon=2,delta=0.00001,"],
)
def test_a_limit_can_be_written_as_people_do(text):
    assert limit_of(text) == Budget(2.0, 1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found no epsilon and no delta"),
        ("epsilon=2", "found no delta: write both"),
        ("2, 1e-5", "Expected NAME=NUMBER in the limit, found '2'"),
        ("epsilom=2, delta=1e-5", 'perhaps you mean "epsilon"'),
        ("epsilon=2, epsilon=3, delta=1e-5", "Expected one epsilon in the limit, found two"),
        ("epsilon=few, delta=1e-5", "Expected a number for epsilon in the limit, found 'few'"),
        ("epsilon=0, delta=1e-5", "Expected epsilon > 0"),
        ("epsilon=nan, delta=1e-5", "Expected epsilon > 0"),
        ("epsilon=inf, delta=1e-5", "Expected epsilon > 0 and finite"),
        ("epsilon=2, delta=1", "Expected 0 < delta < 1"),
        ("epsilon=2, delta=0", "Expected 0 < delta < 1"),
    ],
)
def test_slips_are_told(text, message):
    with pytest.raises(CloisterError) as error:
        limit_of(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
