"""Which steps a run has, in which order: queries before the first round, rounds, validations in between."""

from __future__ import annotations

from cloister.deploy.halves.prepared import Prepared
from cloister.deploy.halves.steps import BEFORE_TRAINING, UPDATE, VALIDATION, Step
from cloister.errors import CloisterError


def steps_of(side: Prepared) -> tuple[Step, ...]:
    """All steps of a run; both sides know them from the terms."""
    rounds, selection = side.request.rounds, side.selection
    found = [Step(BEFORE_TRAINING, query.name) for query in side.queries.planned if query.name != VALIDATION]
    private = any(query.name == VALIDATION for query in side.queries.planned)
    for number in range(1, rounds + 1):
        found.append(Step(number, UPDATE))
        if private and selection.every and (number % selection.every == 0 or number == rounds):
            found.append(Step(number, VALIDATION))
    return tuple(found)


def expect_step(steps: tuple[Step, ...], step: Step) -> None:
    """Refuse a step that the terms do not have."""
    if step not in steps:
        raise CloisterError(
            f"Expected a step of these terms ({len(steps)} steps, up to round {steps[-1].round}), found {step}: "
            "refuse the offer, since nothing of it was agreed."
        )
