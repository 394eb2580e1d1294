"""Anybody's arrays, lists and tensors as tensors, after checks that say in a sentence what does not fit.

What the numbers are (bytes, whole numbers or fractions) is read off the type of an array, which is no secret. A list
has none but what its rows say, so all of them have to say the same: otherwise one row would decide for all.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloister.data.raw import Array
from cloister.errors import CloisterError, expect, expect_count

_NATIVE = {"b": np.dtype(np.bool_), "i": np.dtype(np.int64), "u": np.dtype(np.int64)}


def tensor_of(what: str, values: Any) -> Tensor:
    """The values, finite numbers, as a tensor with a row for every sample."""
    tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.from_numpy(_numbers(what, values))
    expect(not tensor.is_complex(), f"{what} to be real numbers", tensor.dtype, "give two real ones for each")
    expect(tensor.dim() > 0, f"{what} to be an array", "a single number", "give one for every sample")
    if tensor.is_floating_point():
        bad = ~torch.isfinite(tensor.flatten(1).sum(1) if tensor.dim() > 1 else tensor)
        if bad.any() and not torch.isfinite(tensor).all():
            row = int(bad.nonzero()[0])
            raise CloisterError(
                f"Expected finite {what}, found NaN or infinity in row {row}: remove or impute such values."
            )
    return tensor


def owners_of(clients: Any) -> Array:
    """Whose each sample is: whole numbers or names."""
    owners = clients.detach().cpu().numpy() if isinstance(clients, Tensor) else _array("clients", clients)
    if owners.dtype.kind == "O" and owners.size and all(isinstance(name, str) for name in owners.flat):
        owners = owners.astype(str)  # as pandas has them
    fine = owners.ndim == 1 and owners.dtype.kind in "iubUS"
    found = f"{owners.dtype} of shape {owners.shape}"
    expect(fine, "clients to be a list of whole numbers or of names", found, "give one for every sample")
    return owners


def whole(name: str, value: Any, remedy: str, *, least: int = 1) -> int:
    """The value as a whole number of at least `least`; numpy's own are welcome."""
    if isinstance(value, np.integer):
        value = operator.index(value)
    expect_count(name, value, remedy, least=least)
    return int(value)


def _numbers(what: str, values: Any) -> Array:
    """An array that torch takes: in this machine's byte order, contiguous, of a type it knows."""
    array = _array(what, values)
    remedy = "give an array of numbers" if array.dtype.kind == "O" else "encode words as numbers"
    expect(array.dtype.kind in "iufb", f"{what} to be numbers", array.dtype, remedy)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size and array.max() >= 2**63:
        raise CloisterError(f"Expected {what} below 2^63, found {array.max()}: number them from 0.")
    if array.dtype.kind == "f":
        known = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.dtype(np.float64)
    elif array.dtype == np.uint8:
        known = array.dtype  # bytes may be pictures
    else:
        known = _NATIVE[array.dtype.kind]
    with np.errstate(over="ignore"):  # what float64 cannot hold becomes infinite, which is refused
        return np.ascontiguousarray(array, dtype=known) if array.ndim else array.astype(known)


def _array(what: str, values: Any) -> Array:
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).split(". ")[0]
        raise CloisterError(
            f"Expected {what} as an array, found something else ({reason}): give rows of equal length."
        ) from None
    if isinstance(values, Sequence) and array.dtype.kind in "iufb" and len(values):
        _expect_one_kind(what, values)
    return array


def _expect_one_kind(what: str, rows: Sequence[Any]) -> None:
    """Rows of a list are all of whole numbers, or all of fractions."""
    first, *others = ((number, _KINDS[np.asarray(row).dtype.kind]) for number, row in enumerate(rows))
    for number, kind in others:
        expect(
            kind == first[1],
            f"{what} of one type, {first[1]} as in the first row",
            f"{kind} in row {number}",
            "one row must not decide for all, so give an array with a dtype",
        )


_KINDS = {"i": "whole numbers", "u": "whole numbers", "b": "truth values", "f": "fractions"}
