"""One published file: reading it whole, and saying in one sentence what is wrong with it."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloister.data.raw import Array, Samples
from cloister.errors import CloisterError, Corrupted


def packed(path: Path) -> Path:
    """The gzipped file `path`, or where only that is there its unpacked twin, which torchvision leaves behind."""
    bare = path.with_suffix("")
    return bare if bare.exists() and not path.exists() else path


MOST_BYTES = 2**32
"""What a packed file may unpack to. The largest data set here needs a seventh of it."""


@dataclass(frozen=True)
class Source:
    """A file, and the name under which `cloister data get` fetches it."""

    path: Path
    name: str

    def missing(self) -> CloisterError:
        """The error of a file that is not there."""
        return CloisterError(f"Expected {self.path}, found no such file: run `cloister data get {self.name}`.")

    def damaged(self, expectation: str, found: object) -> Corrupted:
        """The error of a file that is not what was published."""
        remedy = f"delete it and run `cloister data get {self.name}`"
        return Corrupted(f"Expected {expectation} in {self.path}, found {found}: {remedy}.")

    def expect(self, condition: bool, expectation: str, found: object) -> None:
        """Raise `Corrupted` unless the condition holds."""
        if not condition:
            raise self.damaged(expectation, found)

    def content(self) -> bytes:
        """Every byte, unpacked where the name ends in .gz."""
        try:
            data = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise self.missing() from None
        except OSError as error:
            raise CloisterError(f"Expected to read {self.path}, found {error.strerror}: fix that.") from error
        if self.path.suffix != ".gz":
            return data
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                content = file.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error, MemoryError) as error:
            raise self.damaged("a whole gzip file", f"one that is cut short or broken ({error})") from error
        self.expect(len(content) <= MOST_BYTES, f"at most {MOST_BYTES} bytes inside", "more")
        return content

    def text(self) -> str:
        """The whole file as UTF-8, any kind of line ending as a newline."""
        try:
            return io.TextIOWrapper(io.BytesIO(self.content()), encoding="utf-8").read()
        except UnicodeDecodeError as error:
            raise self.damaged("UTF-8 text", f"other bytes at {error.start}") from error

    def arrays(self, content: bytes, names: tuple[str, ...]) -> dict[str, Array]:
        """The named arrays of an .npz file; never unpickles."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                return {name: file[name] for name in names}
        except (
            OSError,
            EOFError,
            ValueError,
            KeyError,
            AttributeError,
            TypeError,
            zipfile.BadZipFile,
            zlib.error,
        ) as e:
            raise self.damaged(f"an .npz file with the arrays {', '.join(names)}", f"something else ({e})") from e

    def samples(self, inputs: Array, labels: Array, classes: int, owners: Array | None = None) -> Samples:
        """The samples, after a check that each has a label within the classes, and an owner where owners are known."""
        self.expect(labels.ndim == 1 and labels.dtype.kind in "iu", "whole numbers as labels", _kind(labels))
        self.expect(len(labels) == len(inputs), f"a label for each of {len(inputs)} inputs", f"{len(labels)} labels")
        if owners is not None:
            self.expect(
                len(owners) == len(inputs), f"an owner for each of {len(inputs)} inputs", f"{len(owners)} owners"
            )
        bad = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(bad):
            row = int(bad[0])
            raise self.damaged(f"labels from 0 to {classes - 1}", f"{int(labels[row])} in row {row}")
        return Samples(inputs, labels.astype(np.int64), owners)

    def pixels(self, values: Array) -> Array:
        """Floats from 0 to 1 [n, 28, 28] or [n, 784] as bytes [n, 1, 28, 28]."""
        shaped = values.dtype.kind == "f" and values.shape[1:] in ((28, 28), (784,))
        self.expect(shaped, "images of 28x28 floats", _kind(values))
        self.expect(bool(((values >= 0) & (values <= 1)).all()), "pixels from 0 to 1", "others")
        rounded: Array = np.rint(255 * values).astype(np.uint8)
        return rounded.reshape(-1, 1, 28, 28)


def _kind(array: Array) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"
