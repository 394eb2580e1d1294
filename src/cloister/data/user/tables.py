"""Tables as named columns: from files (.csv, .parquet, .npz), from frames (pandas, polars, pyarrow) and from dicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data.paths import TABLES
from cloister.data.raw import Array
from cloister.data.user.cells import Cells, cells_of
from cloister.errors import CloisterError, Corrupted, expect, expect_package, shown


@dataclass(frozen=True)
class Table:
    """Columns of equal length by name, and where they come from. `place(row)` says where a row is found."""

    columns: Mapping[str, Array | Cells]
    rows: int
    source: str
    place: Callable[[int], str]

    def cells(self, name: str) -> Cells:
        """A column, as its different cells."""
        column = self.columns[name]
        if isinstance(column, Cells):
            return column
        try:
            return cells_of(column)
        except (TypeError, ValueError):
            raise CloisterError(
                f"Expected numbers, words or dates in column {name!r} of {self.source}, found lists or objects: give "
                "one value for every row."
            ) from None

    def refuse(self, name: str, row: int, expectation: str, found: object, remedy: str) -> None:
        """Say what is wrong with a cell (None: a missing one), and where it stands."""
        what = "nothing" if found is None else shown(found)
        raise CloisterError(f"Expected {expectation} in column {name!r}, found {what} in {self.place(row)}: {remedy}.")


def _every_column(names: Sequence[str], source: str) -> list[str]:
    return list(names)


@dataclass(frozen=True)
class Layout:
    """What a reader has to know: how files are written, and which columns are wanted."""

    separator: str = ","
    headers: tuple[tuple[str, ...], ...] = ()
    """The columns, where files do not begin with them; the one with as many as a file has counts."""
    numbers: frozenset[str] = frozenset()
    """Columns that are read as numbers at once."""
    missing: tuple[str, ...] = ()
    """Cells that are no numbers and mean nothing, in any column."""
    select: Callable[[Sequence[str], str], list[str]] = _every_column
    """Which of the columns that a source has are wanted; whatever should not be is refused."""


def read_files(paths: Sequence[Path], layout: Layout) -> list[Table]:
    """The wanted columns of files; whatever is wrong with one is a sentence."""
    from cloister.data.user.csv_files import read_csvs

    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    found: dict[Path, Table] = {}
    for path in paths:
        if path.suffix in readers:
            with readable(path):
                found[path] = readers[path.suffix](path, layout)
    texts = [path for path in paths if path.suffix not in readers]
    found |= zip(texts, read_csvs(texts, layout), strict=True)
    return [found[path] for path in paths]


def read_file(path: Path, layout: Layout) -> Table:
    """The wanted columns of a file."""
    return read_files([path], layout)[0]


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a file is read is one sentence with its name."""
    try:
        yield
    except CloisterError:
        raise
    except Exception as error:  # a damaged file may fail in any way at all
        if isinstance(error, OSError) and error.strerror:
            raise CloisterError(
                f"Expected a readable file, found {path} ({error.strerror}): check the path and its permissions."
            ) from error
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise Corrupted(
            f"Expected a readable {path.suffix} file, found {path} damaged ({reason}): write it again."
        ) from error


def load_array(path: Path) -> Array:
    """The one array of a .npy file; nothing in it is unpickled."""
    with readable(path):
        found = np.load(path, allow_pickle=False)
    expect(isinstance(found, np.ndarray), f"one array in {path}", "several", "write it with numpy.save")
    array: Array = found
    return array


def _read_parquet(path: Path, layout: Layout) -> Table:
    expect_package("pyarrow", f"to read {path}", "parquet")
    from pyarrow import parquet

    with path.open("rb") as handle:
        file = parquet.ParquetFile(handle)
        names = list(file.schema_arrow.names)
        expect_different(names, str(path))
        found = file.read(columns=layout.select(names, str(path)))
    return _table(
        str(path), {name: _array(name, found[name], str(path)) for name in found.column_names}, found.num_rows
    )


def _read_npz(path: Path, layout: Layout) -> Table:
    with np.load(path, allow_pickle=False) as data:
        wanted = layout.select(list(data.files), str(path))
        return _table(str(path), {name: data[name] for name in wanted})


def frame_columns(frame: Any) -> list[str]:
    """The names of a frame's columns."""
    if isinstance(frame, Mapping):
        return [str(name) for name in frame]
    names = getattr(frame, "column_names", None)  # pyarrow, Hugging Face
    names = getattr(frame, "columns", None) if names is None else names  # pandas, polars
    found = type(frame).__name__
    fine = names is not None and hasattr(frame, "__getitem__") and not callable(names)
    remedy = "give a path, a pandas, polars or pyarrow frame, or a dict of columns"
    expect(fine, "a table", found, remedy)
    expect(hasattr(frame, "__len__") or hasattr(frame, "num_rows"), "a frame with its rows", found, "collect() it")
    assert names is not None
    return [str(name) for name in names]


