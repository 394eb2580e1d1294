"""Drafts of schemas: they load as they are, look at one client alone, and say that they are not private."""

from __future__ import annotations

import csv
import tomllib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloister as cl
from cloister.data import Schema
from cloister.data.user.drafts import draft
from cloister.data.user.labels import loss_for
from cloister.errors import CloisterError, Note

pytestmark = pytest.mark.filterwarnings("ignore:label guessed")


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
        ("a,label\n1,0\n", {"client": "a", "label": "a"}, "client and label to be different columns"),
        ("a,label\n1,0\n", {"client": "who"}, "a column 'who'"),
        ("a,label\n", {}, "rows in .*a.csv, found none"),
        ("", {}, "a table in .*a.csv, found an empty file"),
        ("label\n1\n0\n", {}, "a column to learn from"),
        ("a,b\nx,1\nx,2\n", {"label": "a"}, "the label 'a' in .* found the same everywhere: name another with --label"),
        ("a,b\n2020-01-01,1\n2021-01-01,2\n", {"label": "a"}, "found a date: name another"),
        ("id,a\n1,x\n2,x\n", {}, "a column of labels in .*found none: name one with --label"),
        ("a,label\n1,0\n", {"files": "*.csv"}, "a folder beside files"),
    ],
)
def test_what_cannot_be_drafted_is_one_sentence(tmp_path, text, options, message):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(CloisterError, match=message):
        draft(tmp_path / "a.csv", **options)


def drafted(folder, text, **options):
    (folder / "a.csv").write_text(text, encoding="utf-8")
    found = draft(folder, **options)[0]
    return Schema.from_dict(tomllib.loads(found)), found


@pytest.mark.parametrize(
    ("names", "label"),
    [
        ("age ward sick remark", "sick"),
        ("age sick patient_id", "sick"),
        ("sick age remark", "sick"),
        ("sick Outcome age", "Outcome"),
        ("remark age id seen", "age"),
        ("seen level age", "level"),
    ],
)
def test_the_label_is_guessed_among_what_can_be_one(tmp_path, names, label):
    cells = {
        "age": lambda row: 20.5 + row,
        "ward": lambda row: ["north", "south", "east"][row % 3],
        "sick": lambda row: ["yes", "no"][row % 2],
        "level": lambda row: row % 4,
        "Outcome": lambda row: 100.5 * row,
        "seen": lambda row: f"2020-01-{row + 1:02}",
        "remark": lambda row: f"remark {row}",
    }
    columns = names.split()
    lines = [",".join(str(cells.get(name, lambda row: row)(row)) for name in columns) for row in range(30)]
    (tmp_path / "a.csv").write_text("\n".join([",".join(columns), *lines]))
    with pytest.warns(Note, match=f"label guessed: {label} .choose with --label."):
        text, _ = draft(tmp_path)
    schema = Schema.from_dict(tomllib.loads(text))
    assert schema.label == (label,)
    assert f'label = "{label}"  # check: guessed\n' in text
    assert schema.columns[label].kind != "ignore"
    assert "guessed" not in draft(tmp_path, label=label)[0]
    assert all(column.kind == "ignore" for name, column in schema.columns.items() if name in ("id", "patient_id"))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quoted", [False, True])
def test_the_separator_is_that_of_the_header(tmp_path, separator, quoted):
    names = [f'"{name}"' if quoted else name for name in ("age", "size", "y")]
    rows = [separator.join(map(str, row)) for row in ([1, 2, 0], [3, 4, 1])]
    schema, _ = drafted(tmp_path, "\n".join([separator.join(names), *rows]))
    assert (schema.separator, list(schema.columns)) == (separator, ["age", "size", "y"])
    assert schema.encode(tmp_path).shape == (2, 2)


def test_words_among_numbers_are_missing_and_other_formats_of_dates_are_found(tmp_path):
    dose = ["unknown"] + [f"{number}.5" for number in range(9)]
    mixed = ["much", "more", *"12345678"]
    pain = ["none", "mild"] * 5
    seen = [f"{day}.5.2020" for day in range(13, 23)]
    rows = zip(dose, mixed, pain, seen, ["0", "1"] * 5, strict=True)
    schema, text = drafted(tmp_path, "\n".join(["dose,mixed,pain,seen,y", *map(",".join, rows)]))
    assert (schema.columns["dose"].kind, schema.columns["dose"].get("missing")) == ("number", ["unknown"])
    assert 'missing = ["unknown"]  # check' in text
    assert schema.columns["mixed"].kind == "category", "only 8 of 10 are numbers"
    assert schema.columns["pain"].get("categories") == ["mild", "none"]
    assert schema.columns["seen"].get("format") == "%d.%m.%Y"
    assert schema.encode(tmp_path).isfinite().all()


def test_arrays_need_no_draft(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=np.zeros((2, 2)), labels=np.zeros(2))
    with pytest.raises(CloisterError, match=r"found arrays: an \.npz needs no schema"):
        draft(tmp_path)


CELL = st.one_of(
    st.floats(allow_nan=True).map(repr),
    st.integers(-(10**25), 10**25).map(str),
    st.integers(0, 3).map(str),
    st.dates().map(str),
    st.dates().map(lambda day: f"{day.day}/{day.month}/{day.year}"),
    st.sampled_from(["", "?", "none", "-", "yes", "no", "True", "1,5", "mild", "01", "1.0", "9999-12-31"]),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=3),
)
NAME = st.sampled_from(["id", "y", "remark", "age", "Label", "a b", "é", 'q"q', "patient_id"])


@given(st.data())
def test_whatever_is_drafted_loads_and_reads_its_own_file(tmp_path_factory, data):
    names = data.draw(st.lists(NAME, min_size=2, max_size=4, unique=True))
    pools = [data.draw(st.lists(CELL, min_size=1, max_size=4)) for _ in names]
    rows = [[data.draw(st.sampled_from(pool)) for pool in pools] for _ in range(data.draw(st.integers(1, 12)))]
    path = tmp_path_factory.mktemp("one") / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([names, *rows])
    text, refused = "", ""
    try:
        text, _ = draft(path)
    except CloisterError as error:
        refused = str(error)
    if refused:
        assert "a column to learn from" in refused or "a column of labels" in refused
        return
    schema = Schema.from_dict(tomllib.loads(text))
    assert loss_for(schema).name in ("cross_entropy", "mse")
    assert schema.encode(path).isfinite().all()
