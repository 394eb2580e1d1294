"""Files as named columns: what pandas' parser reads and what is read cell by cell come to the same."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cloister as cl
from cloister.data import Schema
from cloister.data.user import csv_files
from cloister.data.user.csv_text import CsvText
from cloister.data.user.tables import Layout, client_files

NUMBER = {"kind": "number", "fill": -1.0}
SCHEMA = Schema.from_dict({"label": "y", "columns": {"a": NUMBER, "b": NUMBER, "w": "ignore", "y": "boolean"}})
FOLDERS = Path(__file__).parent.parent.parent / "experiments"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "a,b,w,y\n1.5,2,x,1\n3,?,,0\n",
        "\ufeffa,b,w,y\r\n1.5,2,x,1\r\n3,?,,0\r\n",
        "y,w,b,a\n1,x,2,1.5\n0,,NA,3",
        '"a","b","w","y"\n"1.5","2","x, or ""y""","yes"\n"3","","two\nlines","no"\n',
        "\n\na,b,w,y\n\n1.50, 2 ,x,True\n\n3e0,? ,x,False\n   \n",
        "a , b,w,y\n+1.5,2.0,x,t\n3,None,x,f\n",
        "a\rb".replace("a\rb", "a,b,w,y\r1.5,2,x,1\r3,null,x,0\r"),
    ],
)
def test_csv_however_it_is_written(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode())
    assert SCHEMA.encode(path).tolist() == [[1.5, 2], [3, -1]]
    assert SCHEMA.labels(path).tolist() == [1, 0]


CELL = st.one_of(
    st.floats(-1e17, 1e17).map(repr),
    st.integers(-(10**17), 10**17).map(str),
    st.sampled_from(["?", "", " 5 ", "1e-320", ".5", "5.", "+1", "0", "-0", "True", "NA"]),
)


@given(st.lists(st.tuples(CELL, CELL, st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=4))))
def test_both_ways_to_read_a_file_come_to_the_same(tmp_path_factory, rows):
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([("a", "b", "w", "y"), *((*row, "1") for row in rows)])
    path = write(tmp_path_factory.mktemp("one") / "a.csv", buffer.getvalue())
    layout = SCHEMA.layout(labels=True)
    by_cell = csv_files._table(
        CsvText.open(path, layout), csv_files._by_cell(CsvText.open(path, layout), layout), layout
    )
    assert np.array_equal(SCHEMA.features(by_cell), SCHEMA.encode(path).numpy())


def test_files_read_together_are_read_like_each_by_itself(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    for number in range(7):
        columns = random.permutation(["a", "b", "y"]) if number % 3 == 0 else ["a", "b", "y"]
        frame = pd.DataFrame({"a": random.normal(size=number), "b": random.normal(size=number), "y": 1})
        frame[list(columns)].to_csv(tmp_path / f"{number}.csv", index=False)
    write(tmp_path / "3.csv", 'a,b,y\n"?",1,0\n')
    schema = Schema.from_dict({"label": "y", "columns": {"a": NUMBER, "b": NUMBER, "y": "boolean"}})
    whole = schema.encode(tmp_path)
    alone = torch.cat([schema.encode(tmp_path / f"{number}.csv") for number in range(7)])
    assert torch.equal(whole, alone)
    monkeypatch.setattr(csv_files, "TOGETHER", 1)
    assert torch.equal(schema.encode(tmp_path), whole)


def test_another_cell_of_anybody_changes_no_other_row(tmp_path):
    """Not even where that cell makes the file be read in another way."""
    lines = [f"{0.1 * number!r},{number}.{number},x,1" for number in range(20)]
    before = SCHEMA.encode(write(tmp_path / "a.csv", "\n".join(["a,b,w,y", *lines])))
    lines[7] = '" ? ",1_0,"x","yes"'.replace("1_0", "10")
    after = SCHEMA.encode(write(tmp_path / "a.csv", "\n".join(["a,b,w,y", *lines])))
    others = torch.arange(20) != 7
    assert torch.equal(before[others], after[others])
    assert after[7].tolist() == [-1, 10]


def test_parquet_and_npz_say_what_csv_says(tmp_path):
    pytest.importorskip("pyarrow", reason="needs cloister[parquet]")
    frame = pd.DataFrame({"b": [1.0, None, 3.0], "a": [4, 5, 6], "w": ["x", "y", "z"], "y": [True, False, True]})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "b.csv", index=False)
    np.savez(tmp_path / "c.npz", a=frame["a"], b=frame["b"], w=frame["w"].to_numpy(str), y=frame["y"])
    found = [SCHEMA.encode(tmp_path / name).tolist() for name in ("a.parquet", "b.csv", "c.npz")]
    assert found == [[[4, 1], [5, -1], [6, 3]]] * 3
    task = cl.data.from_folder(tmp_path, schema=SCHEMA)
    assert task.client_names == ("a", "b", "c")


