"""Readers of published files, on tiny files written here byte by byte, and on the real ones where they are at hand."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import pickle
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from cloister.data.formats import FORMATS, format_named
from cloister.errors import CloisterError, Corrupted

NAMES = [
    "mnist",
    "fashion_mnist",
    "emnist",
    "qmnist",
    "cifar10",
    "cifar100",
    "femnist",
    "femnist_digits",
    "fed_emnist",
    "har",
    "heart",
    "shakespeare",
]
REAL = os.environ.get("CLOISTER_DATA")
real = pytest.mark.skipif(not REAL, reason="needs the real files: set CLOISTER_DATA to their folder")


def read(name: str, root: Path, **options):
    return FORMATS[name].read(root, **options)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# ---------------------------------------------------------------- idx: MNIST, Fashion-MNIST, EMNIST, QMNIST


def images_bytes(images: list[list[int]]) -> bytes:
    """Each image is 784 numbers, row by row."""
    return struct.pack(">IIII", 2051, len(images), 28, 28) + b"".join(bytes(image) for image in images)


def labels_bytes(labels: list[int]) -> bytes:
    return struct.pack(">II", 2049, len(labels)) + bytes(labels)


def with_ink_at(row: int, column: int, value: int = 200) -> list[int]:
    image = [0] * 784
    image[28 * row + column] = value
    return image


def write_mnist(root: Path, folder: str = "MNIST") -> Path:
    raw = root / folder / "raw"
    write(raw / "train-images-idx3-ubyte.gz", images_bytes([with_ink_at(2, 5), with_ink_at(3, 4), with_ink_at(0, 27)]))
    write(raw / "train-labels-idx1-ubyte.gz", labels_bytes([7, 0, 9]))
    write(raw / "t10k-images-idx3-ubyte.gz", images_bytes([with_ink_at(27, 0), with_ink_at(1, 1)]))
    write(raw / "t10k-labels-idx1-ubyte.gz", labels_bytes([4, 4]))
    return raw


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_is_read_to_the_pixel(tmp_path, name, folder):
    raw = write_mnist(tmp_path, folder)
    data = read(name, tmp_path)
    assert data.train.inputs.shape == (3, 1, 28, 28)
    assert data.train.inputs.dtype == np.uint8
    assert np.argwhere(data.train.inputs).tolist() == [[0, 0, 2, 5], [1, 0, 3, 4], [2, 0, 0, 27]]
    assert np.argwhere(data.test.inputs).tolist() == [[0, 0, 27, 0], [1, 0, 1, 1]]
    assert data.train.labels.tolist() == [7, 0, 9]
    assert data.test.labels.tolist() == [4, 4]
    assert data.train.labels.dtype == np.int64
    assert data.train.owners is None
    assert data.classes == 10
    assert (data.mean, data.std) == {"mnist": ((0.1307,), (0.3081,)), "fashion_mnist": ((0.2860,), (0.3530,))}[name]
    assert sorted(FORMATS[name].files(tmp_path)) == sorted(raw.iterdir())


def test_unpacked_files_are_as_good(tmp_path):
    for path in list(write_mnist(tmp_path).iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert read("mnist", tmp_path).train.labels.tolist() == [7, 0, 9]


TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (TRAIN_IMAGES, b"\x12\x34\x56\x78" + bytes(20), "magic number of an idx file of rank 3 .* found 0x12345678"),
        (TRAIN_IMAGES, labels_bytes(list(range(10)) * 3), "magic number .* rank 3 .* found 0x00000801"),
        (TRAIN_IMAGES, b"\0\0", "an idx file .* found 2 bytes"),
        (TRAIN_IMAGES, images_bytes([with_ink_at(0, 0)] * 3)[:-1], "2352 bytes of values .* too short"),
        (TRAIN_IMAGES, images_bytes([with_ink_at(0, 0)] * 3) + b"\0", "2352 bytes of values .* too long"),
        (TRAIN_IMAGES, struct.pack(">IIII", 2051, 2**32 - 1, 28, 28), "bytes of values .* found 0"),
        (TRAIN_IMAGES, struct.pack(">IIII", 2051, 1, 4, 4) + bytes(16), r"shape \['n', 28, 28\] .* found \[1, 4, 4\]"),
        (TRAIN_IMAGES, struct.pack(">IIII", 0x0D03, 0, 28, 28), "values of type u1 .* found >f4"),
        (TRAIN_LABELS, labels_bytes([7, 0]), "a label for each of 3 inputs .* found 2 labels"),
        (TRAIN_LABELS, labels_bytes([7, 10, 0]), "labels from 0 to 9 .* found 10 in row 1"),
    ],
)
def test_bad_idx_files_are_refused_in_one_sentence(tmp_path, file, content, message):
    path = write(write_mnist(tmp_path) / file, content)
    with pytest.raises(Corrupted, match=message) as caught:
        read("mnist", tmp_path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert sentence.startswith("Expected ")
    assert sentence.endswith("delete it and run `cloister data get mnist`.")
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "harm", [lambda b: b[:-9], lambda b: b[:25], lambda b: b"no gzip", lambda b: b[:20] + b"xxxx" + b[24:]]
)
def test_a_broken_gzip_is_refused(tmp_path, harm):
    path = write_mnist(tmp_path) / TRAIN_IMAGES
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(Corrupted, match="a whole gzip file"):
        read("mnist", tmp_path)


def test_emnist_is_put_upright(tmp_path):
    raw = tmp_path / "EMNIST" / "raw"
    for part in ("train", "test"):
        write(raw / f"emnist-letters-{part}-images-idx3-ubyte.gz", images_bytes([with_ink_at(2, 5), with_ink_at(0, 9)]))
        write(raw / f"emnist-letters-{part}-labels-idx1-ubyte.gz", labels_bytes([1, 26]))
    data = read("emnist", tmp_path, split="letters")
    assert np.argwhere(data.train.inputs).tolist() == [[0, 0, 5, 2], [1, 0, 9, 0]]
    assert data.train.labels.tolist() == [0, 25]
    assert data.classes == 26
    write(raw / "emnist-letters-test-labels-idx1-ubyte.gz", labels_bytes([0, 26]))
    with pytest.raises(Corrupted, match=r"labels from 0 to 25 .* found -1 in row 0"):
        read("emnist", tmp_path, split="letters")
    with pytest.raises(CloisterError, match=r"emnist-byclass-train-images-idx3-ubyte\.gz, found no such file"):
        read("emnist", tmp_path)
    with pytest.raises(CloisterError, match="found 'leters': perhaps you mean \"letters\""):
        read("emnist", tmp_path, split="leters")


@pytest.mark.parametrize(
    ("split", "classes"), [("byclass", 62), ("bymerge", 47), ("balanced", 47), ("digits", 10), ("mnist", 10)]
)
def test_emnist_splits_have_their_classes(tmp_path, split, classes):
    for part in ("train", "test"):
        raw = tmp_path / "EMNIST" / "raw"
        write(raw / f"emnist-{split}-{part}-images-idx3-ubyte.gz", images_bytes([with_ink_at(0, 0)]))
        write(raw / f"emnist-{split}-{part}-labels-idx1-ubyte.gz", labels_bytes([classes - 1]))
    data = read("emnist", tmp_path, split=split)
    assert data.classes == classes
    assert data.train.labels.tolist() == [classes - 1]


def qmnist_bytes(rows: list[tuple[int, int]]) -> bytes:
    body = b"".join(struct.pack(">8i", label, 4, writer, 1, 2, 3, 0, 0) for label, writer in rows)
    return struct.pack(">III", 0x0C02, len(rows), 8) + body


def write_qmnist(root: Path) -> Path:
    write_mnist(root)
    write(root / "qmnist" / "qmnist-train-labels-idx2-int.gz", qmnist_bytes([(7, 2050), (0, 300), (9, 2050)]))
    write(root / "qmnist" / "qmnist-test-labels-idx2-int.gz", qmnist_bytes([(4, 5), (4, 6), (1, 7)]))
    return root / "qmnist"


def test_qmnist_names_the_writers(tmp_path):
    write_qmnist(tmp_path)
    data = read("qmnist", tmp_path)
    assert data.train.owners.tolist() == [2050, 300, 2050]
    assert data.test.owners.tolist() == [5, 6], "rows beyond MNIST's are left out"
    assert np.argwhere(data.train.inputs).tolist() == [[0, 0, 2, 5], [1, 0, 3, 4], [2, 0, 0, 27]]
    assert len(FORMATS["qmnist"].files(tmp_path)) == 6


@pytest.mark.parametrize(
    ("rows", "message"),
    [([(7, 1), (1, 1), (9, 1)], r"the classes of MNIST .* row \[1\]"), ([(7, 1)], "at least 3 rows.* found 1")],
)
def test_qmnist_must_fit_mnist(tmp_path, rows, message):
    write(write_qmnist(tmp_path) / "qmnist-train-labels-idx2-int.gz", qmnist_bytes(rows))
    with pytest.raises(Corrupted, match=message):
        read("qmnist", tmp_path)


# ---------------------------------------------------------------- pickles: CIFAR


def python2_pickle(data: bytes, rows: int, labels: list[int], key: bytes = b"labels", fortran: bool = False) -> bytes:
    """A batch as Python 2 wrote it in 2009, opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING

    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + b"K\0\x85" + text(b"b") + b"\x87R"
    dtype = (
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\0K\x01\x87R" + b"(K\x03" + text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2
    )
    dtype += b"K\0tb"
    shape = b"M" + struct.pack("<H", rows) + b"M" + struct.pack("<H", 3072) + b"\x86"
    state = (
        b"(K\x01"
        + shape
        + dtype
        + (b"\x88" if fortran else b"\x89")
        + b"T"
        + struct.pack("<I", len(data))
        + data
        + b"t"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    items = text(b"data") + array + state + b"b" + text(key) + numbers + text(b"batch_label") + text(b"one of 5")
    return b"\x80\x02}(" + items + b"u."


def python3_pickle(data: bytes, rows: int, labels: list[int], key: bytes = b"labels") -> bytes:
    block = np.frombuffer(data, np.uint8).reshape(rows, 3072)
    return pickle.dumps({key: labels, b"data": block}, protocol=2)


def one_image(seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, 3072, dtype=np.uint8).tobytes()


def write_cifar10(root: Path, writer=python2_pickle) -> Path:
    folder = root / "cifar-10-batches-py"
    for number in range(1, 6):
        write(folder / f"data_batch_{number}", writer(one_image(number) + one_image(number + 10), 2, [number, 0]))
    write(folder / "test_batch", writer(one_image(6), 1, [9]))
    return folder


@pytest.mark.parametrize("writer", [python2_pickle, python3_pickle])
def test_cifar10_is_read_to_the_pixel(tmp_path, writer):
    write_cifar10(tmp_path, writer)
    data = read("cifar10", tmp_path)
    assert data.train.inputs.shape == (10, 3, 32, 32)
    assert data.train.labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert data.test.labels.tolist() == [9]
    fourth = one_image(2 + 10)
    for channel, row, column in ((0, 0, 0), (1, 2, 3), (2, 31, 31)):
        assert data.train.inputs[3, channel, row, column] == fourth[1024 * channel + 32 * row + column]
    assert data.test.inputs.tobytes() == one_image(6)
    assert len(FORMATS["cifar10"].files(tmp_path)) == 6


def test_cifar_arrays_in_fortran_order(tmp_path):
    folder = write_cifar10(tmp_path)
    rows = np.frombuffer(one_image(1) + one_image(2), np.uint8).reshape(2, 3072)
    write(folder / "test_batch", python2_pickle(rows.tobytes(order="F"), 2, [1, 2], fortran=True))
    assert read("cifar10", tmp_path).test.inputs[1].tobytes() == one_image(2)


@pytest.mark.parametrize("writer", [python2_pickle, python3_pickle])
def test_cifar100_has_fine_labels(tmp_path, writer):
    for part, label in (("train", 99), ("test", 42)):
        write(tmp_path / "cifar-100-python" / part, writer(one_image(label), 1, [label], b"fine_labels"))
    data = read("cifar100", tmp_path)
    assert (data.train.labels.tolist(), data.test.labels.tolist(), data.classes) == ([99], [42], 100)
    assert data.train.inputs.tobytes() == one_image(99)


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def _global(module: str, name: str, *args: str) -> bytes:
    texts = b"".join(b"X" + struct.pack("<I", len(a)) + a.encode() for a in args)
    return b"\x80\x02c" + f"{module}\n{name}\n(".encode() + texts + b"tR."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": Bomb()}, 2), r"found a call of \w+\.mkdir"),
        (pickle.dumps({b"data": Bomb()}, 5), r"found a call of \w+\.mkdir"),
        (_global("builtins", "eval", "1"), "found a call of builtins.eval"),
        (_global("numpy", "load", "x"), "found a call of numpy.load"),
        (_global("numpy", "ndarray.tofile", "x"), "found a call of numpy.ndarray.tofile"),
        (_global("_codecs", "decode", "x", "zip"), "found a call of _codecs.decode"),
        (_global("_codecs", "encode", "x", "zip"), "bytes in latin1"),
        (python2_pickle(one_image(1), 1, [1])[:-400], "a whole pickle"),
        (b"", "a whole pickle"),
        (b"plainly no pickle", "a whole pickle"),
        (pickle.dumps([1], 2), "a dictionary .* found list"),
        (pickle.dumps({b"labels": [1]}, 2), "an array of bytes .* found NoneType"),
        (pickle.dumps({b"labels": [1], b"data": np.zeros((1, 3072), np.float32)}, 2), "type u1 .* found 'f4'"),
        (pickle.dumps({b"labels": [1], b"data": np.zeros((1, 3000), np.uint8)}, 2), r"3072 bytes .* \[1, 3000\]"),
        (python2_pickle(one_image(1)[:-1], 1, [1]), "a byte for every place"),
        (python2_pickle(one_image(1), 1, [1, 2]), "a label for each of 1 inputs .* found 2 labels"),
        (python2_pickle(one_image(1), 1, [10]), "labels from 0 to 9 .* found 10 in row 0"),
        (python2_pickle(one_image(1), 1, [1], b"lables"), "a list of whole numbers as labels .* found NoneType"),
        (b"\x80\x02}r\xff\xff\xff\x0f.", "counts to"),
        (pickle.dumps({b"labels": ["1"], b"data": np.zeros((1, 3072), np.uint8)}, 2), "whole numbers as labels"),
    ],
)
def test_a_pickle_runs_nothing_and_bad_ones_are_refused(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    write(write_cifar10(tmp_path) / "test_batch", content)
    with pytest.raises(Corrupted, match=message):
        read("cifar10", tmp_path)
    assert not Path("exploded").exists()


# ---------------------------------------------------------------- FEMNIST


def leaf(users: dict[str, tuple[list[list[float]], list[int]]]) -> dict:
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }


