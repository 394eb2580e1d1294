"""The inventory of the papers is true: what it names can be imported, its tests exist, and nothing is left empty."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest

from cloister.theory.bounds import BOUNDS

ROOT = Path(__file__).parent.parent
CATALOGUE = ROOT / "src" / "cloister" / "runs" / "catalogue.json"
FIELDS = {"paper", "part", "item", "where", "use", "test"}


@pytest.fixture(scope="module")
def pages():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import paper_pages

        yield paper_pages


@lru_cache
def functions_of(path: Path) -> frozenset[str]:
    """The tests that a file defines, without importing it."""
    found = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef))


def missing(where: str) -> bool:
    """Whether a name can neither be imported nor is the path of a file."""
    if "/" in where:
        return not (ROOT / where).exists()
    try:
        pkgutil.resolve_name(where)
    except (ImportError, AttributeError, ValueError):
        return True
    return False


def absent(test: str) -> bool:
    """Whether a test does not exist: its file, or its function in it."""
    file, _, name = test.partition("::")
    path = ROOT / file
    in_place = file.startswith("tests/") and name.startswith("test_") and path.is_file()
    return not (in_place and name.partition("[")[0] in functions_of(path))


def test_no_field_is_empty(pages):
    assert len(pages.rows()) > 100
    for row in pages.rows():
        assert set(row) == FIELDS, row
        assert row["paper"] in pages.PAPERS, row
        assert all(isinstance(row[name], str) and row[name].strip() for name in ("paper", "part", "item", "use")), row
        assert all(isinstance(row[name], list) and row[name] for name in ("where", "test")), row


def test_what_is_named_is_there(pages):
    assert not sorted({where for row in pages.rows() for where in row["where"] if missing(where)})


def test_every_test_exists(pages):
    assert not sorted({test for row in pages.rows() for test in row["test"] if absent(test)})


def test_what_is_not_there_would_be_noticed():
    assert missing("cloister.methods.fedavgg")
    assert missing("cloister.theory.pfl.utilities")
    assert missing("experiments/nothing.toml")
    assert absent("tests/test_papers.py::test_nothing")
    assert absent("tests/test_paper.py::test_no_field_is_empty")
    assert not absent("tests/test_papers.py::test_no_field_is_empty")


def test_no_item_is_listed_twice(pages):
    twice = Counter((row["paper"], row["part"], row["item"]) for row in pages.rows())
    assert not [item for item, count in twice.items() if count > 1]


def test_every_bound_is_listed(pages):
    """Under its own paper."""
    listed = {(row["paper"], where) for row in pages.rows() for where in row["where"]}
    assert not [
        f"{paper}: {function.__name__}"
        for paper, _, function in BOUNDS
        if (paper, f"{function.__module__}.{function.__name__}") not in listed
    ]


def test_keys_and_choices_that_are_said_to_be_used_exist(pages):
    """`method = "..."` names a method, `rho = 0.5` a key; what stands in a call's parentheses is Python's business."""
    stored = json.loads(CATALOGUE.read_text())
    keys = {*stored["run"], *stored["choices"]}
    keys |= {key for named in stored["choices"].values() for choice in named.values() for key in choice["keys"]}
    for row in pages.rows():
        settings = re.sub(r"[\w.]+\([^)]*\)", "", row["use"])
        for key, value in re.findall(r'\b([a-z_]+\w*) ?= ?"?([\w.-]+)', settings):
            assert key in keys, f"{key} is no key: {row}"
            assert value in stored["choices"].get(key, [value]), f"{value} is no {key}: {row}"


def test_the_page_is_what_the_rows_make(pages):
    text = (ROOT / "docs" / "papers.md").read_text()
    assert pages.inventory() in text
    assert all(f"## {paper}: " in text for paper in pages.PAPERS)