def test_a_folder_a_file_and_a_frame_are_one_task(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"who": random.choice(["x", "y", "z"], 60), "a": random.normal(size=60)})
    frame["y"] = random.choice(["no", "yes"], 60)
    frame = frame.sort_values("who", kind="stable")
    folder = tmp_path / "folder"
    folder.mkdir()
    for who, rows in frame.groupby("who"):
        rows[["y", "a"]].to_csv(folder / f"{who}.csv", index=False)
    frame.to_csv(tmp_path / "all.csv", index=False)
    schema = Schema.from_dict({"label": "y", "client": "who", "columns": {"a": "number", "y": "boolean"}})
    toml = write(tmp_path / "schema.toml", schema.to_toml())
    tasks = [
        cl.data.from_folder(folder, schema=toml, test_fraction=0.3),
        cl.data.from_file(tmp_path / "all.csv", schema=str(toml), test_fraction=0.3),
        cl.data.from_frame(frame, schema=schema, client="who", test_fraction=0.3),
        cl.data.from_path(folder, schema=toml, test_fraction=0.3),
        cl.data.from_path(tmp_path / "all.csv", schema=toml, client="who", test_fraction=0.3),
    ]
    assert len({task.fingerprint() for task in tasks}) == 1
    assert {task.client_names for task in tasks} == {("x", "y", "z")}
    assert {task.prepared_by for task in tasks} == {"sample"}


def test_one_file_without_a_schema(tmp_path):
    path = write(tmp_path / "a.csv", "who,x,label\n10,1,0\n9,2,1\n10,3,1\n")
    task = cl.data.from_file(path, client="who", test=(np.zeros((1, 1), np.float32), np.zeros(1, int)))
    assert task.client_names == ("10", "9")
    assert task.population.inputs.flatten().tolist() == [1, 3, 2]


def test_a_test_set_of_its_own(tmp_path):
    write(tmp_path / "a.csv", "a,b,w,y\n1,2,x,1\n3,4,x,0\n")
    other = write(tmp_path / "test.txt", "y,b,a,w\n1,8,7,x\n")
    task = cl.data.from_folder(tmp_path, schema=SCHEMA, test=other)
    assert task.test_inputs.tolist() == [[7, 8]]
    assert task.population.sizes.tolist() == [2]


def test_clients_are_named_by_what_the_star_stands_for(tmp_path):
    for name in ("site-a.b.txt", "site-c.txt", "other.txt", "site-.txt"):
        (tmp_path / name).touch()
    assert [client for client, _ in client_files(tmp_path, "site-*.txt")] == ["a.b", "c"]


def test_files_without_a_header_and_with_other_separators(tmp_path):
    schema = Schema.from_dict(
        {"label": "y", "header": False, "separator": ";", "columns": {"a": "number", "b": "number", "y": "boolean"}}
    )
    assert schema.encode(write(tmp_path / "a.csv", "1;2;1\n3;4;0\n")).tolist() == [[1, 2], [3, 4]]
    assert schema.encode(write(tmp_path / "b.csv", "1;2\n")).tolist() == [[1, 2]], "labels may be absent"
    assert schema.labels(tmp_path / "b.csv") is None


def test_layouts_need_no_schema(tmp_path):
    table = csv_files.read_csvs([write(tmp_path / "a.csv", "a,b\n1,x\n2,\n")], Layout())[0]
    assert table.cells("b").values == ["x", ""]
    assert table.place(1) == f"line 3 of {tmp_path / 'a.csv'}"


class Samples(torch.utils.data.Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, number):
        return self.pairs[number]


def test_a_torch_dataset():
    pictures = torch.arange(4 * 3 * 2 * 5, dtype=torch.uint8).reshape(4, 3, 2, 5)
    data = Samples([(picture, number % 2) for number, picture in enumerate(pictures)])
    task = cl.data.from_dataset(data, clients=["b", "b", "a", "a"], test_fraction=0.5)
    assert (task.shape, task.client_names) == ((3, 2, 5), ("a", "b")), "tensors have their channels first"
    from PIL import Image

    painted = Samples([(Image.fromarray(picture.permute(1, 2, 0).numpy()), 0.5) for picture in pictures])
    numbers = cl.data.from_dataset(painted, clients=[1, 1, 2, 2], loss="mse", test_fraction=0.5)
    assert numbers.shape == (3, 2, 5), "pictures have them last"
    assert {tuple(row.flatten().tolist()) for row in torch.cat([numbers.population.inputs, numbers.test_inputs])} == {
        tuple(picture.flatten().tolist()) for picture in pictures
    }


class Columns:
    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name):
        return self.columns[name]


def test_a_dataset_with_a_schema():
    data = Columns(a=["1", "?"] * 3, b=[1.0] * 6, w=list("uvwxyz"), y=[True, False] * 3, who=list("aabbcc"))
    task = cl.data.from_dataset(data, schema=SCHEMA, client="who", test_fraction=0.5)
    assert task.clients == 3
    assert set(task.population.inputs[:, 0].tolist()) <= {1.0, -1.0}


def test_hearts_schema_reads_raw_files_as_hospitals_write_them(tmp_path):
    lines = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n35,1,4,?,0,?,0,130,1,?,?,?,7,3\n"
    for name in ("cleveland", "va"):
        write(tmp_path / f"processed.{name}.data", lines)
    write(tmp_path / "ask-detrano", "not a table")
    task = cl.data.from_folder(tmp_path, schema=FOLDERS / "heart-schema.toml", test=0.5)
    assert (task.client_names, task.class_names) == (("cleveland", "va"), ("healthy", "sick"))
    assert task.prepared_by == "sample"
    schema = Schema.from_toml(FOLDERS / "heart-schema.toml")
    second = dict(zip(schema.feature_names, schema.encode(tmp_path)[1].tolist(), strict=True))
    assert second["chol"] == pytest.approx((200 - 250) / 150), "a cholesterol of 0 is none"
    assert second["trestbps"] == pytest.approx((120 - 140) / 60)
    assert (second["cp=4"], second["thal=reversible"], second["slope"]) == (1, 1, -1)
