"""`cloister predict`: files in, files out, and a sentence for whatever does not fit."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import cloister as cl
from conftest import killed_in_round
from trained import BYTES, NAMES, OWNERS, TABLE, TIMES, TOKENS, load, next_tokens, task_of, train


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place, made = tmp_path_factory.mktemp("runs"), {}

    def of(kind: str) -> Path:
        if kind not in made:
            made[kind] = place / kind
            if kind == "pictures":
                train(made[kind], cl.data.from_image_folder(pictures(place / "pets"), size=6), rounds=1)
            elif kind == "own":
                train(made[kind], task_of("named"), rounds=1, model=torch.nn.Linear(5, 3))
            else:
                train(made[kind], task_of(kind), rounds=1)
        return made[kind]

    return of


def pictures(root: Path) -> str:
    random = np.random.default_rng(0)
    for client in range(4):
        for label in ("cat", "dog"):
            folder = root / f"client{client}" / label
            folder.mkdir(parents=True)
            for number in range(5):
                Image.fromarray(random.integers(0, 256, (6, 6)).astype(np.uint8)).save(folder / f"{number}.png")
    return str(root)


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    labels = task_of("named").test_labels
    np.savez("rows.npz", inputs=TABLE)
    np.savez(
        "test.npz", inputs=task_of("named").test_inputs.numpy(), labels=labels.numpy(), clients=OWNERS[: len(labels)]
    )
    return tmp_path


def read(file: Path) -> pandas.DataFrame:
    if file.suffix == ".npz":
        with np.load(file) as found:
            return pandas.DataFrame({name: list(found[name]) for name in found.files})
    return {".csv": pandas.read_csv, ".parquet": pandas.read_parquet, ".json": pandas.read_json}[file.suffix](file)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".json", ".npz"])
def test_predictions_are_written_in_every_form(runs, files, command, suffix):
    done = command("predict", runs("named"), "test.npz", "-o", f"out{suffix}", "--proba")
    assert done.returncode == 0, done.stderr
    found = read(files / f"out{suffix}")
    model, task = cl.load(runs("named")), task_of("named")
    assert list(found["prediction"]) == list(model.predict(task.test_inputs))
    assert list(found["row"]) == list(range(len(task.test_labels)))
    assert list(found["client"]) == list(OWNERS[: len(found)])
    wanted = model.predict_proba(task.test_inputs)
    if suffix == ".npz":
        probabilities = np.stack(list(found["probability"]))
    else:
        assert list(found.columns)[-3:] == [f"probability_{name}" for name in NAMES]
        probabilities = found[[f"probability_{name}" for name in NAMES]].to_numpy()
    assert np.allclose(probabilities, wanted, atol=1e-6)
    scores = model.evaluate(task.test_inputs, task.test_labels)
    assert f"loss {scores['loss']:.4f}, accuracy {scores['accuracy']:.4f}" in done.stdout


def test_what_was_reported_in_training_is_printed_again(runs, files, command):
    model = cl.load(runs("named"))
    done = command("predict", runs("named"), "test.npz", "-o", "out.csv")
    assert f"accuracy {model.scores['accuracy']:.4f}" in done.stdout
    again = command("predict", runs("named"), "rows.npz", "-o", "more.csv")
    assert "accuracy" not in again.stdout
    assert list(read(files / "more.csv").columns) == ["row", "prediction"]


@pytest.mark.parametrize(
    ("kind", "inputs", "labels", "columns"),
    [
        ("images", BYTES, None, ["row", "prediction"]),
        ("tokens", TOKENS, None, ["row", "prediction"]),
        ("next_token", TOKENS, next_tokens(), ["row", *(f"prediction_{at}" for at in range(7))]),
        ("regression", TABLE, 50 + 7 * TABLE[:, 3], ["row", "prediction"]),
        ("survival", TABLE, TIMES, ["row", "risk"]),
        ("multi_label", TABLE, None, ["row", "prediction_0", "prediction_1"]),
    ],
)
def test_every_kind_of_task_has_its_columns(runs, files, command, kind, inputs, labels, columns):
    np.savez("in.npz", inputs=inputs, **({} if labels is None else {"labels": labels}))
    word = ["--model", "trained:speller"] if kind == "next_token" else []
    done = command("predict", runs(kind), "in.npz", "-o", "out.csv", *word)
    assert done.returncode == 0, done.stderr
    found = read(files / "out.csv")
    assert list(found.columns) == columns
    wanted = load(runs(kind)).predict(inputs).reshape(len(inputs), -1)
    assert np.allclose(found[columns[1:]].to_numpy(), wanted, rtol=1e-5)
    assert ("loss" in done.stdout) == (labels is not None)


def test_a_folder_of_images(runs, files, command):
    root = runs("pictures").parent / "pets"
    done = command("predict", runs("pictures"), root, "-o", "out.csv", "--proba")
    assert done.returncode == 0, done.stderr
    found = read(files / "out.csv")
    assert list(found.columns) == ["file", "client", "prediction", "probability_cat", "probability_dog"]
    assert found["file"][0] == "client0/cat/0.png"
    right = (found["prediction"] == found["file"].str.split("/").str[1]).mean()
    assert f"accuracy {right:.4f}" in done.stdout
    model = cl.load(runs("pictures"))
    assert list(model.predict(root)) == list(found["prediction"])
    assert model.evaluate(root)["accuracy"] == pytest.approx(right)
    one = command("predict", runs("pictures"), root / "client0" / "cat" / "3.png", "-o", "one.json")
    assert one.returncode == 0, one.stderr
    (row,) = json.loads((files / "one.json").read_text())
    assert row == {"file": "3.png", "prediction": found["prediction"][3]}


def test_a_module_of_ones_own_is_named(runs, files, command):
    right = [
        "def net(): return torch.nn.Linear(5, 3)",
        "def of(shape, classes): return torch.nn.Linear(*shape, classes)",
    ]
    wrong = ["def thin(): return torch.nn.Linear(4, 3)", "def none(): return 3", "def more(width): return 3"]
    (files / "lab_nets.py").write_text("\n".join(["import torch", *right, *wrong, "def bad(): 1 / 0"]))
    refused = command("predict", runs("own"), "rows.npz", "-o", "out.csv")
    assert refused.returncode == 2
    assert "--model package.module:function" in refused.stderr
    for name, why in (
        ("thin", "weight of float32"),
        ("none", "a Module of torch as model"),
        ("more", "missing 1 required"),
        ("bad", "division by zero"),
        ("nothing", "a function nothing in lab_nets"),
    ):
        refused = command("predict", runs("own"), "rows.npz", "-o", "out.csv", "--model", f"lab_nets:{name}")
        assert refused.returncode == 2
        assert why in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert not (files / "out.csv").exists()
    wanted = cl.load(runs("own"), torch.nn.Linear(5, 3)).predict(TABLE)
    for name in ("net", "of"):
        done = command("predict", runs("own"), "rows.npz", "-o", f"{name}.csv", "--model", f"lab_nets:{name}")
        assert done.returncode == 0, done.stderr
        assert list(read(files / f"{name}.csv")["prediction"]) == list(wanted)


class Columns:
    """An encoder of tables, as simple as can be."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    @classmethod
    def from_json(cls, found):
        return cls(found["names"])

    def to_json(self):
        return {"kind": "columns", "names": self.names}

    def read(self, raw):
        return pandas.read_csv(raw) if isinstance(raw, (str, Path)) else pandas.DataFrame(raw)

    def encode(self, raw):
        missing = [name for name in self.names if name not in raw]
        if missing:
            raise cl.CloisterError(f"Expected a column {missing[0]}, found none: add it.")
        return torch.tensor(raw[self.names].to_numpy(np.float32))

    def labels(self, raw):
        return torch.tensor(raw["y"].to_numpy()) if "y" in raw else None

    def identity(self, raw):
        return {name: raw[name] for name in ("id", "hospital") if name in raw}


