"""Figures in documents are those of their files. (That the demo gives its file's figures is in `test_cli.py`.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cloister.privacy.accountant import epsilon
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian

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


def test_what_is_said_of_published_choices_is_what_they_cost():
    """docs/methods.md on DP-FedSAM's choices: the claim, and the price with each of 8 tensors clipped by itself."""
    rounds, delta, noise = 200, 1 / 500, 0.95 / 8**0.5
    claim = epsilon(PoissonGaussian(0.95, 0.1), rounds, delta, "rdp")
    costs = [
        epsilon(event, rounds, delta) for event in (PoissonGaussian(noise, 0.1), FixedSizeGaussian(noise, 50, 500))
    ]
    text = " ".join((ROOT / "docs" / "methods.md").read_text().split())
    assert f"the claim is epsilon {claim:.1f}." in text
    assert "it is {:.0f} for Poisson cohorts, and {:.0f} for cohorts of fixed size".format(*costs) in text
