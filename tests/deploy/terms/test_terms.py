"""Terms: one digest for one agreement, nothing but names of the catalogues, and every mistake a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloister.deploy.halves import plain_words, planned_cost
from cloister.deploy.terms import Terms
from cloister.errors import CloisterError
from deploy.halves.federations import FEDAVG, KEYS, PFL, tables, terms_of

HEART = Path(__file__).parents[3] / "experiments" / "heart-schema.toml"


def changed(**changes: Any) -> dict[str, Any]:
    found = tables(PFL)
    for name, value in changes.items():
        if name in ("federation", "samples"):
            found[name] = {**found[name], **value}
        else:
            found[name] = value
    return found


def test_terms_survive_the_wire():
    terms = terms_of(PFL)
    again = Terms.from_json(json.loads(json.dumps(terms.to_json())))
    assert again.digest == terms.digest
    assert again.values == terms.values
    assert again.federation == terms.federation
    assert again.register == terms.register


def test_terms_with_a_schema_survive_the_wire_and_say_what_rows_are(tmp_path):
    found = {key: value for key, value in tables(PFL).items() if key != "samples"}
    lines = [f"{key} = {json.dumps(value)}" for key, value in found.items() if key != "federation"]
    federation = {key: value for key, value in found["federation"].items() if key != "nodes"}
    lines += ["[federation]", *(f"{key} = {json.dumps(value)}" for key, value in federation.items())]
    lines += [
        "[federation.nodes]",
        *(f"{key} = {json.dumps(value)}" for key, value in found["federation"]["nodes"].items()),
    ]
    schema = HEART.read_text().replace("[columns.", "[schema.columns.")
    file = tmp_path / "terms.toml"
    file.write_text("\n".join([*lines, "[schema]", schema]))
    terms = Terms.load(file)
    assert terms.samples.classes == 2
    assert terms.samples.shape == (len(terms.samples.schema.feature_names),)
    again = Terms.from_json(json.loads(json.dumps(terms.to_json())))
    assert again.digest == terms.digest
    assert again.samples.schema == terms.samples.schema


@pytest.mark.parametrize(
    "other",
    [
        changed(lr=0.4),
        changed(rounds=4),
        changed(samples={"classes": 4}),
        changed(federation={"min_replies": 3}),
        changed(federation={"test_mode": False}),
        changed(federation={"nodes": dict(zip("abcd", KEYS[1:], strict=True))}),
        changed(federation={"nodes": dict(reversed(tables(PFL)["federation"]["nodes"].items()))}),
    ],
)
def test_whatever_changes_changes_the_digest(other):
    assert Terms.from_tables(other).digest != terms_of(PFL).digest


def test_a_default_that_is_said_changes_nothing():
    assert Terms.from_tables(changed(momentum=0.5, cohort="full")).digest == terms_of(PFL).digest


def test_a_run_is_named_by_terms_and_nonce():
    terms, secure = terms_of(PFL), terms_of(PFL, test_mode=False)
    assert terms.new_nonce() == terms.new_nonce()
    assert secure.new_nonce() != secure.new_nonce()
    assert terms.run_of("a") != terms.run_of("b") != secure.run_of("b")


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (changed(method="os:system"), "terms name no code"),
        (changed(model="package.module:function"), "terms name no code"),
        (changed(method="unknown"), "method to be one of"),
        (changed(lrr=1.0), "a known key"),
        (changed(data="digits"), "data"),
        (changed(partition="iid"), "partition"),
        (changed(device="cuda"), "every site decides"),
        (changed(secure_rng=False), "randomness is the system's"),
        (changed(weights="file.safetensors"), "a path is of one machine"),
        (changed(federation={"nodes": {}}), "federation.nodes"),
        (changed(federation={"nodes": {"server": KEYS[1]}}), "none of them server"),
        (changed(federation={"nodes": {"a": KEYS[1], "b": KEYS[1]}}), "a key of its own"),
        (changed(federation={"nodes": {"a": "no key"}}), "key"),
        (changed(federation={"min_replies": 5}), "min_replies"),
        (changed(federation={"deadline": -1.0}), "deadline"),
        (changed(federation={"participation": "chance"}), "participation"),
        (changed(federation={"sizes": [1, 2]}), "number of rows of each of 4"),
        (changed(federation={"colour": "red"}), "a key of"),
        (changed(samples={"classes": None}), "declare how many"),
        (changed(samples={"loss": "own"}), "loss"),
        (changed(samples={"preprocessing": {"name": "eval"}}), "preprocessing"),
        (changed(samples={"shape": [-1]}), "shape"),
        (changed(samples={"shape": [10**9, 10**9]}), "shape"),
        (changed(schema={"label": "x"}), "once"),
        (changed(other={"a": 1}), "remove the others"),
        (changed(public={"sha256": "abc"}), "64 hexadecimal"),
    ],
)
def test_a_mistake_is_a_sentence(tables, says):
    with pytest.raises(CloisterError, match=says):
        Terms.from_tables(tables)


def test_terms_of_another_version_are_refused():
    with pytest.raises(CloisterError, match="terms of version"):
        Terms.from_json({**terms_of(PFL).to_json(), "version": 2})
    with pytest.raises(CloisterError, match="in terms"):
        Terms.from_json({**terms_of(PFL).to_json(), "more": 2})


def test_plain_words_say_who_asks_what_leaves_and_what_it_costs():
    terms = terms_of({**PFL, "epsilon": 30.0}, test_mode=False)
    cost = planned_cost(terms, 40, "ann")
    text = plain_words(terms, "ann", 40, cost=cost)
    assert "bob, cid, dan" in text
    assert "You need to trust nobody" in text
    assert f"{cost.first:.3g} after the first round and {cost.last:.3g} after the last" in text
    assert "TEST" not in text
    assert plain_words(terms_of(PFL), "ann", 40).startswith("- THIS IS A TEST")
    central = plain_words(terms_of(FEDAVG, test_mode=False), "bob")
    assert "You must trust the server" in central
    assert "Your site is protected as a whole" in central


def test_what_is_planned_is_what_a_node_pays():
    from cloister.privacy.accountant import PrivacyLoss
    from deploy.halves.federations import Toy

    for values in (PFL, FEDAVG):
        terms = terms_of(values)
        cost, toy, loss = planned_cost(terms, 12, "cid"), Toy(terms), PrivacyLoss()
        node = toy.nodes[2]
        for step in toy.server.steps:
            charge = node.charges(step, toy.server.offer(step, (0, 1, 2, 3)))
            loss.add(charge.event, charge.count)
        assert cost.last == pytest.approx(loss.epsilon(1e-3), rel=1e-9)
        assert list(cost.after) == [1, 2, 3]
        assert cost.after[1] < cost.after[2] < cost.after[3]


def test_more_rows_cost_less():
    terms = terms_of(PFL)
    assert planned_cost(terms, 400, "ann").epsilon < planned_cost(terms, 40, "ann").epsilon
