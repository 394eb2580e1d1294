"""What an operator allows, as words on a command line: `epsilon=2, delta=1e-5`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.errors import CloisterError, expect_epsilon, nearest, number_in, shown

if TYPE_CHECKING:
    from cloister.privacy.budgets import Budget

_NAMES = ("epsilon", "delta")
_REMEDY = 'write both, as --limit "epsilon=2, delta=1e-5"'


def limit_of(text: str) -> Budget:
    """The most that a node's data may lose, over all runs of all servers.

    >>> limit_of("epsilon=2, delta=1/100000")
    Budget(epsilon=2.0, delta=1e-05, order=None)
    >>> limit_of("epsilom=2")
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected epsilon and delta as the limit, found 'epsilom': perhaps you mean "epsilon".
    """
    found: dict[str, float] = {}
    for part in filter(None, (one.strip() for one in text.replace(";", ",").split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise CloisterError(f"Expected NAME=NUMBER in the limit, found {shown(part)}: {_REMEDY}.")
        if name not in _NAMES:
            close = nearest(name, _NAMES, _REMEDY)
            raise CloisterError(f"Expected epsilon and delta as the limit, found {shown(name)}: {close}.")
        if name in found:
            raise CloisterError(f"Expected one {name} in the limit, found two: give it once.")
        number = number_in(value)
        if number is None:
            raise CloisterError(f"Expected a number for {name} in the limit, found {shown(value)}: {_REMEDY}.")
        found[name] = number
    missing = [name for name in _NAMES if name not in found]
    if missing:
        raise CloisterError(f"Expected epsilon and delta as the limit, found no {' and no '.join(missing)}: {_REMEDY}.")
    expect_epsilon(found["epsilon"])
    from cloister.privacy.budgets import Budget  # which imports accountants: a slip is told at once

    return Budget(found["epsilon"], found["delta"])
