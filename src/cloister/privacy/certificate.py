"""The certificate of a run: what was promised, to whom, at what price, and what the promise leaves out.

It is computed from two files of a run alone: the description (what was executed) and the ledger (what was
charged). Nothing in it comes from the training code's memory, so anybody can compute it again.
"""

from __future__ import annotations

import math
import platform
import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cloister.privacy.accounting import PrivacyLoss, epsilon
from cloister.privacy.events import (
    Covered,
    DiscreteGaussianSum,
    Event,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    PoissonGaussian,
    Relation,
    common_relation,
    protects,
)
from cloister.privacy.ledger import Ledger

STRICT_DELTA = 1e-5


@dataclass(frozen=True)
class Price:
    """Epsilon at one delta, by both accountants (None: infinite). Both are proven upper bounds."""

    delta: float
    epsilon_pld: float | None
    epsilon_rdp: float | None


@dataclass(frozen=True)
class Certificate:
    """What a run spent, and under which assumptions."""

    unit: str
    relation: str
    private: bool
    released: str
    trusted: str
    randomness: str
    sampling_executed: str
    sampling_priced: list[str]
    clip: float | None
    """The bound on the L2 norm of any client's message, in the message's own units."""
    clip_taken_for: float | None
    """What a replicated paper takes that bound for, and scales its noise to."""
    pld: bool
    """Whether the first price is by PLD; discrete noise is priced by RDP alone."""
    noise_multiplier: float | None
    noise_place: str
    denominator: float
    rounds_planned: int
    rounds_charged: int
    releases_charged: int
    budget: dict[str, float] | None
    prices: list[Price]
    claimed: dict[str, float] | None
    """What the paper that is replicated would claim, where one is."""
    not_covered: list[str]
    configuration_sha256: str
    ledger_seal: str
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
        return _text(self)


def certify(description: Mapping[str, Any], configuration: str, ledger: Ledger) -> Certificate:
    """The certificate of a run from its description, the description's hash, and its ledger."""
    unit = description["method"]["unit"]
    events = [entry.event for entry in ledger.entries if entry.unit == unit]
    private = all(protects(event) for event in events) and math.isfinite(_loss(events).epsilon(0.5))
    own = description["delta"] or STRICT_DELTA
    deltas = deltas_beside(own)
    loss = _loss(events)
    noise = description["method"]["mechanism"]["noise_multiplier"]
    return Certificate(
        unit=unit,
        relation=description["neighbours"] or _NEIGHBOURS[common_relation(events)].format(unit=unit),
        private=private,
        released=_released(description["method"]["released"], private, bool(events)),
        trusted=description["trust"],
        randomness=description["randomness"],
        sampling_executed=description["cohort"]["executed"],
        sampling_priced=[_priced_as(event, count) for event, count in Counter(events).items()],
        clip=_finite(description["bound_l2"]),
        clip_taken_for=description["bound_taken_for"],
        pld=not any(isinstance(event, DiscreteGaussianSum) for event in events),
        noise_multiplier=noise,
        noise_place=description["method"]["mechanism"]["place"],
        denominator=description["denominator"],
        rounds_planned=description["rounds"],
        rounds_charged=len({entry.round for entry in ledger.entries}),
        releases_charged=sum(not isinstance(event, Covered) for event in events),
        budget=asdict(ledger.budgets[unit]) if unit in ledger.budgets else None,
        prices=[Price(d, _finite(loss.certified(d)), _finite(loss.epsilon(d, "rdp"))) for d in deltas],
        claimed=_claimed(description, own, len(events)),
        not_covered=_not_covered(description, own, private),
        configuration_sha256=configuration,
        ledger_seal=ledger.seal,
        versions=_versions(),
    )


def _loss(events: list[Event]) -> PrivacyLoss:
    loss = PrivacyLoss()
    for event, count in Counter(events).items():
        loss.add(event, count)
    return loss


def deltas_beside(own: float) -> list[float]:
    """At which deltas epsilon is shown: a run's own, always first, and the strict one."""
    return [own] if own == STRICT_DELTA else [own, STRICT_DELTA]


def _claimed(description: Mapping[str, Any], delta: float, rounds: int) -> dict[str, float] | None:
    """The published arithmetic: Poisson cohorts, whatever was executed, by the Renyi accountant."""
    claim = description["method"]["claim"]
    if claim is None or not claim["noise_multiplier"]:
        return None
    event = PoissonGaussian(claim["noise_multiplier"], claim["rate"])
    return {"epsilon": epsilon(event, rounds, delta, "rdp"), "delta": delta, **claim}


def _released(noisy: str, private: bool, anything: bool) -> str:
    if not anything:
        return "nothing yet"
    if private:
        return noisy
    return "the exact sum of the clients' updates in every round"


_NEIGHBOURS = {
    Relation.ADD_REMOVE: "add or remove one {unit}: all its data are there or not, its place on the roster stays",
    Relation.REPLACE: "replace one {unit}: all its data become any others",
}