def paper(value: float, row: int, column: int) -> list[float]:
    image = [1.0] * 784
    image[28 * row + column] = value
    return image


def write_femnist(root: Path) -> Path:
    folder = root / "femnist" / "data"
    first = leaf({"f0001_41": ([paper(0.5, 1, 2), paper(0.0, 3, 4)], [61, 0]), "f0000_14": ([paper(0.1, 0, 0)], [10])})
    write(folder / "train" / "all_data_0.json", json.dumps(first).encode())
    write(folder / "train" / "all_data_1.json", json.dumps(leaf({"f0002": ([paper(0, 9, 9)], [5])})).encode())
    write(folder / "test" / "all_data_0.json", json.dumps(leaf({"f0001_41": ([paper(0.25, 0, 1)], [3])})).encode())
    return folder


def test_leaf_femnist(tmp_path):
    write_femnist(tmp_path)
    data = read("femnist", tmp_path)
    assert data.train.inputs.shape == (4, 1, 28, 28)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.owners.tolist() == ["f0001_41", "f0001_41", "f0000_14", "f0002"]
    assert data.train.labels.tolist() == [61, 0, 10, 5]
    assert np.argwhere(data.train.inputs != 255).tolist() == [[0, 0, 1, 2], [1, 0, 3, 4], [2, 0, 0, 0], [3, 0, 9, 9]]
    assert [int(data.train.inputs[0, 0, 1, 2]), int(data.train.inputs[2, 0, 0, 0])] == [128, 26]
    assert (data.test.owners.tolist(), data.test.labels.tolist(), data.classes) == (["f0001_41"], [3], 62)
    assert len(FORMATS["femnist"].files(tmp_path)) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"users": [', "JSON of LEAF"),
        (b"[]", "JSON of LEAF"),
        (json.dumps({"users": ["a"], "num_samples": [1], "user_data": {}}).encode(), "JSON of LEAF"),
        (json.dumps({"users": [], "num_samples": [], "user_data": {}}).encode(), "at least one user"),
        (json.dumps(leaf({"a": ([paper(0, 0, 0)[:-1]], [1])})).encode(), "images of 28x28"),
        (json.dumps(leaf({"a": ([paper(0, 0, 0), [1.0]], [1, 1])})).encode(), "JSON of LEAF"),
        (json.dumps(leaf({"a": ([paper(1.5, 0, 0)], [1])})).encode(), "pixels from 0 to 1"),
        (json.dumps(leaf({"a": ([paper(float("nan"), 0, 0)], [1])})).encode(), "pixels from 0 to 1"),
        (json.dumps(leaf({"a": ([paper(0, 0, 0)], [62])})).encode(), "labels from 0 to 61 .* found 62"),
        (json.dumps(leaf({"a": ([paper(0, 0, 0)], [1.5])})).encode(), "whole numbers as labels"),
        (json.dumps(leaf({"a": ([paper(0, 0, 0)], [1])}) | {"num_samples": [2]}).encode(), "2 images of a .* found 1"),
        (json.dumps(leaf({"a": ([], [])}) | {"num_samples": [1]}).encode(), "1 images of a .* found 0"),
    ],
)
def test_bad_leaf_files_are_refused(tmp_path, content, message):
    write(write_femnist(tmp_path) / "train" / "all_data_1.json", content)
    with pytest.raises(Corrupted, match=message):
        read("femnist", tmp_path)


