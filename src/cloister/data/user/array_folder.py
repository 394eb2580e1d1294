"""A task from a folder of arrays that stay on the disk, for more samples than fit into memory.

    inputs.npy        [n, ...]  uint8, int64, float32 or float64
    labels.npy        [n, ...]  int64 where they are classes, otherwise float32
    sizes.npy         [clients] whole numbers: the first client owns the first sizes[0] rows, the next the next, ...
    test-inputs.npy, test-labels.npy   what the model is tested on; may be left out

`write_array_folder` writes one from clients that come one after the other. Memory does not grow with the number of
samples, and by a few dozen bytes for each client that is registered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from cloister.client.losses import Loss, LossFunction, loss_of
from cloister.client.population import Population
from cloister.client.preprocessing import Preprocessing
from cloister.data.arrays import tensor_of
from cloister.data.labels import declared_classes, expect_labels_of
from cloister.data.mapped import Mapped
from cloister.data.raw import Array
from cloister.data.task import Task, expect_types, pair_of, usual_preprocessing
from cloister.data.user.tables import load_array
from cloister.errors import CloisterError, expect, expect_type
from cloister.models import logistic

INPUTS, LABELS, SIZES = "inputs.npy", "labels.npy", "sizes.npy"
TEST = ("test-inputs.npy", "test-labels.npy")


def from_array_folder(
    path: str | Path,
    classes: int | None = None,
    loss: Loss | LossFunction | str = "cross_entropy",
    *,
    model: Callable[[], nn.Module] | None = None,
    preprocessing: Preprocessing | None = None,
    name: str | None = None,
    class_names: tuple[str, ...] = (),
) -> Task:
    """A task whose samples stay on the disk: of the clients' rows, only those of a round's cohort are read.

    Every row is read once beforehand, block by block: inputs have to be finite, labels have to fit the loss, and the
    run's fingerprint covers all of them. The files must not change while the task is in use. On a GPU the samples are
    copied to the device's memory, as others are. Clients are known by number; the arguments are those of `from_arrays`.
    """
    expect_type("path", path, (str, Path), "the path of a folder", "name the folder of the arrays")
    folder = Path(path)
    for file in (INPUTS, LABELS, SIZES):
        expect((folder / file).is_file(), f"{file} in {folder}", "no such file", "write it with numpy.save")
    name = folder.resolve().name if name is None else name
    expect_types(model, preprocessing, name)
    loss = loss_of(loss)
    inputs, labels, sizes = Mapped.of(folder / INPUTS), Mapped.of(folder / LABELS), _sizes(folder / SIZES)
    x, y, rows = inputs.tensor, labels.tensor, int(sizes.sum())
    for mapped in (inputs, labels):
        expect(mapped.tensor.dim() > 0, f"{mapped.path} to be an array", "a single number", "give a row per sample")
        found = len(mapped.tensor)
        expect(found == rows, f"{rows} rows in {mapped.path}, as {SIZES} says", found, "write as many")
        _expect_finite(mapped)
    expect(rows > 0, "at least one sample", 0, "give some data")
    wanted = torch.int64 if loss.classes else torch.float32
    fits = loss.own or y.dtype is wanted
    expect(fits, f"{LABELS} to be {wanted} for the loss {loss.name}", y.dtype, "convert it with array.astype")

    test_x, test_y = _test(folder, x, y)
    classes, inferred = declared_classes(classes, class_names, loss)
    parts: dict[str, Tensor | Mapped] = {"labels": labels, "test labels": test_y}
    classes = expect_labels_of(parts, loss, classes)
    preprocessing = preprocessing or usual_preprocessing(x)
    shape = tuple(preprocessing.test(x[:1], torch.float32).shape[1:])

    return Task(
        name=name,
        population=Population(x, y, sizes.cumsum(0) - sizes, sizes, stored=_Stored(inputs, labels)),
        test_inputs=test_x,
        test_labels=test_y,
        classes=classes,
        model=model or partial(logistic, shape, loss.outputs(classes, y.shape[1] if y.dim() > 1 else 1)),
        loss=loss,
        preprocessing=preprocessing,
        classes_inferred=inferred,
        class_names=tuple(map(str, class_names)),
    )


@dataclass(frozen=True)
class _Stored:
    """The clients' samples, on the disk."""

    inputs: Mapped
    labels: Mapped

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs.rows(rows), self.labels.rows(rows)

    def release(self) -> None:
        self.inputs.release()
        self.labels.release()


def is_array_folder(path: Path) -> bool:
    """Whether a folder holds arrays, and not tables or images."""
    return (path / INPUTS).is_file()


