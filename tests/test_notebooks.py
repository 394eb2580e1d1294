"""The notebooks as they are kept are whole, and executed anew they show the same.

`make notebooks` writes their outputs. What depends on the noise that was drawn differs from processor to processor, so
only what follows from the accountant is compared closely.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

ROOT = Path(__file__).parent.parent
NAMES = ("first_private_model", "choosing_epsilon", "comparing_methods", "hospitals", "auditing_a_run")
SAID = {
    "first_private_model": [
        "28 rounds, epsilon 1.97",
        "Expected epsilon <= 2 for client",
        "protected unit: one client",
    ],
    "choosing_epsilon": ["too small: True", "any one sample"],
    "comparing_methods": ["Ranking (paired over common seeds", "NOT PRIVATE"],
    "hospitals": ["protected unit: one sample", "good: True", "prediction: sick"],
    "auditing_a_run": [
        "nothing wrong was found",
        "EXPOSED: halved_noise spends at least",
        "NOT VERIFIED",
        "good: True",
    ],
}
"""What each must say, whatever the noise."""
LARGEST = 400_000
"""Bytes of one notebook: pictures are small, and there are few."""


@pytest.fixture
def notebooks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import notebooks

    return notebooks


def all_shown(notebooks, notebook) -> str:
    return "\n".join(text for cell in notebook.cells for text in notebooks.shown(cell))


def test_every_notebook_is_tested_and_in_the_index(notebooks):
    assert NAMES == notebooks.NAMES
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(NAMES)
    index = (ROOT / "notebooks" / "README.md").read_text()
    assert all(f"]({name}.ipynb)" in index for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_whole(notebooks, name):
    notebook = notebooks.read(name)
    nbformat.validate(notebook)
    assert notebooks.problems(notebook) == []
    assert notebooks.path_of(name).stat().st_size < LARGEST
    pictures = [one for cell in notebook.cells for one in cell.get("outputs", ()) if "image/png" in one.get("data", {})]
    assert pictures
    text = all_shown(notebooks, notebook)
    assert [words for words in SAID[name] if words not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(notebooks, name):
    for cell in notebooks.read(name).cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\((?!http)([^)#]+)\)", cell.source):
                assert (ROOT / "notebooks" / link).exists(), link


def test_what_a_reader_should_not_meet_is_found(notebooks):
    def broken(change) -> list[str]:
        notebook = notebooks.read("first_private_model")
        codes = [cell for cell in notebook.cells if cell.cell_type == "code"]
        change(notebook, codes)
        return notebooks.problems(notebook)

    def warned(notebook, codes):
        codes[0].outputs.append(nbformat.v4.new_output("stream", name="stderr", text="UserWarning"))

    def failed(notebook, codes):
        codes[0].outputs.append(nbformat.v4.new_output("error", ename="E", evalue="", traceback=[]))

    def placed(notebook, codes):
        codes[0].outputs[0].text += "saved to /home/somebody/runs"

    changes = {
        "not executed": lambda notebook, codes: codes[1].update(execution_count=None),
        "has no output": lambda notebook, codes: codes[1].update(outputs=[]),
        "an error or a warning": warned,
        "shows an error": failed,
        "absolute path": placed,
        "does not compile": lambda notebook, codes: codes[1].update(source="for"),
        "metadata": lambda notebook, codes: notebook.metadata.update(when="now"),
    }
    for words, change in changes.items():
        assert any(words in problem for problem in broken(change)), words


def test_figures_behind_a_word(notebooks):
    output = nbformat.v4.new_output("stream", name="stdout", text="epsilon 2.000, epsilons 3\nepsilon: 4 and epsilon x")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])])
    assert notebooks.figures(notebook, "epsilon") == [2.0, 4.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_executed_anew_it_shows_the_same(notebooks, name):
    kept = notebooks.read(name)
    fresh = notebooks.executed(kept)
    assert notebooks.problems(fresh) == []
    text = all_shown(notebooks, fresh)
    assert [words for words in SAID[name] if words not in text] == []
    found, wanted = notebooks.figures(fresh, "epsilon"), notebooks.figures(kept, "epsilon")
    assert wanted, "there is something to compare"
    assert found == pytest.approx(wanted, rel=2e-3)
    accuracies = zip(*(notebooks.figures(one, "accuracy") for one in (fresh, kept)), strict=True)
    for found, wanted in accuracies:
        assert wanted < 0.8 or found == pytest.approx(wanted, abs=0.1), "what was hardly learned may be anything"


def test_a_plan_in_a_notebook_is_that_of_a_terminal(monkeypatch):
    """Kernels ask for colors, and rich displays there instead of writing where it is told to."""
    import cloister as cl

    plan = cl.plan(cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1), rounds=2, clients=9, epsilon=2.0, delta=1e-3)
    plain = str(plan)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert str(plan) == plain
    assert "round  epsilon at 0.001" in plain
