"""Reading a pickle of plain values and arrays without running anything that the pickle asks for.

A pickle is a program: `pickle.load` calls whatever the file names. The files of CIFAR name four things, which are
replaced here by stand-ins that merely write down what they were given; any other name makes the file refused.

    numpy.core.multiarray._reconstruct   (numpy._core... when written by numpy 2)
    numpy.ndarray, numpy.dtype
    _codecs.encode                       how Python 3 writes bytes in protocol 2, always from latin1
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import Any

import numpy as np

from cloister.data.formats.source import Source
from cloister.data.raw import Array
from cloister.errors import Corrupted

RECONSTRUCT = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}
DESCRIBE = {("numpy", "ndarray"), ("numpy", "dtype")}


class Record:
    """What the pickle wanted to make: from these arguments, with this state."""

    __slots__ = ("args", "state")

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class SafeUnpickler(pickle.Unpickler):
    """Admits numbers, strings, lists, dictionaries, and records of arrays."""

    def __init__(self, source: Source, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.source = source

    def find_class(self, module: str, name: str) -> Any:
        """A stand-in, made anew each time: a pickle can set attributes of what it is handed."""

        def record(*args: Any) -> Record:
            return Record(args)

        def encode(text: str, encoding: str) -> bytes:
            self.source.expect(encoding == "latin1", "bytes in latin1", repr(encoding))
            return text.encode("latin1")

        if (module, name) in RECONSTRUCT | DESCRIBE:
            return record
        if (module, name) == ("_codecs", "encode"):
            return encode
        raise self.source.damaged("nothing but numbers, strings and arrays", f"a call of {module}.{name}")


def load_dictionary(source: Source) -> dict[Any, Any]:
    """The dictionary in the file, arrays as records."""
    content = source.content()
    try:
        # A memo index reserves memory of its own size; none is larger than the number of opcodes.
        for opcode, argument, _ in pickletools.genops(content):
            if "PUT" in opcode.name and isinstance(argument, int) and argument > len(content):
                raise source.damaged("a whole pickle", f"one that counts to {argument}")
        value = SafeUnpickler(source, content).load()
    except Corrupted:
        raise
    except Exception as error:  # a broken pickle may fail in any way at all
        raise source.damaged("a whole pickle", f"a broken one ({type(error).__name__}: {error})") from error
    if not isinstance(value, dict):
        raise source.damaged("a dictionary", type(value).__name__)
    return value


def uint8_array(source: Source, value: object) -> Array:
    """The array of bytes that a record describes: (version, shape, dtype, Fortran order, content)."""
    state = value.state if isinstance(value, Record) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise source.damaged("an array of bytes", type(value).__name__)
    _, shape, dtype, fortran, content = state
    kind = dtype.args[0] if isinstance(dtype, Record) and dtype.args else None
    source.expect(kind in ("u1", b"u1", "|u1", b"|u1"), "an array of type u1", repr(kind))
    whole = isinstance(shape, tuple) and all(type(length) is int and length >= 0 for length in shape)
    if not whole or not isinstance(content, bytes) or len(content) != math.prod(shape):
        raise source.damaged("an array with a byte for every place", "another number of bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
