"""Bounds beside a run's measurements: eq. 2 by hand from its norms, and what was measured stays below."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import cloister as cl
from cloister.errors import CloisterError
from cloister.runs import measurement_file
from cloister.studies.bound_plots import bounds_plot
from cloister.studies.measured_bounds import Measured, of_run, utility, utility_of
from conftest import toy_task

CLIP, Z = 0.6, 0.8
KEYS = {"rounds": 3, "delta": 1e-3, "engine": "loop", "progress": False, "evaluate_every": 1, "cohort": cl.full()}
EXACT = ["norms", "clipping", "clients", "signal"]


def trained(folder, record, sizes=(5, 6, 7, 8), **more):
    method = cl.methods.dp_fedavg(clip_norm=CLIP, lr=0.4, local_steps=3, noise_multiplier=more.pop("noise", Z))
    return cl.run(method, toy_task(sizes), folder=folder, record=record, **{**KEYS, **more})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "exact"
    return folder, trained(folder, EXACT)


def test_bounds_are_those_of_the_recorded_norms(recorded):
    folder, run = recorded
    found = of_run(folder)
    assert "NOT PRIVATE" in found["mark"]
    eq2, factors = found["eq2"], found["clip_factors"]
    assert eq2["round"] == factors["round"] == [1, 2, 3]
    for place, line in enumerate(run.recorded.lines):
        exact = line["not_private"]
        norms = [row["norm"] for row in exact["clients"].values()]
        assert eq2["clipping"][place] == pytest.approx(sum(max(0, n - CLIP) ** 2 for n in norms) / 4 / 21)
        assert eq2["noise"][place] == pytest.approx(Z**2 * CLIP**2 / 4)
        assert eq2["clipping_measured"][place] == pytest.approx(exact["signal"]["clipping_bias"] ** 2 / 21)
        assert eq2["clipping_measured"][place] <= eq2["clipping"][place], "a mean errs less than its parts"
        assert eq2["noise_measured"][place] == pytest.approx(exact["signal"]["noise"] ** 2 / 21 * 4)
        alphas = [min(1, CLIP / n) for n in norms]
        mean = sum(alphas) / 4
        assert factors["alpha_bar"][place] == pytest.approx(mean)
        assert factors["alpha_tilde"][place] == pytest.approx(sum(abs(a - mean) for a in alphas) / 4, abs=1e-12)
    assert max(eq2["clipping"]) > 0
    clipping = sum(a + b for a, b in zip(factors["alpha_bar"], factors["alpha_tilde"], strict=True)) / 3**2
    assert factors["theorem_3"]["clipping"][-1] == pytest.approx(clipping)
    assert factors["theorem_3"]["noise"][-1] == pytest.approx(math.sqrt(3 / 3) * (Z * CLIP / 4) ** 2 * 21)
    weighted = factors["theorem_2"]["fedavg"][-1] + factors["theorem_2"]["noise"][-1]
    assert factors["theorem_2"]["over_alpha_bar"][-1] == pytest.approx(weighted / min(factors["alpha_bar"]))
    over = found["over_clips"]
    assert over["used"] == CLIP
    assert min(over["total"]) == over["total"][over["clip_norm"].index(over["best"])]
    json.dumps(found)


def test_without_single_norms_the_histogram_serves(recorded, tmp_path):
    """Within its bins, which are 6 % wide."""
    whole = trained(tmp_path / "run", ["norms", "clipping"])
    assert "clients" not in whole.recorded.names
    one, other = (Measured.of(path).norms() for path in (recorded[0], tmp_path / "run"))
    for number, (norms, _) in one.items():
        values, counts = other[number]
        assert np.repeat(values, np.array(counts, int)).tolist() == pytest.approx(sorted(norms), rel=0.031)
    assert of_run(tmp_path / "run")["eq2"]["noise_measured"] == [None] * 3


def test_utility_is_that_of_the_runs_by_their_number_of_clients(tmp_path):
    paths = []
    for clients, seed in ((2, 0), (2, 1), (3, 0), (5, 0)):
        paths.append(tmp_path / f"{clients}-{seed}")
        trained(paths[-1], None, (6,) * clients, seed=seed, rounds=1)
    assert utility_of(paths[:3]) is None, "two numbers of clients are no curve"
    found = utility_of(paths, ideal=0.9, distance=0.5)
    assert found["clients"] == [2, 3, 5]
    assert found["accuracies"] == [[measure_of(path) for path in own] for own in (paths[:2], paths[2:3], paths[3:])]
    risks = [abs(0.9 - a) for a in (measure_of(path) for path in paths[:2])]
    product = math.sqrt(2 * sum(r**2 for r in risks) / 2)
    assert found["predicted"] == pytest.approx([product / math.sqrt(k) for k in (2, 3, 5)])
    assert found["bound"] == pytest.approx([max(0, 1 - (product / 0.5) ** 2 / k) for k in (2, 3, 5)])
    assert utility({k: [0.9] for k in (1, 2)}, 0.9)["bound"] == [1.0, 1.0]
    bounds_plot({}, found, tmp_path / "clients.png")
    assert (tmp_path / "clients.png").stat().st_size > 5000


def measure_of(path):
    from cloister.runs.folder import RunFolder

    return RunFolder.open(path).metrics()[-1]["accuracy"]


def test_theory_is_drawn_from_the_command_line(recorded, command, tmp_path):
    folder, _ = recorded
    done = command("theory", folder, "-o", tmp_path / "theory.png")
    assert done.returncode == 0, done.stderr
    assert "NOT PRIVATE" in done.stdout
    assert (tmp_path / "theory.png").read_bytes().startswith(b"\x89PNG")
    printed = json.loads(command("theory", folder, "--json").stdout)
    assert printed["runs"]["exact"]["mark"].startswith("NOT PRIVATE")
    assert printed["utility"] is None


def test_runs_without_norms_or_without_a_clip_are_refused(recorded, command, tmp_path):
    folder, _ = recorded
    trained(tmp_path / "plain", None)
    some = command("theory", folder, tmp_path / "plain", "-o", tmp_path / "x.png")
    assert "left out, for they recorded no norms and clipping: plain" in some.stdout
    done = command("theory", tmp_path / "plain", "-o", tmp_path / "x.png")
    assert (done.returncode, "recorded norms and clipping" in done.stderr) == (2, True)
    trained(tmp_path / "some", ["norms"])
    with pytest.raises(CloisterError, match="recorded norms and clipping"):
        of_run(tmp_path / "some")
    cl.run(cl.methods.fedavg(lr=0.4, local_steps=1), toy_task(), folder=tmp_path / "free", record=EXACT, **KEYS)
    with pytest.raises(CloisterError, match="a run that clips whole updates"):
        of_run(tmp_path / "free")
    assert measurement_file.read(tmp_path / "free") is not None
