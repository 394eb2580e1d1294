"""Decoded data, kept beside the files it came from: the second load maps arrays into memory and reads nothing."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from cloister.data.formats import Format, format_named
from cloister.data.formats.source import Source
from cloister.data.raw import Array, RawData, Samples
from cloister.errors import CloisterError, Corrupted

FOLDER = ".cloister"
LAYOUT = 1  # of the cache itself
KINDS = [field.name for field in fields(Samples)]


Derive = Callable[[RawData], RawData]


def cached(format_name: str, root: Path, *derive: Derive, **options: Any) -> RawData:
    """What `FORMATS[format_name].read(root, **options)` gives, decoded at most once.

    With `derive` (functions with names), what these make of it, one after the other, each computed at most once.

    The arrays lie in `root/.cloister/<name>-<hash>/`, where the hash covers the options, the versions of reader and
    cache, and the sizes and times of the source files, so that a changed file is decoded anew. The folder appears
    complete, in one step, or not at all. Where nothing can be written, nothing is kept.
    """
    form = format_named(format_name)
    options = form.options(**options)
    suffix = "".join(f"-{one.__name__}" for one in derive)
    folder = root / FOLDER / f"{form.name}-{_key(form, root, options)}{suffix}"
    kept = _load(folder)
    if kept is not None:
        return kept
    data = derive[-1](cached(format_name, root, *derive[:-1], **options)) if derive else _read(form, root, options)
    with suppress(OSError):
        _store(data, folder)
    return _load(folder) or data


def _read(form: Format, root: Path, options: dict[str, Any]) -> RawData:
    try:
        return form.read(root, **options)
    except CloisterError:
        raise
    except (Exception, MemoryError) as error:  # a damaged file may fail in any way at all
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Corrupted(
            f"Expected whole files of {form.name} in {root}, found damage ({reason}): get them again with "
            f"`cloister data get {form.name} --replace`."
        ) from error


def _key(form: Format, root: Path, options: dict[str, Any]) -> str:
    stamps = []
    for path in form.files(root, **options):
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise Source(path, form.name).missing() from None
        except OSError as error:
            raise CloisterError(f"Expected to read {path}, found {error.strerror}: fix that.") from error
        stamps.append([str(path.relative_to(root)), stat.st_size, stat.st_mtime_ns])
    content = json.dumps([LAYOUT, form.name, form.version, options, stamps], sort_keys=True, default=repr)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _arrays(data: RawData) -> dict[str, Array]:
    parts = {"train": data.train, "test": data.test}
    found = {f"{name}-{kind}": getattr(part, kind) for name, part in parts.items() for kind in KINDS}
    return {name: array for name, array in found.items() if array is not None}


def _store(data: RawData, folder: Path) -> None:
    """Write a temporary sibling and rename it; where another process was faster, its folder stays."""
    arrays = _arrays(data)
    about = {
        "classes": data.classes,
        "mean": data.mean,
        "std": data.std,
        "prepared_by": data.prepared_by,
        "arrays": {name: [array.dtype.str, array.shape] for name, array in arrays.items()},
    }
    folder.parent.mkdir(exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            whole = Path(temporary) / "whole"
            whole.mkdir()
            for name, array in arrays.items():
                _write_through(whole / f"{name}.npy", partial(np.save, arr=array, allow_pickle=False))
            text = json.dumps(about).encode()
            _write_through(whole / "about.json", lambda file: file.write(text))
            if folder.exists() and _load(folder) is None:
                folder.rename(Path(temporary) / "damaged")
            whole.rename(folder)
    finally:
        with suppress(OSError):
            folder.parent.rmdir()  # succeeds only where it is empty: a failure leaves no trace


def _write_through(path: Path, content: Callable[[IO[bytes]], object]) -> None:
    """Onto the disk before the rename: after a power cut, a folder of the right name has the right content."""
    with open(path, "wb") as file:
        content(file)
        file.flush()
        os.fsync(file.fileno())


def _load(folder: Path) -> RawData | None:
    """The data kept in the folder, or None where there is none that is whole."""
    try:
        about = json.loads((folder / "about.json").read_bytes())
        arrays = {name: _map(folder / f"{name}.npy", *form) for name, form in about["arrays"].items()}
        train, test = (
            Samples(arrays[f"{part}-inputs"], arrays[f"{part}-labels"], arrays.get(f"{part}-owners"))
            for part in ("train", "test")
        )
        constants = int(about["classes"]), tuple(about["mean"]), tuple(about["std"])
        # What was kept before this was said comes of samples alone: only an option that was not there has owners' data.
        return RawData(train, test, *constants, about.get("prepared_by", "sample"))
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _map(path: Path, dtype: str, shape: list[int]) -> Array:
    array: Array = np.load(path, mmap_mode="r" if 0 not in shape else None, allow_pickle=False)
    if array.dtype.str != dtype or list(array.shape) != shape:
        raise ValueError(path)
    return array
