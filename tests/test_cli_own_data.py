"""Own data on the command line: a path in place of a data set's name."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cloister as cl
from cloister.runs import training
from cloister.runs.folder import RunFolder

TRAIN = ["method=dp_fedavg", "clip_norm=1.0", "local_steps=2", "lr=0.5", "sampling_rate=0.5", "delta=1e-2"]
TRAIN += ["rounds=2", "noise_multiplier=2.0", "engine=vectorized", "--quiet"]
SCHEMA = """
label = "sick"
[columns.age]
kind = "number"
range = [20, 90]
[columns.dose]
kind = "number"
range = [0, 10]
fill = 1
[columns.sick]
kind = "category"
categories = {healthy = ["no"], sick = ["yes", "very"]}
"""


@pytest.fixture
def hospitals(tmp_path) -> Path:
    """A folder with six clients, a schema beside it, and all of them in one file."""
    random = np.random.default_rng(0)
    (tmp_path / "hospitals").mkdir()
    frames = []
    for number in range(6):
        frame = pd.DataFrame({"age": random.integers(20, 90, 20), "dose": random.choice(["1", "?", "7.5"], 20)})
        frame["sick"] = np.where(frame["age"] > 50, "yes", "no")
        frame.to_csv(tmp_path / "hospitals" / f"h{number}.csv", index=False)
        frames.append(frame.assign(hospital=f"h{number}"))
    pd.concat(frames).to_csv(tmp_path / "all.csv", index=False)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def test_a_folder_is_trained_on_and_its_run_knows_where_it_was(command, hospitals, monkeypatch):
    monkeypatch.chdir(hospitals)
    done = command("run", "data=hospitals", "schema=schema.toml", "test_fraction=0.3", *TRAIN)
    assert done.returncode == 0, done.stderr
    (folder,) = (hospitals / "runs").iterdir()
    assert folder.name.startswith("dp_fedavg-hospitals-")
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["data"] == str(hospitals / "hospitals")
    assert config["schema"] == str(hospitals / "schema.toml")
    assert config["test_fraction"] == 0.3


def test_a_run_on_a_path_is_resumed_from_another_folder(command, hospitals, monkeypatch):
    monkeypatch.chdir(hospitals)
    words = ["data=./hospitals/", "schema=schema.toml", *TRAIN, "checkpoint_every=1"]
    assert command("run", *words, "--folder", "whole").returncode == 0

    real, rounds = training.Training._checkpoint, []

    def interrupted(self, *args, **kwargs):
        real(self, *args, **kwargs)
        rounds.append(1)
        if len(rounds) == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training.Training, "_checkpoint", interrupted)
        stopped = command("run", *words, "--folder", "half")
    assert stopped.returncode == 130, stopped.stderr
    assert not RunFolder.open(hospitals / "half").finished
    (hospitals / "elsewhere").mkdir()
    monkeypatch.chdir(hospitals / "elsewhere")
    done = command("resume", hospitals / "half", "--quiet")
    assert done.returncode == 0, done.stderr
    whole, half = (RunFolder.open(hospitals / name) for name in ("whole", "half"))
    assert half.finished
    assert (whole.path / "model.safetensors").read_bytes() == (half.path / "model.safetensors").read_bytes()


def test_one_file_with_a_column_of_clients(command, hospitals, monkeypatch):
    monkeypatch.chdir(hospitals)
    done = command("run", "data=all.csv", "schema=schema.toml", "client=hospital", *TRAIN, "--folder", "one")
    assert done.returncode == 0, done.stderr
    config = tomllib.loads((hospitals / "one" / "config.toml").read_text())
    assert (config["data"], config["client"]) == (str(hospitals / "all.csv"), "hospital")


def test_data_show_names_clients_and_classes(command, hospitals):
    done = command("data", "show", "hospitals", "schema=schema.toml", cwd=hospitals)
    assert done.returncode == 0, done.stderr
    assert "h5" in done.stdout
    assert "healthy" in done.stdout
    assert (hospitals / "hospitals-own.png").is_file()


def test_data_show_of_labels_that_are_no_classes(command, hospitals):
    (hospitals / "number.toml").write_text(SCHEMA.replace('label = "sick"', 'label = "age"\nextra = "ignore"'))
    done = command("data", "show", "all.csv", "schema=number.toml", "client=hospital", cwd=hospitals)
    assert done.returncode == 0, done.stderr
    assert "mse 100%" in done.stdout


def test_inspect_prints_what_loads_or_writes_it(command, hospitals):
    done = command("data", "inspect", "hospitals", "--label", "sick", cwd=hospitals)
    assert done.returncode == 0, done.stderr
    assert cl.data.Schema.from_dict(tomllib.loads(done.stdout)).label == ("sick",)
    assert "drafted from hospitals/h0.csv" in done.stderr
    assert "not private" in done.stderr
    written = command("data", "inspect", "all.csv", "--label", "sick", "--client", "hospital", "-o", "draft.toml")
    assert written.returncode == 0, written.stderr
    done = command("run", "data=all.csv", "schema=draft.toml", *TRAIN, "--folder", "drafted")
    assert done.returncode == 0, done.stderr
    again = command("data", "inspect", "all.csv", "-o", "draft.toml")
    assert (again.returncode, "a new file" in again.stderr) == (2, True)


def test_help_has_the_keys_of_paths(command, tmp_path):
    assert "data=PATH" in command("run", "--help").stdout
    page = command("keys", f"data={tmp_path}").stdout
    for key in ("schema", "test_fraction", "intervals", "split_seed"):
        assert f"\n  {key} " in page


BAD = [
    (["run", "data=no/where"], "a folder or a file of data, found nothing at 'no/where'"),
    (["run", "data=nothing.csv"], "found nothing at 'nothing.csv'"),
    (["run", "data=hospitalz"], "data to be one of"),
    (["run", "data=digits", "schema=schema.toml"], "which belongs to data PATH"),
    (["run", "data=hospitals", "shema=schema.toml"], 'perhaps you mean "schema"'),
    (["run", "data=hospitals", "schema=none.toml"], "a readable schema"),
    (["run", "data=hospitals", "schema=3"], "schema to be a word"),
    (["run", "data=hospitals", "schema=schema.toml", "client=age"], "one file, beside client"),
    (["run", "data=hospitals", "schema=schema.toml", "loss=mse"], "a loss for classes"),
    (["run", "data=hospitals", "schema=schema.toml", "loss=msee"], "loss to be one of"),
    (["run", "data=hospitals", "schema=schema.toml", "test_fraction=7"], "a fraction between 0 and 1"),
    (["run", "data=hospitals", "schema=schema.toml", "test_file=nowhere.csv"], "a readable file"),
    (["run", "data=hospitals", "test_file=all.csv"], "a schema beside a file to test on"),
    (["run", "data=hospitals"], "a column 'label'"),
    (["run", "data=hospitals", "label=age"], "a finite number in column 'dose'"),
    (["run", "data=hospitals", "schema=schema.toml", "intervals=soon"], "intervals"),
    (["run", "data=hospitals", "schema=schema.toml", "label=agee"], 'perhaps you mean "age"'),
    (["run", "data=all.csv", "schema=schema.toml"], "whose each row is"),
    (["run", "data=all.csv", "schema=schema.toml", "client=hospitl"], 'perhaps you mean "hospital"'),
    (["run", "data=schema.toml", "schema=schema.toml", "client=hospital"], "a column 'age' in"),
    (["run", "data=."], "a column 'label' in"),
    (["data", "show", "no/where"], "found nothing at 'no/where'"),
    (["data", "inspect", "no/where"], "a readable file"),
    (["data", "inspect", "hospitals", "--label", "sik"], 'perhaps you mean "sick"'),
    (["data", "inspect", "hospitals", "--files", "*.data"], "files *.data in hospitals, found none"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_what_is_wrong_is_one_line_and_status_2(command, hospitals, words, message):
    before = sorted(os.listdir(hospitals))
    more = [word for word in TRAIN if word != "--quiet"] if words[0] == "run" else []
    done = command(*words, *more, cwd=hospitals)
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("error: Expected ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in done.stderr
    assert sorted(os.listdir(hospitals)) == before, "nothing was written"


def test_hints_name_folders_that_are_there_and_spellings_that_a_schema_can_take(tmp_path, monkeypatch):
    from cloister.data.paths import folders_here
    from cloister.errors import CloisterError
    from cloister.runs import catalogue

    monkeypatch.chdir(tmp_path)
    (tmp_path / "clinics").mkdir()
    (tmp_path / ".clinixs").mkdir()
    assert folders_here() == ["clinics"]
    with pytest.raises(CloisterError, match=r'no folder here either: perhaps you mean "clinics"'):
        catalogue.stored().name_of("data", "clinixs")
    (tmp_path / "clinics" / "a.csv").write_text("dose,smoker,sick\n1,former,no\n2,Former smoker,yes\n")
    (tmp_path / "schema.toml").write_text(
        'label = "sick"\n[columns.dose]\nkind = "number"\nrange = [0, 9]\n[columns.sick]\nkind = "boolean"\n'
        '[columns.smoker]\nkind = "category"\ncategories = ["former", "never"]\n'
    )
    with pytest.raises(CloisterError, match=r"categories = \{former = \['former', 'Former smoker'\], \.\.\.\}"):
        cl.data.from_folder("clinics", schema="schema.toml")
    with pytest.raises(CloisterError, match=r"found no folder runs/none.*is started again"):
        RunFolder.open(Path("runs/none"))
