"""A message, or a part of one, that is not accepted."""

from __future__ import annotations

from cloister.errors import CloisterError, shown


class Refused(CloisterError):
    """Something that came over the wire is not accepted; nothing changed, and the sentence belongs in the log."""


def accept_if(condition: bool, expectation: str, found: object, remedy: str) -> None:
    """Raise `Refused` in the form that all errors have unless the condition holds.

    >>> accept_if(False, "a version that is known", 7, "update it")
    Traceback (most recent call last):
    cloister.deploy.wire.refused.Refused: Expected a version that is known, found 7: update it.
    """
    if not condition:
        raise Refused(f"Expected {expectation}, found {shown(found)}: {remedy}.")