def test_tables_go_through_their_encoder(files, command, monkeypatch):
    monkeypatch.setitem(cl.data.encoders.KINDS, "columns", "test_predict:Columns")
    names, task = list("abcde"), task_of("named")
    train(files / "r", replace(task, encoder=Columns(names)), rounds=1)
    frame = pandas.DataFrame(task.test_inputs.numpy(), columns=names).assign(
        id=[f"p{row}" for row in range(len(task.test_labels))], hospital="north", y=task.test_labels.numpy()
    )
    frame[["id", "y", "e", "d", "c", "b", "a", "hospital"]].to_csv("rows.csv", index=False)
    done = command("predict", "r", "rows.csv", "-o", "out.csv")
    assert done.returncode == 0, done.stderr
    found, model = read(files / "out.csv"), cl.load("r")
    assert list(found.columns) == ["id", "hospital", "prediction"]
    assert f"accuracy {model.scores['accuracy']:.4f}" in done.stdout
    assert model.evaluate(frame)["accuracy"] == model.scores["accuracy"]
    assert list(model.predict(frame)) == list(model.predict(frame.to_dict("list"))) == list(found["prediction"])
    frame.drop(columns="c").to_csv("less.csv", index=False)
    refused = command("predict", "r", "less.csv", "-o", "less-out.csv")
    assert refused.returncode == 2
    assert "a column c" in refused.stderr
    frame.drop(columns="y").to_csv("unlabeled.csv", index=False)
    assert "accuracy" not in command("predict", "r", "unlabeled.csv", "-o", "u.csv").stdout