def npz(**arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def femnist_digits(count: int = 20, **changes) -> dict[str, np.ndarray]:
    images = np.zeros((count + 5, 28, 28), np.uint8)
    images[:, 2, 5] = np.arange(count + 5)
    writer = np.array([0] * count + [1] * 5, np.int16)
    names = np.array(["ann", "bartholomew"])
    return {
        "images": images,
        "labels": (np.arange(count + 5) % 10).astype(np.uint8),
        "writer": writer,
        "writer_names": names,
    } | changes


def test_femnist_digits_holds_out_a_fifth_of_everybodys(tmp_path):
    path = write(tmp_path / "femnist_digits_190writers.npz", npz(**femnist_digits()))
    data = read("femnist_digits", tmp_path)
    assert (data.train.owners == "ann").sum() == 16
    assert (data.test.owners == "ann").sum() == 4
    assert (data.test.owners == "bartholomew").sum() in (1, 2)
    both = np.concatenate([data.train.inputs, data.test.inputs])[:, 0, 2, 5]
    assert sorted(both.tolist()) == list(range(25))
    for part in (data.train, data.test):
        assert (part.labels == part.inputs[:, 0, 2, 5] % 10).all()
        assert ((part.inputs[:, 0, 2, 5] >= 20) == (part.owners == "bartholomew")).all()
    again, other = read("femnist_digits", tmp_path), read("femnist_digits", tmp_path, seed=1)
    assert np.array_equal(again.test.inputs, data.test.inputs)
    assert not np.array_equal(other.test.inputs[:4], data.test.inputs[:4])
    # Ann's split does not know what Bartholomew brings, nor whether he is there.
    alone = {k: v if k == "writer_names" else v[:20] for k, v in femnist_digits().items()}
    write(path, npz(**alone))
    mine = read("femnist_digits", tmp_path)
    assert np.array_equal(mine.test.inputs, data.test.inputs[data.test.owners == "ann"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((25, 28, 28), np.float32)}, "images of 28x28 bytes .* found float32"),
        ({"labels": np.zeros(24, np.uint8)}, "a label for each of 25"),
        ({"labels": np.full(25, 10)}, "labels from 0 to 9"),
        ({"writer": np.full(25, 2)}, "writers numbered within"),
        ({"writer": np.zeros(24, int)}, "an owner for each of 25"),
        ({"writer_names": np.array([Bomb(), Bomb()], object)}, "an .npz file with the arrays"),
    ],
)
def test_bad_femnist_digits_are_refused(tmp_path, changes, message):
    write(tmp_path / "femnist_digits_190writers.npz", npz(**femnist_digits(**changes)))
    with pytest.raises(Corrupted, match=message):
        read("femnist_digits", tmp_path)


