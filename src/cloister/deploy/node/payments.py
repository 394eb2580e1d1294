"""What a run costs a node: offers that it answers, and steps that pass without one, from its own ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloister.deploy.events import Events
from cloister.deploy.halves.node_half import NodeHalf
from cloister.deploy.halves.steps import Step
from cloister.deploy.node.ledger import NOT_ASKED, NodeLedger, Paid
from cloister.errors import BudgetExceededError
from cloister.privacy.budgets import nothing_lost
from cloister.privacy.ledger import Charge


class Payments:
    """A node's payments in one run. When one of these returns, what is due is in the ledger and on the disk."""

    def __init__(self, run: str, half: NodeHalf, ledger: NodeLedger, events: Events) -> None:
        self.run, self.half, self.ledger, self.events = run, half, ledger, events

    def pay(self, step: Step, digest: str, charge: Charge) -> None:
        """Charge the ledger for an offer; once, however often it is called for it."""
        if self.ledger.answered(self.run, step.round, step.what) != digest:
            self._expect_within_terms(charge)
        self.ledger.charge(self.paid(step, digest), self.half.side.fed.unit, charge)

    def pay_not_asked(self, step: Step) -> None:
        """A step that passes without an offer to this node, where chance saved it from being asked."""
        if self.ledger.answered(self.run, step.round, step.what) is None:
            charge = self.half.charges(step, None)
            if charge is not None:
                self.pay(step, NOT_ASKED, charge)

    def pay_elapsed(self, links: Sequence[dict[str, Any]], current: Step | None) -> None:
        """All steps that these links of the history opened, but for the one that is under way."""
        for link in links:
            if link["link"] == "opened" and (step := Step(link["round"], link["what"])) != current:
                self.pay_not_asked(step)

    def settle(self, links: Sequence[dict[str, Any]], still_open: Step | None) -> None:
        """At the end, pay for what passed. Where a limit is reached it took no part: it would have refused."""
        try:
            self.pay_elapsed(links, still_open)
        except BudgetExceededError as error:
            self.events.tell("steps passed without this node", "warning", reason=str(error))

    def paid(self, step: Step, digest: str) -> Paid:
        """How the ledger names an offer."""
        return Paid(self.run, step.round, step.what, digest)

    def _expect_within_terms(self, charge: Charge) -> None:
        """The run stays within what its own terms say, whatever noise the server asks for."""
        budget = self.half.budget
        if budget is None:
            return
        loss = nothing_lost(budget)
        spent = self.ledger.accounts(self.run)[self.half.side.fed.unit].events
        for event, count in [*spent.items(), (charge.event, charge.count)]:
            loss.add(event, count)
        if loss.epsilon(budget.delta) > budget.epsilon * (1 + 1e-9):
            raise BudgetExceededError(
                f"Expected this run to cost epsilon {budget.epsilon:g} at most, as its terms say, found "
                f"{loss.epsilon(budget.delta):.4f} with this step: nothing was computed, and the offer is refused."
            )
