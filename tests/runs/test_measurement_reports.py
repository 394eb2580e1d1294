"""What people see of measurements: everything that is not private says so, and what was selected on test data, too."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from functools import cache

import pytest
from matplotlib.figure import Figure
from rich.console import Console

import cloister as cl
from cloister.errors import CloisterError
from cloister.privacy import certificate_text
from cloister.round import open_round
from cloister.runs import measurement_file, report, training
from cloister.runs.folder import RunFolder
from cloister.runs.recorded import MARK, PRIVATE_DATA, Recorded
from cloister.runs.report import measurements, plot_parts
from cloister.runs.scores import best_of, score_at_epsilon
from conftest import Killed, toy_task

EXACT = [name for name in PRIVATE_DATA if name != "clients"]
KEYS = {"rounds": 3, "delta": 1e-3, "engine": "loop", "progress": False, "evaluate_every": 1, "cohort": cl.full()}


def run(folder, record, **more):
    method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=1.0)
    return cl.run(method, toy_task(), folder=folder, record=record, **{**KEYS, **more})


@pytest.fixture(scope="module")
def recorded_in(tmp_path_factory):
    """Runs that recorded one measurement, all that there are, or only what was paid for: made when first asked for."""
    place = tmp_path_factory.mktemp("runs")
    wanted = {name: [name] for name in EXACT} | {"all": [*PRIVATE_DATA, "thresholds"], "paid": ["thresholds"]}
    return cache(lambda name: (place / name, run(place / name, wanted[name])))


def shown(table) -> str:
    text = io.StringIO()
    Console(file=text, width=100, color_system=None).print(table)
    return text.getvalue()


def drawn(monkeypatch, folder, of, path) -> str:
    """All that stands above the panels of a picture."""
    texts = []
    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, _: texts.extend(text.get_text() for text in self.texts))
        curves = report.Curves(RunFolder.open(folder).metrics(), measurement_file.read(folder))
        report.measurements_plot({"run": curves}, path, of)
    return "\n".join(texts)


def outputs(monkeypatch, command, folder, found, tmp_path) -> dict[str, str]:
    """Everything in which something of a run's measurements is shown, by where it is."""
    lines = (folder / "measurements.jsonl").read_text().splitlines()
    seen = {f"line {number} of the file": line for number, line in enumerate(lines)}
    seen |= {"repr": repr(found.recorded), "summary": report.measurements_text(found.recorded)}
    seen |= {"certificate": str(found.certificate), "certificate.txt": (folder / "certificate.txt").read_text()}
    seen["certificate.json"] = json.dumps(json.loads((folder / "certificate.json").read_text())["not_covered"])
    seen["computed afresh"] = str(RunFolder.open(folder).certificate())
    seen["show"] = command("show", folder).stdout.split("PRIVACY CERTIFICATE")[0]
    for title, table in report.measurements_tables(found.recorded).items():
        if title != "from what was paid for":
            seen |= {f"title {title}": title, f"table {title}": shown(table)}
    for name in found.recorded.names:
        if name in PRIVATE_DATA and name != "clients":
            of = "loss" if name == "train" else name
            seen[f"picture of {name}"] = drawn(monkeypatch, folder, of, tmp_path / "picture.png")
    return seen


def expect_marked(seen: dict[str, str]) -> None:
    unmarked = [where for where, text in seen.items() if MARK not in text]
    assert not unmarked


@pytest.mark.parametrize(
    "name", ["train", "all", *(pytest.param(name, marks=pytest.mark.slow) for name in EXACT if name != "train")]
)
def test_every_output_of_what_is_not_private_is_marked(name, recorded_in, monkeypatch, command, tmp_path):
    folder, found = recorded_in(name)
    seen = outputs(monkeypatch, command, folder, found, tmp_path)
    assert len(seen) > 10
    expect_marked(seen)


PLANTED = {
    "file": (measurement_file, "marked", lambda line: line),
    "header": (measurement_file, "_header", lambda names: {"record": list(names)}),
    "tables": (measurements, "NOT_PRIVATE", "exact"),
    "titles": (measurements, "MARK", "exact"),
    "certificate": (certificate_text, "_measured", lambda recorded: []),
    "repr": (Recorded, "mark", None),
    "pictures": (plot_parts, "NOT_PRIVATE", "exact"),
}


QUICK = ("file", "certificate", "pictures")


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=() if place in QUICK else pytest.mark.slow) for place in PLANTED]
)
def test_an_output_without_its_mark_is_found(place, monkeypatch, command, tmp_path):
    monkeypatch.setattr(*PLANTED[place])
    found = run(tmp_path / "run", ["norms", "clipping"], rounds=1)
    seen = outputs(monkeypatch, command, tmp_path / "run", found, tmp_path)
    with pytest.raises(AssertionError):
        expect_marked(seen)