@pytest.mark.parametrize(
    "harm", [lambda b: b[:-30], lambda b: b"", lambda b: b"other", lambda b: npz(images=np.zeros(3))]
)
def test_a_broken_npz_is_refused(tmp_path, harm):
    write(tmp_path / "femnist_digits_190writers.npz", harm(npz(**femnist_digits())))
    with pytest.raises(Corrupted, match=r"an \.npz file with the arrays"):
        read("femnist_digits", tmp_path)


# ---------------------------------------------------------------- federated EMNIST


def write_fed_emnist(root: Path, kind: str = "fed_emnist", **replace) -> None:
    h5py = pytest.importorskip("h5py", reason="needs h5py: pip install cloister[hdf5]")
    (root / "fed_emnist").mkdir(exist_ok=True)
    for part in ("train", "test"):
        with h5py.File(root / "fed_emnist" / f"{kind}_{part}.h5", "w") as file:
            for number, client in enumerate(("f0000_14", "f1_2")):
                pixels = np.ones((number + 1, 28, 28), np.float32)
                pixels[:, 2, 5] = 0.25
                group = file.create_group(f"examples/{client}")
                group["pixels"] = replace.get("pixels", pixels)
                group["label"] = replace.get("label", np.full(number + 1, 9 - number, np.int32))


