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
    chosen = [part for part in asked.parts if part != "model"]
    parts = parts_of(_without_model(asked.values), chosen, [*asked.own, *asked.others])
    given = parts.resolved
    names = ("rounds", "epsilon", "delta", "clients", "sizes", *_OF_A_RUN)
    options = {name: given[name] for name in names if given.get(name) is not None}
    method, cohort = parts.make("method", **parts.make_if_chosen("server")), parts.make("cohort")
    task = None
    if "data" in asked.parts:
        task = parts.make("data", **parts.make_if_chosen("partition"))
        options = {name: value for name, value in options.items() if name not in ("clients", "sizes")}
    return audit(method, task, cohort=cohort, **options, **more)


def _without_model(values: Mapping[str, Any]) -> dict[str, Any]:
    """A file of a run names its model, and an attacker who chooses the worst case needs none."""
    if "model" not in values:
        return dict(values)
    known = introspected()
    own = {"model", *(key.name for key in known.keys_of("model", known.name_of("model", values["model"])))}
    return {name: value for name, value in values.items() if name not in own}