def test_what_was_paid_for_needs_no_mark(recorded_in, monkeypatch, command, tmp_path):
    folder, found = recorded_in("paid")
    seen = outputs(monkeypatch, command, folder, found, tmp_path)
    seen["picture"] = drawn(monkeypatch, folder, "thresholds", tmp_path / "picture.png")
    assert not [where for where, text in seen.items() if MARK in text]
    assert "noise multiplier 1" in seen["summary"]


def test_thresholds_that_nothing_was_paid_for_are_marked(monkeypatch, command, tmp_path):
    """Without noise a threshold that follows the data is as exact as a norm."""
    folder = tmp_path / "run"
    method = cl.methods.adaptive_clipping(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=0.0)
    found = cl.run(method, toy_task(), folder=folder, record=["thresholds"], **KEYS)
    lines = [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()[1:]]
    assert all(line["mark"] == MARK and not line["released"] for line in lines)
    (title, table) = next(iter(report.measurements_tables(found.recorded).items()))
    page = command("show", folder).stdout.split("PRIVACY CERTIFICATE")[0]
    picture = drawn(monkeypatch, folder, "thresholds", tmp_path / "picture.png")
    assert all(MARK in text for text in (repr(found.recorded), title, shown(table), page, picture))
    assert "paid for" not in page


@pytest.mark.parametrize("of", ["norms", "clipping", "gradients", "cosine", "signal", "sparsity", "thresholds", "loss"])
def test_pictures_are_written(of, recorded_in, tmp_path):
    recorded_in("all")[1].recorded.plot(tmp_path / "picture.svg", of)
    assert (tmp_path / "picture.svg").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize("of", ["norms", "clipping", "cosine", "signal", "sparsity", "thresholds", "loss"])
def test_several_runs_are_drawn_together(of, recorded_in, command, tmp_path):
    folders = [recorded_in("all")[0], recorded_in("norms")[0]]
    assert command("show", *folders, "--plot", tmp_path / "picture.png", "--of", of).returncode == 0
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_a_picture_of_what_was_not_recorded_is_refused(recorded_in, command, tmp_path):
    folder = recorded_in("train")[0]
    for of, words in (("clipping", "run that recorded clipping"), ("gradents", "--of to be one of")):
        done = command("show", folder, "--plot", tmp_path / "x.png", "--of", of)
        assert (done.returncode, words in done.stderr) == (2, True)
    done = command("show", folder, "--plot", tmp_path / "x.png", "--of", "loss")
    assert done.returncode == 0, "the loss on test samples is always there"


def test_a_picture_without_anything_in_it_is_refused(command, tmp_path):
    """FedAvg neither clips nor adds noise, and nothing says that it does."""
    found = cl.run(
        cl.methods.fedavg(lr=0.5, local_steps=2),
        toy_task(),
        folder=tmp_path / "run",
        record=["thresholds", "clipping", "norms"],
        **{**KEYS, "rounds": 1},
    )
    for of, words in (("thresholds", "adds noise or clips"), ("clipping", "clips something")):
        done = command("show", tmp_path / "run", "--plot", tmp_path / "x.png", "--of", of)
        assert (done.returncode, words in done.stderr) == (2, True)
    assert "median norm of an update" in report.measurements_text(found.recorded)
    assert "clip" not in report.measurements_text(found.recorded)


def test_rounds_are_shown_one_by_one(recorded_in, command):
    page = command("show", recorded_in("all")[0], "--measurements").stdout
    assert page.count(MARK) >= 4
    for head in (
        "clip factor",
        "its spread",
        "train accuracy",
        "accuracy gap",
        "noise multiplier",
        "gradient norm",
        "signal / noise",
    ):
        assert head in page
    done = command("show", recorded_in("all")[0].parent / "nothing", "--measurements")
    assert done.returncode == 2


def test_a_run_that_recorded_nothing_has_no_rounds_to_show(command, tmp_path):
    run(tmp_path / "run", None, rounds=1)
    done = command("show", tmp_path / "run", "--measurements")
    assert (done.returncode, "a run that recorded something" in done.stderr) == (2, True)
    assert "Recorded" not in command("show", tmp_path / "run").stdout


