from __future__ import annotations

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.errors import CloisterError

RANDOM = np.random.default_rng(0)
START = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def _own_draws() -> None:
    """Of every test, whichever ran before it in this process."""
    RANDOM.bit_generator.state = START


def client(count: int) -> tuple[np.ndarray, np.ndarray]:
    return RANDOM.normal(size=(count, 3)).astype(np.float32), RANDOM.integers(0, 2, count)


def write_csv(path, x, y, label="label"):
    rows = [f"a,{label},b,c", *(f"{r[0]},{t},{r[1]},{r[2]}" for r, t in zip(x.tolist(), y.tolist(), strict=True))]
    path.write_text("\n".join(rows) + "\n")


def test_a_folder_of_npz_files(tmp_path):
    people = {name: client(count) for name, count in (("zoe", 5), ("abe", 3), ("ida", 9))}
    for name, (x, y) in people.items():
        np.savez(tmp_path / f"{name}.npz", inputs=x, labels=y)
    test = client(4)
    task = cl.data.from_folder(tmp_path, test=test)
    assert task.population.sizes.tolist() == [3, 9, 5], "in the order of their names"
    assert torch.equal(task.population.inputs[:3], torch.from_numpy(people["abe"][0]))
    assert torch.equal(task.population.labels[12:], torch.from_numpy(people["zoe"][1]))


def test_a_folder_of_csv_files(tmp_path):
    x, y = client(6)
    write_csv(tmp_path / "one.csv", x, y, "ill")
    write_csv(tmp_path / "two.csv", *client(2), "ill")
    task = cl.data.from_folder(tmp_path, label="ill", test=client(3))
    assert task.population.sizes.tolist() == [6, 2]
    torch.testing.assert_close(task.population.inputs[:6], torch.from_numpy(x))
    assert task.population.labels[:6].tolist() == y.tolist()


def test_a_folder_of_parquet_files(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs cloister[parquet]")
    from pyarrow import parquet

    x, y = client(6)[0], np.arange(6) % 3
    table = pyarrow.table({"a": x[:, 0], "label": y, "b": x[:, 1]})
    parquet.write_table(table, tmp_path / "one.parquet")
    task = cl.data.from_folder(tmp_path, test=(x[:2, :2], y[:2]))
    torch.testing.assert_close(task.population.inputs, torch.from_numpy(x[:, :2]))


class FakeDataset:
    """What `datasets.Dataset` offers, as far as we use it."""

    def __init__(self, columns):
        self.columns = columns
        self.column_names = list(columns)

    def __getitem__(self, name):
        return self.columns[name]


def test_a_dataset_with_a_client_column():
    x, y = client(8)
    made = FakeDataset({"x": x.tolist(), "label": y.tolist(), "who": list("aabbbccc")})
    task = cl.data.from_dataset(made, client="who", test=client(2))
    assert task.population.sizes.tolist() == [2, 3, 3]
    torch.testing.assert_close(task.population.inputs, torch.from_numpy(x))


def test_a_dataset_of_pictures_and_one_of_many_columns():
    pictures = [RANDOM.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(4)]
    made = FakeDataset({"img": pictures, "label": [0, 1, 0, 1], "who": [0, 0, 1, 1]})
    task = cl.data.from_dataset(made, client="who", inputs="img", test=0.5)
    assert task.shape == (3, 8, 8)
    assert task.population.inputs.dtype == torch.uint8, "bytes until the step"
    everything = torch.cat([task.population.inputs, task.test_inputs])
    found = {tuple(image.permute(1, 2, 0).flatten().tolist()) for image in everything}
    assert found == {tuple(picture.flatten().tolist()) for picture in pictures}, "red stays red"
    wide = FakeDataset({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1], "who": [0, 1]})
    assert cl.data.from_dataset(wide, client="who", test=(np.zeros((1, 2)), np.zeros(1, int))).shape == (2,)


def test_a_real_hugging_face_dataset():
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face datasets")
    x, y = client(6)
    made = datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist(), "who": list("aabbcc")})
    assert cl.data.from_dataset(made, client="who", test=client(2)).clients == 3


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(CloisterError, match="found none: put one there per client"):
        cl.data.from_folder(tmp_path)
    with pytest.raises(CloisterError, match=r"nowhere. .No such file or directory.: check the path"):
        cl.data.from_folder(tmp_path / "nowhere")
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with pytest.raises(CloisterError, match="arrays inputs and labels"):
        cl.data.from_folder(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"not a zip")
    with pytest.raises(CloisterError, match="damaged"):
        cl.data.from_folder(tmp_path)
    np.savez(tmp_path / "a.npz", inputs=np.zeros((3, 2)), labels=np.zeros(2, int))
    with pytest.raises(CloisterError, match="a label for each input"):
        cl.data.from_folder(tmp_path)
    write_csv(tmp_path / "a.csv", *client(2))
    with pytest.raises(CloisterError, match="two for 'a'"):
        cl.data.from_folder(tmp_path)
    (tmp_path / "a.csv").unlink()
    np.savez(tmp_path / "a.npz", inputs=np.zeros((3, 2)), labels=np.zeros(3, int))
    np.savez(tmp_path / "b.npz", inputs=np.zeros((3, 4)), labels=np.zeros(3, int))
    with pytest.raises(CloisterError, match="every client's inputs"):
        cl.data.from_folder(tmp_path)


