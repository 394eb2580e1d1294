"""Trackers: what they write, read back by others' readers; those of packages that are not here by a stand-in."""

from __future__ import annotations

import csv
import importlib.machinery
import json
import sys
from collections import defaultdict
from contextlib import contextmanager
from io import StringIO
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

import cloister as cl
from cloister import errors
from cloister.errors import CloisterError
from conftest import killed_in_round, toy_task

METHOD = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=1.0)
KEYS = {"rounds": 4, "delta": 1e-3, "engine": "loop", "checkpoint_every": 2, "progress": False, "evaluate_every": 2}


def run(*callbacks, **more):
    return cl.run(METHOD, toy_task(), **{**KEYS, "seed": 4711, **more}, callbacks=list(callbacks))


def rows_of(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_has_a_row_for_every_round(tmp_path):
    found = run(cl.trackers.csv(tmp_path / "log.csv"))
    rows = rows_of(tmp_path / "log.csv")
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    for row, line in zip(rows, found.history, strict=True):
        assert float(row["released/epsilon"]) == line["epsilon"]
        accuracy = row["not_private/accuracy"]
        assert accuracy == "" if "accuracy" not in line else float(accuracy) == line["accuracy"]
    assert all(name == "round" or name.startswith(("released/", "not_private/")) for name in rows[0])


def test_beside_the_table_stands_what_it_is_about(tmp_path):
    found = run(cl.trackers.csv(tmp_path / "log.csv"))
    text = (tmp_path / "log.json").read_text()
    about = json.loads(text)
    assert about["settings"]["method/local/lr"] == "0.5"
    assert about["settings"]["configuration_sha256"] == found.certificate.configuration_sha256
    assert "not_private/ is exact and protected by nothing" in about["settings"]["about"]
    assert about["certificate"] == f"{found.certificate}\n"
    assert "4711" not in text, "whoever knows the seed can remove the noise"


def test_rounds_that_are_computed_again_are_in_the_table_once(tmp_path, monkeypatch):
    run(folder=tmp_path / "whole", log="csv")
    with killed_in_round(monkeypatch, 4):
        run(folder=tmp_path / "cut", log="csv")
    assert len(rows_of(tmp_path / "cut" / "log.csv")) == 3
    run(folder=tmp_path / "cut", log="csv", resume=True)
    whole, cut = (rows_of(tmp_path / name / "log.csv") for name in ("whole", "cut"))
    for one, other in zip(whole, cut, strict=True):
        for name in one.keys() - {"not_private/seconds", "released/epsilon"}:  # which is added up in another order
            assert one[name] == other[name]
        assert float(one["released/epsilon"]) == pytest.approx(float(other["released/epsilon"]))


def test_tensorboard_reads_what_was_written(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = run(folder=tmp_path / "run", log="tensorboard,csv")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    epsilons = [(event.step, event.value) for event in events.Scalars("released/epsilon")]
    assert epsilons == [(line["round"], pytest.approx(line["epsilon"], rel=1e-6)) for line in found.history]
    assert [event.step for event in events.Scalars("not_private/accuracy")] == [2, 4]
    texts = {
        name: events.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for name in ("settings", "about", "certificate")
    }
    assert str(found.certificate) in texts["certificate"]
    assert "not_private/ is exact" in texts["about"]
    assert '"method/local/lr": "0.5"' in texts["settings"]
    assert "4711" not in texts["settings"]
    assert (tmp_path / "run" / "log.csv").is_file()


def pretend(monkeypatch, name: str, **contents) -> None:
    """A package of that name with a few functions."""
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin="made up")
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


class MlflowClient:
    """What the tracker uses of MLflow's client, kept in memory."""

    store: ClassVar[dict] = {}

    def __init__(self, tracking_uri=None):
        self.store["uri"] = tracking_uri

    def get_experiment_by_name(self, name):
        return self.store.get("experiment")

    def create_experiment(self, name):
        self.store["experiment"] = SimpleNamespace(experiment_id="7", name=name)
        return "7"

    def create_run(self, experiment_id, run_name=None):
        assert experiment_id == "7"
        self.store["runs"] = self.store.get("runs", 0) + 1
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run{self.store['runs']}"))

    def log_param(self, run_id, key, value):
        assert len(value) <= 250
        self.store.setdefault((run_id, "params"), {})[key] = value

    def log_metric(self, run_id, key, value, step):
        self.store.setdefault((run_id, key), []).append((step, value))

    def set_tag(self, run_id, key, value):
        self.store.setdefault((run_id, "tags"), {})[key] = value

    def log_text(self, run_id, text, artifact_file):
        self.store[run_id, artifact_file] = text

    def set_terminated(self, run_id):
        self.store[run_id, "ended"] = True


def test_mlflow_is_told_as_its_client_expects(monkeypatch):
    store = {}
    pretend(monkeypatch, "mlflow", MlflowClient=type("MlflowClient", (MlflowClient,), {"store": store}))
    found = run(cl.trackers.mlflow(tracking_uri="file:///somewhere"))
    assert store["uri"] == "file:///somewhere"
    assert store["run1", "released/epsilon"] == [(line["round"], line["epsilon"]) for line in found.history]
    assert [step for step, _ in store["run1", "not_private/accuracy"]] == [2, 4]
    assert store["run1", "params"]["method/local/lr"] == "0.5"
    assert "seed" not in store["run1", "params"]
    assert "not_private/" in store["run1", "tags"]["about"]
    assert store["run1", "certificate.txt"] == f"{found.certificate}\n"
    assert store["run1", "ended"]
    run(cl.trackers.mlflow(run_id="mine"))
    assert store["runs"] == 1, "a run that is named is continued"
    assert len(store["mine", "released/epsilon"]) == 4


def test_wandb_is_told_as_it_expects(monkeypatch):
    told = defaultdict(list)

    class Artifact:
        def __init__(self, name, type, metadata):
            self.file = StringIO()

        @contextmanager
        def new_file(self, name):
            yield self.file

    made = SimpleNamespace(
        log=lambda values, step: told["log"].append((step, values)),
        log_artifact=lambda artifact: told["text"].append(artifact.file.getvalue()),
        finish=lambda: told["finished"].append(True),
        summary={},
    )
    pretend(monkeypatch, "wandb", init=lambda **keys: told["init"].append(keys) or made, Artifact=Artifact)
    found = run(cl.trackers.wandb("mine", mode="offline"))
    (init,) = told["init"]
    assert (init["project"], init["mode"], init["config"]["method/local/lr"]) == ("mine", "offline", "0.5")
    assert "seed" not in init["config"]
    assert [(step, values["released/epsilon"]) for step, values in told["log"]] == [
        (line["round"], line["epsilon"]) for line in found.history
    ]
    assert told["text"] == [f"{found.certificate}\n"]
    assert told["finished"] == [True]
    assert len(made.summary["certificate_sha256"]) == 64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cl.trackers.csv("log.txt"), "a table that ends in .csv, found 'log.txt'"),
        (lambda: cl.trackers.csv(3), "path to be the path of a table, found 3"),
        (lambda: cl.trackers.tensorboard(None), "folder to be the path of a folder"),
        (lambda: run(log="csv"), "a folder to keep the log in, found 'none'"),
        (lambda: run(log="cvs", folder="run"), "found 'cvs': perhaps you mean \"csv\""),
        (lambda: run(log="", folder="run"), "log to name csv, tensorboard, mlflow, wandb, found ''"),
        (lambda: run(log="csv,csv", folder="run"), "every tracker once in log, found csv twice"),
        (lambda: run(log=3, folder="run"), "log to be the names of trackers"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CloisterError) as found:
        make()
    assert message in str(found.value)
    assert len(str(found.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard"])
def test_a_package_that_is_missing_is_named_with_its_extra(name, monkeypatch, tmp_path):
    folder = importlib.machinery.ModuleSpec(name, None)  # such as wandb leaves behind: a folder, and no package
    for found in (None, folder):
        monkeypatch.setattr(errors, "find_spec", lambda _, found=found: found)
        make = {"tensorboard": lambda: cl.trackers.tensorboard(tmp_path)}.get(name, getattr(cl.trackers, name))
        for attempt in (make, lambda: run(log=name, folder=tmp_path / "run")):
            with pytest.raises(CloisterError, match=rf"pip install 'cloister\[{name}\]'"):
                attempt()
    assert not list(tmp_path.iterdir())


WORDS = ["run", "clients=8", "rounds=2", "local_steps=1", "clip_norm=1", "sampling_rate=0.5", "noise_multiplier=1"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("average=1", "0 < average < 1"),
        ("patience=0", "patience to be a whole number"),
        ("patience=2", "validation beside patience"),
        ("validation=private", "an epsilon for a run that asks for validation"),
        ("validation=test", "validation to be one of"),
        ("validation=public", "public samples to validate on"),
        ("log=excel", "log to name csv"),
        ("lr_schedule=cosin", "lr_schedule to be one of"),
        ("lr_schedule=step lr_final=0.5", "Expected lr_rounds"),
        ("lr_schedule=exponential", "0 < lr_final <= 1"),
        ("lr_final=0.1", "no lr_final or lr_rounds"),
        ("lr_warmup=-1", "lr_warmup to be a whole number"),
        ("server_lr_schedule=step server_lr_final=0.5", "Expected server_lr_rounds"),
        ("callbacks=csv", "a known key, found 'callbacks'"),
    ],
)
def test_on_the_command_line_it_is_one_line_and_status_2(command, word, message, tmp_path):
    done = command(*WORDS, "delta=1e-3", *word.split(), "--quiet", "--folder", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: Expected")
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
