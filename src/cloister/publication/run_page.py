"""The page about a run: its certificate in the words of somebody who has not heard of epsilon."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cloister.privacy.certificate import Certificate
from cloister.privacy.certificate_text import round_up, rows_of
from cloister.publication.page import Banner, Guess, Page, Spent, percent

FEW = 40
"""So many accounts, or names, are shown; certificate.json has all."""


def run_page(
    certificate: Certificate, people: Mapping[str, Any], files: Mapping[str, str], key: tuple[str, str] | None
) -> Page:
    """The page of a certificate; `files` are those that are published, with their hashes, and `key` the signer's, with
    its fingerprint."""
    c = certificate
    spent = c.prices[0]
    bounded = c.private and spent.epsilon_pld is not None
    return Page(
        title="Privacy certificate",
        subject=f"{people['subject']}: {c.rounds_charged} of {c.rounds_planned} rounds",
        banners=banners_of(c),
        epsilon=round_up(spent.epsilon_pld) if bounded else "",
        at_delta=f"at delta {spent.delta:g}",
        whom=f"for each {c.unit}",
        meaning=_meaning(c) if bounded else [_UNBOUNDED],
        guesses=guesses_of(people, c.unit),
        formula=formula(bool(people["by_profile"])) if bounded else "",
        unit=_unit(c) if bounded else ["Nobody."],
        names=names_of(c.clients),
        spending_title="What was spent, and of what budget",
        spending=_spending(people["accounts"]),
        spending_note=_spending_note(people["accounts"], c),
        trusted=[c.trusted],
        not_covered=list(c.not_covered),
        details=_details(c),
        files=sorted(files.items()),
        signature=signature_words(key),
        check=[f"cloister verify FOLDER{'' if key is None else f' --key {key[0]}'}"],
    )


def banners_of(c: Certificate) -> list[Banner]:
    """What must stand above everything else."""
    if any(gap.startswith("TEST MODE") for gap in c.not_covered):
        return [Banner("TEST MODE: NOT PRIVATE", _TEST)]
    if not c.private:
        return [Banner("NO PRIVACY GUARANTEE", _UNBOUNDED)]
    return [] if c.secure_rng else [Banner("SIMULATION: NOT A PRIVATE RELEASE", _SIMULATED)]


_TEST = (
    "Everything random in this federation was seeded, to try it out. Whoever has the terms can remove the noise: no "
    "number below is a guarantee."
)
_UNBOUNDED = (
    "Something was released without noise, or with too little of it for any bound: whoever sees what was released may "
    "learn anything about anybody whose data were used."
)
_SIMULATED = (
    "Noise and draws came from a seed, which is in description.json: whoever has it can subtract the noise. The "
    "numbers below are what the same run promises with randomness of the operating system (secure_rng = true), not "
    "what this one keeps."
)


def meaning_of(epsilon: float, delta: float, unit: str, what: str) -> list[str]:
    """Epsilon and delta in plain words; `what` is who is there or not, or other, in the comparison."""
    chance = f"1 in {math.floor((1 + 1e-12) / delta):,}"
    return [
        f"Think of two worlds that differ in {what}, and of anything that somebody could conclude from what was "
        f"released. Its probability in one world is at most {_factor(epsilon)} times (e to the power of epsilon) that "
        f"in the other, apart from a chance of {delta:g} ({chance}), which is delta.",
        f"The smaller epsilon is, the less the release adds to what somebody knows of one {unit} anyway. The most that "
        "it can add:",
    ]


def _factor(epsilon: float) -> str:
    """e^epsilon, rounded upwards.

    >>> _factor(0.1), _factor(10.0), _factor(20.0), _factor(1000.0)
    ('1.106', '22,030', '10^9', '10^435')
    """
    if epsilon > math.log(1e6):
        return f"10^{math.ceil(epsilon / math.log(10))}"
    times = _up(math.exp(epsilon))
    return f"{times:,.0f}" if times >= 1e4 else f"{times:,.4g}"


def _up(value: float) -> float:
    """To four digits, upwards."""
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    return math.ceil(value * scale - 1e-9) / scale


def _meaning(c: Certificate) -> list[str]:
    replaced = c.adjacency.startswith("replace")
    one = "one sample (one row of one client's data)" if c.unit == "sample" else "all data of one client"
    what = f"{one}: what it is" if replaced else f"{one}: used, or not there at all"
    epsilon = c.prices[0].epsilon_pld
    return meaning_of(math.inf if epsilon is None else epsilon, c.prices[0].delta, c.unit, what)


def guesses_of(people: Mapping[str, Any], unit: str) -> list[Guess]:
    """Examples of attackers, from the one who knows least."""
    found = [
        Guess(
            f"Somebody guesses a secret of one {unit}, and would be right with {percent(one['before'])} without its "
            "data",
            one["before"],
            one["after"],
        )
        for one in people["guesses"]
    ]
    if people["told_apart"] is not None:
        question = f"Somebody has all data of one {unit}, and decides whether they were used; a coin is right with 50 %"
        found.append(Guess(question, 0.5, people["told_apart"]))
    return found


def formula(by_profile: bool) -> str:
    """How the attacker's success is bounded."""
    where = (
        "taken at its smallest over the whole privacy profile of what was released (every epsilon with its delta)"
        if by_profile
        else "taken at the epsilons and deltas of this certificate"
    )
    return (
        "A guess that is right with probability p without the data is right with at most min(e^epsilon p + delta, 1 - "
        "e^-epsilon (1 - p - delta)); a decision between used and not used with at most (e^epsilon + delta) / (1 + "
        f"e^epsilon); both {where}, and rounded upwards. Single releases may give more away, rarely; the numbers are "
        "how often an attacker is right, those included."
    )


