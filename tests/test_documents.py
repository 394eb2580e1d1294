"""Documents are true: figures are those of their files, programs run, and what is named is there.

(That the demo gives its file's figures is in `test_cli.py`; the method in CONTRIBUTING is in `runs/test_outside.py`.)
"""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

import pytest

import cloister as cl
from cloister.privacy.accountant import epsilon
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.md")])


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page):
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\((?!http)([^)#]+)\)", text)]
    places = re.findall(r"(?<![\w/])(?:experiments|examples|benchmarks|tests|src|docs)/[\w./-]*\w", text)
    assert not [str(path) for path in [*links, *(ROOT / place for place in places)] if not path.exists()]


def test_the_program_in_the_readme_runs(capsys):
    """In fewer rounds."""
    program = re.search(r"```python\n(import cloister as cl.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    exec(program.replace("rounds=60", "rounds=2"), {})
    assert "budget: epsilon 2 at delta 0.001" in capsys.readouterr().out


def test_the_plan_in_the_readme_can_be_made(command, tmp_path):
    plans = re.findall(r"^cloister (plan [^#\n]*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(plans) >= 3
    for words in (one.split() for one in plans if "data=" not in one):
        found = command(*("10" if word == "1000" else word for word in words), "--plot", tmp_path / "plan.png")
        assert found.returncode == 0, found.stderr


def test_the_parts_in_the_readme_exist():
    table = re.search(r"\| part \|.*?\n\n", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    names = re.findall(r"`([\w.]+)`", table)
    assert len(names) > 10
    for name in names:
        attrgetter(name)(cl)


def test_the_version_to_cite_is_this_one():
    assert f"\nversion: {cl.__version__}\n" in (ROOT / "CITATION.cff").read_text()
