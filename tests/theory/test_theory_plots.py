"""Every bound has a picture, and says what kind of bound it is."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from cloister import theory
from cloister.theory import plots
from cloister.theory.bounds import BOUNDS, kind_of

DOCS = Path(__file__).parent.parent.parent / "docs" / "theory"


# Prices take their time: make test draws the quickest.
@pytest.mark.parametrize(
    "name", ["pfl", *(pytest.param(name, marks=pytest.mark.slow) for name in plots.PICTURES if name != "pfl")]
)
def test_a_picture_can_be_drawn(name, tmp_path):
    """With two points where prices are computed."""
    plots.PICTURES[name](tmp_path / "picture.png", 2)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_pictures_of_the_page_are_there_and_small():
    found = {path.stem: path.stat().st_size for path in DOCS.glob("*.png")}
    assert sorted(found) == sorted([*plots.PICTURES, "clients", "measured"])  # the last two are of recorded runs
    assert max(found.values()) < 150_000
    page = (DOCS.parent / "theory.md").read_text()
    assert all(f"(theory/{name}.png)" in page for name in found)


def test_the_program_of_the_page_runs(capsys):
    program = re.search(r"```python\n(.*?)```", (DOCS.parent / "theory.md").read_text(), re.DOTALL)[1]
    exec(program, {"norms": [[0.1, 0.3, 0.5]] * 300})
    terms = [float(word) for word in capsys.readouterr().out.split()]
    assert len(terms) == 3
    assert min(terms) > 0


def test_every_bound_says_whether_it_is_a_guarantee():
    for _, part, function in BOUNDS:
        assert kind_of(function), f"{part} ({function.__name__}) says neither guarantee nor order of magnitude"
        assert ">>>" in (inspect.getdoc(function) or "")
    modules = (theory.blur_lus, theory.dp_fedsam, theory.fed_spa, theory.pfl, theory.adap_dp_fl)
    public = {
        value
        for module in modules
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    assert public == {function for _, _, function in BOUNDS}
