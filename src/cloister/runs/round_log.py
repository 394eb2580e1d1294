"""The lines of a run, in memory, in its file and on the terminal, written while a device works on the next round."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cloister.privacy.description import plain
from cloister.runs.metrics import Metrics
from cloister.runs.progress import Progress


@dataclass
class RoundLog:
    """A line per round. The newest one waits until it is asked for: it may have a number that is not computed yet."""

    metrics: Metrics | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    bar: Progress | None = None
    _waiting: tuple[dict[str, Any], DeviceNumber, Mapping[str, str | None]] | None = None
    _clock: float = 0.0

    def start(self, bar: Progress) -> None:
        """Show lines on this bar, and measure the first round from now on."""
        self.bar, self._clock = bar, time.perf_counter()

    def add(self, line: dict[str, Any], nonfinite: Tensor, ties: Mapping[str, str | None]) -> None:
        """A round's line, with what ties it to other files; the line before it is written."""
        self.write()
        self._waiting = line, DeviceNumber(nonfinite), ties

    @property
    def waiting(self) -> dict[str, Any] | None:
        """The newest line, where it is not written yet."""
        return None if self._waiting is None else self._waiting[0]

    def write(self) -> None:
        """Write the line that waits, if there is one."""
        if self._waiting is None:
            return
        line, nonfinite, ties = self._waiting
        self._waiting = None
        line["nonfinite_updates"] = int(nonfinite)
        now = time.perf_counter()
        line["seconds"], self._clock = round(now - self._clock, 6), now
        self.history.append(line)
        if self.metrics is not None:
            self.metrics.append(plain(line), ties)
        if self.bar is not None:
            self.bar.advance(line)


class DeviceNumber:
    """A number that a device is still computing; asking for it waits for it, and not for what was queued later."""

    def __init__(self, number: Tensor) -> None:
        self._number, self._done = number, None
        if number.is_cuda:
            self._number = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
            self._number.copy_(number, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record()

    def __int__(self) -> int:
        if self._done is not None:
            self._done.synchronize()
        return int(self._number)
