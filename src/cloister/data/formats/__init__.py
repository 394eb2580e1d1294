"""Readers of the standard data sets' files, as they are published: one small module each."""

from __future__ import annotations

from cloister.data.formats.cifar import CIFAR10, CIFAR100
from cloister.data.formats.emnist import EMNIST
from cloister.data.formats.fed_emnist import FED_EMNIST
from cloister.data.formats.femnist import FEMNIST, FEMNIST_DIGITS
from cloister.data.formats.format import Format
from cloister.data.formats.har import HAR
from cloister.data.formats.heart import HEART
from cloister.data.formats.mnist import FASHION_MNIST, MNIST
from cloister.data.formats.qmnist import QMNIST
from cloister.data.formats.shakespeare import SHAKESPEARE
from cloister.errors import CloisterError, nearest

FORMATS: dict[str, Format] = {
    known.name: known
    for known in (
        MNIST,
        FASHION_MNIST,
        EMNIST,
        QMNIST,
        CIFAR10,
        CIFAR100,
        FEMNIST,
        FEMNIST_DIGITS,
        FED_EMNIST,
        HAR,
        HEART,
        SHAKESPEARE,
    )
}


def format_named(name: str) -> Format:
    """The format of that name.

    >>> format_named("cifar01")
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected the name of a data format, found 'cifar01': perhaps you mean "cifar10".
    """
    if name not in FORMATS:
        raise CloisterError(f"Expected the name of a data format, found {name!r}: {nearest(name, FORMATS)}.")
    return FORMATS[name]


__all__ = ["FORMATS", "Format", "format_named"]
