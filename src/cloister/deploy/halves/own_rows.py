"""The rows of one node, read as the terms declare them: tables with the schema, arrays, images.

Nothing is inferred from them: columns, classes, shapes and types are the terms', and rows that do not fit are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloister.client.losses import expect_labels
from cloister.core.hashing import hash_of
from cloister.data.arrays import tensor_of
from cloister.data.labels import expect_classes
from cloister.data.paths import TABLES
from cloister.data.user.plain_tables import as_classes, plain_schema, read_arrays
from cloister.data.user.tables import load_array, read_files
from cloister.deploy.terms.sample_terms import DTYPES, SampleTerms
from cloister.deploy.terms.terms import Terms
from cloister.errors import CloisterError, expect, shown


@dataclass(frozen=True)
class Rows:
    """One node's rows, as the terms declare rows. All of them are trained on: none is held out for a test."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def fingerprint(self) -> str:
        """A hash of the data, by which a node knows them again. It never leaves: it would confirm guesses."""
        return hash_of({"inputs": self.inputs, "labels": self.labels})

    @classmethod
    def of(cls, inputs: Any, labels: Any, samples: SampleTerms) -> Rows:
        """Rows from arrays, which must be of the declared form."""
        x, y = tensor_of("inputs", inputs), tensor_of("labels", labels)
        loss = samples.loss_function
        expect(len(x) == len(y) > 0, "as many labels as inputs, and some", (len(x), len(y)), "give one for every row")
        kind = DTYPES[samples.dtype]
        converts = kind == x.dtype or (kind.is_floating_point and x.dtype.is_floating_point)
        expect(converts, f"inputs of {samples.dtype}, as the terms declare", str(x.dtype), "convert them")
        for what, wanted, given in (("inputs", samples.shape, x), ("labels", samples.labels, y)):
            shape = tuple(given.shape[1:])
            expect(shape == wanted, f"{what} of shape {wanted}, as the terms declare", shape, "fix the data")
        expect(bool(torch.isfinite(x).all()), "inputs that are finite numbers", "others", "fix the data")
        expect_labels("labels", y, loss)
        if loss.classes:
            assert samples.classes is not None
            expect_classes("labels", y, samples.classes, padding=loss.name == "next_token")
        return cls(x.to(kind), y.long() if loss.classes else y.float())

    @classmethod
    def load(cls, path: str | Path, terms: Terms) -> Rows:
        """Rows from a table, a folder of tables, a .npz, a folder of arrays, or a folder of images by class."""
        where, samples = Path(path), terms.samples
        if not where.exists():
            raise CloisterError(f"Expected this node's data, found nothing at {str(path)!r}: check the path.")
        if samples.schema is not None:
            return _of_schema(where, samples)
        if where.is_dir() and (where / "inputs.npy").is_file():
            inputs, labels = (load_array(where / f"{name}.npy") for name in ("inputs", "labels"))
            return cls.of(inputs, labels, samples)
        if where.is_dir() and samples.encoder is not None:
            classes = samples.encoder.labels(where)
            remedy = f"put images into folders {', '.join(samples.class_names)}"
            expect(classes is not None, "images in folders of the declared classes", str(where), remedy)
            return cls.of(samples.encoder.encode(where), classes, samples)
        parts = [_plain(file, samples) for file in _files(where)]
        inputs, labels = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        return cls.of(inputs, labels, samples)


def _of_schema(where: Path, samples: SampleTerms) -> Rows:
    """All tables together are this node's rows, whatever their files are called."""
    schema = samples.schema
    assert schema is not None
    tables = read_files(_files(where, (".csv", ".data", ".txt", *TABLES)), schema.layout(labels=True))
    inputs = np.concatenate([schema.features(table) for table in tables])
    labels = np.concatenate([schema.label_values(table) for table in tables])
    return Rows.of(inputs, labels, samples)


def _files(where: Path, suffixes: tuple[str, ...] = tuple(TABLES)) -> list[Path]:
    if not where.is_dir():
        return [where]
    found = sorted(one for one in where.iterdir() if one.suffix in suffixes and one.is_file())
    wanted = ", ".join(dict.fromkeys(suffixes))
    expect(bool(found), f"files {wanted} in {where}", "none", "put this node's rows there")
    return found


def _plain(file: Path, samples: SampleTerms) -> tuple[Any, Any]:
    """Numbers as they are: of an .npz its inputs and labels, of a table all columns and the one called label."""
    if file.suffix == ".npz":
        return read_arrays(file)
    schema = plain_schema(file, ("label",))
    (table,) = read_files([file], schema.layout(labels=True))
    labels = schema.label_values(table)
    expect(len(samples.shape) == 1, f"arrays for inputs of shape {samples.shape}", shown(file.name), "give an .npz")
    return schema.features(table), as_classes(schema, table, labels) if samples.loss_function.classes else labels