def _unit(c: Certificate) -> list[str]:
    if c.unit == "sample":
        what = "One sample: one row, image or text of one client. What many rows have in common is not hidden."
    else:
        what = "One client as a whole: all data of one person, device or institution that takes part."
        if not c.adjacency.startswith("replace"):
            what += (
                " Two data sets of a client that differ in one row are two such steps apart (without the client, and "
                "with it again): of one row alone twice the epsilon is proven, at (1 + e^epsilon) times the delta."
            )
    return [what, f"Compared are data sets that differ like this: {c.adjacency}."]


def names_of(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more (certificate.json has all)" if more > 0 else "")


def _spending(accounts: Sequence[Mapping[str, Any]]) -> list[Spent]:
    """Bars of one scale, so that accounts can be compared."""
    rows = sorted(accounts, key=lambda one: -_size(one["epsilon"]))[:FEW] if len(accounts) > FEW else accounts
    sizes = [max(_size(one["budget"], 0.0), _size(one["epsilon"], 0.0)) for one in rows]
    return [spent_of(one, max(sizes) or 1.0) for one in rows]


def spent_of(row: Mapping[str, Any], widest: float) -> Spent:
    """One account."""
    epsilon, budget = row["epsilon"], row["budget"]
    samples = "" if row["samples"] is None else f"{row['samples']:,} samples, "
    return Spent(
        row["name"],
        f"{samples}{row['releases']:,} releases in {row['rounds']:,} rounds",
        round_up(epsilon),
        "(no budget)" if budget is None else f"of {budget:g}",
        None if epsilon is None else min(epsilon / widest, 1.0),
        min(_size(budget, _size(epsilon, 0.0)) / widest, 1.0),
    )


def _size(epsilon: float | None, otherwise: float = math.inf) -> float:
    return otherwise if epsilon is None else epsilon


def _spending_note(accounts: Sequence[Mapping[str, Any]], c: Certificate) -> str:
    delta = f"All at delta {c.prices[0].delta:g}."
    if len(accounts) > FEW:
        return f"{delta} The {FEW} that have spent most, of {len(accounts):,}; certificate.json has all."
    if c.unit != "sample":
        return f"{delta} Clients have one account: each of them has lost this at most."
    return f"{delta} Each client has an account of its own, for any one of its samples."


def _details(c: Certificate) -> list[tuple[str, list[str]]]:
    """All lines of certificate.txt that are not shown above in other words."""
    shown = ("clients", "must be trusted", "not covered")
    found: dict[str, list[str]] = {}
    for name, value in rows_of(c):
        if name not in shown:
            found.setdefault(name, []).append(value)
    return list(found.items())


def signature_words(key: tuple[str, str] | None) -> list[str]:
    """Who vouches for it."""
    if key is None:
        return [
            "Not signed. Whoever can write these files can write others, with another epsilon and hashes that fit: "
            "keep the SHA-256 of certificate.json, or ask for a signed one (cloister publish --key)."
        ]
    return [
        f"Signed (ed25519) by the key {key[0]}, fingerprint {key[1]}. Whose key that is, these files cannot prove: ask "
        "its owner, and name the key when you verify."
    ]
