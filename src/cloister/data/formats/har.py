"""Human activity recognition with smartphones: nine signals of 30 subjects at 50 Hz, windows of 128 steps.

D. Anguita, A. Ghio, L. Oneto, X. Parra & J. L. Reyes-Ortiz, "A public domain dataset for human activity recognition
using smartphones", ESANN 2013. Read from "UCI HAR Dataset/" as UCI publishes it (21 subjects in the training part, 9
others in the test part) or else from uci_har_30subjects.npz.xz (x, y, subject), which has one part only.

UCI cut the windows so that each shares half of its steps with the next: a measurement lies in two samples.
"""

from __future__ import annotations

import io
import lzma
from pathlib import Path

import numpy as np

from cloister.data.formats.format import Format
from cloister.data.formats.source import MOST_BYTES, Source
from cloister.data.raw import Array, RawData, Samples
from cloister.data.splits import train_and_test

CLASSES = 6  # walking, upstairs, downstairs, sitting, standing, laying
CHANNELS = [f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]
STEPS = 128


def files(root: Path, seed: int = 0) -> list[Path]:
    """UCI's text files where its folder is there, else the one packed file."""
    folder = root / "UCI HAR Dataset"
    if not folder.is_dir():
        return [root / "uci_har_30subjects.npz.xz"]
    return [path for part in ("train", "test") for path in _part_files(folder, part)]


def _part_files(folder: Path, part: str) -> list[Path]:
    signals = [folder / part / "Inertial Signals" / f"{channel}_{part}.txt" for channel in CHANNELS]
    return [*signals, folder / part / f"y_{part}.txt", folder / part / f"subject_{part}.txt"]


def read(root: Path, seed: int = 0) -> RawData:
    """Windows float32 [n, 9, 128] in units of g and rad/s, owned by subjects 0..29."""
    paths = files(root)
    if len(paths) == 1:
        return RawData(*train_and_test(_packed(Source(paths[0], "har")), seed), CLASSES)
    half = len(paths) // 2
    train, test = (_published([Source(path, "har") for path in part]) for part in (paths[:half], paths[half:]))
    return RawData(train, test, CLASSES)


def _packed(source: Source) -> Samples:
    try:
        with lzma.open(io.BytesIO(source.content())) as file:
            content = file.read(MOST_BYTES)
    except (lzma.LZMAError, EOFError, MemoryError) as error:
        raise source.damaged("a whole xz file", f"one that is cut short or broken ({error})") from error
    arrays = source.arrays(content, ("x", "y", "subject"))
    windows, subject = arrays["x"], arrays["subject"]
    shaped = windows.dtype.kind == "f" and windows.shape[1:] == (len(CHANNELS), STEPS)
    source.expect(shaped, "windows of [9, 128] floats", f"{windows.dtype} of shape {list(windows.shape)}")
    source.expect(subject.dtype.kind in "iu", "whole numbers as subjects", subject.dtype)
    return _samples(source, _in_time_order(windows), arrays["y"], subject)


def _in_time_order(windows: Array) -> Array:
    """Windows [n, 9, 128], whichever of the two ways they are stored.

    The file in circulation says [9, 128] but holds [128, 9]: nine signals of one instant, then of the next. What a
    body does is smooth in time, so of the two readings the smoother one is right (by a factor of eight on average, and
    of two at least). Each window is judged by itself, or one of them could turn all the others.
    """
    other = windows.reshape(-1, STEPS, len(CHANNELS)).swapaxes(1, 2)
    here, there = (np.abs(np.diff(reading)).mean((1, 2)) for reading in (windows, other))
    return np.where((here < there)[:, None, None], windows, other)


def _published(sources: list[Source]) -> Samples:
    signals = [_table(source, STEPS) for source in sources[: len(CHANNELS)]]
    for source, signal in zip(sources, signals, strict=False):
        source.expect(len(signal) == len(signals[0]), f"{len(signals[0])} windows, as in the first file", len(signal))
    labels, subjects = (_table(source, 1)[:, 0].astype(np.int64) - 1 for source in sources[len(CHANNELS) :])
    return _samples(sources[-2], np.stack(signals, axis=1), labels, subjects)


def _table(source: Source, columns: int) -> Array:
    lines = source.text().splitlines()
    source.expect(len(lines) > 0, "a table of numbers", "an empty file")
    try:
        table = np.loadtxt(lines, dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise source.damaged("a table of numbers", f"something else ({error})") from error
    source.expect(table.shape[1] == columns, f"{columns} numbers in a line", table.shape[1])
    return table


def _samples(source: Source, windows: Array, labels: Array, subjects: Array) -> Samples:
    source.expect(bool(np.isfinite(windows).all()), "finite signals", "NaN or infinity")
    signals = np.ascontiguousarray(windows, dtype=np.float32)
    return source.samples(signals, labels, CLASSES, subjects.astype(np.int64))


HAR = Format("har", read, files, version=2)
