"""One line about work that is under way: on a terminal it is drawn over and over, elsewhere it is printed now and then.

A line has parts, of which some matter more than others. On a narrow terminal the parts that matter least are shortened
or left out, so that it stays one line; what is left over becomes a bar.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.text import Text

WINDOW = 30.0
"""Seconds over which the rate is measured, so that it follows a machine that becomes busy."""
SPARSELY = 30.0, 0.1
"""Elsewhere than on a terminal a line is due after so many seconds, or after such a share of the work."""
AT_MOST = 1.0
"""Seconds between two lines there, at least: what takes no longer needs none."""
KEPT_FREE = 2
"""Columns at the end of the line, where a terminal shows ^C: it would begin another line otherwise."""
SHORTEST_BAR, LONGEST_BAR = 8, 40
DETAIL = 5
"""Parts of less weight are details: they are left out before anything else is shortened."""
REFRESHES = 5
"""A second."""


@dataclass(frozen=True)
class Part:
    """Something to say: the whole of it, and in fewer words for want of space."""

    text: str
    short: str = ""
    style: str = ""
    weight: int = 0
    """Parts of less weight are shortened and left out first."""


def fitted(parts: Sequence[Part], width: int) -> list[tuple[Part, str]]:
    """As many of the parts as fit into so many columns: details are left out, then others are shortened, then they are
    left out as well, in each case the least important first.

    >>> parts = [Part("round 3/9", "3/9", weight=9), Part("2 rounds/s"), Part("0:12 left", "0:12", weight=6)]
    >>> [" ".join(text for _, text in fitted(parts, width)) for width in (32, 31, 19, 12, 6, 2)]
    ['round 3/9 2 rounds/s 0:12 left', 'round 3/9 0:12 left', 'round 3/9 0:12', '3/9 0:12', '3/9', '']
    """
    by_weight = sorted((part for part in parts if part.text), key=lambda part: part.weight)
    steps = [(part, "") for part in by_weight if part.weight < DETAIL]
    main = [part for part in by_weight if part.weight >= DETAIL]
    steps += [(part, part.short) for part in main if part.short] + [(part, "") for part in main]
    texts = {part: part.text for part in by_weight}
    while sum(len(text) + 2 for text in texts.values() if text) - 2 > width and steps:
        part, text = steps.pop(0)
        texts[part] = text
    return [(part, texts[part]) for part in parts if texts.get(part)]


class Rate:
    """How fast it goes, by what was done in the last seconds."""

    def __init__(self, now: float, done: int) -> None:
        self._seen: deque[tuple[float, int]] = deque([(now, done)])
        self._first = True

    def add(self, now: float, done: int) -> None:
        """So much is done by now. What came before the first step, and the step itself, is not typical."""
        self._seen.append((now, done))
        if self._first and len(self._seen) > 2:
            self._seen.popleft()
            self._first = False
        while len(self._seen) > 2 and self._seen[1][0] < now - WINDOW:
            self._seen.popleft()

    @property
    def per_second(self) -> float | None:
        """None as long as nothing is done."""
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        return (last - first) / (end - start) if last > first and end > start else None

    def left(self, total: int, now: float) -> float | None:
        """Seconds until all is done, if it goes on like this."""
        rate, (end, last) = self.per_second, self._seen[-1]
        return None if rate is None else max((total - last) / rate - (now - end), 0.0)


def duration(seconds: float) -> str:
    """
    >>> duration(7.2), duration(754), duration(3723), duration(200_000)
    ('0:08', '12:34', '1:02:03', '2 d 7 h')
    """
    whole = -int(-seconds // 1)
    if whole >= 86_400:
        return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def pace(rate: float, unit: str) -> str:
    """
    >>> pace(123.4, "round"), pace(2.345, "round"), pace(0.05, "round")
    ('123 rounds/s', '2.3 rounds/s', '20 s/round')
    """
    if rate >= 1:
        return f"{rate:.0f} {unit}s/s" if rate >= 10 else f"{rate:.1f} {unit}s/s"
    return f"{1 / rate:.0f} s/{unit}" if rate <= 0.1 else f"{1 / rate:.1f} s/{unit}"


class ProgressLine:
    """Work of so many steps.

    Args:
        show: True shows it everywhere, False nowhere, None on terminals alone.
        unit: what a step is called.
        stream: where to; stderr, because stdout is for results.
    """

    def __init__(
        self,
        show: bool | None,
        total: int,
        done: int = 0,
        *,
        unit: str = "round",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.done, self._unit = total, done, unit
        self._parts: list[Part] = []
        self._stream, self._clock = stream or sys.stderr, clock
        self._start = clock()
        self._rate = Rate(self._start, done)
        on_terminal = is_terminal(self._stream)
        self._live = self._made(alone=False) if show is not False and on_terminal else None
        self._prints = show is True and not on_terminal
        self._printed, self._drawn = (self._start, done), 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def shown(self) -> bool:
        """Whether anybody sees it."""
        return self._live is not None or self._prints

    def restart(self, total: int, done: int = 0) -> None:
        """Something else begins, of so many steps."""
        self.total, self.done, self._rate = total, done, Rate(self._clock(), done)
        self._printed = self._printed[0], done

    def update(self, done: int, parts: Iterable[Part]) -> None:
        """So much is done, of which this is to be said beside how fast it goes."""
        now = self._clock()
        if done > self.done:
            self._rate.add(now, done)
        self.done, self._parts = done, list(parts)
        if self._live is not None and not self._live.auto_refresh and now - self._drawn >= 1 / REFRESHES:
            self._drawn = now
            self._live.refresh()
        if self._prints and self._is_due(now):
            self._printed = now, done
            self._stream.write(self.text() + "\n")
            self._stream.flush()

    def text(self) -> str:
        """All of it, as it is printed where there is no terminal."""
        return ", ".join(part.text for part in self.parts() if part.text)

    def parts(self) -> list[Part]:
        """What was said, how fast it goes, and how long it will take; in the end how long it took."""
        now = self._clock()
        rate, left = self._rate.per_second, self._rate.left(self.total, now)
        if self.done >= self.total:
            return [*self._parts, Part(f"in {duration(now - self._start)}", style="cyan", weight=6)]
        speed = Part("" if rate is None else pace(rate, self._unit), style="dim", weight=3)
        time_left = "" if left is None else duration(left)
        return [*self._parts, speed, Part(time_left and f"{time_left} left", time_left, "cyan", 6)]

    def _is_due(self, now: float) -> bool:
        seconds, share = now - self._printed[0], (self.done - self._printed[1]) / max(self.total, 1)
        return seconds >= SPARSELY[0] or (share >= SPARSELY[1] and seconds >= AT_MOST)

    def keep_time(self) -> None:
        """From here on a thread draws the line, so that the time left runs on between two steps.

        Processes should not be forked beside a thread, which is why it is not there from the start.
        """
        if self._live is not None and not self._live.auto_refresh:
            self._live.transient = True
            self._live.stop()
            self._live = self._made(alone=True)
            self._live.start()

    def _made(self, alone: bool) -> Live:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream, highlight=False)
        return Live(self, console=console, auto_refresh=alone, refresh_per_second=REFRESHES)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.drawn(options.max_width - KEPT_FREE, options.ascii_only)

    def drawn(self, width: int, ascii_only: bool = False) -> Text:
        """The line for a terminal: a bar where there is space, and the parts."""
        from rich.text import Text

        line, parts = Text(no_wrap=True, overflow="crop", end=""), fitted(self.parts(), width)
        space = width - sum(len(text) + 2 for _, text in parts)
        if parts and space >= SHORTEST_BAR:
            size = min(space, LONGEST_BAR)
            filled = size * min(self.done, self.total) // max(self.total, 1)
            whole, rest = ("#", ".") if ascii_only else ("━", "─")
            line.append(whole * filled, "green").append(rest * (size - filled), "dim").append("  ")
        for number, (part, text) in enumerate(parts):
            line.append("  " if number else "").append(text, part.style)
        return line


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be drawn over there."""
    return bool(stream.isatty()) and os.environ.get("TERM") not in ("dumb", "unknown")
