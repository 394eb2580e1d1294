"""What a certificate for people says beyond the certificate itself: how often an attacker can be right, and what each
client has spent. It is computed from description and ledger, kept in certificate.json under `people`, and computed
again by whoever verifies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from cloister.privacy.accounts import Account
from cloister.privacy.attacker import PRIORS, PROFILE_DELTAS, Point, guessed, told_apart
from cloister.privacy.certificate import STRICT_DELTA, Certificate
from cloister.privacy.description import RunDescription
from cloister.privacy.ledger import Ledger
from cloister.privacy.promised import Promised, finite
from cloister.privacy.unit import sample_account
from cloister.runs.certificate_file import Circumstances

RENDERERS = ("jinja2", "reportlab")
"""Packages by which the pages are written: other versions of them may write other bytes."""


def people_of(
    certificate: Certificate, description: RunDescription, ledger: Ledger, circumstances: Circumstances
) -> dict[str, Any]:
    """For a run, by its whole privacy profile and account by account."""
    promised = Promised.of(description, ledger, circumstances.ended_early)
    profile = promised.profile(PROFILE_DELTAS) if certificate.private else []
    task = description.task
    return {
        "subject": f"{description.method.name} on {task.name}, {task.clients:,} clients",
        **attacker_of(certificate, profile),
        "accounts": _accounts(description, promised, description.delta or STRICT_DELTA),
        "renderers": renderers(),
    }


def attacker_of(certificate: Certificate, profile: Sequence[Point] = ()) -> dict[str, Any]:
    """How often an attacker can be right. Without a profile, by the certified epsilons alone."""
    if not certificate.private:
        return {"by_profile": False, "guesses": [], "told_apart": None}
    certified = [(p.epsilon_pld, p.delta) for p in certificate.prices if p.epsilon_pld is not None]
    points = [*profile, *certified]
    return {
        "by_profile": bool(profile),
        "guesses": [{"before": prior, "after": guessed(points, prior)} for prior in PRIORS],
        "told_apart": told_apart(points),
    }


def renderers() -> dict[str, str]:
    """The versions of what writes the pages."""
    return {name: version(name) for name in RENDERERS}


def _accounts(description: RunDescription, promised: Promised, delta: float) -> list[dict[str, Any]]:
    """What each client's samples have lost; one row for all where clients as a whole are protected."""
    task = description.task
    if description.method.unit != "sample" or task.sizes is None:
        return [
            _row(None, "every client", None, account, promised, delta, {}) for account in promised.accounts.values()
        ]
    names = task.client_names or tuple(f"client {number}" for number in range(task.clients))
    known: dict[tuple[object, ...], float] = {}
    rows = []
    for number, samples in enumerate(task.sizes):
        unit = sample_account(number)
        account = promised.accounts.get(unit, Account(unit, None))
        rows.append(_row(number, names[number], samples, account, promised, delta, known))
    return rows


def _row(
    client: int | None,
    name: str,
    samples: int | None,
    account: Account,
    promised: Promised,
    delta: float,
    known: dict[tuple[object, ...], float],
) -> dict[str, Any]:
    history = (account.budget, frozenset(account.events.items()))  # those who paid the same have lost the same
    if history not in known:
        known[history] = promised.account(account, delta)
    return {
        "client": client,
        "name": name,
        "samples": samples,
        "rounds": len(account.rounds - {0}),  # what was asked before the first is no round
        "releases": account.releases,
        "epsilon": finite(known[history]),
        "budget": None if account.budget is None else account.budget.epsilon,
    }


def is_for_people(found: Any) -> bool:
    """Whether a value is what `people_of` gives: of the right types, so that pages can be written from it."""
    if not isinstance(found, Mapping) or set(found) != _NAMES or not isinstance(found["subject"], str):
        return False
    guesses, accounts = found["guesses"], found["accounts"]
    return (
        isinstance(found["by_profile"], bool)
        and isinstance(guesses, list)
        and all(isinstance(one, dict) and set(one) == {"before", "after"} for one in guesses)
        and all(_number(value) for one in guesses for value in one.values())
        and (found["told_apart"] is None or _number(found["told_apart"]))
        and isinstance(found["renderers"], dict)
        and isinstance(accounts, list)
        and all(isinstance(one, dict) and set(one) == _ACCOUNT and isinstance(one["name"], str) for one in accounts)
        and all(one[name] is None or _number(one[name]) for one in accounts for name in _ACCOUNT - {"name"})
    )


_NAMES = {"subject", "by_profile", "guesses", "told_apart", "accounts", "renderers"}
_ACCOUNT = {"client", "name", "samples", "rounds", "releases", "epsilon", "budget"}


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
