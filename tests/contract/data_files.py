"""Every data set as small files in its own format, written from samples that a test can replace one by one."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cloister as cl
from cloister.data import Task
from cloister.data.formats.har import CHANNELS
from cloister.data.formats.heart import HOSPITALS
from data.test_formats import images_bytes, labels_bytes, leaf, npz, python3_pickle, qmnist_bytes, write

COUNT, PEOPLE = 24, 4
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Rows:
    """Samples: inputs, labels, and the number of whose each one is."""

    inputs: Array
    labels: Array
    people: Array

    def with_other(self, row: int, inputs: Array | None = None, label: int | None = None) -> Rows:
        """The same, but for one sample."""
        x, y = self.inputs.copy(), self.labels.copy()
        x[row] = x[row] if inputs is None else inputs
        y[row] = y[row] if label is None else label
        return replace(self, inputs=x, labels=y)


@dataclass(frozen=True)
class Case:
    """A data set: what samples it has, how its files are written, and the key of its function that it needs."""

    name: str
    draw: Callable[[np.random.Generator, int], Array]
    classes: int
    write: Callable[[Path, Rows, Rows], None]
    owned: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    others: Callable[[Array], list[Array]] = lambda x: []
    """More that the inputs of a sample may become, beside another draw: what is hardest to keep to its row."""

    def rows(self, seed: int, count: int = COUNT) -> Rows:
        """Samples of every class or nearly, people taking turns."""
        random = np.random.default_rng(seed)
        return Rows(self.draw(random, count), np.arange(count) % self.classes, np.arange(count) % PEOPLE)

    def task(self, **options: Any) -> Task:
        """The data set, from the files under CLOISTER_DATA."""
        return cl.data.CATALOGUE[self.name](**self.options, **options)


def bytes_of(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return random.integers(0, 256, shape, dtype=np.uint8)


def pictures(random: np.random.Generator, count: int) -> Array:
    return bytes_of(random, (count, 784))


def write_idx(folder: str, train: str, test: str) -> Callable[[Path, Rows, Rows], None]:
    def to(root: Path, mine: Rows, held: Rows) -> None:
        for part, rows in ((train, mine), (test, held)):
            write(root / folder / f"{part}-images-idx3-ubyte.gz", images_bytes(list(rows.inputs)))
            write(root / folder / f"{part}-labels-idx1-ubyte.gz", labels_bytes(rows.labels.tolist()))

    return to


def write_qmnist(root: Path, mine: Rows, held: Rows) -> None:
    write_idx("MNIST/raw", "train", "t10k")(root, mine, held)
    for part, rows in (("train", mine), ("test", held)):
        pairs = list(zip(rows.labels.tolist(), rows.people.tolist(), strict=True))
        write(root / "qmnist" / f"qmnist-{part}-labels-idx2-int.gz", qmnist_bytes(pairs))


def write_cifar10(root: Path, mine: Rows, held: Rows) -> None:
    folder = root / "cifar-10-batches-py"
    for number, some in enumerate(np.array_split(np.arange(len(mine.labels)), 5), start=1):
        block = python3_pickle(mine.inputs[some].tobytes(), len(some), mine.labels[some].tolist())
        write(folder / f"data_batch_{number}", block)
    write(folder / "test_batch", python3_pickle(held.inputs.tobytes(), len(held.labels), held.labels.tolist()))


def write_cifar100(root: Path, mine: Rows, held: Rows) -> None:
    for part, rows in (("train", mine), ("test", held)):
        block = python3_pickle(rows.inputs.tobytes(), len(rows.labels), rows.labels.tolist(), b"fine_labels")
        write(root / "cifar-100-python" / part, block)


def write_femnist(root: Path, mine: Rows, held: Rows) -> None:
    for part, rows in (("train", mine), ("test", held)):
        people = [(f"f{person}", rows.people == person) for person in range(PEOPLE)]
        content = leaf(
            {name: ((rows.inputs[m] / 255).tolist(), rows.labels[m].tolist()) for name, m in people if m.any()}
        )
        write(root / "femnist" / "data" / part / "all_data_0.json", json.dumps(content).encode())


def write_femnist_digits(root: Path, mine: Rows, held: Rows) -> None:
    names = np.array([f"f{person}" for person in range(PEOPLE)])
    images = mine.inputs.reshape(-1, 28, 28)
    content = npz(images=images, labels=mine.labels.astype(np.uint8), writer=mine.people, writer_names=names)
    write(root / "femnist_digits_190writers.npz", content)


def write_fed_emnist(root: Path, mine: Rows, held: Rows) -> None:
    h5py = pytest.importorskip("h5py", reason="needs h5py: pip install cloister[hdf5]")
    (root / "fed_emnist").mkdir(parents=True)
    for part, rows in (("train", mine), ("test", held)):
        with h5py.File(root / "fed_emnist" / f"fed_emnist_{part}.h5", "w") as file:
            for person in np.unique(rows.people):
                group, own = file.create_group(f"examples/f{person}"), rows.people == person
                group["pixels"] = (rows.inputs[own] / 255).reshape(-1, 28, 28).astype(np.float32)
                group["label"] = rows.labels[own]


def windows(random: np.random.Generator, count: int) -> Array:
    """Nine levels far apart, each of them smooth in time."""
    level, drift = np.arange(9)[:, None] % 3, np.linspace(0, 0.1, 128)
    return (level + drift + 0.01 * random.normal(size=(count, 9, 128))).astype(np.float32)


def rough(window: Array) -> list[Array]:
    """Signals that jump from step to step, by more than all others together."""
    return [np.broadcast_to(1e4 * (-1.0) ** np.arange(128), (9, 128)).astype(np.float32)]


def write_packed_har(root: Path, mine: Rows, held: Rows) -> None:
    stored = mine.inputs.transpose(0, 2, 1).reshape(-1, 9, 128)  # as the file in circulation has them
    content = npz(x=stored, y=mine.labels.astype(np.uint8), subject=mine.people)
    write(root / "uci_har_30subjects.npz.xz", lzma.compress(content, preset=0))


def write_uci_har(root: Path, mine: Rows, held: Rows) -> None:
    folder = root / "UCI HAR Dataset"
    for part, rows in (("train", mine), ("test", held)):
        for number, channel in enumerate(CHANNELS):
            lines = [" ".join(f"{value:.7e}" for value in window) for window in rows.inputs[:, number]]
            write(folder / part / "Inertial Signals" / f"{channel}_{part}.txt", "\n".join(lines).encode())
        for name, column in (("y", rows.labels), ("subject", rows.people)):
            write(folder / part / f"{name}_{part}.txt", "\n".join(str(value + 1) for value in column).encode())


def patients(random: np.random.Generator, count: int) -> Array:
    """Findings with a tenth of them missing, and one that nobody has but the first."""
    values = random.integers(1, 200, (count, 13)).astype(float)
    values[random.random(values.shape) < 0.1] = np.nan
    values[1:, 11] = np.nan
    return values


def write_heart(root: Path, mine: Rows, held: Rows) -> None:
    for person, hospital in enumerate(HOSPITALS):
        own = mine.people == person
        lines = [
            ",".join([*("?" if np.isnan(value) else f"{value:g}" for value in values), str(3 * label)])
            for values, label in zip(mine.inputs[own], mine.labels[own], strict=True)
        ]
        write(root / "heart_disease" / f"processed.{hospital}.data", ("\n".join(lines) + "\n").encode())


def blanked(values: Array) -> list[Array]:
    """The patient with each of two findings, and with all of them, missing."""
    columns = [[4], [11], list(range(13))]
    return [np.where(np.isin(np.arange(13), gone), np.nan, values) for gone in columns]


LENGTH = 7


def sayings(random: np.random.Generator, count: int) -> Array:
    """Letters, as codes of the vocabulary: what a sample sees."""
    return random.integers(ord("a"), ord("z") + 1, (count, LENGTH)) - 30


def write_shakespeare(root: Path, mine: Rows, held: Rows) -> None:
    """What a role says is its samples, one after the other: what each sees and what it guesses."""
    text = ""
    for person in range(PEOPLE):
        own = mine.people == person
        codes = np.concatenate([mine.inputs[own], mine.labels[own][:, None] % 26 + ord("A") - 30], axis=1)
        text += f"ROLE {person}:\n" + "".join(chr(code + 30) for code in codes.flatten()) + "\n\n"
    write(root / "tinyshakespeare.txt.gz", text.encode())


CASES = {
    case.name if case.write is not write_uci_har else "har as UCI has it": case
    for case in (
        Case("mnist", pictures, 10, write_idx("MNIST/raw", "train", "t10k"), owned=False),
        Case("fashion_mnist", pictures, 10, write_idx("FashionMNIST/raw", "train", "t10k"), owned=False),
        Case(
            "emnist", pictures, 62, write_idx("EMNIST/raw", "emnist-byclass-train", "emnist-byclass-test"), owned=False
        ),
        Case("qmnist", pictures, 10, write_qmnist),
        Case("cifar10", lambda random, count: bytes_of(random, (count, 3072)), 10, write_cifar10, owned=False),
        Case("cifar100", lambda random, count: bytes_of(random, (count, 3072)), 100, write_cifar100, owned=False),
        Case("femnist", pictures, 62, write_femnist),
        Case("femnist_digits", pictures, 10, write_femnist_digits),
        Case("fed_emnist", pictures, 62, write_fed_emnist),
        Case("har", windows, 6, write_packed_har, others=rough),
        Case("har", windows, 6, write_uci_har, others=rough),
        Case("heart", patients, 2, write_heart, others=blanked),
        Case("shakespeare", sayings, 26, write_shakespeare, options={"length": LENGTH}),
    )
}
