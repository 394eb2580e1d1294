"""`cloister reproduce`: what is run, what is skipped, what is written, and whether an order holds."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import cloister as cl
from cloister.cli.app import app
from cloister.errors import CloisterError
from cloister.studies import statistics
from cloister.studies.papers import files, order
from cloister.studies.papers.cells import PaperCell
from cloister.studies.papers.files import shipped
from cloister.studies.papers.outcomes import Outcome, Row
from cloister.studies.papers.reported import Reported
from cloister.studies.papers.scale import Scale
from cloister.studies.papers.table import Reproduction

FILE = """
seeds = [0, 1]
[paper]
citation = "A. Nobody, 2020"
item = "Table 7"
title = "two methods"
metric = "best"
order = ["method", "epsilon"]
[shared]
data = "mnist"
clients = 100
model = "cnn"
local_steps = 20
clip_norm = 0.5
sampling_rate = 0.5
rounds = 100
delta = 1e-3
epsilon = [8.0, 2.0]
[methods.plain]
method = "fedavg"
[methods.private]
method = "dp_fedavg"
[methods."private as published"]
reported_as = "private"
method = "dp_fedavg"
mode = "as_published"
axes.epsilon = { 8 = { noise_multiplier = 1.0 } }
[scale.tiny]
data = "digits"
clients = 40
model = "logistic"
local_steps = 2
rounds = 2
engine = "vectorized"
evaluate_every = 1
only = { epsilon = ["8"] }
[[reported]]
down = "method"
rows = [["plain", 97.5]]
[[reported]]
at = { method = "private" }
down = "epsilon"
rows = [[8, "90.1 ± 0.5"], [2, 70.0]]
"""


def reproduce(*words):
    result = CliRunner().invoke(app, ["reproduce", *map(str, words)], catch_exceptions=False, env={"COLUMNS": "200"})
    return result.output


def test_in_python_a_table_is_what_the_command_line_makes_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "table.toml"
    file.write_text(FILE)
    found = cl.reproduce(file, scale="tiny", rows="p*", rounds=3)
    assert repr(found) == "<Reproduction: table, scale tiny, 3 of 3 cells run>"
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "reproduce.md").read_text() == found.markdown()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/certificate.json")}
    reproduce(file, "--scale", "tiny", "--rows", "p*", "--folder", folder, "rounds=3")
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/certificate.json")} == before, "what is done stays"
    frame = found.to_pandas()
    assert list(frame["method"]) == ["plain", "private", "private as published"]
    assert list(frame["paper"])[:2] == [97.5, 90.1]
    assert frame["true_epsilon"][1] <= 8.0
    with pytest.raises(CloisterError, match=r"seeds=\[0, 1\]"):
        cl.reproduce(file, scale="tiny", seed=1)
    with pytest.raises(CloisterError, match="Expected a table or figure by its name"):
        cl.reproduce("blur-table9")


def test_a_table_is_run_skipped_and_written(tmp_path):
    file, folder = tmp_path / "table.toml", tmp_path / "runs"
    file.write_text(FILE)
    only = ("--scale", "tiny", "--folder", folder)
    assert "private, epsilon 2" in reproduce(file, "--dry-run"), "nothing is run, and the paper's own cells are listed"
    assert not folder.exists()
    reproduce(file, *only, "--rows", "plain")
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/certificate.json")}
    assert len(before) == 1
    output = reproduce(file, *only)
    assert "Scale: tiny" in output
    assert "data mnist -> digits" in output, "what differs from the paper is told"
    assert "rounds 100 -> 2" in output
    assert {path: path.stat().st_mtime_ns for path in before} == before, "what is done is not done again"

    found = json.loads((folder / "reproduce.json").read_text())
    cells = {cell["cell"]: cell for cell in found["cells"]}
    assert list(cells) == ["plain", "private, epsilon 8", "private as published, epsilon 8"]
    private, published = cells["private, epsilon 8"], cells["private as published, epsilon 8"]
    assert found["scale"] == "tiny"
    assert private["paper"]["mean"] == 90.1
    assert private["paper"]["claimed_epsilon"] == 8.0
    assert 7.9 < private["true_epsilon"] <= 8.0
    assert cells["plain"]["true_epsilon"] is None
    run = published["runs"]["0"]
    assert run["epsilon"] > run["claimed"] > 0, "each tensor was clipped by itself, which the claim leaves out"
    assert run["scores"]["best"] >= run["scores"]["final"]
    assert published["paper"]["mean"] == 90.1, "the paper's number is that of what it ran"
    assert published["order_holds"] == ""
    assert private["order_holds"].endswith("(one seed)")
    rows = list(csv.DictReader((folder / "curves.csv").open()))
    assert {row["round"] for row in rows} == {"1", "2"}
    assert "| private | 8 | 90.1 ± 0.5 |" in (folder / "reproduce.md").read_text()
    assert "private as published" in (folder / "reproduce.csv").read_text()


def test_runs_with_other_settings_are_no_seeds_of_a_cell(tmp_path):
    """Their mean would be one of different guarantees, under the settings of one of them."""
    file, folder = tmp_path / "table.toml", tmp_path / "runs"
    file.write_text(FILE)
    only = (file, "--scale", "tiny", "--folder", folder)
    reproduce(*only, "--rows", "private, *", "--seeds", "0")
    written = (folder / "reproduce.json").read_bytes()
    for more in (("--rows", "private, *", "--seeds", "1"), ("--rows", "plain", "--seeds", "0")):
        with pytest.raises(CloisterError, match=r"was run \(delta = 0.001\), found delta = 0.002: choose another"):
            reproduce(*only, *more, "--delta", "2e-3")
    assert (folder / "reproduce.json").read_bytes() == written
    assert len(list(folder.glob("*/certificate.json"))) == 1, "nothing is run beside it"
    reproduce(*only, "--rows", "private, *", "--seeds", "1")
    cells = json.loads((folder / "reproduce.json").read_text())["cells"]
    assert [sorted(cell["runs"]) for cell in cells] == [["0", "1"]]


def row(method, paper, ours, **axes):
    cell = PaperCell(method, axes, {}, method)
    outcomes = {
        seed: Outcome({"final": one}, {}, 1.0, 1e-5, 1.0, 1e-5, None, 1.0, 1, 1, "", 0.0, [], {})
        for seed, one in enumerate(ours)
    }
    return Row(cell, outcomes, Reported({"method": method, **axes}, "", paper))


def test_the_order_is_judged_pair_by_pair():
    a, b, c = row("a", 90, [70.0, 70.2, 70.1]), row("b", 80, [60.0, 60.1, 60.3]), row("c", 85, [50.0, 50.2, 50.1])
    elsewhere = row("a", 10, [99.0, 99.1, 99.2], alpha="1")
    assert order.verdicts([a, b, c, elsewhere], ["method"]) == ["yes", "no: c", "no: b", ""]
    assert order.in_words([a, b, c], ["method"]).startswith("2 of 3 pairs")
    close = row("d", 70, [60.1, 60.0, 60.2])
    assert order.verdicts([b, close], ["method"]) == ["open: d", "open: b"], "seeds cannot tell them apart"
    single = [row("a", 90, [70.0]), row("b", 80, [71.0])]
    assert order.verdicts(single, ["method"]) == ["no: b (one seed)", "no: a (one seed)"]
    assert order.verdicts([row("a", None, [70.0]), single[1]], ["method"]) == ["", ""], "the paper has no number"


def test_the_order_of_equal_rows_is_open_however_many_there_are():
    """A table has so many pairs that some differ by chance at 95 %: all of them are judged together."""
    draws, wrong, alone = np.random.default_rng(0), 0, 0
    for _ in range(300):
        rows = [row(f"m{place}", 90 - place, list(draws.normal(70, 1, 3))) for place in range(6)]
        found = order.verdicts(rows, ["method"])
        wrong += any(not verdict.startswith("open") for verdict in found)
        pairs = itertools.combinations([one.by_seed() for one in rows], 2)
        alone += any(statistics.paired({"a": a, "b": b}, "a", "b").verdict == "differ" for a, b in pairs)
    # 15 are expected at most; the draws are seeded, so that this is always the same number.
    assert wrong <= 35
    assert alone > 90, "by themselves, pairs of a table like this would differ in many of them"


def test_a_row_has_no_epsilon_where_one_of_its_seeds_has_none():
    whole = row("a", 90, [70.0, 70.2])
    assert whole.epsilon == 1.0
    torn = replace(whole, outcomes={**whole.outcomes, 1: replace(whole.outcomes[1], epsilon=None)})
    assert torn.epsilon is None


def test_what_is_exact_on_training_samples_is_marked(tmp_path):
    one = row("a", 90, [70.0])
    outcomes = {0: replace(one.outcomes[0], measured={"train_accuracy": 80.0, "accuracy_gap": 10.0})}
    (tmp_path / "table.toml").write_text(FILE)
    file = files.read(tmp_path / "table.toml")
    rows = [replace(one, outcomes=outcomes), replace(one, outcomes=outcomes, quantity="accuracy_gap")]
    made = Reproduction(file, Scale("tiny"), [0], rows)
    assert "NOT PRIVATE" not in made.lines()[0]["row"]
    assert "NOT PRIVATE" in made.lines()[1]["row"]
    assert all(record["mark"] == "NOT PRIVATE" for record in made.records()), "their runs have these numbers"
    assert made.markdown().count("NOT PRIVATE") == 2
    assert "NOT PRIVATE" in made.csv()


def test_slips_are_told(tmp_path):
    file = tmp_path / "table.toml"
    file.write_text(FILE.replace("[methods.plain]", "[metods.plain]"))
    with pytest.raises(CloisterError, match="perhaps you mean"):
        reproduce(file)
    file.write_text(FILE.replace('method = "fedavg"', 'method = "fedavg"\nclip = 1'))
    with pytest.raises(CloisterError, match="In plain"):
        reproduce(file)
    file.write_text(FILE)
    for words in (["seed=3"], ["--seeds", "a"], ["--jobs", "many"], ["--rows", "nothing"], ["--scale", "2"]):
        with pytest.raises(CloisterError, match="Expected"):
            reproduce(file, *words)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped())
def test_every_file_runs_at_tiny_scale(name, tmp_path):
    output = reproduce(name, "--scale", "tiny", "--folder", tmp_path / "runs")
    assert "kept in" in output
    found = json.loads((tmp_path / "runs" / "reproduce.json").read_text())
    assert all(cell["runs"] for cell in found["cells"])
