"""The report: its figures against the files of the runs, read here by other code; and what it must never contain."""

from __future__ import annotations

import json
import math
import re
import statistics
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import chromium
import jinja2
import pytest
import torch

import cloister as cl
from cloister.runs.config import build
from cloister.studies.html.discover import rankings
from cloister.studies.html.figures.at_epsilon import at_equal_epsilon, blocks
from cloister.studies.html.label_counts import label_counts
from cloister.studies.html.tables import Table

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">&"'
SHARED = {
    "data": "digits",
    "clients": 16,
    "partition": "dirichlet",
    "alpha": 0.5,
    "model": "logistic",
    "batch_size": 10,
    "local_steps": 2,
    "lr": 0.5,
    "rounds": 3,
    "sampling_rate": 0.5,
    "evaluate_every": 1,
    "engine": "vectorized",
    "record": ["norms", "clipping", "train", "thresholds"],
}
METHODS = {
    "dp_fedavg": {"clip_norm": 1.0, "epsilon": 8.0, "delta": 1e-2},
    "dp_fedsam": {"clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-2, "rho": 0.05, "sam": "plain", "momentum": 0.0},
}
SEEDS = (0, 1)
LANDSCAPE = {
    "alpha": [-1.0, 0.0, 1.0],
    "beta": [-2.0, 0.0, 2.0],
    "of": "train",
    "samples": 20,
    "loss": [[3.0, 2.0, 1.0], [0.5, 0.25, 0.5], ["nan", 4.0, 5.0]],  # a list for each alpha
    "accuracy": None,
    "sharpness": {"rise": {"1": 0.7}, "hessian": None},
}


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    """Two methods and two seeds in a plain folder."""
    folder = tmp_path_factory.mktemp("study")
    for method, own in METHODS.items():
        for seed in SEEDS:
            experiment = build({**SHARED, **own, "method": method, "seed": seed})
            experiment.start(folder=folder / f"{method}-{seed}", config=experiment.toml, progress=False)
    (folder / "dp_fedavg-0" / "landscape.json").write_text(json.dumps(LANDSCAPE))
    return folder


@pytest.fixture(scope="module")
def page(study, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    assert cl.report(study, path, title=EVIL) == path
    return path.read_text()


class Elements(HTMLParser):
    """Every element with its attributes, and all text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.found and self.found[-1][0] not in ("script", "style"):
            self.words += data + "\n"

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def figures_of(page: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def lines_of(study: Path, method: str, file: str) -> list[list[dict]]:
    """The rounds of every seed, from the file itself."""
    texts = [(study / f"{method}-{seed}" / file).read_text() for seed in SEEDS]
    return [[line for line in map(json.loads, text.splitlines()) if "round" in line] for text in texts]


def traces_of(figure: dict, name: str) -> list[dict]:
    return [trace for trace in figure["data"] if trace.get("name", "").startswith(name)]


@pytest.mark.parametrize("method", METHODS)
def test_curves_are_means_over_seeds_of_what_the_files_say(study, page, method):
    figures = figures_of(page)
    runs = lines_of(study, method, "metrics.jsonl")
    (trace,) = traces_of(figures["accuracy-over-rounds-0"], method)
    scores = [[run[place]["accuracy"] for run in runs] for place in range(3)]
    assert trace["x"] == [1, 2, 3]
    assert trace["y"] == pytest.approx([sum(one) / 2 for one in scores], rel=1e-4)
    assert trace["customdata"] == pytest.approx([statistics.stdev(one) for one in scores], rel=1e-4, abs=1e-9)
    (trace,) = traces_of(figures["accuracy-over-epsilon-0"], method)
    assert trace["x"] == pytest.approx([line["epsilon"] for line in runs[0]], rel=1e-4)
    (point,) = traces_of(figures["accuracy-at-epsilon-0"], method)
    last = [run[-1]["accuracy"] for run in runs]
    assert point["x"] == pytest.approx([sum(last) / 2], rel=1e-4)
    # Student's t with one degree of freedom has its 0.975 quantile at tan(0.475 pi).
    half = math.tan(0.475 * math.pi) * statistics.stdev(last) / math.sqrt(2)
    mean = sum(last) / 2  # the interval is drawn as far as there are shares
    assert point["error_x"]["array"] == pytest.approx([min(half, 1 - mean)], rel=1e-3, abs=1e-6)
    assert point["error_x"]["arrayminus"] == pytest.approx([min(half, mean)], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_measurements_are_those_of_the_files(study, page, method):
    figures = figures_of(page)
    runs = lines_of(study, method, "measurements.jsonl")
    exact = [[run[place]["not_private"] for run in runs] for place in range(3)]
    for name, key, part in (("clipping-clipped", "clipping", "clipped"), ("norms-mean", "norms", "mean")):
        (trace,) = traces_of(figures[f"{name}-0"], method)
        assert trace["y"] == pytest.approx(
            [statistics.fmean(one[key][part] for one in pair) for pair in exact], rel=1e-4
        )
    (trace,) = traces_of(figures["train-accuracy_gap-0"], method)
    gaps = [statistics.fmean(one["train"]["accuracy_gap"] for one in pair) for pair in exact]
    assert trace["y"] == pytest.approx(gaps, rel=1e-4, abs=1e-6)


def test_the_axis_of_a_share_ends_where_shares_do(page):
    figures = figures_of(page)
    for name in ("clipping-clipped", "clipping-mean"):
        ends = figures[f"{name}-0"]["layout"]["yaxis"]["autorangeoptions"]
        assert -0.1 < ends["minallowed"] < 0
        assert 1 < ends["maxallowed"] < 1.1
    assert "autorangeoptions" not in figures["norms-mean-0"]["layout"]["yaxis"]


@pytest.mark.parametrize("place", [0, 1])
def test_histograms_have_every_norm_once_and_the_clipping_threshold(study, page, place):
    method = list(METHODS)[place]
    panel = figures_of(page)[f"distribution-of-norms-{place}"]
    runs = lines_of(study, method, "measurements.jsonl")
    assert len(panel["frames"]) == 3
    for number, frame in enumerate(panel["frames"]):
        steps, clip = frame["0"], frame["1"]
        assert sum(steps["y"]) == pytest.approx(1.0, abs=1e-3)
        assert clip["x"] == [METHODS[method]["clip_norm"]] * 2
        norms = [run[number]["not_private"]["norms"] for run in runs]
        assert min(steps["x"]) <= min(one["least"] for one in norms) * (1 + 1e-4)
        assert max(steps["x"]) >= max(one["most"] for one in norms) * (1 - 1e-4)
        total = sum(one["count"] for one in norms)
        edge, share = steps["x"][1], steps["y"][1]
        counts = [dict(zip(one["histogram"]["edges"], one["histogram"]["counts"], strict=False)) for one in norms]
        found = sum(count for own in counts for low, count in own.items() if math.isclose(low, edge, rel_tol=1e-3))
        assert share == pytest.approx(found / total, rel=1e-3)


def test_a_band_lies_one_deviation_around_its_line(page):
    figure = figures_of(page)["accuracy-over-rounds-0"]
    band, line = figure["data"][:2]
    assert band["meta"] == {**line["meta"], "band": True}
    high, low = band["y"][:3], band["y"][:2:-1]
    for y, deviation, top, bottom in zip(line["y"], line["customdata"], high, low, strict=True):
        assert (top, bottom) == pytest.approx((y + deviation, y - deviation), abs=2e-5)


def test_the_tables_say_what_was_certified(study, page):
    words = Elements(page).words
    for seed in SEEDS:
        certificate = json.loads((study / f"dp_fedavg-{seed}" / "certificate.json").read_text())
        assert certificate["ledger_hash"] in words
        for gap in certificate["not_covered"]:
            assert gap in words
    spent = max(
        json.loads((study / f"dp_fedavg-{seed}" / "certificate.json").read_text())["prices"][0]["epsilon_pld"]
        for seed in SEEDS
    )
    shown = [float(found) for found in re.findall(r"^(7\.\d{3}|8\.000)$", words, re.MULTILINE)]
    assert shown
    assert all(spent <= number < spent + 2e-3 for number in shown)
    assert "one client" in words
    assert "clip_norm" in words  # a setting in which the two differ
    assert "Clipping threshold, the same in all rounds: dp_fedavg, epsilon 8 1; dp_fedsam, epsilon 8 0.5." in words


def test_what_is_exact_is_marked_beside_each_figure(page):
    marked = {}
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        marked[re.search(r'id="(.*?)"', figure).group(1)] = "NOT PRIVATE" in figure
    assert {name for name, mark in marked.items() if not mark} == {
        *("accuracy-over-rounds", "accuracy-over-epsilon", "accuracy-at-epsilon", "upload"),
    }
    exact = {"distribution-of-norms", "clipping-clipped", "clipping-mean", "train-accuracy_gap", "labels"}
    assert exact | {"contours-loss", "surface-loss", "landscape-lines"} <= set(marked)
    assert "NOT PRIVATE, for on training samples: dp_fedavg" in page, "beside the table of what landscapes come to"


def test_labels_per_client_add_up_to_the_training_samples(page):
    (matrix,) = figures_of(page)["labels-0"]["data"]
    task = cl.data.digits(clients=16, partition=cl.data.dirichlet(alpha=0.5))
    assert sum(map(sum, matrix["z"])) == int(task.population.sizes.sum())
    assert (len(matrix["z"]), len(matrix["z"][0])) == (10, 16)


def test_nothing_is_loaded_and_no_name_is_taken_for_markup(page):
    elements = Elements(page)
    assert len(elements.named("script")) == 4
    assert not {"img", "link", "iframe", "object", "embed", "base"} & {tag for tag, _ in elements.found}
    for tag, attributes in elements.found:
        assert not any(name.startswith("on") or name in ("src", "srcset", "action") for name in attributes), tag
        assert attributes.get("href", "#").startswith("#")
    own = page.replace(_plotly(), "")
    assert not re.search(r"url\(|@import|https?://", own)
    assert EVIL in elements.words
    (policy,) = [one["content"] for one in elements.named("meta") if one.get("http-equiv")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert page.count(_plotly()) == 1


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def test_a_study_says_labels_columns_and_ranking_and_all_are_escaped(study, tmp_path):
    cells = [{"folder": f"dp_fedavg-{seed}", "label": EVIL, "swept": {"seed": seed, "epsilon": 8.0}} for seed in SEEDS]
    row = {"label": EVIL, "swept": {"epsilon": 8.0}, "more": {"paper <b>": "77.7"}}
    best = {"name": EVIL, "mean": 0.5, "verdict": "best"}
    other = {"name": "other", "mean": 0.4, "verdict": "worse", "difference": -0.1, "low": -0.2, "high": -0.05}
    ranking = [{"title": "epsilon 8", "metric": "accuracy", "order": [best, other]}]
    (tmp_path / "results.json").write_text(json.dumps({"cells": cells, "rows": [row], "ranking": ranking}))
    for seed in SEEDS:
        (tmp_path / f"dp_fedavg-{seed}").symlink_to(study / f"dp_fedavg-{seed}")
    page = cl.report(tmp_path, tmp_path / "page.html", title="title", labels=False).read_text()
    assert "<script>alert" not in page
    assert "<img" not in page.replace(_plotly(), "")
    words = Elements(page).words
    for found in (EVIL, "paper <b>", "77.7", "worse", "-0.2 to -0.05"):
        assert found in words
    names = [trace.get("name", "") for figure in figures_of(page).values() for trace in figure["data"]]
    assert any(names)
    assert not any("<" in name for name in names)


def test_the_page_says_of_updates_that_were_no_numbers(tmp_path):
    folder = tmp_path / "diverged"
    task = cl.data.digits(clients=20)
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=1e17, local_steps=6)
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10)]
    options = {"epsilon": 4.0, "delta": 1e-2, "model": torch.nn.Sequential(*layers), "folder": folder}
    cl.run(method, task, rounds=2, cohort=cl.full(), **options)
    page = cl.report([folder], tmp_path / "page.html").read_text()
    assert "updates were not finite, and counted as zero" in Elements(page).words


def test_equal_numbers_that_promise_other_things_stand_apart_and_no_share_is_below_zero():
    """One epsilon for a client, one for its replacement, and one for a sample: three blocks, each with its name."""

    def group(label, scores, unit, adjacency):
        prices = [SimpleNamespace(delta=1e-3)]
        first = SimpleNamespace(
            metric="accuracy", certificate=SimpleNamespace(unit=unit, adjacency=adjacency, prices=prices)
        )
        return SimpleNamespace(
            label=label,
            name=label,
            epsilon=4.0,
            spent=4.0,
            scores=scores,
            first=first,
            runs=[SimpleNamespace(finished=True)],
        )

    groups = [
        group("a", [0.1, 0.3], "client", "add or remove one client: its data"),
        group("b", [0.9, 0.9], "client", "replace one client: its data"),
        group("c", [0.5], "sample", "add or remove one sample of one client"),
    ]
    look = SimpleNamespace(
        study=SimpleNamespace(levels=[4.0]), color=lambda _: "red", marker=lambda _: "circle", meta=lambda _: {}
    )
    found = blocks(look, groups)
    assert [one.title for one in found] == [
        "epsilon 4, for one client (add or remove one client), at delta 0.001",
        "epsilon 4, for one client (replace one client), at delta 0.001",
        "epsilon 4, for one sample, at delta 0.001",
    ]
    low, same, single = at_equal_epsilon(look, found, "test accuracy").figure.data
    assert low.error_x.arrayminus[0] == pytest.approx(0.2), "down to 0, and not below"
    assert low.error_x.array[0] == pytest.approx(0.8)
    assert same.error_x.array is None, "no spread by chance is no certainty"
    assert single.error_x.array is None


def test_rankings_of_several_studies_say_whose_they_are(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps({"ranking": [{"title": "at epsilon 2", "order": []}]}))
    found = rankings([tmp_path / "one", tmp_path / "two"])
    assert [one["title"] for one in found] == ["one: at epsilon 2", "two: at epsilon 2"]
    assert [one["title"] for one in rankings([tmp_path / "one"])] == ["at epsilon 2"]


def test_a_long_label_leaves_room_for_the_figures():
    """The first column stays in view, so that one that does not wrap would cover a phone's whole screen."""
    table = Table(("", "accuracy"), (("dp_fedavg, " + "lr 0.3, " * 8, "0.9"), ("pfl", "0.8")))
    environment = jinja2.Environment(loader=jinja2.PackageLoader("cloister.studies.html", "templates"), autoescape=True)
    made = environment.from_string("{% from 'macros.html.j2' import table %}{{ table(found, 8) }}").render(found=table)
    assert made.count('<th scope="row" class="long">') == 1
    assert (
        "th.long { white-space: normal;"
        in (resources.files("cloister.studies.html") / "templates/report.css").read_text()
    )


def test_a_landscape_is_drawn_as_it_was_computed(page):
    figures = figures_of(page)
    contour = figures["contours-loss-0"]["data"][0]
    assert (contour["x"], contour["y"]) == ([-1, 0, 1], [-2, 0, 2])
    heights = [
        [None if value is None else round(math.log10(value), 4) for value in row] for row in contour["customdata"]
    ]
    assert [[None if value is None else round(value, 4) for value in row] for row in contour["z"]] == heights
    assert contour["customdata"] == [[3, 0.5, None], [2, 0.25, 4], [1, 0.5, 5]]
    (line,) = figures["landscape-lines-0"]["data"]
    assert (line["x"], line["y"]) == ([-1, 0, 1], [2, 0.25, 4])


def test_one_run_is_a_report_as_well(study, tmp_path):
    path = cl.report([study / "dp_fedavg-1"], tmp_path / "one.html", labels=False)
    figures = figures_of(path.read_text())
    assert [trace.get("customdata") for trace in figures["accuracy-over-rounds-0"]["data"]] == [None]
    assert "labels-0" not in figures


def test_refusals(study, tmp_path, command, monkeypatch):
    assert "no description.json" in command("report", str(tmp_path), "-o", str(tmp_path / "a.html")).stderr
    for target, message in (("a.pdf", "ends in .html"), ("none/a.html", "a folder that exists")):
        with pytest.raises(cl.CloisterError, match=message):
            cl.report(study, tmp_path / target)
    monkeypatch.setattr("cloister.errors.find_spec", lambda name: None)
    with pytest.raises(cl.CloisterError, match=r"pip install 'cloister\[report\]'"):
        cl.report(study, tmp_path / "a.html")


@pytest.mark.slow
@pytest.mark.skipif(chromium.installed() is None, reason="no Chromium")
def test_it_renders_in_a_browser(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page)
    with chromium.Browser(tmp_path / "profile") as browser:
        for dark, width in ((False, 1280), (True, 1280), (False, 360)):
            browser.open(path, width, 1200, dark=dark, phone=width < 500)
            assert browser.ask("document.documentElement.scrollWidth") <= width
            plots = "[...document.querySelectorAll('.plot')]"
            assert browser.ask(f"{plots}.every(plot => plot.querySelector('.main-svg, canvas'))")
            points = browser.ask("document.querySelectorAll('.plot .scatterlayer .trace path.js-line').length")
            assert points >= 2 * 2 * 8  # two methods, line and band, in most figures
            light = browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
            assert light is not dark
        before = browser.ask("getComputedStyle(document.body).backgroundColor")
        browser.ask("document.getElementById('theme').click()")
        assert browser.ask("getComputedStyle(document.body).backgroundColor") != before
        browser.ask("document.querySelector('.legend button').click()")
        assert browser.ask("document.querySelector('.legend button').getAttribute('aria-pressed')") == "false"
        assert browser.complaints() == []
        assert browser.requests() == []


def test_who_holds_what_is_not_shown_of_a_deployment():
    keys = {"data": "digits", "clients": 16}
    run = SimpleNamespace(certificate=SimpleNamespace(secure_rng=True), keys=keys)
    found, missing = label_counts(SimpleNamespace(runs=[run]))
    assert found == []
    assert "secure randomness" in missing[0]