def spoiled(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)


WRONG = {
    "no such run": (["none", "rows.npz", "-o", "out.csv"], "the folder of a run"),
    "a file for a run": (["rows.npz", "rows.npz", "-o", "out.csv"], "the folder of a run"),
    "an empty folder": (["empty", "rows.npz", "-o", "out.csv"], "found none of them"),
    "unfinished": (["unfinished", "rows.npz", "-o", "out.csv"], "continue it with"),
    "changed weights": (["weights", "rows.npz", "-o", "out.csv"], "model.safetensors"),
    "changed model.json": (["about", "rows.npz", "-o", "out.csv"], "model.json"),
    "missing weights": (["without", "rows.npz", "-o", "out.csv"], "restore it from a backup"),
    "no such data": (["run", "none.npz", "-o", "out.csv"], "data to predict for"),
    "a folder for arrays": (["run", "empty", "-o", "out.csv"], "a file .npz with inputs"),
    "a table for arrays": (["run", "table.csv", "-o", "out.csv"], "a file .npz with inputs"),
    "no inputs": (["run", "named.npz", "-o", "out.csv"], "an array inputs in named.npz, found x"),
    "damaged npz": (["run", "damaged.npz", "-o", "out.csv"], "damaged.npz damaged"),
    "pickled npz": (["run", "pickled.npz", "-o", "out.csv"], "damaged"),
    "too few columns": (["run", "narrow.npz", "-o", "out.csv"], "inputs of shape"),
    "whole numbers": (["run", "whole.npz", "-o", "out.csv"], "inputs of float32"),
    "nan": (["run", "nan.npz", "-o", "out.csv"], "finite inputs"),
    "no rows": (["run", "nothing.npz", "-o", "out.csv"], "at least one row"),
    "too few labels": (["run", "labels.npz", "-o", "out.csv"], "as many labels as rows"),
    "wrong labels": (["run", "wrong-labels.npz", "-o", "out.csv"], "from 0 to 2"),
    "too few clients": (["run", "clients.npz", "-o", "out.csv"], "a client for each"),
    "unknown ending": (["run", "rows.npz", "-o", "out.xls"], "ends with .csv"),
    "no ending": (["run", "rows.npz", "-o", "out"], "ends with .csv"),
    "file exists": (["run", "rows.npz", "-o", "there.csv"], "found that there.csv exists"),
    "a folder for a file": (["run", "rows.npz", "-o", "folder.csv"], "this is a folder"),
    "in no folder": (["run", "rows.npz", "-o", "nowhere/out.csv"], "make nowhere first"),
    "another model": (
        ["run", "rows.npz", "-o", "out.csv", "--model", "trained:wide"],
        "the model logistic of this run",
    ),
    "own model missing": (["own", "rows.npz", "-o", "out.csv"], "built in Python"),
    "own model of other name": (["own", "rows.npz", "-o", "out.csv", "--model", "nets"], "package.module:function"),
    "no probabilities": (["regression", "rows.npz", "-o", "out.csv", "--proba"], "a loss with probabilities"),
    "cubes in a table": (
        ["next_token", "tokens.npz", "-o", "out.csv", "--proba", "--model", "trained:speller"],
        "write a file .npz",
    ),
    "no images": (["pictures", "empty", "-o", "out.csv"], "images in empty"),
    "images of another size": (["pictures", "large", "-o", "out.csv"], "6x6 pixels, found 7x7"),
    "damaged image": (["pictures", "bad", "-o", "out.csv"], "bad/x.png"),
    "a table for images": (["pictures", "table.csv", "-o", "out.csv"], "a folder of images"),
}


