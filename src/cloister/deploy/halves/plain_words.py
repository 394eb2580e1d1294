"""What a node is asked, for the person who decides: short sentences, and the numbers that matter."""

from __future__ import annotations

import math

from cloister.core import Samples
from cloister.deploy.halves.costs import PlannedCost, planned_cost
from cloister.deploy.masking import protects_against_a_lying_server, threshold_for
from cloister.deploy.terms.terms import Terms
from cloister.methods.registry import REGISTRY
from cloister.privacy.unit import ProtectedUnit


def plain_words(
    terms: Terms,
    node: str,
    rows: int | None = None,
    public: Samples | None = None,
    cost: PlannedCost | None = None,
) -> str:
    """What these terms ask of a node: who asks, what leaves, what protects it, who must be trusted, what it costs."""
    cost = cost or planned_cost(terms, rows, node, public)
    parts = _who(terms, node), _what_leaves(terms, cost), _protection(cost), _trust(terms, cost), _price(cost)
    lines = [line for part in parts for line in part]
    if terms.test_mode:
        lines.insert(0, "THIS IS A TEST: everything random is seeded, so nothing here is private. Use made-up data.")
    return "\n".join(f"- {line}" for line in lines)


def _who(terms: Terms, node: str) -> list[str]:
    federation = terms.federation
    others = federation.clients - 1
    known = REGISTRY[str(terms.values["method"])].paper
    return [
        f"The server of {federation.name!r} asks {node} to train a model together with {others} other "
        f"{'node' if others == 1 else 'nodes'}: {', '.join(name for name in federation.names if name != node)}.",
        f"The method is {terms.values['method']} ({known}), the model {terms.values['model']}, over {terms.rounds} "
        f"{'round' if terms.rounds == 1 else 'rounds'}.",
    ]


def _what_leaves(terms: Terms, cost: PlannedCost) -> list[str]:
    message = "Your rows stay here. In a round that you take part in, one message leaves: an update of the model"
    hidden = ", under masks: the server sees the sum of all nodes' messages and no single one"
    found = [f"{message}{hidden if cost.trusted == 'nodes' else ''}."]
    asked = [query for query in ("standardize", "center", "decorrelate") if terms.values.get(query)]
    if asked:
        found.append(f"Before the first round, noisy statistics of your inputs leave as well ({', '.join(asked)}).")
    if terms.options.validation == "private":
        part = terms.options.validation_fraction
        found.append(f"{part:.0%} of your rows are held out; how models do on them leaves now and then, with noise.")
    sizes = terms.federation.sizes
    if sizes is not None:
        found.append("The number of your rows is declared in the terms, and is public.")
    elif cost.unit is ProtectedUnit.SAMPLE:
        found.append("The number of your rows is not told to anybody.")
    return found


def _protection(cost: PlannedCost) -> list[str]:
    if cost.trusted == "everybody":
        return ["Nothing protects it: the method adds no noise, and what leaves may tell about single rows."]
    if cost.unit is ProtectedUnit.SAMPLE:
        return [
            "Each of your rows is protected: whatever leaves would look almost the same without any one of them. What "
            "all rows have in common is not hidden."
        ]
    return [
        "Your site is protected as a whole: what the server publishes would look almost the same if you had not taken "
        "part."
    ]


def _trust(terms: Terms, cost: PlannedCost) -> list[str]:
    federation = terms.federation
    if cost.trusted == "everybody":
        return ["You must trust everybody who sees a message or the model."]
    if cost.trusted == "nobody":
        return ["You need to trust nobody: noise is added here, before anything leaves."]
    if cost.trusted == "nodes":
        members, fewest = federation.clients, federation.fewest
        threshold = threshold_for(members, fewest, None, federation.threshold or 0)
        lying = protects_against_a_lying_server(members, threshold)
        server = "even if the server lies" if lying else "as long as the server follows the protocol"
        return [
            f"You must trust the other nodes to add their noise and keep it secret: the noise of {fewest} of "
            f"{members} nodes is counted on. Masks hide single messages {server}."
        ]
    drawn = "You draw yourself in which rounds you take part." if federation.participation == "node" else ""
    return [
        "You must trust the server: it sees your updates, and it adds the noise before it publishes anything. "
        f"{drawn}".rstrip()
    ]


def _price(cost: PlannedCost) -> list[str]:
    if not math.isfinite(cost.last):
        return ["It has no price in privacy, because there is no privacy: epsilon is infinite."]
    whose = "each of your rows" if cost.unit is ProtectedUnit.SAMPLE else "your site"
    first, last = cost.first, cost.epsilon
    at_most = "at most " if cost.follows else ""
    return [
        f"It costs {whose} epsilon {first:.3g} after the first round and {at_most}{last:.3g} after the last, at delta "
        f"{cost.delta:g}. (Below 1 is strong, above 10 is weak.)"
    ]
