"""Figures in documents are those of their files. (That the demo gives its file's figures is in `test_cli.py`.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
