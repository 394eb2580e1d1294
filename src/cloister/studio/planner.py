"""A plan as plain values: what `cloister plan` says of the same keys, and epsilon over rounds for a curve."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from cloister.errors import CloisterError, number_in, shown
from cloister.privacy.certificate_text import round_up
from cloister.runs.noise import Noise, with_noise
from cloister.runs.plan_keys import plan_of
from cloister.runs.report.plan import plan_summary, warning

METHODS = {
    "dp_fedavg": ("clients", "sampling_rate", "rounds", "epsilon", "delta", "parameters"),
    "pfl": ("clients", "sizes", "batch_size", "sampling_rate", "rounds", "epsilon", "delta", "parameters"),
}
"""The two that the page plans, by the keys that it asks for: whole clients are protected, or single samples."""
_WHOLE = ("clients", "rounds", "parameters", "sizes", "batch_size")
_POINTS = 24
_FEW_ORDERS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 128, 256)
"""Renyi's bound holds at every order, so that few give a bound as well, and quickly."""


def keys_of(query: Mapping[str, str]) -> dict[str, Any]:
    """The keys of a plan from the words of an address; refuses others, and what is no number."""
    method = query.get("method", "dp_fedavg")
    if method not in METHODS:
        raise CloisterError(f"Expected method to be one of {', '.join(METHODS)}, found {shown(method)}: choose one.")
    values: dict[str, Any] = {"method": method}
    for name in METHODS[method]:
        text = query.get(name, "").strip()
        number = number_in(text)
        if number is None or not math.isfinite(number):
            raise CloisterError(f"Expected a number for {name}, found {shown(text)}: give one.")
        whole = name in _WHOLE
        if whole and number != int(number):
            raise CloisterError(f"Expected {name} to be a whole number, found {text}: leave the decimals out.")
        values[name] = int(number) if whole else number
    return values


def command(values: Mapping[str, Any]) -> str:
    """The command that says the same."""
    return shlex.join(["cloister", "plan", *(f"{name}={value}" for name, value in values.items())])


def exact(values: Mapping[str, Any]) -> dict[str, Any]:
    """By the accountant that certifies."""
    plan = plan_of(values)
    curve = plan.curve_of(plan.spending.worst.unit, _POINTS, [plan.delta])
    return {
        "accountant": "PLD" if plan.has_pld else "RDP",
        "noise_multiplier": plan.noise_multiplier,
        "epsilon": plan.epsilon,
        "epsilon_words": round_up(plan.epsilon),
        "expected": plan.expected,
        "signal_round": plan.signal.round,
        "signal_run": plan.signal.run,
        "needed": plan.needed,
        "needed_of": "samples of every client" if plan.protects_samples else "clients",
        "warning": warning(plan) if plan.too_small else None,
        "summary": [list(line) for line in plan_summary(plan) if line[0] not in ("WARNING", "note")],
        "curve": {"round": [point.round for point in curve], "epsilon": [point.epsilons[0] for point in curve]},
    }


def quick(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """At once, by Renyi's bound at few orders: never less noise than it takes, and mostly a tenth more. None where
    samples are protected, whose accounts are not so simple."""
    if values["method"] != "dp_fedavg":
        return None
    import numpy as np

    from cloister.privacy.accountant import rdp_at
    from cloister.privacy.calibration import calibrate
    from cloister.privacy.events import Event
    from cloister.runs.signal import signal_of

    # As it is with noise that is given, so that nothing is calibrated yet.
    asked = {name: value for name, value in values.items() if name != "epsilon"}
    plan = plan_of({**asked, "noise_multiplier": 1.0})
    terms, delta, target = plan.terms, plan.delta, float(values["epsilon"])
    known: dict[Event, Any] = {}

    def cost(event: Event, count: int, delta: float) -> float:
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

        if event not in known:
            known[event] = rdp_at(event, _FEW_ORDERS)
        return float(compute_epsilon(_FEW_ORDERS, np.asarray(known[event]) * count, delta)[0])

    def event(multiplier: float) -> Event:
        return terms.event(with_noise(plan.asked, multiplier))

    releases = terms.cohort.releases(terms.rounds, terms.clients)
    multiplier = calibrate(event, releases, target, delta, precision=1e-2, price=cost)
    signal = signal_of(terms, Noise(with_noise(plan.asked, multiplier), (), {}))
    rounds = sorted({1, *(max(1, round(terms.rounds * part / _POINTS)) for part in range(1, _POINTS + 1))})
    spent = event(multiplier)
    return {
        "accountant": "RDP at few orders",
        "noise_multiplier": multiplier,
        "epsilon": target,
        "expected": plan.expected,
        "signal_round": signal.round,
        "signal_run": signal.run,
        "curve": {
            "round": rounds,
            "epsilon": [cost(spent, terms.cohort.releases(done, terms.clients), delta) for done in rounds],
        },
    }
