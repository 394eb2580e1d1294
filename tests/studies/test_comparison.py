"""A comparison over seeds, from its file to its tables: every figure is that of the runs, what differs is shown."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import cloister as cl
from cloister.cli.output import print_whole
from cloister.errors import CloisterError
from cloister.privacy.certificate_text import round_up
from cloister.runs.folder import RunFolder
from cloister.runs.report import comparison_scores_table
from cloister.studies.compare import Comparison
from cloister.studies.plots import comparison_plot
from cloister.studies.ranking_text import cautions, ranking_text
from cloister.studies.results import read_results
from cloister.studies.rows import keys_that_differ, ranked, rows_of
from cloister.studies.tables import adjacencies, table

FILE = {
    "epsilons": [4.0],
    "seed": [0, 1, 2],
    "shared": {
        "clients": 20,
        "clip_norm": 1.0,
        "local_steps": 2,
        "sampling_rate": 0.5,
        "rounds": 1,
        "delta": 1e-2,
        "lr": [0.1, 1.0],
        "engine": "vectorized",
    },
    "methods": {"fedavg": {}, "dp_fedavg": {}, "a_b 50": {"method": "dp_fedavg", "lr": 0.5}},
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    return cl.compare(FILE, tmp_path_factory.mktemp("compare") / "runs", jobs=1, progress=False)


def score(comparison, name: str) -> float:
    return RunFolder.open(comparison.folder / name).metrics()[-1]["accuracy"]


def test_rows_are_means_over_seeds_of_what_the_runs_reached(comparison):
    assert repr(comparison).startswith("<Comparison: 15 of 15 runs, in ")
    assert len(comparison.cells) == len(comparison.results) == 15
    rows = {(row.label, row.swept.get("lr")): row for row in comparison.rows}
    assert list(rows) == [
        *(("fedavg", 0.1), ("fedavg", 1.0), ("dp_fedavg", 0.1), ("dp_fedavg", 1.0), ("a_b 50", None)),
    ]
    own = [score(comparison, f"dp_fedavg-epsilon-4-lr-1-seed-{seed}") for seed in range(3)]
    row = rows["dp_fedavg", 1.0]
    assert row.scores == dict(enumerate(own))
    assert (row.about.mean, row.about.sd) == (pytest.approx(np.mean(own)), pytest.approx(np.std(own, ddof=1)))
    names = [f"dp_fedavg-epsilon-4-lr-1-seed-{seed}" for seed in range(3)]
    spent = [RunFolder.open(comparison.folder / name).certificate().epsilon for name in names]
    assert (row.epsilon, row.delta, row.target) == (max(spent), 1e-2, 4.0)
    assert (rows["fedavg", 0.1].epsilon, rows["fedavg", 0.1].delta) == (None, None)


def test_the_file_has_what_its_layout_says(comparison):
    found = read_results(comparison.folder)
    assert set(found) == {
        *("format", "command", "written", "software", "machine", "seconds", "metric", "confidence", "rows", "cells"),
        *("ranking", "failed"),
    }
    assert (found["format"], found["metric"], found["failed"]) == (1, "accuracy", {})
    assert [len(found[name]) for name in ("rows", "cells")] == [5, 15]
    row, cell = found["rows"][2], found["cells"][6]
    assert row["swept"] == {"epsilon": 4.0, "lr": 0.1}
    assert row["seeds"] == [0, 1, 2]
    assert row["scores"] == [one["score"] for one in found["cells"][6:9]]
    assert (row["n"], row["epsilon"] <= 4.0, row["settings"]["lr"]) == (3, True, 0.1)
    assert cell["folder"] == "dp_fedavg-epsilon-4-lr-0.1-seed-0"
    assert (cell["seed"], cell["values"]["local_steps"]) == (0, 2)
    assert [group["title"] for group in found["ranking"]] == ["without privacy", "at epsilon 4"]
    path = comparison.folder / "results.json"
    other = comparison.folder.parent / "other.json"
    other.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CloisterError, match="Expected results of format 1"):
        read_results(other)
    for name in ("table.md", "table.csv", "table.tex", "compare.png"):
        assert (comparison.folder / name).stat().st_size > 200


def test_tables_agree_in_every_format_and_show_what_differs(comparison):
    frame = comparison.to_pandas()
    parsed = list(csv.DictReader(io.StringIO(comparison.table("csv"))))
    markdown = [line.strip("|").split("|") for line in comparison.table("markdown").splitlines()]
    assert list(parsed[0]) == list(frame)
    assert len(parsed) == len(frame) == len(markdown) - 2 == 5
    assert [float(row["mean"]) for row in parsed] == list(frame["mean"])
    heads = [one.strip() for one in markdown[0]]
    for name in ("method", "lr", "at epsilon", "accuracy", "n", "95 % interval", "spent", "delta", "clip_norm"):
        assert name in heads
    last = dict(zip(heads, (one.strip() for one in markdown[-1]), strict=True))
    assert (last["method"], last["n"], last["at epsilon"]) == ("a_b 50", "3", "4")
    assert last["accuracy"] == f"{frame['mean'].iloc[-1]:.3f} ± {frame['sd'].iloc[-1]:.3f}"
    assert float(last["spent"]) >= frame["epsilon"].iloc[-1], "rounded upwards"
    fedavg = dict(zip(heads, (one.strip() for one in markdown[2]), strict=True))
    assert (fedavg["spent"], fedavg["delta"], fedavg["clip_norm"]) == ("infinity", "-", "-")
    latex = comparison.table("latex")
    assert latex.count("\\\\\n") == 6
    for words in ("\\toprule", "\\midrule", "\\bottomrule", "a\\_b 50", "$\\pm$", "$\\infty$", "95 \\% interval"):
        assert words in latex
    assert "a_b 50" in comparison.table("text")
    with pytest.raises(CloisterError, match="Expected format to be one of"):
        comparison.table("html")


def test_epsilons_of_single_clients_are_told_apart_from_what_was_spent(comparison):
    """Both were called epsilon once, and the lists were lost."""
    asked = [[4.0, 2.0], [2.0, 4.0]]
    runs = [replace(comparison.results[6], target=None, swept={"epsilon": one, "seed": 0}) for one in asked]
    parsed = list(csv.DictReader(io.StringIO(table(rows_of(runs), "csv"))))
    assert [row["epsilon asked"] for row in parsed] == ["[4.0, 2.0]", "[2.0, 4.0]"]
    assert [float(row["epsilon"]) for row in parsed] == [runs[0].epsilon] * 2


def test_no_text_breaks_latex(comparison):
    """Each of these stopped a compiler, or came out as something else."""
    label = "λ 50% a_b #1 & {x} ~^\\ |--y"
    row = rows_of([replace(comparison.results[0], label=label), replace(comparison.results[1], label="[x] é")])
    line, second = table(row, "latex").splitlines()[5:7]
    expected = "$\\lambda$ 50\\% a\\_b \\#1 \\& \\{x\\} \\textasciitilde{}\\textasciicircum{}\\textbackslash{} "
    assert line.startswith(expected + "\\textbar{}-{}-y & ")
    assert second.startswith("{}[x] é & ")


def test_tables_on_a_terminal_show_brackets_and_whole_numbers(comparison, monkeypatch, capsys):
    """[f1, auroc] was taken for markup, and a long name broke 0.123 into 0.12 and 3."""
    monkeypatch.setenv("COLUMNS", "60")
    run = replace(comparison.results[6], swept={"metrics": ["f1", "auroc"], "alpha": 0.1, "partition": "dirichlet"})
    print_whole(comparison_scores_table([run]))
    shown = capsys.readouterr().out
    assert "dp_fedavg metrics=[f1, auroc] alpha=0.1 partition=dirichlet " in shown
    assert f" {run.score:.3f} " in shown


def test_seeds_that_are_not_the_same_for_all_are_shown(comparison):
    rows = rows_of(comparison.results[:-1])
    assert "| 0 1 |" in table(rows)
    assert "seeds" not in comparison.table().splitlines()[0]
    others = [replace(run, adjacency="replace one client") for run in comparison.results[-3:]]
    assert "not about the same neighbors for all" in adjacencies(rows_of([*comparison.results[:12], *others]))
    assert adjacencies(comparison.rows) is None
    swept = [run for run in comparison.results if run.label == "dp_fedavg"]
    of_two = adjacencies(rows_of([*swept[:3], *(replace(run, adjacency="replace one client") for run in swept[3:])]))
    assert "; dp_fedavg lr=1.0: replace one client" in of_two, "the rows, and not twice the method"


def test_paired_comparisons_and_rankings_rest_on_the_runs(comparison):
    first, second = "dp_fedavg lr=1.0", "dp_fedavg lr=0.1"
    found = comparison.paired(first, second)
    scores = [[score(comparison, f"dp_fedavg-epsilon-4-lr-{lr}-seed-{seed}") for seed in range(3)] for lr in (1, 0.1)]
    reference = stats.ttest_rel(*scores)
    assert found.mean == pytest.approx(np.mean(scores[0]) - np.mean(scores[1]))
    assert found.p is None or math.isclose(found.p, reference.pvalue)
    with pytest.raises(CloisterError, match="one epsilon"):
        comparison.paired(first, "fedavg lr=0.1")
    with pytest.raises(CloisterError, match="with results at this epsilon, found 'dp_fedprox'"):
        comparison.paired(first, "dp_fedprox")
    (alone, private) = comparison.ranking()
    assert [len(group.order) for group in (alone, private)] == [2, 3]
    means = [one.about.mean for one in private.order]
    assert means == sorted(means, reverse=True)
    text = ranking_text(comparison.ranking())
    assert "at epsilon 4, the best accuracy is" in text
    assert "behind 0." in text
    assert "with 3 seeds, only large differences" in text
    single = ranking_text(ranked(rows_of([run for run in comparison.results if run.seed == 0])))
    assert "One seed: whether a difference is more than chance cannot be told" in single


def test_only_rows_with_the_same_guarantee_on_the_same_data_are_ranked_together(comparison):
    runs = comparison.results

    def titles(of):
        return {group.title: [one.name for one in group.order] for group in ranked(rows_of(of))}

    private = [run for run in runs if run.unit]
    first = private[0]
    usual = titles(runs)
    assert len(usual) == len({run.target for run in private}) + any(not run.unit for run in runs)
    for change, word in (
        ({"unit": "sample"}, "for one sample"),
        ({"adjacency": "replace one client: all its data become any others"}, "to replace one"),
        ({"delta": first.delta / 10}, f"delta {first.delta / 10:g}"),
        ({"settings": {"data": "mnist"}}, "data mnist"),
        ({"settings": {"fraction": 0.3}}, "fraction 0.3"),
        ({"settings": {"loss": "huber"}, "monitor": "loss"}, "loss huber"),
    ):
        other = [replace(run, label="other", **change) for run in private]
        apart = titles([*runs, *other])
        alone = {title for title in apart if word in title}
        assert len(alone) == len({run.target for run in private})
        assert all(name.startswith("other") for title in alone for name in apart[title])
    text = ranking_text(ranked(rows_of([*runs, replace(first, label="other", unit="sample")])))
    assert "for one sample there is other" in text
    assert "selected on test data" in ranking_text(ranked(rows_of(runs)), swept=["lr"])


def test_noise_that_was_chosen_is_ranked_by_the_epsilon_that_came_of_it(comparison):
    """Less noise is better at a larger epsilon: that is no ranking of settings."""
    private = [replace(run, target=None, swept={}, budgeted=False) for run in comparison.results if run.unit][:3]
    more = [replace(run, label="less noise", epsilon=2 * run.epsilon, score=run.score + 0.1) for run in private]
    groups = ranked(rows_of([*private, *more]))
    assert [len(group.order) for group in groups] == [1, 1]
    assert len({group.title for group in groups}) == 2
    assert "none are ranked" in ranking_text(groups)
    asked = [replace(run, budgeted=True) for run in [*private, *more]]  # a list, one for each client
    assert [group.title for group in ranked(rows_of(asked))] == ["at epsilons of their own"]


def test_noise_that_was_chosen_below_a_budget_is_ranked_by_what_it_spends(tmp_path):
    """Both have epsilon 4 above them, and one spends a third of what the other does."""
    keys = {**FILE["shared"], "epsilon": 4.0, "lr": 1.0, "noise_multiplier": [1.0, 2.0], "seed": [0, 1]}
    found = cl.compare(keys, tmp_path / "runs", jobs=1, progress=False)
    assert [len(group.order) for group in found.ranking()] == [1, 1]
    spent = [row.epsilon for row in found.rows]
    titles = [group.title for group in found.ranking()]
    assert titles == [f"at epsilon {round_up(one)}" for one in spent]
    with pytest.raises(CloisterError, match="same guarantee on the same data"):
        found.paired("dp_fedavg noise_multiplier=1.0", "dp_fedavg noise_multiplier=2.0")


def test_a_list_of_one_value_is_no_choice(comparison):
    own = [replace(run, swept={**run.swept, "server_lr": 0.1}) for run in comparison.results]
    assert {"lr", "server_lr"} <= set().union(*(row.swept for row in rows_of(own)))
    assert "lr" in keys_that_differ(rows_of(own))
    assert "server_lr" not in keys_that_differ(rows_of(own))


def test_noise_of_its_own_that_uses_a_budget_up_is_ranked_at_the_budget(comparison):
    """As of a method whose noise falls until epsilon is spent, beside others that have the same budget."""
    own = [run for run in comparison.results if run.series == "dp_fedavg lr=1.0"]
    target = own[0].target
    assert target is not None
    for spent, groups in ((0.9993, 1), (0.98, 2)):
        falls = [replace(run, label="falls", noise_chosen=True, epsilon=spent * target) for run in own]
        assert len(ranked(rows_of([*own, *falls]))) == groups


def test_other_neighbors_are_another_guarantee_in_tables_rankings_and_pairs(comparison):
    own = [run for run in comparison.results if run.series == "dp_fedavg lr=1.0"]
    others = [replace(run, label="other", swept={}, adjacency="replace one client: by any other") for run in own]
    rows = rows_of([*own, *others])
    assert [group.title for group in ranked(rows)] == [
        "at epsilon 4, to add or remove one",
        "at epsilon 4, to replace one",
    ]
    for form in ("markdown", "latex", "csv"):
        assert "replace one client" in table(rows, form)
    assert "neighbors" not in comparison.table().splitlines()[0], "the same for all"
    apart = Comparison(comparison.cells, comparison.folder)
    apart._found = {str(place): run for place, run in enumerate([*own, *others])}
    apart.cells = [SimpleNamespace(folder=name) for name in apart._found]
    with pytest.raises(CloisterError, match="same guarantee on the same data, found 'dp_fedavg"):
        apart.paired("dp_fedavg lr=1.0", "other")


def test_what_means_leave_out_is_said(comparison):
    first, second, third = (run for run in comparison.results if run.series == "dp_fedavg lr=1.0")
    rows = rows_of([first, replace(second, score=None), replace(third, nonfinite=0.25)])
    assert "| 2 of 3 |" in table(rows)
    text = cautions(rows)
    assert "dp_fedavg lr=1.0: no accuracy with seed 1, which the mean leaves out" in text
    assert "up to 25% of a run's updates were not finite" in text
    assert cautions(comparison.rows) == ""


def test_a_row_has_the_epsilon_of_the_seed_that_cost_most_and_none_where_one_has_none(comparison):
    first = next(run for run in comparison.results if run.epsilon is not None)

    def row(*found):
        (one,) = rows_of([replace(first, seed=seed, epsilon=e, delta=d) for seed, (e, d) in enumerate(found)])
        return one.epsilon, one.delta, one.private

    assert row((1.0, 1e-3), (2.5, 1e-5), (2.0, 1e-4)) == (2.5, 1e-3, True)
    assert row((1.0, 1e-3), (None, 1e-3)) == (None, None, False)


def test_an_interval_of_a_share_stays_a_share(comparison):
    first = comparison.results[0]
    (row,) = rows_of([replace(first, seed=seed, score=score) for seed, score in enumerate((0.99, 0.9))])
    assert (row.about.high, row.about.mean) == (1.0, pytest.approx(0.945))
    (row,) = rows_of([replace(first, seed=seed, score=score, monitor="mae") for seed, score in enumerate((0.99, 0.9))])
    assert row.about.high > 1.0


def test_a_swept_number_is_drawn_as_lines(comparison, tmp_path):
    runs = [
        replace(run, swept={**run.swept, "lr": 0.01 * 10**place}) for place, run in enumerate(comparison.results[6:9])
    ]
    comparison_plot(rows_of(runs), tmp_path / "lines.png")
    assert (tmp_path / "lines.png").stat().st_size > 5000


def test_what_is_done_is_taken_as_it_is_and_seeds_can_be_added(comparison):
    """The last test: it changes the folder."""
    before = {path: path.stat().st_mtime_ns for path in comparison.folder.glob("*/*")}
    with pytest.raises(CloisterError, match="one with these runs alone, found a_b-50-epsilon-4-seed-0"):
        cl.compare({**FILE, "methods": {"dp_fedavg": {}}}, comparison.folder, jobs=1)
    more = cl.compare(FILE, comparison.folder, jobs=1, seed=[0, 1, 2, 3])
    assert [row.about.n for row in more.rows] == [4] * 5
    assert before == {path: path.stat().st_mtime_ns for path in before}
