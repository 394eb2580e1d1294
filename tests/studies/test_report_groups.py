"""Which runs a report takes together, and how a ranking reads where less is better."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import cloister as cl
from cloister.runs.config import build
from cloister.studies.html import gather
from cloister.studies.html.discover import Found
from cloister.studies.html.tables import ranking

KEYS = {
    "data": "digits",
    "clients": 16,
    "method": "dp_fedavg",
    "clip_norm": 1.0,
    "local_steps": 1,
    "sampling_rate": 0.5,
    "rounds": 1,
    "epsilon": 8.0,
    "delta": 1e-2,
    "engine": "vectorized",
}


def test_a_seed_counts_once_however_many_folders_hold_it(tmp_path):
    """A run and its copy, or the same run with and without measurements, had a spread of 0 over "2 seeds"."""
    for name, more in (("a", {}), ("b", {"seed": 1, "checkpoint_every": 5}), ("c", {"record": ["norms"]})):
        experiment = build({**KEYS, **more})
        experiment.start(folder=tmp_path / name, config=experiment.toml, progress=False)
    found = gather.gather([tmp_path])
    assert [[run.path.name for run in group.runs] for group in found.groups] == [["a", "b"], ["c"]]
    assert len({group.name for group in found.groups}) == 2
    assert [len(group.scores) for group in found.groups] == [2, 1]
    assert cl.report(tmp_path, tmp_path / "page.html", labels=False).is_file()


def test_noise_that_was_chosen_stands_at_what_it_spends(tmp_path):
    """Below one budget of epsilon 8, a run of epsilon 2 stood beside one of epsilon 1 as if at equal epsilon."""
    for noise in (1.0, 2.0):
        experiment = build({**KEYS, "noise_multiplier": noise})
        experiment.start(folder=tmp_path / str(noise), config=experiment.toml, progress=False)
    found = gather.gather([tmp_path])
    assert [group.epsilon for group in found.groups] == [group.spent for group in found.groups]
    assert len(found.levels) == 2


def test_runs_with_secure_randomness_have_no_seed_in_common(monkeypatch):
    monkeypatch.setattr(gather, "setting_of", lambda run: {})
    runs = [SimpleNamespace(path=Path(name), description=SimpleNamespace(seed=0, secure_rng=True)) for name in "ab"]
    assert len(gather._together([(Found(run.path), run) for run in runs])) == 1


def test_behind_the_best_is_above_zero_also_where_less_is_better():
    best = {"name": "a", "mean": 1.5, "verdict": "best"}
    other = {"name": "b", "mean": 2.0, "verdict": "worse", "difference": -0.5, "low": -0.7, "high": -0.3}
    found = ranking({"title": "at epsilon 4", "metric": "mae", "order": [best, other]})
    assert found.rows[1][3:5] == ("0.5", "0.3 to 0.7")
    found = ranking(
        {"title": "at epsilon 4", "metric": "r2", "order": [best, {**other, "difference": 0.5, "low": 0.3}]}
    )
    assert found.rows[1][3] == "0.5"
