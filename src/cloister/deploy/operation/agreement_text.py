"""What a node's operator reads before agreeing: who asks, for what, what it has cost and what it will cost."""

from __future__ import annotations

import math
import textwrap

from cloister.deploy.halves.costs import PlannedCost, planned_cost
from cloister.deploy.halves.plain_words import plain_words
from cloister.deploy.node.agreement import Agreement
from cloister.deploy.terms.terms import Terms
from cloister.methods import REGISTRY

_WIDTH = 96


def agreement_text(agreement: Agreement) -> str:
    """The page that is shown before "Do you agree?"."""
    terms = agreement.terms
    cost = planned_cost(terms, agreement.rows, agreement.node)
    return "\n".join(
        [
            f"The federation {terms.federation.name!r} asks you to take part as {agreement.node!r}.",
            "",
            _wrapped(plain_words(terms, agreement.node, agreement.rows, cost=cost)),
            "",
            terms_words(terms),
            "",
            *_to_compare(agreement),
            "",
            *_account(agreement, cost),
        ]
    )


def summary(agreement: Agreement) -> str:
    """The same in short, for whoever agreed in advance; nothing is computed for it."""
    terms = agreement.terms
    return "\n".join(
        [
            f"Taking part in {terms.federation.name!r} as {agreement.node!r}.",
            terms_words(terms),
            *_to_compare(agreement),
            *_beyond(agreement, terms.values.get("epsilon"), terms.values.get("delta")),
        ]
    )


def asked_of(terms: Terms, node: str, rows: int | None) -> str:
    """What terms ask of a node, as they would be shown to it."""
    return _wrapped(plain_words(terms, node, rows))


def terms_words(terms: Terms) -> str:
    """The facts of terms: what is learned from which columns, at what price, by whom."""
    federation = terms.federation
    lines = [
        ("what", f"{terms.rounds} rounds of {terms.values['method']} on the model {terms.values['model']}"),
        ("from", _rows(terms)),
        ("protected", _protected(terms)),
        ("price", _price(terms)),
        ("nodes", ", ".join(federation.names)),
        ("replies", f"a round needs {federation.fewest} of {terms.clients}, within {federation.deadline:g} s"),
    ]
    if terms.test_mode:
        lines.append(("TEST MODE", "everything random follows from a seed that everybody knows: NOT PRIVATE"))
    return "\n".join(
        textwrap.fill(text, _WIDTH, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13) for name, text in lines
    )


def _wrapped(text: str) -> str:
    """Lines that a terminal can show; what is wrapped is indented."""
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) for line in text.split("\n")
    )


def _to_compare(agreement: Agreement) -> list[str]:
    return [
        "To compare with the other sites, for only then do you all agree to the same:",
        f"  digest of the terms  {agreement.digest}",
        f"  key of the server    {agreement.server_fingerprint}",
    ]


def _rows(terms: Terms) -> str:
    schema = terms.samples.schema
    if schema is None:
        return f"inputs of shape {list(terms.samples.shape)}, and their labels"
    columns = ", ".join(column.name for column in schema.feature_columns)
    return f"the columns {columns}; to tell {', '.join(schema.label)}"


def _protected(terms: Terms) -> str:
    whom = {
        "sample": "any one row of a node, but not what its rows have in common",
        "client": "a node with all its rows",
    }
    return whom.get(REGISTRY[str(terms.values["method"])].unit, "nobody: NOT PRIVATE")


def _price(terms: Terms) -> str:
    epsilon, delta = terms.values.get("epsilon"), terms.values.get("delta")
    if epsilon is None:
        return "no epsilon is promised: it follows from the noise in the terms, if there is any"
    return f"epsilon {epsilon:g} at delta {delta:g} at most, for the whole run" if delta else f"epsilon {epsilon:g}"


def _account(agreement: Agreement, cost: PlannedCost) -> list[str]:
    """What was spent, what is asked, and what the operator allows."""
    limit, runs = agreement.limit, len(agreement.runs)
    so_far = f"epsilon {agreement.spent:.3f} at delta {agreement.delta:g} in {runs} {'run' if runs == 1 else 'runs'}"
    adds = f"epsilon {cost.epsilon:.3f} at delta {cost.delta:g}" if math.isfinite(cost.epsilon) else "no bound at all"
    lines = [
        f"The account of your {agreement.rows:,} rows, in all federations:",
        f"  so far               {so_far if runs else 'nothing was spent'}",
        f"  this run adds        {adds}, at most",
        f"  your limit           {'none' if limit is None else f'epsilon {limit.epsilon:g} at delta {limit.delta:g}'}"
        + ("" if limit is None else "; your node refuses what would exceed it"),
    ]
    return lines + _beyond(agreement, cost.epsilon, cost.delta)


def _beyond(agreement: Agreement, epsilon: float | None, delta: float | None) -> list[str]:
    """A note where a run may take more than is left: more epsilon, or as much at a delta above that of the limit."""
    limit = agreement.limit
    if limit is None or epsilon is None:
        return []
    more = agreement.spent + epsilon > limit.epsilon * 1.001
    at_less = delta is not None and limit.delta < delta * 0.999
    if not more and not at_less:
        return []
    asked = f"epsilon {epsilon:.4g}" + ("" if delta is None else f" at delta {delta:g}")
    left = f"epsilon {max(0.0, limit.epsilon - agreement.spent):.3g} at delta {limit.delta:g}"
    note = f"up to {asked} may be asked for, and {left} is left: your node refuses rounds beyond that"
    return [textwrap.fill(note, _WIDTH, initial_indent="  note                 ", subsequent_indent=" " * 23)]