@pytest.mark.parametrize(
    ("kind", "digits", "classes"), [("fed_emnist", False, 62), ("fed_emnist_digitsonly", True, 10)]
)
def test_federated_emnist_is_ink_on_black(tmp_path, kind, digits, classes):
    write_fed_emnist(tmp_path, kind)
    data = read("fed_emnist", tmp_path, only_digits=digits)
    assert np.argwhere(data.train.inputs).tolist() == [[0, 0, 2, 5], [1, 0, 2, 5], [2, 0, 2, 5]]
    assert data.train.inputs.max() == 191
    assert data.train.inputs.dtype == np.uint8
    assert data.train.owners.tolist() == ["f0000_14", "f1_2", "f1_2"]
    assert (data.train.labels.tolist(), data.classes) == ([9, 8, 8], classes)


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        ({"pixels": np.zeros((1, 28, 28), np.uint8)}, "images of 28x28 floats .* found uint8"),
        ({"pixels": np.full((1, 28, 28), 2.0)}, "pixels from 0 to 1"),
        ({"label": np.full(1, 62)}, "labels from 0 to 61"),
        ({"label": np.zeros(3, int)}, "a label for each of 1"),
        ({"label": np.zeros(1)}, "whole numbers as labels"),
    ],
)
def test_bad_federated_emnist_is_refused(tmp_path, replace, message):
    write_fed_emnist(tmp_path, **replace)
    with pytest.raises(Corrupted, match=message):
        read("fed_emnist", tmp_path)


def test_a_file_that_is_no_hdf5_is_refused(tmp_path):
    write_fed_emnist(tmp_path)
    write(tmp_path / "fed_emnist" / "fed_emnist_test.h5", b"plainly not")
    with pytest.raises(Corrupted, match="HDF5 with examples"):
        read("fed_emnist", tmp_path)


