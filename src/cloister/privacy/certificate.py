"""The certificate of a run: what was promised, to whom, at what price, and what the promise leaves out.

It is computed from two files of a run alone: the description (what was executed) and the ledger (what was
charged); where a callback ended the run, or something was measured beside it, which are gaps, the checkpoint says so.
Nothing in it comes from the training code's memory, so anybody can compute it again.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cloister.privacy.accounts import Account, Spending, accounts_of
from cloister.privacy.certificate_text import not_covered, priced_as, round_up, text
from cloister.privacy.description import ClaimDescription, RunDescription
from cloister.privacy.events import Adjacency, from_json
from cloister.privacy.ledger import Ledger
from cloister.privacy.noise_arithmetic import in_words
from cloister.privacy.pricing import common_adjacency, pricing_of
from cloister.privacy.promised import Price, Promised, finite, price_at
from cloister.privacy.published_claims import CLAIMS, Schedule

STRICT_DELTA = 1e-5


@dataclass(frozen=True)
class Certificate:
    """What a run spent, and under which assumptions."""

    unit: str
    clients: list[str]
    """What clients are called, by number, where they have names."""
    adjacency: str
    private: bool
    released: str
    trusted: str
    secure_rng: bool
    sampling_executed: list[str]
    sampling_accounted: list[str]
    sensitivity: float | None
    """The bound on the L2 norm of any client's message, in the message's own units."""
    assumed_sensitivity: float | None
    """What a replicated paper takes that bound for, and scales its noise to."""
    pld: bool
    """Whether the first price is by PLD; discrete noise is priced by RDP alone."""
    noise_multiplier: float | None
    noise_multipliers: list[float]
    """Every client's, where samples are protected and clients add noise for themselves."""
    noise_place: str
    noise_arithmetic: str
    """On which grid noise is exact, and what that cost; or that it is floating point."""
    sums_of_samples: bool
    """Whether samples are protected by noise in a secure sum of many clients."""
    denominator: float
    divided_by: str
    """What a round's sum is divided by, in words."""
    rounds_planned: int
    rounds_charged: int
    releases_charged: int
    budget: dict[str, float] | None
    """The largest; clients may have different ones where samples are protected."""
    least_budget: float | None
    filter: dict[str, Any] | None
    """Where noise was chosen on the way: the filter's order, and what was spent."""
    prices: list[Price]
    """Of whoever has lost most."""
    claimed: dict[str, Any] | None
    """What the paper that is replicated would claim, where one is."""
    not_covered: list[str]
    configuration_sha256: str
    ledger_hash: str
    versions: dict[str, str]

    @property
    def epsilon(self) -> float:
        """The certified epsilon at the run's own delta."""
        found = self.prices[0].epsilon_pld
        return math.inf if found is None else found

    def to_json(self) -> dict[str, Any]:
        """Plain values; infinity is null."""
        return asdict(self)

    def __str__(self) -> str:
        return text(self)


def certify(
    description: RunDescription,
    ledger: Ledger,
    notes: Sequence[str] = (),
    ended_early: bool = False,
    recorded: Sequence[str] = (),
) -> Certificate:
    """The certificate of a run from its description and its ledger; `notes` are gaps that arose on the way.

    A run that `ended_early`, by what it had released, is certified for all rounds that were planned. `recorded` are the
    names of what was measured beside it without protection.
    """
    method, accounts = description.method, accounts_of(ledger)
    spending = Spending(accounts, description.task.copies, description.noise_schedule)
    promised = Promised.of(description, ledger, True) if ended_early else Promised(spending, accounts, False)
    worst = spending.worst
    everything = {event for account in accounts.values() for event in account.events}
    private = all(pricing_of(event).protects for event in everything) and math.isfinite(spending.certified(0.5))
    own = description.delta or STRICT_DELTA
    budgets = [account.budget for account in accounts.values() if account.budget is not None]
    words = _SAMPLE if method.unit == "sample" else _WHOLE
    return Certificate(
        unit=method.unit,
        clients=list(description.task.client_names),
        adjacency=description.adjacency or words[common_adjacency(everything)].format(unit=method.unit),
        private=private,
        released=_released(description, private, bool(worst.events)),
        trusted=description.trust,
        secure_rng=description.secure_rng,
        sampling_executed=_executed(description),
        sampling_accounted=priced_as(worst.events, "batches" if description.batch_sampling else "cohorts"),
        sensitivity=finite(description.sensitivity),
        assumed_sensitivity=description.assumed_sensitivity,
        pld=all(pricing_of(event).has_pld for event in worst.events),
        noise_multiplier=method.mechanism.noise_multiplier,
        noise_multipliers=list(description.noise_multipliers),
        noise_place=method.mechanism.place,
        noise_arithmetic=in_words(
            method.mechanism, description.rounded_noise, description.model.parameters, bool(description.queries)
        ),
        sums_of_samples="honest_fraction" in method.mechanism.settings,
        denominator=description.denominator,
        divided_by=description.divided_by or _divided_by(description),
        rounds_planned=description.rounds,
        rounds_charged=len({entry.round for entry in ledger.entries if entry.what == "update"}),
        releases_charged=worst.releases,
        budget=asdict(max(budgets, key=lambda budget: budget.epsilon)) if budgets else None,
        least_budget=min((budget.epsilon for budget in budgets), default=None),
        filter=_filter(spending, own),
        prices=[promised.price(delta) for delta in deltas_beside(own)],
        claimed=_claimed(description, own, accounts),
        not_covered=not_covered(
            description,
            own,
            private,
            [*notes, *([_ended_early(price_at(spending, own))] if ended_early else [])],
            recorded,
        ),
        configuration_sha256=description.configuration_hash,
        ledger_hash=ledger.hash,
        versions=_versions(),
    )


