"""FEMNIST: the characters of EMNIST with their writers as clients.

S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv 1812.01097, 2018. LEAF's JSON files hold `users`,
`num_samples` and `user_data`: for every user, `x` (images of 784 floats from 0 to 1, where 1 is the white of the paper)
and `y`. They are kept as they are: paper is 255, ink is 0. `femnist_digits` is a selection, ink on black: the digits of
190 writers of LEAF's training part in one .npz file with images, labels, writer and writer_names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data.formats.format import Format
from cloister.data.formats.source import Source
from cloister.data.raw import Array, RawData, Samples
from cloister.data.splits import joined, train_and_test

CLASSES = 62
MEAN_ON_PAPER, MEAN_ON_BLACK, STD = 0.9637, 0.0363, 0.1592  # in common use for LEAF's files


def files(root: Path) -> list[Path]:
    """All JSON files of the training part and of the test part."""
    found = []
    for part in ("train", "test"):
        folder = root / "femnist" / "data" / part
        # A folder without files is as good as missing, and reading the path named here says so.
        found += sorted(folder.glob("*.json")) or [folder / "*.json"]
    return found


def read(root: Path) -> RawData:
    """Images uint8 [n, 1, 28, 28] of 62 classes (0-9, A-Z, a-z), owned by users' names."""
    train, test = ([p for p in files(root) if p.parent.name == part] for part in ("train", "test"))
    return RawData(_part(train), _part(test), CLASSES, (MEAN_ON_PAPER,), (STD,))


def _part(paths: list[Path]) -> Samples:
    return joined([user for path in paths for user in _users(Source(path, "femnist"))])


def _users(source: Source) -> list[Samples]:
    """Every user's samples in one file."""
    text = source.content()
    try:
        content = json.loads(text)
        data = [(user, number, content["user_data"][user]) for user, number in _counts(content)]
        parts = [(str(user), number, np.asarray(d["x"], float), np.asarray(d["y"])) for user, number, d in data]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise source.damaged("JSON of LEAF (users, num_samples, user_data)", f"something else ({error!r})") from error
    source.expect(len(parts) > 0, "at least one user", "none")
    return [_user(source, *part) for part in parts]


def _counts(content: dict[str, Any]) -> list[tuple[str, int]]:
    return list(zip(content["users"], content["num_samples"], strict=True))


def _user(source: Source, user: str, number: int, x: Array, y: Array) -> Samples:
    source.expect(len(x) == number, f"{number} images of {user}", len(x))
    if number == 0:
        return Samples(np.zeros((0, 1, 28, 28), np.uint8), np.zeros(0, np.int64), np.zeros(0, "U1"))
    return source.samples(source.pixels(x), y, CLASSES, np.full(number, user))


def digits_files(root: Path, seed: int = 0) -> list[Path]:
    """The one file."""
    return [root / "femnist_digits_190writers.npz"]


def read_digits(root: Path, seed: int = 0) -> RawData:
    """18,544 images uint8 [n, 1, 28, 28] of ten digits, a fifth of each writer's held out, owned by writers' names."""
    source = Source(digits_files(root)[0], "femnist_digits")
    arrays = source.arrays(source.content(), ("images", "labels", "writer", "writer_names"))
    images, writer, names = arrays["images"], arrays["writer"], arrays["writer_names"]
    shaped = images.dtype == np.uint8 and images.shape[1:] == (28, 28)
    source.expect(shaped, "images of 28x28 bytes", f"{images.dtype} of shape {list(images.shape)}")
    known = (
        writer.dtype.kind in "iu" and names.dtype.kind == "U" and bool(((writer >= 0) & (writer < len(names))).all())
    )
    source.expect(known, "writers numbered within writer_names", "others")
    samples = source.samples(images[:, None], arrays["labels"], 10, names[writer])
    return RawData(*train_and_test(samples, seed), 10, (MEAN_ON_BLACK,), (STD,))


FEMNIST = Format("femnist", read, files)
FEMNIST_DIGITS = Format("femnist_digits", read_digits, digits_files)