def _priced_as(event: Event, count: int) -> str:
    times = f"{count} x "
    if isinstance(event, PoissonGaussian):
        return f"{times}Poisson cohorts, rate {event.rate:g}, noise multiplier {event.noise_multiplier:.6g}"
    if isinstance(event, FixedSizeGaussian):
        return (
            f"{times}uniform cohorts of exactly {event.size} of {event.population}, noise multiplier "
            f"{event.noise_multiplier:.6g}, the sum moving by twice the clip"
        )
    if isinstance(event, Gaussian):
        noise = f"noise multiplier {event.noise_multiplier:.6g}"
        return f"{times}one release to each who takes part, {noise}, no amplification"
    if isinstance(event, DiscreteGaussianSum):
        return (
            f"{times}{'everyone' if event.rate == 1 else f'Poisson cohorts, rate {event.rate:g}'}, {event.shares} "
            f"discrete Gaussians of scale {event.scale:.6g} in the modular sum of {event.dimension} coordinates, noise "
            f"multiplier {event.noise_multiplier:.6g} after rounding"
        )
    if isinstance(event, Covered):
        return f"{times}rounds of a cycle that was paid for when it began"
    return f"{times}{'without noise: no guarantee' if isinstance(event, NonPrivate) else event}"


def _not_covered(description: Mapping[str, Any], delta: float, private: bool) -> list[str]:
    if not private:
        return ["everything: this run has no privacy guarantee"]
    clients = description["task"]["clients"]
    gaps = [
        *description["method"]["notes"],
        "hyper-parameter search: choosing clip, learning rate, rounds or model by looking at results on these "
        "clients' data is a release that was not charged",
        "metrics: accuracies, losses, cohort sizes and counts of rejected updates are exact; where test samples are "
        "the clients' own, what they show is not protected",
        "the files beside this certificate: the checkpoint holds a hash of the data (and, while a run with "
        "correlated noise is under way, noise that could be subtracted), config.toml the seed and metrics.jsonl the "
        "metrics, so publish the model and this certificate alone",
        "what the run started from: the initial model, the shape of the data and the number of classes count as public",
        f"the number of clients: {clients} was declared when the run began and sets the constant denominator",
        "floating-point arithmetic: the proof is for real numbers, the noise is drawn with finite precision",
    ]
    if description["randomness"] != "secure":
        gaps.append(
            "simulation: cohorts and noise follow from a seed, and whoever knows the seed can remove the noise; for "
            'a real release use randomness = "secure"'
        )
    copies = description["task"].get("copies", 1)
    if copies > 1:
        gaps.append(
            f"clients overlap: a sample lies with up to {copies} of them, so that parallel composition is broken and a "
            f"sample is protected only as {copies} clients together are, for which no epsilon is certified here"
        )
    if delta * clients >= 1:
        gaps.append(
            f"delta {delta:g} is not below 1/{clients}: a mechanism that publishes one random client's data "
            "whole would satisfy it"
        )
    return gaps


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("cloister", "torch", "dp-accounting", "numpy", "scipy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _finite(value: float | str) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def round_up(epsilon: float | None, digits: int = 3) -> str:
    """An epsilon for people: rounded upwards, because a smaller number would claim too much.

    >>> round_up(1.99941), round_up(2.0000001), round_up(None)
    ('2.000', '2.001', 'infinity')
    """
    if epsilon is None or math.isinf(epsilon):
        return "infinity"
    return f"{math.ceil(epsilon * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def _noise(c: Certificate) -> str:
    if not c.noise_multiplier:
        return "none"
    taken = "" if c.clip_taken_for is None else f" of {c.clip_taken_for:g}, which the paper takes the bound for"
    return f"multiplier {c.noise_multiplier:.6g}{taken}, {c.noise_place}"


def _claim(claimed: Mapping[str, float]) -> str:
    return (
        f"epsilon {claimed['epsilon']:.3f} at {claimed['delta']:g}, for noise multiplier "
        f"{claimed['noise_multiplier']:g} and Poisson cohorts of rate {claimed['rate']:g}, by the Renyi "
        "accountant; what was executed costs the epsilon above"
    )


def _text(c: Certificate) -> str:
    rows = [
        ("protected unit", f"one {c.unit}"),
        ("neighbours", c.relation),
        ("released", c.released),
        ("must be trusted", c.trusted),
        ("randomness", c.randomness),
        ("cohorts executed", c.sampling_executed),
        *(("cohorts priced", line) for line in c.sampling_priced or ["nothing was charged"]),
        ("bound", "none" if c.clip is None else f"{c.clip:g} (L2 norm of any client's whole message)"),
        ("noise", _noise(c)),
        ("denominator", f"{c.denominator:g}, constant"),
        ("rounds", f"{c.rounds_charged} of {c.rounds_planned} planned, {c.releases_charged} releases charged"),
        ("budget", f"epsilon {c.budget['epsilon']:g} at delta {c.budget['delta']:g}" if c.budget else "none"),
        *(
            (
                f"epsilon at {price.delta:g}",
                f"{round_up(price.epsilon_pld)} (PLD)   {round_up(price.epsilon_rdp)} (RDP)"
                if c.pld
                else f"{round_up(price.epsilon_rdp)} (RDP)",
            )
            for price in c.prices
        ),
        *((("the paper claims", _claim(c.claimed)),) if c.claimed else ()),
        *(("not covered", gap) for gap in c.not_covered),
        ("configuration", c.configuration_sha256),
        ("ledger", c.ledger_seal),
        ("versions", ", ".join(f"{name} {number}" for name, number in c.versions.items())),
    ]
    lines, before = ["PRIVACY CERTIFICATE"], ""
    for name, value in rows:
        label = "-" if name == before else f"{name}:"  # a name that repeats itself is a list
        wrapped = textwrap.wrap(value, 96, break_long_words=False, break_on_hyphens=False)
        lines.append(f"  {label:>19} {wrapped[0]}")
        lines += [f"  {'':19} {more}" for more in wrapped[1:]]
        before = name
    return "\n".join(lines)