def test_the_key_is_a_list_on_the_command_line_as_well(command, tmp_path):
    method = ["method=dp_fedavg", "clip_norm=1", "lr=1", "local_steps=1", "noise_multiplier=2", "sampling_rate=0.5"]
    rest = ["rounds=2", "clients=20", "delta=0.01", "allow_large_delta=true", "engine=loop", "record=norms,thresholds"]
    done = command("run", *method, *rest, "--folder", tmp_path / "run", "--quiet")
    assert done.returncode == 0, done.stderr
    assert MARK in done.stdout, "what a run says at its end has the mark, too"
    assert measurement_file.read(tmp_path / "run").names == ("norms", "thresholds")


def test_a_run_that_diverged_is_read_and_shown(command, tmp_path):
    """A loss that is no number is a word in the file, and a number again when it is read."""
    found = run(tmp_path / "run", ["train"])
    (tmp_path / "run" / "measurements.jsonl").write_text(
        (tmp_path / "run" / "measurements.jsonl").read_text().replace('"loss": ', '"loss": "inf", "before": ')
    )
    read = measurement_file.read(tmp_path / "run")
    assert read.by_round("train/loss") == dict.fromkeys((1, 2, 3), math.inf)
    assert len(found.recorded.lines) == 3
    page = command("show", tmp_path / "run", "--measurements")
    assert (page.returncode, "inf" in page.stdout) == (0, True)


# ---- scores along a run --------------------------------------------------------------------------------------------


def lines_of(*scores, monitor=None, epsilons=None):
    spent = epsilons or range(1, len(scores) + 1)
    named = {} if monitor in (None, "accuracy") else {"monitor": monitor}
    return [
        {"round": number, "epsilon": float(e), **({} if score is None else {monitor or "accuracy": score, **named})}
        for number, (score, e) in enumerate(zip(scores, spent, strict=True), 1)
    ]


def test_the_best_round_is_marked_and_smaller_losses_are_better():
    found = best_of(lines_of(0.1, None, 0.5, 0.4))
    assert (found.value, found.round, found.mark) == (0.5, 3, "selected on test data")
    assert best_of(lines_of(3.0, 1.0, 2.0, monitor="loss")).round == 2
    assert best_of(lines_of(math.nan, 0.2)).round == 2
    assert best_of(lines_of(None)) is None


@pytest.mark.parametrize(
    ("asked", "round"), [(0.5, None), (1.0, 1), (2.9, 1), (3.0, 3), (3.5, 3), (4.0, 4), (100.0, 4)]
)
def test_a_score_at_an_epsilon_is_the_last_one_within_it(asked, round):
    found = score_at_epsilon(lines_of(0.5, None, 0.3, 0.2), asked)
    assert (None if found is None else found.round) == round
    if found is not None:
        assert found.epsilon <= asked


def test_epsilons_of_a_run_without_a_guarantee_are_not_reached():
    assert score_at_epsilon(lines_of(0.5, 0.6, epsilons=("inf", "inf")), 8.0) is None


def test_scores_along_a_run_come_from_its_log(tmp_path, command):
    found = run(tmp_path / "run", None, rounds=5)
    spent = [line["epsilon"] for line in found.history]
    for number, epsilon in enumerate(spent, 1):
        at = found.at_epsilon(epsilon)
        assert (at.round, at.value) == (number, found.history[number - 1]["accuracy"])
        before = found.at_epsilon(epsilon * (1 - 1e-9))
        assert (None if before is None else before.round) == (number - 1 or None)
    best = max(line["accuracy"] for line in found.history)
    assert found.best_on_test.value == best
    asked = f"{spent[2] + 1e-6:.6f}"
    page = command("show", tmp_path / "run", "--epsilon", asked, "--epsilon", "0.01").stdout
    assert "The last score within each epsilon" in page
    row = next(line.split() for line in page.splitlines() if f"{float(asked):g}" in line.split())
    assert (row[3], row[5]) == ("3", f"{found.history[2]['accuracy']:.3f}")
    assert [line.split()[-1] for line in page.splitlines() if line.split()[1:2] == ["0.01"]] == ["-"]


def test_a_run_that_was_interrupted_has_scores_within_an_epsilon(tmp_path, command, monkeypatch):
    """It was charged for a round that has no line."""
    real = training.run_round

    def dying(fed, ledger, engine, round, w, state):
        if round == 3:
            open_round(fed, ledger, round, w, state)
            raise Killed
        return real(fed, ledger, engine, round, w, state)

    monkeypatch.setattr(training, "run_round", dying)
    with pytest.raises(Killed):
        run(tmp_path / "run", None, checkpoint_every=1)
    page = command("show", tmp_path / "run", "--epsilon", "100")
    assert page.returncode == 0, page.stderr
    assert [line.split()[3] for line in page.stdout.splitlines() if line.split()[1:2] == ["100"]] == ["2"]


