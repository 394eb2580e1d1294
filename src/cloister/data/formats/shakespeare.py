"""Tiny Shakespeare: a million characters of plays, the speaking roles as clients.

A. Karpathy, "The unreasonable effectiveness of recurrent neural networks", 2015; as a federated task after H. B.
McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017. The text is
made of blocks, separated by empty lines: a line "NAME:" and what NAME says.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cloister.data.formats.format import Format
from cloister.data.formats.source import Source, packed
from cloister.data.raw import Array, RawData, Samples
from cloister.data.splits import joined
from cloister.errors import expect_count

# Known before any data is seen: 0 stands for every character that is not among these.
VOCABULARY = "\n" + "".join(chr(code) for code in range(32, 127))
CLASSES = 1 + len(VOCABULARY)
TRAIN = 0.8


def files(root: Path, length: int = 80, stride: int | None = None) -> list[Path]:
    """The one file."""
    return [packed(root / "tinyshakespeare.txt.gz")]


def read(root: Path, length: int = 80, stride: int | None = None) -> RawData:
    """Windows of `length` characters int64 [n, length], each labeled with the character that follows it.

    The first four fifths of what a role says are for training, but at least one window; the rest is for testing, and
    no window reaches over the cut. A role that says too little for one window has no samples. Windows start `stride`
    characters apart, by default `length` + 1: then no character lies in two samples, be it as one's label.
    """
    expect_count("length", length, "the number of characters that a prediction sees")
    step = length + 1 if stride is None else stride
    expect_count("stride", step, "the distance from one window to the next")
    source = Source(files(root)[0], "shakespeare")
    train, test = [], []
    for role, text in roles(source).items():
        ids = encode(text)
        cut = max(int(TRAIN * len(ids)), length + 1)
        train.append(_windows(ids[:cut], role, length, step))
        test.append(_windows(ids[cut:], role, length, step))
    return RawData(joined(train), joined(test), CLASSES)


def roles(source: Source) -> dict[str, str]:
    """What each role says, in order of appearance, speeches joined by newlines. Roles without a word are left out."""
    speeches: dict[str, list[str]] = {}
    for block in source.text().split("\n\n"):
        name, _, speech = block.strip("\n").partition("\n")
        if not name:
            continue
        source.expect(name.endswith(":") and len(name) > 1, "blocks that begin with a line NAME:", repr(name[:40]))
        if speech:
            speeches.setdefault(name[:-1], []).append(speech)
    source.expect(len(speeches) > 0, "at least one role", "none")
    return {role: "\n".join(spoken) for role, spoken in speeches.items()}


def encode(text: str) -> Array:
    r"""The number of every character: 1 for a newline, 2 to 96 for the printable characters of ASCII, 0 for others.

    >>> encode("\n ~é").tolist()
    [1, 2, 96, 0]
    """
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
    printable = (codes >= 32) & (codes < 127)
    return np.where(printable, codes - 30, np.where(codes == 10, 1, 0))


def _windows(ids: Array, role: str, length: int, stride: int) -> Samples:
    if len(ids) <= length:
        return Samples(np.zeros((0, length), np.int64), np.zeros(0, np.int64), np.zeros(0, "U1"))
    windows = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::stride]
    return Samples(windows[:, :-1], windows[:, -1], np.full(len(windows), role))


SHAKESPEARE = Format("shakespeare", read, files, version=2)
