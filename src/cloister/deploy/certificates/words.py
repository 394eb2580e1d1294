"""What certificates of a federation say in words: whom one must trust, what masks hide, what is not covered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cloister.deploy.halves.prepared import Prepared
from cloister.deploy.halves.shares import is_secret_sum
from cloister.deploy.masking import NOT_CHECKED, whom_to_trust
from cloister.deploy.terms.terms import Terms
from cloister.privacy.accounts import Account
from cloister.privacy.budgets import Budget
from cloister.privacy.description import MechanismDescription
from cloister.privacy.noise_arithmetic import gaps_of
from cloister.privacy.pricing import pricing_of
from cloister.privacy.unit import ProtectedUnit

PROMISED = (
    "that this run ended when it did, or chose its noise, by what it had released: what is proven of it is the epsilon "
    "that its terms promise, stated for this run; the sum over all runs counts what was charged"
)
ONE_ROW = (
    "one row among the others of this node, in runs that protect whole nodes: these compare with this node not taking "
    "part at all. Two tables that differ in one row are two such steps apart: what is proven of one row alone is twice "
    "the epsilon, at (1 + e^epsilon) times the delta"
)


def trusted(side: Prepared) -> list[str]:
    """Whom a node has to trust for the guarantee to hold."""
    terms, method = side.terms, side.fed.method
    if method.mechanism.place == "nowhere" or not method.mechanism.noise_multiplier:
        return ["everybody who sees a message or the model: nothing that leaves a node has noise"]
    if is_secret_sum(method):
        federation = terms.federation
        return list(whom_to_trust(federation.clients, federation.fewest, federation.threshold or 0))
    if side.fed.unit is ProtectedUnit.SAMPLE:
        return ["nobody: every message that leaves a node carries its own noise and is private by itself"]
    return [
        f"the server: it sees every node's clipped update as it is, {_draws(terms)}adds the noise and forgets what it "
        "saw; this certificate protects against everybody who sees the model, not against the server"
    ]


def _draws(terms: Terms) -> str:
    return "draws who takes part, " if terms.federation.participation == "server" else ""


def hidden_by_masks(side: Prepared) -> list[str]:
    """What nobody could check, because messages were masked."""
    return list(NOT_CHECKED) if is_secret_sum(side.fed.method) else []


def not_covered(side: Prepared, runs: int = 1, tests: int = 0) -> list[str]:
    """What the guarantee leaves out, on either side."""
    terms, unit, mechanism = side.terms, side.fed.unit.value, side.fed.method.mechanism
    drawn = MechanismDescription(
        mechanism.name, mechanism.place, mechanism.noise_multiplier, dict(mechanism.settings_beside)
    )
    batch_size = side.fed.method.local.settings.get("batch_size")
    gaps = []
    if terms.test_mode:
        gaps.append("everything: test mode is seeded, and NOT PRIVATE")
    if tests:
        gaps.append(f"{tests} earlier runs of these data in test mode: these were NOT PRIVATE, and nothing bounds them")
    if unit == "sample":
        gaps.append("how many rows a node has: its noise, and the rates and divisors of its batches, follow from that")
        gaps.append("a node as a whole: what is protected is any ONE of its rows; what they have in common is not")
    if unit == "client" and terms.values.get("cohort") in ("poisson", "fixed_size"):
        gaps.append(
            "who took part: the epsilon counts on a secret draw; the server's files, logs and status tell it, so keep "
            "them from whoever the guarantee is to hold against"
        )
    if runs > 1:
        gaps.append(
            "the choice of later runs: what they asked for may have been chosen by what earlier ones released; they "
            "are composed as if all had been fixed in advance"
        )
    return [
        *gaps,
        "rows that lie with several nodes: each node's ledger counts what it released itself",
        "what was done to the rows before they were handed over (scaling, imputation, selection), and the terms "
        "themselves, where somebody chose them by looking at these data",
        "when messages came and how large they were; that a node takes part in the federation at all",
        *gaps_of(drawn, side.fed.rounds, batch_size, side.request.options.dtype),
    ]


def delta_of(terms: Terms) -> float:
    """The delta at which prices are told: that of the terms."""
    return float(str(terms.values.get("delta") or 1e-5))


def price(account: Account, delta: float) -> dict[str, Any]:
    """What an account has spent at a delta: both accountants, None where nothing is bounded."""
    loss = account.loss(filtered=False)
    return {"delta": delta, "epsilon": finite(loss.certified(delta)), "epsilon_rdp": finite(loss.epsilon(delta, "rdp"))}


def run_price(
    account: Account, delta: float, budget: Budget | None, early: bool, adaptive: bool = False
) -> dict[str, Any]:
    """What a run costs. One that ended early by what it had released costs as much as all that was planned: when it
    ended is a release as well. The terms' budget, which no run exceeds, is at least that. Where noise was chosen by
    what was released before (`adaptive`), the budget that a filter kept is all that is proven; without one, nothing."""
    found = price(account, delta)
    if adaptive and account.events and budget is None:
        return {**found, "epsilon": None, "epsilon_rdp": None}
    if (early or adaptive) and account.events and budget is not None:
        for name in ("epsilon", "epsilon_rdp"):
            found[name] = None if found[name] is None else max(found[name], budget.epsilon)
    return found


def protects(account: Account) -> bool:
    """Whether all that was charged to an account has noise."""
    return all(pricing_of(event).protects for event in account.events)


def finite(value: float) -> float | None:
    """The number; None where it is infinite."""
    return value if math.isfinite(value) else None


def rows_of(pairs: Sequence[tuple[str, Any]]) -> str:
    """Lines with labels, for people."""
    lines = []
    for name, value in pairs:
        several = value if isinstance(value, list) else [value]
        lines += [f"  {name + ':':>19} {one}" for one in several]
    return "\n".join(lines)


def spent_words(price: Mapping[str, Any]) -> str:
    """An epsilon for people, never below what was spent."""
    if price["epsilon"] is None:
        return f"no bound at delta {price['delta']:g}"
    return f"epsilon {math.ceil(price['epsilon'] * 1000 - 1e-9) / 1000:.3f} at delta {price['delta']:g}"


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{number} {what}" + ("" if number == 1 else "s")


def steps_words(steps: Sequence[Sequence[Any]]) -> list[str]:
    """Steps as [round, what], in words; rounds that follow each other on one line.

    >>> steps_words([[2, "update"], [5, "update"], [6, "update"], [7, "update"], [7, "validation"]])
    ['update of round 2', 'update of rounds 5 to 7', 'validation of round 7']
    """
    ranges: list[tuple[str, int, int]] = []
    for number, what in steps:
        if ranges and ranges[-1][0] == what and ranges[-1][2] + 1 == number:
            ranges[-1] = (what, ranges[-1][1], number)
        else:
            ranges.append((what, number, number))
    rounds = [f"round {first}" if first == last else f"rounds {first} to {last}" for _, first, last in ranges]
    return [f"{what} of {which}" for (what, _, _), which in zip(ranges, rounds, strict=True)]