def write_array_folder(
    path: str | Path, clients: Iterable[tuple[Any, Any]], test: tuple[Any, Any] | None = None
) -> None:
    """Write a folder for `from_array_folder`, client by client: each is a pair (inputs [k, ...], labels [k, ...]).

    Only one client is in memory at a time, so `clients` may be a generator. A client may have no samples. The folder
    appears complete, or not at all; one that is there is not written over.

    >>> people = ((np.random.rand(10, 4).astype("float32"), np.arange(10) % 3) for client in range(5))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_array_folder(f"{folder}/people", people)
    ...     from_array_folder(f"{folder}/people")
    <Task people: 5 clients, 50 samples of 4, 3 classes>
    """
    folder = Path(path)
    expect(not folder.exists(), "a new folder", str(folder), "remove it, or write elsewhere")
    expect(folder.parent.is_dir(), "a folder to write into", str(folder.parent), "make it")
    sizes = []
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        whole = Path(temporary) / "whole"
        whole.mkdir()
        with open(whole / INPUTS, "wb") as inputs, open(whole / LABELS, "wb") as labels:
            growing = _Growing("inputs", inputs), _Growing("labels", labels)
            for client, given in enumerate(clients):
                x, y = (tensor_of(f"{part.what} of client {client}", v) for part, v in zip(growing, given, strict=True))
                expect(len(x) == len(y), f"as many labels as inputs of client {client}", len(y), "give one for each")
                for part, values in zip(growing, (x, y), strict=True):
                    part.add(values.numpy())
                sizes.append(len(y))
            for part in growing:
                part.close()
        np.save(whole / SIZES, np.array(sizes, dtype=np.int64))
        if test is not None:
            for file, values in zip(TEST, test, strict=True):
                np.save(whole / file, tensor_of(file, values).numpy())
        whole.rename(folder)


class _Growing:
    """A .npy file that rows are added to; how many there are is written last, into the room that is left for it."""

    def __init__(self, what: str, file: IO[bytes]) -> None:
        self.what, self.file, self.rows = what, file, 0
        self.form: tuple[np.dtype[Any], tuple[int, ...]] | None = None

    def add(self, rows: Array) -> None:
        if self.what == "labels" and rows.dtype == np.float64:
            rows = rows.astype(np.float32)  # as losses take them
        form = rows.dtype, rows.shape[1:]
        if self.form is None:
            self.form = form
            self._header()
        wanted = f"{self.what} of one type and shape, {self.form[0]} {self.form[1]} as in the first client"
        expect(form == self.form, wanted, f"{form[0]} {form[1]}", "make them alike")
        self.file.write(rows.data if rows.size else b"")
        self.rows += len(rows)

    def close(self) -> None:
        expect(self.form is not None, "at least one client", 0, "give some data")
        length = self.file.tell()
        self._header()
        self.file.seek(length)

    def _header(self) -> None:
        assert self.form is not None
        self.file.seek(0)
        about = {"descr": self.form[0].str, "fortran_order": False, "shape": (self.rows, *self.form[1])}
        np.lib.format.write_array_header_1_0(self.file, about)


def _sizes(path: Path) -> Tensor:
    """How many samples each client has."""
    found = load_array(path)
    fine = found.ndim == 1 and found.dtype.kind in "iu" and len(found) > 0 and int(found.min()) >= 0
    kind = f"{found.dtype} of shape {found.shape}" if found.dtype.kind not in "iu" or found.ndim != 1 else "others"
    expect(fine, f"{path} to be whole numbers that are not negative, one for every client", kind, "write these")
    return torch.from_numpy(found.astype(np.int64, copy=False))


def _expect_finite(mapped: Mapped) -> None:
    if not mapped.tensor.is_floating_point():
        return
    for first, rows in mapped.blocks():
        finite = torch.isfinite(rows.flatten(1).sum(1) if rows.dim() > 1 else rows)
        if not finite.all() and not torch.isfinite(rows).all():
            row = first + int((~torch.isfinite(rows)).flatten(1).any(1).nonzero()[0] if rows.dim() > 1 else 0)
            raise CloisterError(
                f"Expected finite numbers in {mapped.path}, found NaN or infinity in row {row}: remove or impute them."
            )


def _test(folder: Path, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """What a model is tested on: the one part that is kept in memory."""
    there = [(folder / file).is_file() for file in TEST]
    expect(there[0] == there[1], f"both {TEST[0]} and {TEST[1]}, or neither", "one", "write the other")
    if not there[0]:
        return x[:0].clone(), y[:0].clone()
    test_x, test_y = pair_of("test", [load_array(folder / file) for file in TEST], x, "leave them out")
    return test_x, test_y.to(y.dtype)
