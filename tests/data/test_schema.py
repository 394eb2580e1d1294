"""Schemas: what is declared, what cells become, and that nobody's row depends on another's."""

from __future__ import annotations

import json
import tomllib
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cloister as cl
from cloister.data import Schema, encoder_from_json
from cloister.data.user.labels import loss_for
from cloister.errors import CloisterError, Note

TOML = """
label = "num"
client = "hospital"
missing = ["?", ""]
[columns.age]
kind = "number"
range = [20, 90]
fill = 55
[columns.weight]
kind = "number"
center = 70
scale = 10
indicator = true
missing = [0]
fill = 80
[columns.pain]
kind = "category"
categories = ["1", "2", "none at all"]
unknown = "zero"
fill = "2"
[columns.smokes]
kind = "boolean"
fill = false
[columns.grade]
kind = "ordinal"
categories = ["low", "middle", "high"]
[columns.seen]
kind = "date"
range = [2020-01-01, 2022-01-01]
[columns.name]
kind = "ignore"
[columns.num]
kind = "category"
categories = {healthy = ["0"], sick = ["1", "2"]}
"""
SCHEMA = Schema.from_dict(tomllib.loads(TOML))

ROWS = {
    "hospital": ["a", "a", "b", "b"],
    "age": ["55", "?", "200", " 20 "],
    "weight": [70, 0, 90.0, None],
    "pain": ["1.0", "none at all", "", "unheard of"],
    "smokes": ["yes", "False", 1, None],
    "grade": ["low", "middle", "high", "high"],
    "seen": ["2020-01-01", "2021-01-01", "2022-01-01T00:00", "2030-05-05"],
    "name": ["x", "y", "z", ""],
    "num": ["0", "1", 2, "1.0"],
}
#           age  weight  missing  pain      smokes grade seen
WANTED = [
    [0.0, 0.0, 0, 1, 0, 0, 1, -1, -1],
    [0.0, 1.0, 1, 0, 0, 1, 0, 0, 1 / 731],
    [1.0, 2.0, 0, 0, 1, 0, 1, 1, 1],
    [-1.0, 1.0, 1, 0, 0, 0, 0, 1, 1],
]


def test_cells_become_what_is_declared():
    assert torch.allclose(SCHEMA.encode(ROWS), torch.tensor(WANTED), atol=1e-6)
    assert SCHEMA.labels(ROWS).tolist() == [0, 1, 1, 1]
    assert SCHEMA.feature_names == (
        *("age", "weight", "weight missing", "pain=1", "pain=2", "pain=none at all", "smokes", "grade", "seen"),
    )
    assert SCHEMA.prepared_by == "sample"


def test_labels_and_the_client_may_be_absent():
    raw = {name: values for name, values in ROWS.items() if name not in ("num", "hospital")}
    assert torch.equal(SCHEMA.encode(raw), SCHEMA.encode(ROWS))
    assert SCHEMA.labels(raw) is None


def test_a_dict_of_single_values_is_a_row():
    one = {name: values[0] for name, values in ROWS.items()}
    assert torch.equal(SCHEMA.encode(one), SCHEMA.encode(ROWS)[:1])


@pytest.mark.parametrize("back", [Schema.from_json, encoder_from_json])
def test_it_goes_to_json_and_back_whatever_the_order_of_keys(back):
    made = back(json.loads(json.dumps(SCHEMA.to_json(), sort_keys=True)))
    assert made == SCHEMA
    assert list(made.columns) == list(SCHEMA.columns)
    assert torch.equal(made.encode(ROWS), SCHEMA.encode(ROWS))


def test_it_goes_to_toml_and_back(tmp_path):
    odd = Schema.from_dict(
        {
            "columns": {'we "ird\\ name': "boolean", "é ü": {"kind": "number", "fill": -1.5}, "y": "boolean"},
            "label": "y",
        }
    )
    for number, schema in enumerate((SCHEMA, odd)):
        path = tmp_path / f"{number}.toml"
        path.write_text(schema.to_toml(), encoding="utf-8")
        assert Schema.from_toml(path) == schema


def test_a_label_of_words_with_grouped_classes_and_their_names():
    task = cl.data.from_frame(pd.DataFrame(ROWS), schema=TOML_DICT, test=0.5)
    assert (task.classes, task.class_names, task.client_names) == (2, ("healthy", "sick"), ("a", "b"))
    assert task.loss.name == "cross_entropy"
    assert not task.classes_inferred
    assert task.encoder == SCHEMA


TOML_DICT = tomllib.loads(TOML)


def column(kind: str, **more: object) -> dict[str, object]:
    return {"kind": kind, **more}


