"""Refusals: one sentence for the other side, and one in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

LOG = logging.getLogger("cloister.deploy.https")


class Refusal(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class RefusalLog:
    """Writes refusals; when there are very many, so that the log does not become the harm, it counts the rest."""

    def __init__(self, burst: int = 200, per_second: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._burst, self._rate, self._clock = burst, per_second, clock
        self._left, self._at, self._silent = float(burst), clock(), 0

    def __call__(self, who: str, sentence: str) -> None:
        """One more refusal."""
        self.count += 1
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            self._silent += 1
            return
        self._left -= 1
        rest, self._silent = f" ({self._silent} more were not written)" if self._silent else "", 0
        LOG.warning("Refused %s: %s%s", who, sentence, rest)
