"""Recipes are searched with simulated runs (`benchmarks/recipe_surrogate.py`): what they come to is what runs do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cloister.data.raw import RawData, Samples
from cloister.runs.choices import PARTS
from cloister.runs.config import parts_of
from cloister.runs.config_file import load
from cloister.runs.signatures import introspected

ROOT = Path(__file__).parent.parent
SAMPLES, CLASSES, SHAPE = 1200, 4, (6, 2, 2)
USUAL = {"data": "mnist", "features": "scatter", "scatter_pool": 2, "model": "linear_probe", "server": "sgd"}
PRIVATE = {"delta": 1e-5, "center": 0.05, "center_rank": 2, "rounds": 12, "average": 0.5, "server_momentum": 0.3}
SETTINGS = {
    "messages in turns": {"method": "pfl", "partition": "iid", "clients": 10, "cohort": "cyclic", "clip_norm": 0.1,
                          "clients_per_round": 5, "lr": 30.0, "momentum": 0.0, "batch_size": 600, "local_epochs": 1,
                          "lr_schedule": "cosine", "lr_final": 0.1},
    "sums": {"method": "pfl", "partition": "shards", "clients": 5, "per_client": 4, "cohort": "full", "trust": "sum",
             "sample_rate": 1.0, "clip_norm": 0.1, "lr": 30.0, "momentum": 0.0, "decorrelate": 0.1},
    "clients": {"method": "dp_fedavg", "partition": "dirichlet", "clients": 30, "alpha": 0.6, "cohort": "full",
                "clipping": "normalize", "clip_norm": 1.0, "lr": 5.0, "local_steps": 3, "batch_size": 256,
                "server_lr": 1.0, "server_lr_schedule": "linear"},
}  # fmt: skip


@pytest.fixture
def search(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import recipe_search

    return recipe_search


@pytest.fixture
def split(search, monkeypatch):
    """A few samples of made-up features in the place of a data set's."""
    random = np.random.default_rng(0)
    labels = np.arange(SAMPLES) % CLASSES
    centers = random.random((CLASSES, *SHAPE))
    inputs = (centers[labels] + 3 * random.random((SAMPLES, *SHAPE))).astype(np.float32)

    def make(values):
        units = values["clients"] if values["method"] == "dp_fedavg" else SAMPLES
        raw = RawData(Samples(inputs, labels), Samples(inputs[:0], labels[:0]), CLASSES)
        return search.Source(values, raw, units, "cpu").split(0)

    monkeypatch.setattr(search.Source, "features", lambda self, values: torch.from_numpy(inputs))
    return make


@pytest.mark.parametrize("name", list(SETTINGS))
@pytest.mark.parametrize("epsilon", [4.0, 200.0])
def test_simulated_runs_reach_what_runs_reach(search, split, name, epsilon):
    values = {**USUAL, **PRIVATE, **SETTINGS[name], "epsilon": epsilon}
    made = split(values)
    library, simulated = (np.array(found) for found in search.checked(made, values, range(6)))
    assert simulated.mean() > 1.3 / CLASSES
    error = np.sqrt((library.var(ddof=1) + simulated.var(ddof=1)) / len(library))
    assert abs(library.mean() - simulated.mean()) < 3 * error + 0.01
    if epsilon < 10:  # where noise matters, ten times as much would be noticed
        wrong = [search.scores(search.inputs_of(made, values, seed, 10.0), [values], seed)[0] for seed in range(6)]
        assert library.mean() - np.mean(wrong) > 3 * error + 0.01


def test_changes_are_of_keys_that_the_library_takes(search):
    for name in search.SETTINGS:
        values = {key: value for key, value in load(search.RECIPES / f"{name}.toml").items() if key != "tuned"}
        for changes in {**search.prepared_by(values), **search.trained_by(values)}.values():
            for change in changes:
                parts = parts_of(search.changed(values, change), PARTS, introspected().run)
                for part in ("server", "method", "cohort", "partition"):
                    parts.make(part)