def test_without_h5py_the_remedy_is_named(tmp_path, monkeypatch):
    write(tmp_path / "fed_emnist" / "fed_emnist_train.h5", b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(CloisterError, match=r"pip install 'cloister\[hdf5\]'"):
        read("fed_emnist", tmp_path)


# ---------------------------------------------------------------- human activity


def smooth_windows(count: int) -> np.ndarray:
    """Windows [n, 9, 128]: signal c of window w is w + c, and rises slowly in time."""
    window, channel, step = np.ogrid[:count, :9, :128]
    return (window + channel + step / 1000).astype(np.float32)


def har_xz(windows: np.ndarray, **changes) -> bytes:
    count = len(windows)
    arrays = {"x": windows, "y": np.arange(count).astype(np.uint8) % 6, "subject": np.repeat([0, 29], count // 2)}
    return lzma.compress(npz(**(arrays | changes)))


@pytest.mark.parametrize("time_first", [True, False])
def test_har_windows_are_signals_over_time_however_they_are_stored(tmp_path, time_first):
    windows = smooth_windows(20)
    stored = windows.transpose(0, 2, 1).reshape(20, 9, 128) if time_first else windows
    write(tmp_path / "uci_har_30subjects.npz.xz", har_xz(stored))
    data = read("har", tmp_path)
    assert data.train.inputs.dtype == np.float32
    assert (data.classes, data.mean) == (6, ())
    for part, each in ((data.train, 8), (data.test, 2)):
        assert [(part.owners == subject).sum() for subject in (0, 29)] == [each, each]
        which = part.inputs[:, 0, 0].astype(int)
        assert np.array_equal(part.inputs, windows[which])
        assert (part.labels == which % 6).all()
        assert ((which >= 10) == (part.owners == 29)).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (har_xz(smooth_windows(4)[:, :, :100]), r"windows of \[9, 128\] floats"),
        (har_xz(smooth_windows(4), y=np.full(4, 6)), "labels from 0 to 5"),
        (har_xz(smooth_windows(4) * np.nan), "finite signals"),
        (har_xz(smooth_windows(4), subject=np.zeros(4)), "whole numbers as subjects"),
        (har_xz(smooth_windows(4))[:-40], "a whole xz file"),
        (b"other", "a whole xz file"),
        (lzma.compress(b"other"), "an .npz file"),
    ],
)
def test_bad_har_files_are_refused(tmp_path, content, message):
    write(tmp_path / "uci_har_30subjects.npz.xz", content)
    with pytest.raises(Corrupted, match=message):
        read("har", tmp_path)


def write_uci(root: Path) -> Path:
    folder = root / "UCI HAR Dataset"
    signals = ["body_acc", "body_gyro", "total_acc"]
    for part, count in (("train", 3), ("test", 2)):
        for number, name in enumerate(f"{signal}_{axis}" for signal in signals for axis in "xyz"):
            lines = [" ".join(f" {window + number / 10:.7e}" for _ in range(128)) for window in range(count)]
            write(folder / part / "Inertial Signals" / f"{name}_{part}.txt", ("\n".join(lines) + "\n").encode())
        write(folder / part / f"y_{part}.txt", b"6\n1\n2\n"[: 2 * count])
        write(folder / part / f"subject_{part}.txt", b"30\n1\n1\n" if part == "train" else b"2\n4\n")
    return folder


def test_har_as_uci_publishes_it(tmp_path):
    write_uci(tmp_path)
    data = read("har", tmp_path)
    assert data.train.inputs.shape == (3, 9, 128)
    assert data.train.inputs[2, 4, 77] == np.float32(2.4)
    assert (data.train.labels.tolist(), data.train.owners.tolist()) == ([5, 0, 1], [29, 0, 0])
    assert (data.test.labels.tolist(), data.test.owners.tolist()) == ([5, 0], [1, 3])
    assert len(FORMATS["har"].files(tmp_path)) == 22


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("y_train.txt", b"1\n7\n1\n", "labels from 0 to 5 .* found 6 in row 1"),
        ("y_train.txt", b"1\n", "a label for each of 3"),
        ("subject_train.txt", b"1\n", "an owner for each of 3"),
        ("y_train.txt", b"one\n", "a table of numbers"),
        ("y_train.txt", b"", "a table of numbers .* empty"),
        ("y_train.txt", b"\xff\xfe", "UTF-8 text"),
        ("Inertial Signals/body_gyro_y_train.txt", b"1 2 3\n", "128 numbers in a line .* found 3"),
        ("Inertial Signals/body_gyro_y_train.txt", b"1 " * 128, "3 windows, as in the first file .* found 1"),
    ],
)
def test_bad_uci_files_are_refused(tmp_path, file, content, message):
    write(write_uci(tmp_path) / "train" / file, content)
    with pytest.raises(Corrupted, match=message):
        read("har", tmp_path)


# ---------------------------------------------------------------- heart disease

HEALTHY = "55,1,4,130,200,0,1,150,0,1,2,0,3,0"


def write_heart(root: Path, **rows: list[str]) -> Path:
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        lines = rows.get(hospital, [HEALTHY] * 5)
        write(root / "heart_disease" / f"processed.{hospital}.data", ("\n".join(lines) + "\n").encode())
    return root / "heart_disease"


def test_heart_is_scaled_by_constants(tmp_path):
    write_heart(tmp_path, va=["65,0,1,150,250,1,2,125,1,2,3,3,7,4"] * 5)
    data = read("heart", tmp_path)
    assert (data.train.inputs.dtype, data.train.inputs.shape[1], data.classes) == (np.float32, 13, 2)
    expected = {
        "cleveland": ([0, 1, 1, 0, 0, -1, 0, 0, -1, 0, 0, -1, -1], 0),
        "va": ([1, -1, -1, 1, 1, 1, 1, -1, 1, 1, 1, 1, 1], 1),
    }
    for part, each in ((data.train, 4), (data.test, 1)):
        for hospital, (features, label) in expected.items():
            mine = part.owners == hospital
            assert mine.sum() == each
            assert part.inputs[mine].tolist() == [features] * each
            assert part.labels[mine].tolist() == [label] * each


def test_with_client_median_gaps_are_filled_from_the_hospitals_own_training_rows(tmp_path):
    ages = list(range(30, 90))
    rows = [f"{age},1,4,130,{100 + age},0,1,150,0,1,2,0,3,0" for age in ages]
    rows[7] = rows[7].replace(",137,", ",?,")
    rows[8] = rows[8].replace(",138,", ",0,")  # nobody alive has a cholesterol of 0
    never = [HEALTHY.replace(",200,", ",0,").replace(",0,3,0", ",?,?,2")] * 5
    write_heart(tmp_path, hungarian=rows, switzerland=never)
    data = read("heart", tmp_path, impute="client_median")
    train = data.train.inputs[data.train.owners == "hungarian"]
    held = data.test.inputs[data.test.owners == "hungarian"]
    age = np.rint(10 * train[:, 0] + 55).astype(int)
    known = [100 + a for a in age if a not in (37, 38)]
    both = np.concatenate([train, held])
    for patient in (37, 38):
        row = both[np.rint(10 * both[:, 0] + 55) == patient][0]
        assert row[4] == pytest.approx((np.median(known) - 200) / 50)
    swiss = data.train.inputs[data.train.owners == "switzerland"][0]
    assert swiss[[4, 11, 12]].tolist() == [0.0, -1.0, -1.0], "constants, where the hospital knows nothing"
    # No other hospital's rows matter.
    write_heart(tmp_path, hungarian=rows, switzerland=["40,0,1,90,500,1,2,100,1,2,3,3,7,4"] * 30)
    again = read("heart", tmp_path, impute="client_median")
    assert np.array_equal(again.train.inputs[again.train.owners == "hungarian"], train)