@pytest.mark.parametrize(
    ("label", "columns", "options", "name", "settings"),
    [
        ("y", {"y": column("number", range=[10, 30])}, {}, "mse", {"center": 20, "scale": 10}),
        ("y", {"y": column("number", center=5, scale=2)}, {"loss": "mae"}, "mae", {"center": 5, "scale": 2}),
        ("y", {"y": column("ordinal", categories=["a", "b"])}, {}, "ordinal", {}),
        ("y", {"y": column("ordinal", categories=["a", "b"])}, {"loss": "cross_entropy"}, "cross_entropy", {}),
        ("y", {"y": column("boolean")}, {}, "cross_entropy", {}),
        (["y", "z"], {"y": column("boolean"), "z": column("boolean")}, {}, "multi_label", {}),
        (
            ["t", "e"],
            {"t": column("number"), "e": column("boolean")},
            {"intervals": [1, 2]},
            "hazards",
            {"intervals": [1, 2]},
        ),
        (["t", "e"], {"t": column("number"), "e": column("boolean")}, {"loss": "cox"}, "cox", {}),
    ],
)
def test_the_kind_of_the_label_decides_the_loss(label, columns, options, name, settings):
    schema = Schema.from_dict({"label": label, "columns": {"x": column("number"), **columns}, **options})
    found = loss_for(schema)
    assert (found.name, dict(found.settings)) == (name, settings)


def test_survival_and_questions_as_tasks():
    frame = pd.DataFrame(
        {"who": list("aabb"), "x": range(4), "t": [1.0, 2, 3, 4], "e": [0, 1, 1, 0], "f": [1, 1, 0, 0]}
    )
    base = {"columns": {"x": "number", "t": "number", "e": "boolean", "f": "boolean"}, "extra": "ignore"}
    alive = cl.data.from_frame(frame, schema={**base, "label": ["t", "e"]}, client="who", intervals=[2, 5], test=0.5)
    assert alive.loss.name == "hazards"
    assert alive.population.labels.shape == (2, 2)
    asked = cl.data.from_frame(frame, schema={**base, "label": ["e", "f"]}, client="who", test=0.5)
    assert (asked.loss.name, asked.outputs) == ("multi_label", 2)


def test_numbers_are_learned_in_their_own_units():
    frame = pd.DataFrame({"who": list("aabb"), "x": range(4), "y": [10.0, 20.0, 30.0, 99.0]})
    schema = {"label": "y", "client": "who", "columns": {"x": "number", "y": {"kind": "number", "range": [0, 50]}}}
    task = cl.data.from_frame(frame, schema=schema, test=0.5)
    assert (task.loss.name, dict(task.loss.settings)) == ("mse", {"center": 25, "scale": 25})
    found = torch.cat([task.population.labels, task.test_labels]).sort().values
    assert found.tolist() == [10, 20, 30, 99], "labels are not clipped"


def test_a_fill_by_the_clients_own_training_rows_is_for_methods_that_protect_clients():
    frame = pd.DataFrame(
        {"who": ["a"] * 10 + ["b"] * 10, "x": [*range(9), None, *range(100, 109), None], "y": [0, 1] * 10}
    )
    columns = {"x": {"kind": "number", "center": 0, "scale": 1, "fill": "client_mean"}, "y": "boolean"}
    task = cl.data.from_frame(frame, schema={"label": "y", "client": "who", "columns": columns})
    assert task.prepared_by == "client"
    method = cl.methods.pfl(clip_norm=1.0, lr=0.5, batch_size=4)
    with pytest.raises(CloisterError, match="every sample was prepared by itself"):
        cl.run(method, task, rounds=1, epsilon=1.0, delta=1e-2)
    held = set(task.test_inputs.flatten().tolist())
    for start in (0, 100):  # what is filled in is the mean of those known rows that are trained on
        known = [value for value in range(start, start + 9) if value not in held]
        everything = torch.cat([task.population.inputs, task.test_inputs]).flatten().tolist()
        assert any(abs(value - np.mean(known)) < 1e-4 for value in everything)


def test_a_client_without_any_value_is_given_the_declared_middle():
    columns = {"x": {"kind": "number", "range": [10, 30], "fill": "client_median"}, "z": "number", "y": "boolean"}
    schema = Schema.from_dict({"label": "y", "columns": columns})
    assert schema.encode({"x": [None, None], "z": [1, 2]})[:, 0].tolist() == [0, 0]
    assert schema.encode({"x": [10, None, 30, 30], "z": [1, 2, 3, 4]})[1, 0] == 1.0, "the median of 10, 30 and 30"


CELLS = {
    "age": st.one_of(st.none(), st.integers(-5, 300), st.sampled_from(["?", "30", "41.5"])),
    "weight": st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(0)),
    "pain": st.sampled_from(["1", "2.0", "none at all", "other", "?", ""]),
    "smokes": st.sampled_from([True, False, "yes", "no", "?", 1, 0]),
    "grade": st.sampled_from(["low", "middle", "high"]),
    "seen": st.dates().map(str),
    "name": st.text(max_size=3),
}
TABLES = st.lists(st.fixed_dictionaries(CELLS), min_size=1, max_size=6)


@given(TABLES, st.randoms(use_true_random=False))
def test_nobodys_row_depends_on_anothers(rows, random):
    whole = SCHEMA.encode({name: [row[name] for row in rows] for name in CELLS})
    for number, row in enumerate(rows):
        alone = SCHEMA.encode({name: [value] for name, value in row.items()})
        assert torch.equal(alone[0], whole[number])
    names = list(CELLS)
    random.shuffle(names)
    assert torch.equal(SCHEMA.encode({name: [row[name] for row in rows] for name in names}), whole)
    assert whole.isfinite().all()


