"""Image files as bytes [n, channels, height, width], in the order of the files, by several processes."""

from __future__ import annotations

import io
import mmap
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import Pool
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cloister.data.raw import Array
from cloister.errors import CloisterError, Corrupted, expect, expect_count

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
MODES = {1: "L", 3: "RGB"}
MOST_SIDE = 4096
_WORTH = 2000
"""Fewer files than this are read sooner than processes start."""
_CHUNK = 250


@dataclass(frozen=True)
class ImageForm:
    """What every image becomes: declared, the same for all. `resize`: images of other sizes are resized, not refused.

    Gray images become colored ones and the other way round as `channels` says. An alpha channel is dropped, 16-bit
    grays are cut to 8, of an animation the first image counts.
    """

    height: int
    width: int
    channels: int
    resize: bool = False

    def __post_init__(self) -> None:
        for side in (self.height, self.width):
            expect_count("size", side, "the sides of every image in pixels", most=MOST_SIDE)
        expect(self.channels in MODES, "channels to be 1 (gray) or 3 (colored)", self.channels, "choose one")
        expect(isinstance(self.resize, bool), "resize to be true or false", self.resize, "choose one")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image."""
        return self.channels, self.height, self.width


def decode(files: Sequence[Path], form: ImageForm, workers: int | None = None) -> Array:
    """The images of the files. Small ones take more of Python's time than of the decoder's, hence processes.

    By default as many as there are cores for us.
    """
    if workers is None:
        workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    expect_count("workers", workers, "the number of processes that decode images", most=1024)
    size = int(np.prod(form.shape)) * len(files)
    alone = workers == 1 or len(files) < _WORTH or not sys.platform.startswith("linux")
    # Memory that the processes share, so that no image is sent from one to the other.
    store = bytearray(size) if alone or not size else mmap.mmap(-1, size)
    images = np.frombuffer(store, dtype=np.uint8).reshape(len(files), *form.shape)
    work = _Work(files, form, images)
    starts = range(0, len(files), _CHUNK)
    for problem in map(work, starts) if alone else _by_processes(work, starts, workers):
        if problem is not None:
            raise problem
    return images


@dataclass(frozen=True)
class _Work:
    """Decodes chunks of files into their places, and gives the first problem that there is in a chunk."""

    files: Sequence[Path]
    form: ImageForm
    images: Array

    def __call__(self, start: int) -> CloisterError | None:
        for number in range(start, min(start + _CHUNK, len(self.files))):
            try:
                self.images[number] = _read(self.files[number], self.form)
            except CloisterError as error:
                return error
        return None


def _by_processes(work: _Work, starts: Sequence[int], workers: int) -> Iterator[CloisterError | None]:
    """Copies of this process, which share the memory of the images. They decode, and use nothing of torch."""
    global _inherited
    _inherited = work
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that we have and copies have not
            pool: Pool = multiprocessing.get_context("fork").Pool(workers)
        with pool:
            yield from pool.imap(_chunk, starts)  # in order, so that the first problem is always the same one
    finally:
        _inherited = None


_inherited: _Work | None = None


def _chunk(start: int) -> CloisterError | None:
    assert _inherited is not None
    return _inherited(start)


def _read(file: Path, form: ImageForm) -> Array:
    from PIL import Image

    try:
        with open(file, "rb", buffering=0) as opened:
            content = opened.read()
        image: Image.Image = Image.open(io.BytesIO(content))
        if image.size != (form.width, form.height) and not form.resize:
            raise CloisterError(
                f"Expected images of {form.width}x{form.height} pixels, found {image.width}x{image.height} in {file}: "
                "give that size, or resize=True."
            )
        image = _in_mode(image, MODES[form.channels], file)
        if image.size != (form.width, form.height):
            image = image.resize((form.width, form.height), Image.Resampling.BILINEAR)
        pixels = np.frombuffer(image.tobytes(), dtype=np.uint8)
    except CloisterError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise CloisterError(f"Expected to read {file}, found {error.strerror}: check the file.") from error
        raise _damaged(file, error) from error
    except (Exception, MemoryError) as error:  # a damaged file may fail in any way at all
        raise _damaged(file, error) from error
    return pixels.reshape(form.height, form.width, form.channels).transpose(2, 0, 1)


def _damaged(file: Path, error: BaseException) -> Corrupted:
    reason = (str(error).splitlines() or [type(error).__name__])[0].replace("<_io.BytesIO object at ", "<")
    reason = "no image that Pillow knows" if "cannot identify" in reason else reason
    return Corrupted(f"Expected an image in {file}, found it damaged ({reason}): remove it, or restore it.")


def _in_mode(image: Image, mode: str, file: Path) -> Image:
    """Gray or colored bytes. What has more than 8 bits is cut by a constant, never scaled by what is in the image."""
    if image.mode == mode:
        return image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # PNG has 16 bits at most
        from PIL.Image import fromarray

        image = fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise CloisterError(f"Expected images of 8 or 16 bits, found 32 (mode {image.mode}) in {file}: convert it.")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)