def test_medians_are_of_training_rows_alone(tmp_path):
    levels = [int(100 * 1.15**step) for step in range(11)]
    rows = [f"{30 + n},1,4,130,{level},0,1,150,0,1,2,0,3,0" for n, level in enumerate(levels)]
    write_heart(tmp_path, va=[*rows, "80,1,4,130,?,0,1,150,0,1,2,0,3,0"])
    data = read("heart", tmp_path, impute="client_median")
    ages = {
        part: np.rint(10 * x.inputs[x.owners == "va"][:, 0] + 55)
        for part, x in vars(data).items()
        if part in ("train", "test")
    }
    known = [levels[int(age) - 30] for age in ages["train"] if age < 80]
    assert np.median(known) != np.median(levels), "the case tells the two apart"
    both = np.concatenate([part.inputs[part.owners == "va"] for part in (data.train, data.test)])
    filled = both[np.rint(10 * both[:, 0] + 55) == 80][0, 4]
    assert filled == pytest.approx((np.median(known) - 200) / 50)


def test_gaps_are_filled_with_constants(tmp_path):
    write_heart(tmp_path, va=["50,1,4,130,300,0,1,150,0,1,2,0,3,0"] * 9 + ["50,1,4,130,?,0,1,150,0,1,2,0,3,0"])
    data = read("heart", tmp_path)
    assert data.prepared_by == "sample"
    both = np.concatenate([part.inputs[part.owners == "va"] for part in (data.train, data.test)])
    assert sorted(set(both[:, 4].tolist())) == [0.0, 2.0], "200 for the gap, whatever the hospital's others are"
    with pytest.raises(CloisterError, match="public or client_median"):
        format_named("heart").read(tmp_path, impute="guess")


def test_packed_files_do_not_unpack_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("cloister.data.formats.source.MOST_BYTES", 1000)
    (tmp_path / "tinyshakespeare.txt.gz").write_bytes(gzip.compress(b"ANN:\n" + b"x" * 5000))
    with pytest.raises(Corrupted, match="at most 1000 bytes inside"):
        read("shakespeare", tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,3", "14 values in a line .* found 3 in line 2"),
        (HEALTHY.replace("130", "high"), "numbers or \\? .* in line 2"),
        (HEALTHY.replace("130", "nan"), "finite numbers or \\? .* in line 2"),
        (HEALTHY[:-1] + "5", "a diagnosis from 0 to 4 .* found '5' in line 2"),
        (HEALTHY[:-1] + "?", "a diagnosis from 0 to 4"),
    ],
)
def test_bad_heart_files_are_refused(tmp_path, line, message):
    write_heart(tmp_path, va=[HEALTHY, line])
    with pytest.raises(Corrupted, match=message):
        read("heart", tmp_path)


def test_an_empty_hospital_is_refused(tmp_path):
    write_heart(tmp_path, va=[])
    with pytest.raises(Corrupted, match="at least one patient"):
        read("heart", tmp_path)


# ---------------------------------------------------------------- Shakespeare

PLAY = "ANN:\nabcdefgh\nij\n\nBob:\nxyz\n\nGhost:\n\nANN:\nklm~\té\n"


def spell(ids: np.ndarray) -> str:
    return "".join("\0" if i == 0 else "\n" if i == 1 else chr(i + 30) for i in ids)


def test_roles_are_clients_and_windows_are_cut_in_time_order(tmp_path):
    write(tmp_path / "tinyshakespeare.txt.gz", PLAY.encode())
    data = read("shakespeare", tmp_path, length=3)
    # Ann says "abcdefgh\nij\nklm~\té", 18 characters, of which 14 are for training.
    assert [spell(row) for row in data.train.inputs] == ["abc", "efg", "\nij"]
    assert spell(data.train.labels) == "dh\n", "no character lies in two samples"
    assert data.train.owners.tolist() == ["ANN"] * 3, "Bob says too little, the ghost nothing"
    assert [spell(row) for row in data.test.inputs] == ["m~\0"]
    assert data.test.labels.tolist() == [0]
    assert (data.classes, data.train.inputs.dtype) == (97, np.int64)
    close = read("shakespeare", tmp_path, length=3, stride=1)
    assert [spell(row) for row in close.train.inputs[:3]] == ["abc", "bcd", "cde"]
    short = read("shakespeare", tmp_path, length=2)
    assert short.train.owners.tolist()[-1] == "Bob", "one window is for training, whatever is left for testing"
    with pytest.raises(CloisterError, match="length"):
        read("shakespeare", tmp_path, length=0)
    with pytest.raises(CloisterError, match="stride"):
        read("shakespeare", tmp_path, stride=0)


def test_a_text_too_short_for_any_window_has_no_samples(tmp_path):
    write(tmp_path / "tinyshakespeare.txt.gz", PLAY.encode())
    data = read("shakespeare", tmp_path)
    assert data.train.inputs.shape == (0, 80)
    assert len(data.test) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"once upon a time\n", "begin with a line NAME: .* found 'once upon a time'"),
        (b"", "at least one role"),
        (b"ANN:\n\xff", "UTF-8 text"),
    ],
)
def test_bad_plays_are_refused(tmp_path, text, message):
    write(tmp_path / "tinyshakespeare.txt.gz", text)
    with pytest.raises(Corrupted, match=message):
        read("shakespeare", tmp_path)