def read_frame(frame: Any, layout: Layout) -> Table:
    """The wanted columns of a frame, or of a dict of columns; of a dict of single values, one row."""
    source = "the dict" if isinstance(frame, Mapping) else "the frame"
    names = frame_columns(frame)
    expect_different(names, source)
    keys = list(frame) if isinstance(frame, Mapping) else getattr(frame, "column_names", None) or list(frame.columns)
    of_name = dict(zip(names, keys, strict=True))
    columns = {name: _array(name, frame[of_name[name]], source) for name in layout.select(names, source)}
    if isinstance(frame, Mapping):
        return _table(source, columns)
    return _table(source, columns, len(frame) if hasattr(frame, "__len__") else frame.num_rows)


def _array(name: str, column: Any, source: str) -> Array:
    try:
        if isinstance(column, (list, tuple)):
            return _list(column)
        if hasattr(column, "type") and hasattr(column.type, "value_type") and hasattr(column, "cast"):
            column = column.cast(
                column.type.value_type
            )  # pyarrow's own to_numpy takes a null of a dictionary for a word
        array = column.to_numpy() if hasattr(column, "to_numpy") else np.asarray(column)
    except Exception as error:  # whatever somebody's frame may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CloisterError(
            f"Expected one value for every row in column {name!r} of {source}, found something else ({reason}): fix it."
        ) from error
    return np.atleast_1d(array)


def _list(values: Sequence[Any]) -> Array:
    """A list as it is: numpy would turn all into words where one is."""
    alike = {type(value) for value in values}
    if len(alike) == 1 and alike <= {int, float, bool, str}:
        return np.asarray(values)
    array = np.empty(len(values), dtype=object)
    array[:] = list(values)
    return array


def _table(source: str, columns: Mapping[str, Array], rows: int | None = None) -> Table:
    lengths = {name: len(array) if array.ndim else 1 for name, array in columns.items()}
    rows = next(iter(lengths.values()), 0) if rows is None else rows
    for name, array in columns.items():
        found = f"shape {array.shape} in {name!r}"
        expect(array.ndim == 1 and len(array) == rows, f"{rows} values in a column of {source}", found, "fix it")
    return Table(columns, rows, source, lambda row: f"row {row} (from 0) of {source}")


SEPARATORS = ",;\t|"


def separator_remedy(header: Sequence[str], separator: str = ",") -> str:
    """What to do about a header of one cell that has another separator in it; nothing where that is not the case."""
    other = [one for one in SEPARATORS if one != separator and len(header) == 1 and one in header[0]]
    if not other:
        return ""
    found = json.dumps(max(other, key=header[0].count))
    return f"its header is one cell with another separator in it, so say separator = {found} in a schema"


def expect_different(names: Sequence[str], source: str) -> None:
    """No two columns have one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CloisterError(f"Expected one column {name!r} in {source}, found two: rename one of them.")
        seen.add(name)


def client_files(folder: Path, pattern: str | None = None) -> list[tuple[str, Path]]:
    """The clients' names with their files, in the order of the names."""
    try:
        names = sorted(file.name for file in folder.iterdir() if file.is_file())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CloisterError(
            f"Expected a readable folder with a file per client, found {str(folder)!r} ({reason}): check the path."
        ) from None
    found = sorted((client, folder / name) for name in names for client in _client(name, pattern))
    if not found:
        wanted = f"files {pattern}" if pattern else "files .csv, .parquet or .npz"
        close = _other_suffix(names)
        raise CloisterError(f"Expected {wanted} in {folder}, found none: put one there per client{close}.")
    for (client, _), (other, _) in pairwise(found):
        if client == other:
            raise CloisterError(f"Expected one file per client, found two for {client!r} in {folder}: rename one.")
    return found


def _client(name: str, pattern: str | None) -> Iterator[str]:
    """The client of a file: what the * of a pattern stands for, else the name without its suffix."""
    if pattern is None:
        if Path(name).suffix in TABLES and not name.startswith("."):
            yield Path(name).stem
        return
    before, _, after = pattern.partition("*")
    if name.startswith(before) and name.endswith(after) and len(name) > len(before) + len(after):
        yield name[len(before) : len(name) - len(after)]


def _other_suffix(names: Sequence[str]) -> str:
    other = next((Path(name).suffix for name in names if Path(name).suffix and not name.startswith(".")), "")
    return f', or say files = "*{other}" in a schema' if other else ""