@pytest.fixture(scope="module")
def place(runs, tmp_path_factory):
    """All that the wrong words name."""
    root = tmp_path_factory.mktemp("wrong")
    for name in ("run", "weights", "about", "without"):
        shutil.copytree(runs("named"), root / name)
    for name in ("own", "regression", "next_token", "pictures"):
        shutil.copytree(runs(name), root / name)
    spoiled(root / "weights", "model.safetensors")
    spoiled(root / "about", "model.json")
    (root / "without" / "model.safetensors").unlink()
    with pytest.MonkeyPatch.context() as patch, killed_in_round(patch, at=2):
        train(root / "unfinished", task_of("named"))
    for name in ("empty", "folder.csv", "large", "bad"):
        (root / name).mkdir()
    arrays = {
        "rows": {"inputs": TABLE},
        "named": {"x": TABLE},
        "narrow": {"inputs": TABLE[:, :4]},
        "whole": {"inputs": TABLE.astype(int)},
        "nan": {"inputs": TABLE * np.nan},
        "nothing": {"inputs": TABLE[:0]},
        "labels": {"inputs": TABLE, "labels": np.zeros(3, dtype=int)},
        "wrong-labels": {"inputs": TABLE, "labels": np.full(len(TABLE), 7)},
        "clients": {"inputs": TABLE, "clients": np.zeros(3, dtype=int)},
        "tokens": {"inputs": TOKENS},
        "pickled": {"inputs": np.array([{}, 3], dtype=object)},
    }
    for name, found in arrays.items():
        np.savez(root / f"{name}.npz", **found)
    (root / "damaged.npz").write_bytes((root / "rows.npz").read_bytes()[:-60])
    (root / "table.csv").write_text("a,b\n1,2\n")
    (root / "there.csv").write_text("mine")
    Image.fromarray(np.zeros((7, 7), dtype=np.uint8)).save(root / "large" / "x.png")
    (root / "bad" / "x.png").write_text("none")
    return root


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_one_sentence_and_status_2(place, command, what):
    words, why = WRONG[what]
    before = {path.name for path in place.iterdir()}
    done = command("predict", *words, cwd=place)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Expected ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name for path in place.iterdir()} == before, "nothing was written"
    assert (place / "there.csv").read_text() == "mine"


def test_an_existing_file_is_replaced_when_it_is_said(runs, files, command):
    (files / "out.csv").write_text("mine")
    done = command("predict", runs("named"), "rows.npz", "-o", "out.csv", "--force")
    assert done.returncode == 0, done.stderr
    assert len(read(files / "out.csv")) == len(TABLE)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="whoever may write everywhere is refused nothing")
def test_a_folder_that_may_not_be_written_to_is_one_sentence(runs, files, command):
    (files / "locked").mkdir(mode=0o555)
    done = command("predict", runs("named"), "rows.npz", "-o", "locked/out.csv")
    assert done.returncode == 2
    assert "can be written to" in done.stderr
