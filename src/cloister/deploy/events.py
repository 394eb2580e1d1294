"""What happens in a federation, told to whoever keeps the log: plain values without data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

OnEvent = Callable[[Mapping[str, Any]], None]
"""Is told what happens, as plain values without data: `event`, `time`, `level`, and what belongs to it."""


class Events:
    """Tells what happens to a listener, and remembers the last of it for the status."""

    def __init__(self, listener: OnEvent | None, most: int = 50) -> None:
        self._listener, self._most = listener, most
        self.last: list[dict[str, Any]] = []

    def tell(self, event: str, level: str = "info", **fields: Any) -> None:
        """Something happened."""
        value = {"event": event, "time": time.time(), "level": level, **fields}
        self.last = [value, *self.last][: self._most]
        if self._listener is not None:
            self._listener(value)


def event_sentence(event: Mapping[str, Any]) -> str:
    """An event for people, without what only programs want; a step is named where it is no training.

    >>> event_sentence({"event": "reply", "time": 1.0, "level": "info", "round": 3, "what": "update", "node": "va"})
    'reply: round 3, node va'
    >>> event_sentence({"event": "step closed", "round": 3, "what": "moments", "replies": 0, "released": False})
    'step closed: round 3, moments, replies 0, not released'
    """
    words = [f"round {event['round']}"] if event.get("round") is not None else []
    words += [str(event["what"])] if event.get("what") not in (None, "update") else []
    words += [f"{name} {event[name]}" for name in ("node", "replies") if event.get(name) is not None]
    words += ["not released"] if event.get("released") is False else []
    reason = "" if event.get("reason") is None else str(event["reason"])
    return ": ".join(filter(None, (str(event.get("event", "")), ", ".join(words), reason)))
