"""Arrays that stay on the disk: .npy files mapped into memory, of which only what is looked at is ever read.

What was read through the map counts as this process's memory until the system needs the place for something else, and
a page of it may be of megabytes, for a sample of some bytes. So the rows of a batch are read past the map, into tensors
of their own; and where all of an array is looked at, its pages are given back block by block.
"""

from __future__ import annotations

import mmap
import os
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloister.errors import CloisterError, Corrupted, expect

BLOCK_BYTES = 2**24
"""How much of an array is looked at together where all of it has to be."""

GAP_BYTES = 2**14
"""Rows that are no further apart are read in one piece."""

DTYPES = ("uint8", "int64", "float32", "float64")
"""What samples can be on the disk: types of torch, in this machine's byte order."""


@dataclass(frozen=True)
class Mapped:
    """A .npy file as a tensor. It must not be written to, nor may the file change while it is in use."""

    path: Path
    tensor: Tensor
    _map: mmap.mmap | None = None
    _file: int = -1
    _start: int = 0
    """Where the numbers begin in the file."""

    @classmethod
    def of(cls, path: Path) -> Mapped:
        """The array in a file: in C order and of a type that needs no conversion, which would be a copy in memory."""
        try:
            with open(path, "rb") as file:
                shape, in_fortran_order, dtype, start = _header(file)
                known = dtype.name in DTYPES and dtype.isnative
                expect(known, f"{path} to be {', '.join(DTYPES)}", dtype.str, "convert it with array.astype")
                expect(not in_fortran_order, f"{path} in C order", "Fortran order", "save np.ascontiguousarray(array)")
                count = int(np.prod(shape))
                found = path.stat().st_size - start
                if found != count * dtype.itemsize:
                    raise Corrupted(
                        f"Expected {count * dtype.itemsize} bytes of numbers in {path}, found {found}: write it again."
                    )
                if not count:
                    return cls(path, torch.from_numpy(np.empty(shape, dtype)))
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                number = os.dup(file.fileno())  # of the file that was checked, should another take its name
        except OSError as error:
            raise CloisterError(f"Expected to read {path}, found {error.strerror}: check the folder.") from error
        array = np.frombuffer(pages, dtype, count, start).reshape(shape)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # and nobody writes
            made = cls(path, torch.from_numpy(array), pages, number, start)
        weakref.finalize(made, os.close, made._file)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapped.of, (self.path,)  # another process maps the file as well

    def rows(self, rows: Tensor) -> Tensor:
        """A copy of some rows, whose numbers rise. Those that lie close together are read together."""
        if self._map is None or not len(rows) or not hasattr(os, "preadv"):  # which Windows does not have
            return self.tensor.index_select(0, rows)
        wanted, size = rows.numpy(), self.tensor[:1].nbytes
        breaks = np.flatnonzero(np.diff(wanted) * size > GAP_BYTES) + 1
        firsts, lasts = wanted[np.append(0, breaks)], wanted[np.append(breaks, len(wanted)) - 1]
        lengths = lasts - firsts + 1
        begins = np.cumsum(lengths) - lengths
        found = torch.empty((int(lengths.sum()), *self.tensor.shape[1:]), dtype=self.tensor.dtype)
        content = found.flatten().view(torch.uint8).numpy().data
        for first, length, begin in zip(firsts.tolist(), lengths.tolist(), begins.tolist(), strict=True):
            self._read(content[begin * size : (begin + length) * size], self._start + first * size)
        if len(found) == len(wanted):
            return found
        shift = np.repeat(begins - firsts, np.diff(np.concatenate([[0], breaks, [len(wanted)]])))
        return found.index_select(0, torch.from_numpy(wanted + shift))

    def _read(self, into: memoryview, at: int) -> None:
        while len(into):
            read = os.preadv(self._file, [into], at)
            if not read:
                raise Corrupted(f"Expected {self.path} to stay as it was, found it cut short: write it again.")
            into, at = into[read:], at + read

    def release(self) -> None:
        """Give back the pages that were read; whoever looks again reads them again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """All rows, some at a time, each time with the number of the first."""
        row = max(self.tensor[:1].nbytes, 1)
        first = 0
        for block in torch.split(self.tensor, max(BLOCK_BYTES // row, 1)):
            yield first, block
            first += len(block)
            self.release()


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order and type of an array, and where its numbers begin."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, order, dtype = read(file)
    except OSError:
        raise
    except Exception as error:  # numpy reads a header as Python, and a damaged one may fail in any way at all
        raise Corrupted(f"Expected a .npy file, found {file.name}, which is none: write it with numpy.save.") from error
    return shape, order, dtype, file.tell()
