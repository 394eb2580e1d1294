"""Figures in documents are those of their files, and the demo's file is what the demo gives."""

from __future__ import annotations

import json
import math
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from cloister.experiments.compare import compare
from cloister.experiments.demo import planned
from cloister.experiments.report import run_figures

ROOT = Path(__file__).parent.parent


@pytest.fixture
def documents(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import documents

    return documents


def test_documents_say_what_their_files_say(documents):
    """`python benchmarks/documents.py` brings them together again."""
    quoted = []
    for path in documents.DOCUMENTS:
        text = path.read_text()
        assert documents.written(text) == text, f"{path.name} is not what its files say"
        quoted += [name for _, name, _, _ in documents.BLOCK.findall(text)]
    assert sorted(quoted) == sorted(documents.BLOCKS), "every block is in one document"


def test_a_changed_figure_would_be_noticed(documents):
    text = (ROOT / "README.md").read_text()
    block = documents.BLOCK.search(text)[3]
    figure = re.search(r"0\.\d{3}", block)[0]
    assert documents.written(text.replace(figure, "0.123", 1)) == text != text.replace(figure, "0.123", 1)


def test_the_demo_gives_the_figures_of_its_file(tmp_path):
    """What was spent is the same everywhere. The noise follows from the versions of torch and numpy, too; with the same
    ones another processor rounds otherwise, and accuracies may be a hundredth apart."""
    file = json.loads((ROOT / "docs" / "digits.json").read_text())
    alike = all(version(name) == file["software"][name] for name in ("torch", "numpy"))
    said = {row["run"]: row for row in file["rows"]}
    runs = {run.label: folder for run, folder in compare(planned(), tmp_path / "demo")}
    for row in run_figures(runs):
        before = said[row["run"]]
        assert row["accuracy"] == pytest.approx(before["accuracy"], abs=0.01 if alike else 0.05)
        for name in ("epsilon", "epsilon at 1e-5", "noise"):
            same = row[name] == before[name] or math.isclose(row[name], before[name], rel_tol=5e-4)
            assert same, f"{name} of {row['run']}"
        assert (row["delta"], row["rounds"], row["planned"]) == (before["delta"], before["rounds"], before["planned"])