@given(TABLES)
def test_frames_of_every_kind_say_the_same(rows):
    pl = pytest.importorskip("polars")
    import pyarrow as pa

    text = {name: [None if row[name] is None else str(row[name]) for row in rows] for name in CELLS}
    wanted = SCHEMA.encode(text)
    for frame in (pd.DataFrame(text), pl.DataFrame(text), pa.table(text)):
        assert torch.equal(SCHEMA.encode(frame), wanted)


def test_real_types_of_frames():
    pl = pytest.importorskip("polars")
    import pyarrow as pa

    columns = {"n": {"kind": "number", "fill": 7}, "b": {"kind": "boolean", "fill": True}}
    columns |= {"d": {"kind": "date", "range": ["1970-01-01", "1970-01-11"], "fill": "1970-01-06"}}
    columns |= {"c": {"kind": "category", "categories": ["u", "v"], "fill": "u"}, "y": "boolean"}
    schema = Schema.from_dict({"label": "y", "columns": columns})
    days = pd.to_datetime(["1970-01-01", None, "1970-01-11"])
    frame = pd.DataFrame({"n": [1, None, 3], "b": [True, None, False], "d": days, "c": ["u", None, "v"]})
    wanted = [[1, 1, -1, 1, 0], [7, 1, 0, 1, 0], [3, 0, 1, 0, 1]]
    typed = frame.astype({"n": "Int64", "b": "boolean", "c": "category"})
    for one in (frame, typed, pa.Table.from_pandas(typed), pl.from_pandas(typed)):
        assert schema.encode(one).tolist() == wanted


def test_another_label_and_a_client_of_ones_own():
    assert cl.data.from_frame(ROWS, schema=TOML_DICT, label="grade", test=0.5).class_names == ("low", "middle", "high")
    other = replace(SCHEMA, client=None)
    with pytest.raises(CloisterError, match="whose each row is"):
        cl.data.from_frame(ROWS, schema=other)
    assert cl.data.from_frame(ROWS, schema=other, client="hospital", test=0.5).client_names == ("a", "b")


def test_columns_of_other_uses_are_passed_over_in_rows_to_predict_from_and_refused_in_training():
    raw = {**ROWS, "patient": [1, 2, 3, 4]}
    assert torch.equal(SCHEMA.encode(raw), SCHEMA.encode(ROWS))
    assert torch.equal(encoder_from_json(SCHEMA.to_json()).encode(raw), SCHEMA.encode(ROWS))
    with pytest.raises(CloisterError, match="found a column 'patient' as well"):
        cl.data.from_frame(raw, schema=SCHEMA, test=0.5)


@pytest.mark.parametrize("word", ["", "?", "-", "--", "NA", "N/A", "n/a", "nan", "NaN", "null", "none", "None"])
def test_words_that_usually_say_nothing_do_unless_they_are_categories(tmp_path, word):
    pain = {"kind": "category", "categories": ["none", "mild"], "fill": "mild"}
    columns = {"x": {"kind": "number", "range": [0, 2], "fill": 2}, "pain": pain, "y": "boolean"}
    schema = Schema.from_dict({"label": "y", "columns": columns})
    raw = {"x": ["0", word], "pain": ["mild", word]}
    wanted = [[-1, 0, 1], [1, 1, 0] if word == "none" else [1, 0, 1]]
    assert schema.encode(raw).tolist() == wanted
    pd.DataFrame(raw).to_csv(tmp_path / "a.csv", index=False)
    assert schema.encode(tmp_path / "a.csv").tolist() == wanted


def test_unscaled_numbers_are_noted_once_however_many_files(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("u,v,y\n1,2,1\n3,4,0\n")
    columns = {"u": "number", "v": {"kind": "number", "range": [0, 9]}, "y": "boolean"}
    with pytest.warns(Note) as found:
        cl.data.from_folder(tmp_path, schema={"label": "y", "columns": columns}, test=0.5)
    (one,) = found
    assert "unscaled numbers are used as they are (u): declare a range" in str(one.message)
    assert one.filename == __file__
    columns["u"] = {"kind": "number", "center": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cl.data.from_folder(tmp_path, schema={"label": "y", "columns": columns}, test=0.5)


def test_intervals_belong_to_the_label_that_was_declared():
    columns = {"t": column("number", range=[0, 9]), "e": "boolean", "x": "boolean"}
    schema = Schema.from_dict({"label": ["t", "e"], "intervals": [2, 5], "columns": columns})
    assert loss_for(schema).name == "hazards"
    assert loss_for(schema, "cox").name == "cox"
    assert loss_for(schema.with_label("x")).name == "cross_entropy"
    with pytest.raises(CloisterError, match="no intervals beside a label or a loss"):
        loss_for(schema, "cox", intervals=[2, 5])


def test_a_schema_of_an_unknown_kind_is_refused():
    with pytest.raises(CloisterError, match="an encoder of a known kind, found 'tabel': perhaps you mean \"table\""):
        encoder_from_json({"kind": "tabel"})
