"""Drafted terms: TOML that says what was wished for, with comments that do no harm."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from cloister.deploy.operation.made_up_data import EXAMPLE_SCHEMA
from cloister.deploy.operation.terms_draft import DEFAULTS, Draft, terms_text

HEART = (Path(__file__).parents[3] / "experiments" / "heart-schema.toml").read_text()
ODD = (
    'label = "b"\n[ columns . "a b" ] # why\nkind = "number"\n'
    ' [columns."[b"]\nkind = "boolean"\n[columns.b]\nkind="boolean"'
)
INLINE = 'label = "b"\ncolumns = {a = {kind = "number"}, b = {kind = "boolean"}}\n'
TRICKY = 'label = "b"\nextra = """\n[columns.a]\n"""\n[columns.b]\nkind = "boolean"\n'


NODES = {"va": "ed25519:v", "1.x-y": "ed25519:w"}


def draft(**more) -> Draft:
    return Draft("four hospitals", "https://a:1", "ed25519:s", NODES, DEFAULTS, **more)


@pytest.mark.parametrize("schema", [EXAMPLE_SCHEMA, HEART, ODD, INLINE, TRICKY])
def test_a_schema_becomes_a_table_that_says_the_same(schema):
    found = tomllib.loads(terms_text(draft(schema=schema)))
    assert found["schema"] == tomllib.loads(schema)
    assert list(found["schema"]["columns"]) == list(tomllib.loads(schema)["columns"])


def test_comments_of_a_schema_are_kept_where_they_can_be():
    assert "nobody alive has 0" in terms_text(draft(schema=HEART))


def test_everything_that_was_said_is_there():
    text = terms_text(draft(samples={"shape": [13], "classes": 2}, threshold=2, participation="node", test_mode=True))
    found = tomllib.loads(text)
    assert {key: found[key] for key in DEFAULTS} == dict(DEFAULTS)
    assert list(found["federation"]["nodes"]) == ["va", "1.x-y"]
    assert found["federation"] | {"nodes": None} == {
        "name": "four hospitals",
        "url": "https://a:1",
        "server_key": "ed25519:s",
        "min_replies": 2,
        "deadline": 60.0,
        "participation": "node",
        "threshold": 2,
        "test_mode": True,
        "nodes": None,
    }
    assert found["samples"] == {"shape": [13], "classes": 2}


@pytest.mark.parametrize("name", ['x"\n[federation]', "# no", "a\\b", "Universität 🏥"])
def test_no_name_can_change_the_terms(name):
    given = Draft(name, "https://a:1", "k", {"va": "v"}, {**DEFAULTS, "model": name})
    found = tomllib.loads(terms_text(given))
    assert (found["federation"]["name"], found["model"]) == (name, name)
    assert set(found) == {*DEFAULTS, "model", "federation"}
