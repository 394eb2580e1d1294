"""Ctrl-C: before and after the work it ends the program at once, in the work it is an exception.

Importing torch takes seconds, and an exception in the midst of it comes out as anything, or gets lost. Nothing is
written meanwhile, and what runs write survives `kill -9`, so there is nothing to clean up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130
"""The exit status of what was ended by Ctrl-C: 128 + SIGINT."""


def leave_when_interrupted() -> None:
    """From here on Ctrl-C ends the program, without a word from Python."""
    signal.signal(signal.SIGINT, _leave)


@contextmanager
def working() -> Iterator[None]:
    """In here Ctrl-C raises KeyboardInterrupt, so that the work can say how it is continued."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(*_: Any) -> None:
    os.write(2, b"\ninterrupted\n")
    os._exit(INTERRUPTED)
