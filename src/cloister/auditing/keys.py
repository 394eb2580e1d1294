"""An audit from keys: those of a plan, which say what is audited and on which terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloister.auditing.audits import audit
from cloister.auditing.found import Audit
from cloister.runs.config import parts_of
from cloister.runs.plan_keys import question_of
from cloister.runs.signatures import introspected

_OF_A_RUN = ("seed", "secure_rng", "device", "dtype")


def audit_of(values: Mapping[str, Any], **more: Any) -> Audit:
    """The audit of a run with these keys; `more` are arguments of `audit`."""
    asked = question_of(introspected(), values)
    parts = parts_of(asked.values, [part for part in asked.parts if part != "model"], [*asked.own, *asked.others])
    given = parts.resolved
    names = ("rounds", "epsilon", "delta", "clients", "sizes", *_OF_A_RUN)
    options = {name: given[name] for name in names if given.get(name) is not None}
    method, cohort = parts.make("method", **parts.make_if_chosen("server")), parts.make("cohort")
    task = None
    if "data" in asked.parts:
        task = parts.make("data", **parts.make_if_chosen("partition"))
        options = {name: value for name, value in options.items() if name not in ("clients", "sizes")}
    return audit(method, task, cohort=cohort, **options, **more)
