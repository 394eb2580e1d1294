"""Every planted bug can still be planted: its text is there once, what comes of it compiles, its tests exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy
import pytest

from mutants.planted import ROOT, Mutant, Stale, mutants
from mutants.report import JSON, MARKDOWN, markdown
from mutants.trials import is_ours


def test_there_are_many_of_every_kind_and_no_name_is_used_twice():
    names = [mutant.name for mutant in mutants()]
    assert len(names) == len(set(names)) >= 60
    subjects = {"noise", "clipping", "sampling", "keys", "charges", "pricing", "ledger", "queries", "certificate"}
    assert subjects | {"federation"} == {mutant.subject for mutant in mutants()}


def test_every_bug_can_be_planted_and_compiles():
    for mutant in mutants():
        planted = mutant.applied((ROOT / mutant.path).read_text())
        compile(planted, mutant.path, "exec")
        assert mutant.old != mutant.new, mutant.name


def test_the_tests_that_should_notice_exist():
    for mutant in mutants():
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert (ROOT / path).exists(), f"{mutant.name}: {path}"
            if name:
                function = re.sub(r"\[.*", "", name)
                assert f"\ndef {function}(" in (ROOT / path).read_text(), f"{mutant.name}: {test}"


def test_a_stale_bug_is_an_error():
    mutant = Mutant("noise", "m", "nothing", "errors.py", "no such text", "x", ())
    with pytest.raises(Stale, match="found it 0 times"):
        mutant.applied("some text")
    with pytest.raises(Stale, match="found it 2 times"):
        Mutant("noise", "m", "nothing", "errors.py", "a", "b", ()).applied("a a")


def test_the_page_says_what_its_file_says_and_every_bug_was_caught():
    found = json.loads(JSON.read_text())
    assert MARKDOWN.read_text() == markdown(found), "python -m mutants writes it"
    assert found["killed"] == found["planted"] == len(found["mutants"]) >= 60
    assert {row["name"] for row in found["mutants"]} <= {mutant.name for mutant in mutants()}


def test_copies_are_tested_with_what_is_installed_and_without_the_working_tree():
    """Also where the environment is a folder of the tree, as `make` has it."""
    assert not is_ours(Path(numpy.__file__).parent.parent)
    assert not is_ours(Path(re.__file__).parent)
    assert all(is_ours(ROOT / name) for name in ("", "src", "tests"))