# ---------------------------------------------------------------- all of them


def test_the_formats_are_known_by_name():
    assert list(FORMATS) == NAMES
    assert all(form.name == name for name, form in FORMATS.items())
    with pytest.raises(CloisterError, match="found 'minst': perhaps you mean \"mnist\""):
        format_named("minst")
    with pytest.raises(CloisterError, match="an option of emnist, found 'splitt': perhaps you mean \"split\""):
        FORMATS["emnist"].options(splitt="letters")
    with pytest.raises(CloisterError, match="an option of mnist, found 'split': it has none"):
        FORMATS["mnist"].options(split="letters")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named_with_its_remedy(tmp_path, name):
    first = FORMATS[name].files(tmp_path)[0]
    with pytest.raises(CloisterError) as caught:
        read(name, tmp_path)
    assert str(caught.value) == f"Expected {first}, found no such file: run `cloister data get {name}`."
    assert not isinstance(caught.value, Corrupted)


# ---------------------------------------------------------------- the real files


def real_data(name: str, **options):
    assert REAL is not None
    if not all(path.exists() for path in FORMATS[name].files(Path(REAL), **options)):
        pytest.skip(f"the files of {name} are not in CLOISTER_DATA")
    return read(name, Path(REAL), **options)


@real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape", "counts"),
    [
        ("mnist", (1, 28, 28), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("fashion_mnist", (1, 28, 28), [6000] * 10),
        ("qmnist", (1, 28, 28), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("cifar10", (3, 32, 32), [5000] * 10),
        ("cifar100", (3, 32, 32), [500] * 100),
    ],
)
def test_real_pictures(name, shape, counts):
    data = real_data(name)
    train = 50000 if name.startswith("cifar") else 60000
    assert data.train.inputs.shape == (train, *shape)
    assert data.test.inputs.shape == (10000, *shape)
    assert np.bincount(data.train.labels).tolist() == counts
    pixels = data.train.inputs.astype(np.float32) / 255
    assert np.allclose(pixels.mean((0, 2, 3)), data.mean, atol=2e-3)
    assert np.allclose(pixels.std((0, 2, 3)), data.std, atol=6e-3)
    if name == "qmnist":
        assert len(np.unique(data.train.owners)) == 539
        assert len(np.unique(data.test.owners)) == 297
        assert not set(data.train.owners) & set(data.test.owners)


@real
@pytest.mark.slow
def test_real_emnist_digits_look_like_mnists():
    letters, digits = real_data("emnist"), real_data("mnist")
    assert len(np.unique(letters.train.labels)) == letters.classes == 62
    # Strokes and centring differ from MNIST's, so shapes are compared by correlation, over all eight orientations.
    likeness = np.zeros(8)
    for digit in range(10):
        mine, theirs = (d.train.inputs[d.train.labels == digit, 0].mean(0) for d in (letters, digits))
        turned = [np.rot90(image, quarter) for image in (mine, mine.T) for quarter in range(4)]
        likeness += [np.corrcoef(image.ravel(), theirs.ravel())[0, 1] / 10 for image in turned]
    assert likeness[0] > likeness[1:].max() + 0.1, "upright is most like MNIST"


@real
@pytest.mark.slow
def test_real_femnist_digits():
    data = real_data("femnist_digits")
    assert len(data.train) + len(data.test) == 18544
    assert len(np.unique(data.train.owners)) == len(np.unique(data.test.owners)) == 190
    assert data.train.inputs.mean() < 30, "ink on black"


@real
@pytest.mark.slow
def test_real_har():
    data = real_data("har")
    assert len(data.train) + len(data.test) == 10299
    assert data.train.inputs.shape[1:] == (9, 128)
    means = data.train.inputs.mean((0, 2))
    assert np.allclose(means[:6], 0, atol=0.02), "a body neither speeds up nor turns on average"
    assert means[6] == pytest.approx(0.8, abs=0.05), "but is pulled down, mostly along x"
    assert sorted(np.unique(np.concatenate([data.train.owners, data.test.owners]))) == list(range(30))


@real
@pytest.mark.slow
def test_real_heart():
    data = real_data("heart")
    owners = np.concatenate([data.train.owners, data.test.owners])
    assert {name: int((owners == name).sum()) for name in np.unique(owners)} == {
        "cleveland": 303,
        "hungarian": 294,
        "switzerland": 123,
        "va": 200,
    }
    assert np.isfinite(data.train.inputs).all()
    assert np.abs(data.train.inputs).max() < 10


@real
@pytest.mark.slow
def test_real_shakespeare():
    from cloister.data.formats.shakespeare import roles
    from cloister.data.formats.source import Source

    data = real_data("shakespeare")
    source = Source(FORMATS["shakespeare"].files(Path(str(REAL)))[0], "shakespeare")
    assert len(roles(source)) == 299
    assert len(np.unique(data.train.owners)) == 256
    assert data.train.inputs.min() > 0, "every character is known"
    assert spell(data.train.inputs[0]).startswith("Before we proceed any further")
