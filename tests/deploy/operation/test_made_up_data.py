"""Made-up rows can be read by the schema they were made for, and there is something to learn from them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from cloister.data.user.schema import Schema
from cloister.deploy.operation.made_up_data import EXAMPLE_SCHEMA, file_name, write_rows

ROOT = Path(__file__).parents[3]
EVERY_KIND = """
label = "dose"
separator = ";"
extra = "ignore"
[columns.day]
kind = "date"
range = ["2001-01-01", "2020-12-31"]
format = "%d.%m.%Y"
[columns.stage]
kind = "ordinal"
categories = ["I", "II", "III"]
[columns.height]
kind = "number"
center = 170
scale = 20
[columns.note]
kind = "ignore"
[columns.dose]
kind = "number"
range = [0, 10]
"""


def schema_of(text: str) -> Schema:
    return Schema.from_dict(tomllib.loads(text))


@pytest.mark.parametrize(
    "schema",
    [schema_of(EXAMPLE_SCHEMA), schema_of(EVERY_KIND), Schema.from_toml(ROOT / "experiments" / "heart-schema.toml")],
    ids=["example", "every kind", "heart"],
)
def test_rows_fit_their_schema(tmp_path, schema):
    path = tmp_path / file_name(schema, "cleveland")
    write_rows(path, schema, seed=3, rows=60)
    inputs, labels = schema.encode(path), schema.labels(path)
    assert inputs.shape == (60, len(schema.feature_names))
    assert torch.isfinite(inputs).all()
    assert labels.unique().numel() > 1
    again, other = tmp_path / "again.csv", tmp_path / "other.csv"
    write_rows(again, schema, seed=3, rows=60)
    write_rows(other, schema, seed=4, rows=60)
    assert again.read_bytes() == path.read_bytes() != other.read_bytes()


def test_a_line_through_the_rows_predicts_their_labels(tmp_path):
    schema = schema_of(EXAMPLE_SCHEMA)
    write_rows(tmp_path / "a.csv", schema, seed=0)
    inputs, labels = schema.encode(tmp_path / "a.csv").numpy(), schema.labels(tmp_path / "a.csv").numpy()
    design = np.c_[inputs, np.ones(len(inputs))]
    found = design @ np.linalg.lstsq(design, labels, rcond=None)[0]
    assert ((found > 0.5) == labels).mean() > 0.8


def test_files_are_named_as_the_schema_says():
    heart = Schema.from_toml(ROOT / "experiments" / "heart-schema.toml")
    assert file_name(heart, "va") == "processed.va.data"
    assert file_name(schema_of(EXAMPLE_SCHEMA), "va") == "va.csv"
