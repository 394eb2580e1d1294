"""Drafts of schemas: they load as they are, look at one client alone, and say that they are not private."""

from __future__ import annotations

import tomllib

import numpy as np
import pandas as pd
import pytest

import cloister as cl
from cloister.data import Schema
from cloister.data.user.drafts import draft
from cloister.errors import CloisterError, Note


def frame() -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": random.integers(23, 77, 60),
            "dose": random.choice(["0.13", "6.2", "?"], 60),
            "smokes": random.choice(["yes", "no"], 60),
            "ward": random.choice(["north", "south", "east"], 60),
            "remark": [f"remark {number}" for number in range(60)],
            "seen": random.choice(["2020-03-01", "2021-05-05"], 60),
            "empty": "",
            "same": "x",
            "label": random.integers(0, 4, 60),
        }
    )


def test_a_draft_loads_as_it_is_and_its_file_makes_a_task(tmp_path):
    frame().to_csv(tmp_path / "a.csv", index=False)
    with pytest.warns(Note, match="a draft from private data is not private"):
        schema = cl.data.inspect(tmp_path)
    kinds = {name: column.kind for name, column in schema.columns.items()}
    assert kinds == {
        "age": "number",
        "dose": "number",
        "smokes": "boolean",
        "ward": "category",
        "remark": "ignore",
        "seen": "date",
        "empty": "ignore",
        "same": "ignore",
        "label": "category",
    }
    assert schema.columns["age"].get("range") == [20, 80], "rounded"
    assert "fill" in schema.columns["dose"].declared
    assert "fill" not in schema.columns["age"].declared
    task = cl.data.from_folder(tmp_path, schema=schema)
    assert (task.classes, task.shape) == (4, (7,))


def test_the_text_has_the_warning_and_marks_what_to_check(tmp_path):
    frame().to_csv(tmp_path / "a.csv", index=False)
    text, source = draft(tmp_path)
    assert source == tmp_path / "a.csv"
    assert text.startswith("# Drafted from a.csv: a draft from private data is not private")
    assert "range = [20, 80]  # check\n" in text
    assert Schema.from_dict(tomllib.loads(text)).label == ("label",)


def test_of_a_folder_the_first_file_alone_is_looked_at(tmp_path):
    frame().to_csv(tmp_path / "a.csv", index=False)
    before = draft(tmp_path)
    (tmp_path / "b.csv").write_text("this is no table at all\n\n,,,")
    assert draft(tmp_path) == before
    assert draft(tmp_path / "a.csv")[0] == before[0]


def test_of_a_file_of_many_clients_the_first_alone_is_looked_at(tmp_path):
    table = frame().assign(who=["a"] * 30 + ["b"] * 30)
    table.to_csv(tmp_path / "all.csv", index=False)
    before, _ = draft(tmp_path / "all.csv", client="who")
    table.loc[30:, "age"], table.loc[30:, "ward"] = 9999, "somewhere else"
    table.to_csv(tmp_path / "all.csv", index=False)
    assert draft(tmp_path / "all.csv", client="who")[0] == before
    assert Schema.from_dict(tomllib.loads(before)).client == "who"


def test_files_without_a_header_with_other_separators_or_of_parquet(tmp_path):
    (tmp_path / "x-a.dat").write_text("1;2,5;0\n3;?;1\n")
    text, _ = draft(tmp_path, files="x-*.dat")
    schema = Schema.from_dict(tomllib.loads(text))
    assert (schema.header, schema.separator, schema.files) == (False, ";", "x-*.dat")
    assert list(schema.columns) == ["column1", "column2", "column3"]
    pytest.importorskip("pyarrow", reason="needs cloister[parquet]")
    frame().to_parquet(tmp_path / "a.parquet")
    assert draft(tmp_path / "a.parquet")[0].count("[columns.") == 9


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,label\n1,0\n", {"label": "lable"}, 'perhaps you mean "label"'),
        ("a,label\n1,0\n", {"client": "who"}, "a column 'who'"),
        ("a,label\n", {}, "rows in .*a.csv, found none"),
        ("", {}, "a table in .*a.csv, found an empty file"),
        ("label\n1\n0\n", {}, "a column to learn from"),
        ("a,label\n1,0\n", {"files": "*.csv"}, "a folder beside files"),
    ],
)
def test_what_cannot_be_drafted_is_one_sentence(tmp_path, text, options, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(CloisterError, match=message):
        draft(tmp_path / "a.csv", **options)