def _divided_by(description: RunDescription) -> str:
    return "how many took part" if description.method.unit == "sample" else f"{description.denominator:g}, constant"


def _executed(description: RunDescription) -> list[str]:
    clients, batches = description.cohort.executed, description.batch_sampling
    if description.method.unit == "sample":
        clients += ", as long as its budget pays for it"
    return [clients, batches] if batches else [clients]


def _ended_early(spent: Price) -> str:
    turned_out = "more than any number" if spent.epsilon_pld is None else f"epsilon {round_up(spent.epsilon_pld)}"
    return (
        "when the run ended: what it had released decided it, so that the epsilon above is that of all planned rounds "
        f"(or the budget); those that were run would cost {turned_out}, had their number been fixed in advance"
    )


def _filter(spending: Spending, delta: float) -> dict[str, Any] | None:
    order = spending.order
    return None if order is None else {"order": order, "spent": finite(spending.renyi(delta))}


def deltas_beside(own: float) -> list[float]:
    """At which deltas epsilon is shown: a run's own, always first, and the strict one."""
    return [own] if own == STRICT_DELTA else [own, STRICT_DELTA]


def _claimed(description: RunDescription, delta: float, accounts: Mapping[str, Account]) -> dict[str, Any] | None:
    """The published arithmetic, of the noise that was executed, for one of the clients that it is about."""
    claim = description.method.claim
    if claim is None or not claim.noise_multiplier:
        return None
    copies = description.task.copies
    schedules = [_schedule(claim, accounts[unit], copies) for unit in claim.accounts if unit in accounts]
    schedule = max(schedules, key=lambda found: sum(count for _, count in found), default=[])
    if not any(count for _, count in schedule):
        return None
    epsilon, words = CLAIMS[claim.arithmetic](claim, schedule, delta)
    return {"epsilon": finite(epsilon), "delta": delta, "words": words}


def _schedule(claim: ClaimDescription, account: Account, copies: int) -> Schedule:
    """Noise multipliers as a paper counts them, and how many releases had each: a sample's copies are not counted.

    What a step is worth is proportional to its noise, so that one has fallen by as much as the other.
    """
    noise = claim.noise_multiplier
    if claim.event is None:
        return [(noise, len(account.rounds))] if account.rounds else []
    first = pricing_of(from_json(claim.event)).noise_multiplier
    if first is None:
        return []
    executed = [(pricing_of(event).noise_multiplier, count) for event, count in account.events.items()]
    return [(noise * found / first, count // copies) for found, count in executed if found is not None]


def _released(description: RunDescription, private: bool, anything: bool) -> str:
    if not anything:
        return "nothing yet"
    noisy = description.method.released if private else "the exact sum of the clients' updates in every round"
    beside = [query.released if private else query.released.replace("noisy", "exact") for query in description.queries]
    return "; ".join([noisy, *beside])


_WHOLE = {
    Adjacency.ADD_OR_REMOVE_ONE: "add or remove one {unit}: all its data are there or not, its place on the roster "
    "stays",
    Adjacency.REPLACE_ONE: "replace one {unit}: all its data become any others",
}
_SAMPLE = {
    Adjacency.ADD_OR_REMOVE_ONE: "add or remove one sample of one client, every other one staying in its place; rates "
    "and divisors stay as they were declared",
    Adjacency.REPLACE_ONE: "replace one sample of one client by any other, every other one staying in its place",
}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("cloister", "torch", "dp-accounting", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
