"""What an operator reads before a run that may ask for more than is left."""

from __future__ import annotations

import pytest

from cloister.deploy.node.agreement import Agreement
from cloister.deploy.operation.agreement_text import agreement_text, summary
from cloister.privacy.budgets import Budget
from deploy.halves.federations import NAMES, PFL
from deploy.loops import loop_terms

TERMS = loop_terms({**PFL, "epsilon": 2.0, "delta": 1e-3})


def agreement(limit: Budget | None, spent: float = 0.0) -> Agreement:
    return Agreement(TERMS, NAMES[0], "run", 40, spent, 1e-3, limit)


@pytest.mark.parametrize("text", [summary, agreement_text])
@pytest.mark.parametrize(
    ("limit", "spent", "left"),
    [
        (Budget(0.01, 1e-3), 0.0, "epsilon 0.01 at delta 0.001 is left"),
        (Budget(2.5, 1e-3), 2.0, "epsilon 0.5 at delta 0.001 is left"),
        (Budget(2.0, 1e-5), 0.0, "epsilon 2 at delta 1e-05 is left"),
    ],
)
def test_a_limit_below_what_may_be_asked_is_told_even_to_who_agreed_in_advance(text, limit, spent, left):
    words = " ".join(text(agreement(limit, spent)).split())
    assert left in words
    assert "your node refuses rounds beyond that" in words


@pytest.mark.parametrize("limit", [None, Budget(2.0, 1e-3), Budget(5.0, 1e-2)])
def test_a_limit_that_is_enough_needs_no_note(limit):
    assert "is left" not in summary(agreement(limit))
