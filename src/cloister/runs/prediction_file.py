"""Predictions as a file, and the data that they are made for: what `cloister predict` reads and writes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data.raw import Array
from cloister.errors import CloisterError, Corrupted, expect, expect_package
from cloister.privacy.description import plain
from cloister.runs.files import expect_new_file, write_atomically
from cloister.runs.trained_model import TrainedModel

Columns = dict[str, Array]


def predict_file(
    model: TrainedModel, data: Path, file: Path, proba: bool = False, force: bool = False
) -> tuple[int, dict[str, float | None] | None]:
    """Predict for every row of the data and write the file; returns how many rows, and scores where there are labels.

    All that can be refused without computing is refused first.
    """
    expect_new_file(file, tuple(WRITERS), force)
    expect(data.exists(), "data to predict for", str(data), "check the name")
    raw, labels, columns = read_rows(model, data)
    outputs = model.outputs(raw)
    if not columns:
        columns = {"row": np.arange(len(outputs))}
    flat = file.suffix != ".npz"
    survival, names = model.about.loss["name"] in ("hazards", "cox"), _names(model)
    columns |= _spread("risk" if survival else "prediction", model.predictions(outputs), names, flat)
    if proba:
        columns |= _spread("survival" if survival else "probability", model.probabilities(outputs), names, flat)
    scores = None if labels is None or model.loss is None else model.scores_of(outputs, labels)
    write_atomically(file, WRITERS[file.suffix](columns))
    return len(outputs), scores


def read_rows(model: TrainedModel, data: Path) -> tuple[Any, Any, Columns]:
    """Raw rows, their labels where there are some, and columns that tell them apart."""
    if model.encoder is not None:
        raw = model.encoder.read(data) if hasattr(model.encoder, "read") else data
        identity = model.encoder.identity(raw) if hasattr(model.encoder, "identity") else {}
        return raw, model.labels_of(raw), {name: np.asarray(values) for name, values in identity.items()}
    if data.suffix not in (".npz", ".npy"):
        raise CloisterError(
            f"Expected a file .npz with inputs, or .npy, for a model that was trained on arrays, found {data}: it does "
            "not know what columns or pictures are."
        )
    arrays = _arrays(data)
    if "inputs" not in arrays:
        raise CloisterError(f"Expected an array inputs in {data}, found {', '.join(arrays) or 'none'}: rename it.")
    rows = len(arrays["inputs"]) if arrays["inputs"].ndim else 0
    columns = {}
    if "clients" in arrays:
        fits = arrays["clients"].shape == (rows,)
        expect(fits, f"a client for each of {rows} rows in {data}", arrays["clients"].shape, "give one for every row")
        columns = {"row": np.arange(rows), "client": arrays["clients"]}
    return arrays["inputs"], arrays.get("labels"), columns


def _arrays(file: Path) -> dict[str, Array]:
    try:
        with file.open("rb") as opened:
            found = np.load(opened, allow_pickle=False)
            return {"inputs": found} if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except OSError as error:
        raise CloisterError(f"Expected to read {file}, found {error.strerror or error}: check the file.") from error
    except Exception as error:  # a damaged file may fail in any way at all
        raise Corrupted(f"Expected a readable {file.suffix} file, found {file} damaged: write it again.") from error


def _names(model: TrainedModel) -> list[str]:
    """What the columns of an answer are called: classes, questions, or the ends of intervals."""
    loss = model.about.loss
    if loss["name"] == "hazards":
        return [f"{end:g}" for end in loss["settings"]["intervals"]]
    if loss["name"] == "multi_label":
        return list(getattr(model.encoder, "label", ()))
    return model.about.class_names


def _spread(name: str, values: Array, names: Sequence[str], flat: bool) -> Columns:
    """Values [n] as a column; [n, k] as k columns, unless the file takes arrays as they are."""
    if values.ndim == 1 or not flat:
        return {name: values}
    if values.ndim > 2:
        raise CloisterError(
            f"Expected a {name} or a row of them for every sample, found an array of shape {values.shape}: write a "
            "file .npz, which takes such arrays."
        )
    known = len(names) >= values.shape[1]
    return {f"{name}_{names[at] if known else at}": values[:, at] for at in range(values.shape[1])}


def _frame(columns: Columns) -> Any:
    import pandas

    return pandas.DataFrame(columns)


def _csv(columns: Columns) -> bytes:
    text: str = _frame(columns).to_csv(index=False, lineterminator="\n")
    return text.encode()


def _parquet(columns: Columns) -> bytes:
    expect_package("pyarrow", "to write .parquet", "parquet")
    content = io.BytesIO()
    _frame(columns).to_parquet(content, index=False)
    return content.getvalue()


def _npz(columns: Columns) -> bytes:
    content = io.BytesIO()
    arrays: dict[str, Any] = columns
    np.savez(content, **arrays)
    return content.getvalue()


def _json(columns: Columns) -> bytes:
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    return (json.dumps(plain([dict(zip(columns, row, strict=True)) for row in rows]), indent=1) + "\n").encode()


WRITERS: dict[str, Callable[[Columns], bytes]] = {".csv": _csv, ".parquet": _parquet, ".npz": _npz, ".json": _json}