def test_epsilons_that_do_not_add_up_to_the_certificate_are_refused():
    found = run(None, None, rounds=2)
    more = replace(found.certificate, prices=[replace(found.certificate.prices[0], epsilon_pld=found.epsilon * 2)])
    with pytest.raises(CloisterError, match="adds up round by round"):
        score_at_epsilon(found.history, 1.0, certificate=more)
    assert score_at_epsilon(found.history, found.epsilon, certificate=found.certificate) is not None


def test_show_says_what_is_best_and_how_it_was_chosen(tmp_path, command, monkeypatch):
    run(tmp_path / "run", None)
    real = RunFolder.metrics

    def better_before(self):
        first, *rest = real(self)
        return [{**first, "accuracy": 0.999}, *rest]

    monkeypatch.setattr(RunFolder, "metrics", better_before)
    assert "best accuracy 0.999, in round 1: selected on test data" in command("show", tmp_path / "run").stdout


def test_comparisons_show_the_last_score_the_best_one_marked_and_the_mean_over_clients(tmp_path):
    method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=1.0)
    people = toy_task((9, 9, 9, 9)).population
    owners = [client for client in range(4) for _ in range(9)]
    task = cl.data.from_arrays(people.inputs, people.labels, owners, classes=3, test=0.3)
    found = cl.run(method, task, folder=tmp_path / "run", **KEYS)
    row = report.compared("one", 2.0, RunFolder.open(tmp_path / "run"), {})
    assert row.best_on_test == max(line["accuracy"] for line in found.history)
    assert row.best_round == next(n for n, line in enumerate(found.history, 1) if line["accuracy"] == row.best_on_test)
    assert row.not_private == {}
    own = found.client_scores
    assert row.mean_client_accuracy == pytest.approx(sum(own.scores.values()) / len(own.scores))
    page = " ".join(shown(report.comparison_scores_table([row])).split())
    for words in ("last accuracy", "best *", "mean client accuracy", "selected on test data"):
        assert words in page
    assert MARK not in page


def test_comparisons_show_the_train_test_gap_with_its_mark(recorded_in):
    folder, found = recorded_in("train")
    row = report.compared("one", 2.0, RunFolder.open(folder), {})
    gap = found.recorded.by_round("train/accuracy_gap")[3]
    assert row.not_private["accuracy_gap"] == gap
    assert row.not_private["train_accuracy"] == pytest.approx(found.accuracy + gap)
    assert MARK in row.not_private["mark"], "it goes into results.json"
    page = " ".join(shown(report.comparison_scores_table([row, replace(row, not_private={})])).split())
    assert MARK in page
    assert f"{gap:.3f}" in page


def curves_in(monkeypatch, folder, of, path) -> list[list[tuple[list[float], list[float]]]]:
    """The points of every line, panel by panel."""
    panels = []

    def points(line):
        x, y = line.get_data()
        return list(map(float, x)), list(map(float, y))

    def look(self, _):
        panels.extend([points(line) for line in axes.lines] for axes in self.axes)

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", look)
        curves = report.Curves(RunFolder.open(folder).metrics(), measurement_file.read(folder))
        report.measurements_plot({"run": curves}, path, of)
    return panels


def test_pictures_show_what_was_measured(recorded_in, monkeypatch, tmp_path):
    folder, found = recorded_in("all")
    rounds, recorded = [1.0, 2.0, 3.0], found.recorded
    tested = {name: [line[name] for line in found.history] for name in ("loss", "accuracy", "epsilon")}

    def over_rounds(name):
        return rounds, list(recorded.by_round(name).values())

    loss, accuracy = curves_in(monkeypatch, folder, "loss", tmp_path / "x.png")
    assert loss == [(rounds, tested["loss"]), over_rounds("train/loss")]
    assert accuracy == [(rounds, tested["accuracy"]), over_rounds("train/accuracy")]
    noise, clip, along = curves_in(monkeypatch, folder, "thresholds", tmp_path / "x.png")
    assert (noise, clip) == ([over_rounds("thresholds/noise_multiplier")], [over_rounds("thresholds/clip_norm")])
    assert along == [(tested["epsilon"], [1.0, 1.0, 1.0])]
    mean, share = curves_in(monkeypatch, folder, "clipping", tmp_path / "x.png")
    assert (mean, share) == ([over_rounds("clipping/mean")], [over_rounds("clipping/clipped")])
    _, quantiles, _ = curves_in(monkeypatch, folder, "norms", tmp_path / "x.png")
    assert quantiles[0] == over_rounds("norms/quantiles/0.5")
    assert quantiles[1][1] == [0.5, 0.5], "the norm to which updates are clipped"
