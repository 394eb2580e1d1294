"""What can become of a file: changed bits, torn ends, and contents that somebody made to do harm."""

from __future__ import annotations

import io
import json
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path


class Bomb:
    """Unpickled, it creates a file: whoever finds that file knows that code was executed."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.mark), "w")


def hostile(chance: random.Random, mark: Path) -> bytes:
    """A content that no program should trust."""
    return chance.choice(_HOSTILE)(chance, mark)


def changed(content: bytes, chance: random.Random) -> bytes:
    """The content with a few random changes."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        kind = chance.randrange(7)
        at = chance.randrange(len(found)) if found else 0
        if kind == 0 and found:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            found[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
        elif kind == 2:
            del found[at : at + chance.choice((1, 2, 16))]
        elif kind == 3:
            del found[at:]
        elif kind == 4 and found:
            found[at : at + 8] = bytes(8)
        elif kind == 5:
            found += found[at : at + 40]
        else:
            found[at : at + 4] = chance.choice((b"1e99", b"-1  ", b"null", b'"x" ', b"{}  ", b"\n\n\n\n", b"NaN "))
    return bytes(found)


def with_other_values(content: bytes, chance: random.Random) -> bytes:
    """JSON, or lines of it, in which one value is another one: what a person would change by hand."""
    lines = content.split(b"\n") if content.count(b"\n{") or content[:1] == b"{" else [content]
    whole = len(lines) > 1 and not _is_json(lines[0])
    parts = [content] if whole else lines
    at = chance.randrange(len(parts))
    try:
        value = json.loads(parts[at])
    except (ValueError, RecursionError):
        return changed(content, chance)
    parts[at] = json.dumps(_other(value, chance)).encode()
    return b"\n".join(parts)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


_VALUES = (0, -1, 1e-9, 10**40, 1e308, float("nan"), float("inf"), "", "x", None, [], {}, True, [[]], {"a": 1})


def _other(value: object, chance: random.Random) -> object:
    """The value with another one somewhere inside."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        kind = chance.random()
        if kind < 0.1:
            return {key: one for key, one in value.items() if key != name}
        if kind < 0.2:
            return {**value, name + "x": chance.choice(_VALUES)}
        return {**value, name: _other(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], _other(value[at], chance), *value[at + 1 :]]
    if isinstance(value, float) and chance.random() < 0.5:
        return value * chance.choice((0.5, 0.1, 2, -1))
    return chance.choice(_VALUES)


# Contents that are made to do harm.


def _pickle(chance: random.Random, mark: Path) -> bytes:
    return pickle.dumps(Bomb(mark), protocol=chance.choice((0, 2, 4)))


def _torch_file(chance: random.Random, mark: Path) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(3), "x": Bomb(mark)}, buffer)
    return buffer.getvalue()


def _numpy_file(chance: random.Random, mark: Path) -> bytes:
    import numpy as np

    buffer = io.BytesIO()
    array = np.array([Bomb(mark)], dtype=object)
    np.savez(buffer, x=array, inputs=array, labels=array) if chance.random() < 0.5 else np.save(buffer, array)
    return buffer.getvalue()


def _nested(chance: random.Random, mark: Path) -> bytes:
    deep = chance.choice((500, 10_000, 200_000))
    return chance.choice((b"[" * deep, b'{"a":' * deep, b"[" * deep + b"]" * deep, b'{"hash": ' + b"[" * deep))


def _numbers(chance: random.Random, mark: Path) -> bytes:
    digits = b"9" * chance.choice((400, 5_000, 50_000))
    return b'{"format": ' + digits + b', "round": NaN, "hash": -Infinity}'


def tensors(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def _odd_tensors(chance: random.Random, mark: Path) -> bytes:
    one = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    odd = (
        {**one, "shape": [2**62, 4]},
        {**one, "data_offsets": [0, 2**62]},
        {**one, "data_offsets": [8, 0]},
        {**one, "data_offsets": [-8, 0]},
        {**one, "dtype": "P64"},
        {**one, "dtype": 3},
        {**one, "shape": "x"},
        {**one, "shape": [[2]]},
        {**one, "shape": [-2]},
        None,
        [],
    )
    name = chance.choice(("w", "", "a" * 10**5, "../x", "__metadata__"))
    chosen = chance.choice(odd)
    return chance.choice(
        (
            tensors({name: chosen}, bytes(8)),
            tensors({"w": one, "v": one}, bytes(8)),
            tensors({"w": one}, bytes(8), length=2**63),
            tensors({"w": one}, bytes(8), length=2**64 - 1),
            tensors(b"[" * 10**5, bytes(8)),
            tensors({"__metadata__": {"round": "9" * 5000, "digest": None}, "w": one}, bytes(8)),
            tensors(b"\xff\xfe", bytes(8)),
        )
    )


def _noise(chance: random.Random, mark: Path) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 7, 300, 70_000)))


def _text(chance: random.Random, mark: Path) -> bytes:
    code = f"__import__('os').system('touch {mark}')"
    return chance.choice(
        (
            b"",
            b"\n\n\n",
            b"null",
            b"0",
            b'""',
            b"\xef\xbb\xbf{}",
            '{"a": "\ud800"}'.encode("utf-8", "surrogatepass"),
            f"!!python/object/apply:os.system ['touch {mark}']".encode(),
            json.dumps({"model": code, "format": code, "hash": code, "name": code}).encode(),
        )
    )


_HOSTILE = (_pickle, _torch_file, _numpy_file, _nested, _numbers, _odd_tensors, _noise, _text)
