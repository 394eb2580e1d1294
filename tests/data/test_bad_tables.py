"""Whatever is wrong with a schema or a file is one sentence, with file, row and column where there is a file."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import cloister as cl
from cloister.data import Schema
from cloister.errors import CloisterError

AGE = {"kind": "number", "range": [0, 100]}
SICK = {"kind": "category", "categories": ["0", "1"]}
GOOD = {"label": "sick", "columns": {"age": AGE, "sick": SICK}}


def one_sentence(error: CloisterError) -> str:
    text = str(error)
    assert re.fullmatch(r"Expected .+, found .+: .+\.( \(in .+\)\.)?", text, re.DOTALL), text
    assert "\n" not in text
    return text


def age(**more: object) -> dict[str, object]:
    return {**GOOD, "columns": {"age": {**AGE, **more}, "sick": SICK}}


def declared(**column: object) -> dict[str, object]:
    return {**GOOD, "columns": {"age": column, "sick": SICK}}


SCHEMAS = [
    (3, "a schema, found 3"),
    ({"label": "sick"}, "columns in the schema"),
    ({**GOOD, "columns": []}, "columns to be tables by name"),
    ({**GOOD, "columns": {}}, "the label 'sick' among the columns"),
    ({**GOOD, "columns": {"": AGE, "sick": SICK}}, "columns with names"),
    ({**GOOD, "columns": {"sick": SICK}}, "a column to learn from"),
    ({**GOOD, "labl": "sick"}, 'perhaps you mean "label"'),
    ({**GOOD, "label": "sik"}, 'perhaps you mean "sick"'),
    ({**GOOD, "label": 3}, "label to be the name of a column"),
    ({**GOOD, "label": ["sick", "sick"]}, "label to name different columns"),
    ({**GOOD, "header": "no"}, "header to be true or false"),
    ({**GOOD, "missing": "?"}, "missing to be a list of cells"),
    ({**GOOD, "files": "a.csv"}, "files to be a pattern with one"),
    ({**GOOD, "files": "*/*.csv"}, "files to be a pattern with one"),
    ({**GOOD, "files": 3}, "files to be a word"),
    ({**GOOD, "client": 3}, "client to be a word"),
    ({**GOOD, "client": "sick"}, "client and label to be different"),
    ({**GOOD, "extra": "drop"}, "extra to be one of error, ignore"),
    ({**GOOD, "separator": "||"}, "separator to be one character"),
    ({**GOOD, "loss": "mes"}, "loss to be one of"),
    ({**GOOD, "intervals": 3}, "intervals to be a list of times"),
    ({**GOOD, "intervals": ["a"]}, "intervals to be a list of times"),
    (declared(), "a kind for column 'age'"),
    (declared(kind="numbr"), 'perhaps you mean "number"'),
    (declared(kind=3), "kind of column 'age' to be one of"),
    ({**GOOD, "columns": {"age": 3, "sick": SICK}}, "a table of what it is"),
    (age(rang=[0, 1]), 'perhaps you mean "range"'),
    (age(categories=["a", "b"]), "keys of a number"),
    (age(range=[1]), "a range of two ends"),
    (age(range=3), "a range of two ends"),
    (age(range=[9, 1]), "a range that rises"),
    (age(range=["a", "b"]), "numbers as ends of its range"),
    (age(range=[0, 1e300]), "a range of usable size"),
    (age(range=[0, float("nan")]), "numbers as ends of its range"),
    (age(center=3), "either a range, or center and scale"),
    (declared(kind="number", center="x"), "a number as center"),
    (declared(kind="number", scale=0), "scale of column 'age' > 0"),
    (age(fill="forty"), "fill of column 'age' to be a number"),
    (age(fill="client_men"), 'perhaps you mean "client_mean"'),
    (declared(kind="number", fill="client_mean"), "a range or a center beside fill"),
    (age(indicator=1), "indicator = true or false"),
    (age(missing=0), "a list of cells as missing"),
    (declared(kind="category"), "categories, found 'none'"),
    (declared(kind="category", categories="ab"), "to have categories"),
    (declared(kind="category", categories=["a"]), "two categories at least"),
    (declared(kind="category", categories=["a", "a"]), "every category once"),
    (declared(kind="category", categories={"u": ["a"], "v": ["a"]}), "every category once"),
    (declared(kind="category", categories={"u": [], "v": ["a"]}), "words or numbers"),
    (declared(kind="category", categories=[["a"], "b"]), "words or numbers"),
    (declared(kind="category", categories=["a", "b"], fill="c"), "one of a, b as fill"),
    (declared(kind="category", categories=["a", "b"], fill="client_mean"), "a constant as fill"),
    (declared(kind="category", categories=["a", "b"], unknown="skip"), "unknown = error or zero"),
    (declared(kind="boolean", fill="perhaps"), "true or false as fill"),
    (declared(kind="date"), "a range"),
    (declared(kind="date", range=["soon", "later"]), "dates as ends"),
    (declared(kind="date", range=["2020-01-01", "2021-01-01"], format=3), "a format of dates"),
    (declared(kind="date", range=["2020-01-01", "2021-01-01"], fill="never"), "a date as fill"),
    ({**GOOD, "columns": {"age": AGE, "sick": {**SICK, "fill": "0"}}}, "no fill for the label"),
    ({**GOOD, "columns": {"age": AGE, "sick": {**SICK, "unknown": "zero"}}}, "that is always known"),
]


@pytest.mark.parametrize(("schema", "message"), SCHEMAS)
def test_a_wrong_schema_is_one_sentence(schema, message):
    with pytest.raises(CloisterError) as caught:
        Schema.from_dict(schema)
    assert message in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label = ", "valid TOML"),
        ("label = 'x'\nlabel = 'y'", "valid TOML"),
        ("label = 'sick'\n[columns.age]\nkind = 'numbr'", 'perhaps you mean "number" (in '),
        ("\x00", "valid TOML"),
    ],
)
def test_a_wrong_schema_file_is_named(tmp_path, text, message):
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(CloisterError) as caught:
        Schema.from_toml(tmp_path / "s.toml")
    assert message in str(caught.value)
    assert "s.toml" in str(caught.value)


@pytest.mark.parametrize("path", ["nowhere.toml", "."])
def test_a_schema_that_cannot_be_read_is_one_sentence(path):
    with pytest.raises(CloisterError, match="a readable schema, found"):
        Schema.from_toml(path)


WIDE = {**GOOD, "columns": {**GOOD["columns"], "size": "number"}}
FILES = [
    (b"", "a table in {}, found an empty file"),
    (b"\n\n  \n", "a table in {}, found an empty file"),
    (b"age,sick\n\x00\x01\x02", "text in {}, found binary data in line 2"),
    (b"age,sick\n1,0\n\xff\xfe,1\n", "UTF-8 in {}, found the byte 0xff in line 3"),
    (b"age\n1\n", "a column 'sick' in {}, found none"),
    (b"ages,sick\n1,0\n", "a column 'age' in {}, found none: perhaps you mean \"ages\""),
    (b"age,sick,name\n1,0,x\n", "in {}, found a column 'name' as well"),
    (b"age,age,sick\n1,1,0\n", "one column 'age' in {}, found two"),
    (b"age,,sick\n1,1,0\n", "a name for every column of {}, found none for column 2"),
    (b"age,sick\n1,0\n2\n", "2 cells in a row of {}, found 1 in line 3"),
    (b"age,sick\n1,0,5\n2,1\n", "2 cells in a row of {}, found 3 in line 2"),
    (b"age,sick\n1\n2,1,0\n", "2 cells in a row of {}, found 1 in line 2"),
    (b'age,sick\n"1,0\n2,1\n', "CSV in {}, found an error in line 3"),
    (b'age,sick\n"1"x,0\n', "CSV in {}, found an error in line 2"),
    (b"age,sick\n1,0\n\nold,1\n", "a finite number in column 'age', found 'old' in line 4 of {}"),
    (b"age,sick\n1,0\ninf,1\n", "a finite number in column 'age', found inf in line 3 of {}"),
    (b"age,sick\n1,0\n1e999,1\n", "a finite number in column 'age', found inf in line 3 of {}"),
    (b"age,sick\n1,0\n1_0,1\n", "a finite number in column 'age', found '1_0' in line 3 of {}"),
    (b'age,sick\n"1,5",0\n', "a finite number in column 'age', found '1,5' in line 2 of {}"),
    (b"age,size,sick\n1,2,0\n1,1e200,1\n", "a number of usable size in column 'size', found 1e+200 in line 3 of {}"),
    (b"age,sick\n1,0\n?,1\n", "a value in column 'age', found nothing in line 3 of {}: declare fill"),
    (b"age,sick\n1,\n", "a label in column 'sick', found nothing in line 2 of {}"),
    (b"age,sick\n1,0\n2,2\n", "one of 0, 1 in column 'sick', found 2.0 in line 3 of {}"),
    (b"age,sick\n1,0\n2,dead\n", "one of 0, 1 in column 'sick', found 'dead' in line 3 of {}"),
    (b"age;sick\n1;0\n", "a column 'age' in {}, found none: its header is one cell"),
    (b"age;sick\n1;0\n", 'so say separator = ";" in a schema'),
    (b"age\tsick\n1\t0\n", 'so say separator = "\\t" in a schema'),
    (b'age,sick\n"50,5",0\n', "in line 2 of {}: write numbers with a decimal point"),
    (b"age,sick\n1,0\n--,1\n", "a value in column 'age', found nothing in line 3 of {}: declare fill"),
    (b"age,sick\n1,0\nn/a,1\n", "a constant in its own units, or fill it in the data"),
    (b"PK\x03\x04\x14\x00\x06\x00", "text in {}, found binary data in line 1"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_a_wrong_file_is_one_sentence_with_its_place(tmp_path, content, message):
    (tmp_path / "a.csv").write_bytes(
        b"age,size,sick\n1,5,0\n2,5,1\n" if b"size" in content else b"age,sick\n1,0\n2,1\n"
    )
    (tmp_path / "b.csv").write_bytes(content)
    with pytest.raises(CloisterError) as caught:
        cl.data.from_folder(tmp_path, schema=WIDE if b"size" in content else GOOD)
    assert message.format(tmp_path / "b.csv") in one_sentence(caught.value)


def test_the_line_is_right_after_quoted_ends_of_lines(tmp_path):
    schema = {**GOOD, "columns": {**GOOD["columns"], "note": "ignore"}}
    (tmp_path / "a.csv").write_text('age,note,sick\n1,"two\nlines",0\n\nx,y,1\n')
    with pytest.raises(CloisterError, match=r"found 'x' in line 5 of .*a\.csv"):
        cl.data.from_folder(tmp_path, schema=schema)


KINDS = [
    ({"kind": "boolean"}, "maybe", "yes or no"),
    ({"kind": "date", "range": ["2020-01-01", "2021-01-01"]}, "1.5.2020", "a date"),
    ({"kind": "date", "range": ["2020-01-01", "2021-01-01"], "format": "%d.%m.%Y"}, "2020-05-01", "a date"),
    ({"kind": "ordinal", "categories": ["low", "high"]}, "hihg", "one of low, high"),
    ({"kind": "category", "categories": ["low", "high"]}, "mid", "one of low, high"),
]


@pytest.mark.parametrize(("column", "cell", "message"), KINDS)
def test_a_wrong_cell_of_any_kind_is_named(tmp_path, column, cell, message):
    (tmp_path / "a.csv").write_text(f"age,sick\n{cell},0\n")
    with pytest.raises(CloisterError) as caught:
        cl.data.from_folder(tmp_path, schema=declared(**column))
    text = one_sentence(caught.value)
    assert f"Expected {message}" in text
    assert f"in column 'age', found {cell!r} in line 2 of {tmp_path / 'a.csv'}" in text


@pytest.mark.parametrize(
    ("cell", "remedy"),
    [("31.5.2020", "%d.%m.%Y"), ("5/31/2020", "%m/%d/%Y"), ("31/5/2020", "%d/%m/%Y"), ("soon", "%d.%m.%Y")],
)
def test_a_date_of_another_format_is_told_the_key(cell, remedy):
    schema = Schema.from_dict(declared(kind="date", range=["2020-01-01", "2021-01-01"]))
    with pytest.raises(CloisterError, match=f'or declare format = "{remedy}" for the column'):
        schema.encode({"age": [cell]})
    if cell != "soon":
        known = Schema.from_dict(declared(kind="date", range=["2020-01-01", "2021-01-01"], format=remedy))
        assert known.encode({"age": [cell]}).item() == pytest.approx(2 * 151 / 366 - 1)


def test_rows_without_a_header_and_with_another_separator(tmp_path):
    (tmp_path / "a.csv").write_text("1;0\n")
    with pytest.raises(CloisterError, match=r'2 cells in a row .* found 1 in line 1: .* separator = ";"') as caught:
        cl.data.from_folder(tmp_path, schema={**GOOD, "header": False})
    assert "1;0" not in one_sentence(caught.value), "which is somebody's"


def parquet(path: Path) -> None:
    pd.DataFrame({"age": [1, 2], "sick": [0, 5]}).to_parquet(path / "a.parquet")


def nested(path: Path) -> None:
    pd.DataFrame({"age": [[1], [2]], "sick": [0, 1]}).to_parquet(path / "a.parquet")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (parquet, r"one of 0, 1 in column 'sick', found 5 in row 1 \(from 0\) of .*a\.parquet"),
        (nested, r"in column 'age' of .*a\.parquet"),
        (lambda path: (path / "a.parquet").write_bytes(b"PAR1 no"), r"a readable \.parquet file, found .*a\.parquet"),
        (lambda path: (path / "a.npz").write_bytes(b"no"), r"a readable \.npz file, found .*a\.npz damaged"),
        (lambda path: np.savez(path / "a.npz", age=np.zeros((2, 2)), sick=np.zeros(2)), r"2 values|shape \(2, 2\)"),
        (lambda path: np.savez(path / "a.npz", age=np.zeros(3), sick=np.zeros(2)), r"3 values in a column of .*a\.npz"),
        (lambda path: np.savez(path / "a.npz", age=np.zeros(3)), r"a column 'sick' in .*a\.npz"),
        (lambda path: None, r"files \.csv, \.parquet or \.npz in .*found none"),
        (lambda path: (path / "a.data").write_text("x"), r'or say files = "\*\.data" in a schema'),
        (lambda path: (path / "a.csv").mkdir(), r"files \.csv, \.parquet or \.npz in .*found none"),
    ],
)
def test_other_files_are_refused_as_well(tmp_path, write, message):
    write(tmp_path)
    with pytest.raises(CloisterError, match=message) as caught:
        cl.data.from_folder(tmp_path, schema=GOOD)
    one_sentence(caught.value)


RAW = {"who": ["a", "a", "b", "b"], "age": [1, 2, 3, 4], "sick": [0, 1, 0, 1]}


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (3, {}, "a table, found 'int'"),
        (np.zeros((2, 2)), {}, "a table, found 'ndarray'"),
        ({**RAW, "age": [1, 2]}, {}, "values in a column of the dict"),
        ({**RAW, "age": [[1], [2], [3], [4]]}, {}, "numbers, words or dates in column 'age' of the dict"),
        ({**RAW, "age": [{}, {}, {}, {}]}, {}, "numbers, words or dates in column 'age'"),
        ({**RAW, "who": ["a", None, "b", "b"]}, {}, "a client's name in column 'who', found nothing in row 1"),
        ({**RAW, "who": ["a", "?", "b", "b"]}, {}, "a client's name in column 'who', found nothing in row 1"),
        ({"age": [1], "sick": [0]}, {}, "a column 'who' in the dict, found none"),
        (pd.DataFrame(RAW).rename(columns={"age": "sick"}), {}, "one column 'sick' in the frame, found two"),
        (RAW, {"client": None}, "the column that says whose each row is"),
        (RAW, {"client": 3}, "client to be the name of a column"),
        (RAW, {"client": "sick"}, "client and label to be different columns"),
        (RAW, {"label": "age"}, "a loss for a number"),
        (RAW, {"label": "ill"}, "the label 'ill' among the columns"),
        (RAW, {"loss": "mse"}, "a loss for classes (cross_entropy, ordinal), found 'mse'"),
        (RAW, {"loss": "cross_entrpy"}, 'perhaps you mean "cross_entropy"'),
        (RAW, {"test_fraction": 2}, "test_fraction to be a fraction"),
        (RAW, {"test_fraction": 0.5, "test": 0.5}, "test_fraction or test"),
        (RAW, {"intervals": [1, 2]}, "no intervals beside a label or a loss that is not for survival"),
        (RAW, {"schema": {**GOOD, "intervals": [1, 2]}}, "no intervals beside a label"),
        (RAW, {"schema": None, "label": "sick", "intervals": [1, 2]}, "no intervals beside a label"),
        (RAW, {"schema": None}, "a column 'label', found none: name the column with label=NAME, or declare"),
        ({**RAW, "Label": RAW["sick"]}, {"schema": None}, 'perhaps you mean "Label"'),
        (RAW, {"schema": None, "client": "hospital", "label": "sick"}, "name the column with client=NAME"),
        (RAW, {"classes": 1}, "classes to be a whole number"),
        (RAW, {"public_samples": 100}, "public to leave at least one client"),
    ],
)
def test_wrong_frames_and_options_are_one_sentence(frame, options, message):
    options = {"loss": "hazards", **options} if options == {"label": "age"} else options
    with pytest.raises(CloisterError) as caught:
        cl.data.from_frame(frame, **{"schema": GOOD, "client": "who", **options})
    assert message in one_sentence(caught.value)


@pytest.mark.parametrize(
    ("label", "columns", "message"),
    [
        ([], {}, "the name of the label's column"),
        ("y", {"y": "number"}, "a range (or center and scale) for the label 'y'"),
        (["y", "z"], {"y": "number", "z": "boolean"}, "intervals for survival"),
        (["y", "z"], {"y": "number", "z": "number"}, "label to be one category, ordinal"),
        ("y", {"y": {"kind": "date", "range": ["2020-01-01", "2021-01-01"]}}, "label to be one category, ordinal"),
    ],
)
def test_a_label_that_has_no_loss_is_one_sentence(label, columns, message):
    schema = {"label": label, "columns": {"x": "number", **columns}, "extra": "ignore"}
    with pytest.raises(CloisterError) as caught:
        cl.data.from_frame({"who": ["a"], "x": [1], "y": [1], "z": [1]}, schema=schema, client="who")
    assert message in one_sentence(caught.value)


@pytest.mark.parametrize("path", [3, None, "nowhere", "nowhere.csv", "a\0b"])
def test_what_is_no_path_is_one_sentence(path):
    for make in (cl.data.from_path, cl.data.from_file, cl.data.from_folder, cl.data.inspect):
        with pytest.raises(CloisterError):
            make(path, **({"client": "who"} if make is cl.data.from_file else {}))


def test_a_file_that_may_not_be_read_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("age,sick\n1,0\n")

    def denied(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(CloisterError, match=r"a readable file, found .*a\.csv \(Permission denied\)"):
        cl.data.from_folder(tmp_path, schema=GOOD)


def test_there_are_many_ways_to_be_wrong():
    assert len(SCHEMAS) + len(FILES) + len(KINDS) >= 80