def test_an_object_array_is_not_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=np.array([{}, {}], dtype=object), labels=np.zeros(2, int))
    with pytest.raises(CloisterError, match="damaged"):
        cl.data.from_folder(tmp_path)


def test_bad_tables_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,label\n1,yes\n")
    with pytest.raises(CloisterError, match="a finite number in column 'label', found 'yes' in line 2 of"):
        cl.data.from_folder(tmp_path)
    (tmp_path / "a.csv").write_text("a,lable\n1,0\n")
    with pytest.raises(CloisterError, match='perhaps you mean "lable"'):
        cl.data.from_folder(tmp_path)
    with pytest.raises(CloisterError, match="a column 'who'"):
        cl.data.from_dataset(FakeDataset({"x": [1], "label": [0]}), client="who")


def test_columns_are_matched_by_name_and_numbers_may_be_quoted(tmp_path):
    (tmp_path / "a.csv").write_text("x1,x2,label\n1,100,0\n")
    (tmp_path / "b.csv").write_text('x2,label,x1\n"200","1"," 2"\n')
    task = cl.data.from_folder(tmp_path, test=(np.zeros((1, 2), np.float32), np.zeros(1, int)))
    assert task.population.inputs.tolist() == [[1, 100], [2, 200]]
    assert task.population.labels.tolist() == [0, 1]
    assert task.client_names == ("a", "b")


def test_columns_are_the_same_in_every_file(tmp_path):
    (tmp_path / "a.csv").write_text("x1,x2,label\n1,100,0\n")
    (tmp_path / "b.csv").write_text("x1,label\n1,0\n")
    with pytest.raises(CloisterError, match=r"a column 'x2' in .*b\.csv, found none"):
        cl.data.from_folder(tmp_path)
    (tmp_path / "b.csv").write_text("x1,x2,x3,label\n1,1,1,0\n")
    with pytest.raises(CloisterError, match=r"x1, x2, label in .*b\.csv, found a column 'x3' as well"):
        cl.data.from_folder(tmp_path)
    (tmp_path / "b.csv").write_text("x1,x2,label\n100,1\n")
    with pytest.raises(CloisterError, match="cells in a row"):
        cl.data.from_folder(tmp_path)


def test_an_empty_client_and_a_byte_order_mark_are_welcome(tmp_path):
    (tmp_path / "a.csv").write_text("\ufeffx1,label\n1,0\n2,1\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text("x1,label\n")
    task = cl.data.from_folder(tmp_path, test=(np.zeros((1, 1), np.float32), np.zeros(1, int)))
    assert task.population.sizes.tolist() == [2, 0]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"\x93NUMPY\x01\x00junk"])
def test_a_damaged_npz_is_one_sentence(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(CloisterError, match="damaged"):
        cl.data.from_folder(tmp_path)


def test_a_column_of_numbers_is_one_feature():
    made = FakeDataset({"x": [1.0, 2.0, 3.0, 4.0], "label": [0, 1, 0, 1], "who": [0, 0, 1, 1]})
    assert cl.data.from_dataset(made, client="who", test=(np.zeros((1, 1)), np.zeros(1, int))).shape == (1,)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"x": [[1.0], [2.0, 3.0]]}, {}, "x to be float64 of shape .* like its first row"),
        ({"x": ["a", "b"]}, {}, "numbers in x, found '<U1 in row 0': encode words"),
        ({"x": [None, 1.0]}, {}, "numbers in x"),
        ({"x": []}, {}, "at least one sample"),
        ({"x": [1.0, 2.0]}, {"inputs": 3}, "inputs to name columns, found 3"),
        ({"x": [1.0, 2.0]}, {"inputs": [3]}, "the name of a column, found 3"),
        ({"x": [1.0, 2.0]}, {"client": 3}, "the name of a column, found 3"),
        ({"x": [1.0, 2.0]}, {"classes": 2.5}, "classes to be a whole number"),
        ({}, {}, "a column of inputs"),
        ({"x": [1.0, 2.0], "y": [[[1.0]], [[2.0]]]}, {}, "columns of numbers to stack, found '2 dimensions in y'"),
    ],
)
def test_bad_datasets_are_one_sentence(columns, options, message):
    made = FakeDataset({**columns, "label": [0, 1], "who": [0, 1]})
    with pytest.raises(CloisterError, match=message):
        cl.data.from_dataset(made, **{"client": "who", **options})


def test_what_is_no_dataset_and_no_folder_is_one_sentence(tmp_path):
    with pytest.raises(CloisterError, match="a data set with columns, found list"):
        cl.data.from_dataset([1, 2], client="who")
    for folder in (3, None, ["a"]):
        with pytest.raises(CloisterError, match="folder to be a path"):
            cl.data.from_folder(folder)
    with pytest.raises(CloisterError, match="label to be the name of a column, found 3"):
        cl.data.from_folder(tmp_path, label=3)
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,0.5\n")
    with pytest.raises(
        CloisterError, match=r"labels to be whole numbers in column 'label', found 0\.5 in line 3 of .*a\.csv"
    ):
        cl.data.from_folder(tmp_path)
