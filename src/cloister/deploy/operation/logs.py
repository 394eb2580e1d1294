"""Logs: a line of JSON for every event, without data.

Whatever reads logs (journald, a container's collector, `jq`) can read these. Loops write by the `logging` module:

    logging.getLogger("cloister.deploy.server").info("offer sent", extra={"round": 3, "node": "cleveland"})

What a field may hold is decided here and not by whoever writes it: words, truth values and single numbers. A tensor, a
list of numbers or an object is left out, and only its type is named, so that no slip elsewhere puts samples or updates
into a file that people mail to each other. Of errors that are not ours, whose text may quote a cell of a table, only
the type and the place are kept.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from cloister.deploy.events import event_sentence
from cloister.errors import CloisterError, expect_one_of

LOGGER = "cloister.deploy"
LEVELS = ("debug", "info", "warning", "error")
MOST_CHARACTERS = 500
MOST_WORDS = 100

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What a record has without anybody's asking; everything else is a field."""


class JsonFormatter(logging.Formatter):
    """A record as one line: time, level, event, where from, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": _text(record.getMessage()),
            "part": record.name.removeprefix(f"{LOGGER}."),
        }
        for name, value in vars(record).items():
            if name not in _OWN and name not in line:
                line[name] = permitted(value)
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = described(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False)


def permitted(value: object) -> Any:
    """A field's value, if it is one that a log may hold; otherwise the name of its type.

    >>> permitted("cleveland"), permitted(0.5), permitted([0.5, 0.25]), permitted(["a", "b"])
    ('cleveland', 0.5, '(list left out)', ['a', 'b'])
    """
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)) and len(value) <= MOST_WORDS and all(isinstance(one, str) for one in value):
        return [_text(one) for one in value]
    if isinstance(value, BaseException):
        return described(value)
    return f"({type(value).__name__} left out)"


def described(error: BaseException) -> str:
    """Our own errors by their sentence, others by type and place alone."""
    if isinstance(error, CloisterError):
        return _text(str(error))
    return f"{type(error).__name__}{_place(error.__traceback__)}"


def _place(trace: TracebackType | None) -> str:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" in {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _text(text: str) -> str:
    """On one line, without control characters that a terminal would obey, and not too long."""
    plain = "".join(one if one.isprintable() else " " for one in text)
    return plain if len(plain) <= MOST_CHARACTERS else f"{plain[:MOST_CHARACTERS]}..."


class _ToFile(logging.StreamHandler[IO[str]]):
    """Appends to a file, which is opened anew for each line: whoever rotates logs may move it away at any time."""

    def __init__(self, path: Path) -> None:
        super().__init__(sys.stderr)
        self.path = path

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(self.format(record) + "\n")
        except OSError:
            self.handleError(record)


def log_events(part: str) -> Callable[[Mapping[str, Any]], None]:
    """What a loop tells its events to (`on_event`): plain values with `event` and `level`, and what belongs to it."""
    logger = logging.getLogger(f"{LOGGER}.{part}")

    def log(event: Mapping[str, Any]) -> None:
        level = logging.getLevelNamesMapping().get(str(event.get("level", "info")).upper(), logging.INFO)
        apart = {"event", "level", "time", "part"}
        fields = {_field(name): value for name, value in event.items() if name not in apart}
        logger.log(level, "%s", event.get("event", ""), extra=fields)

    return log


def sentence(event: Mapping[str, Any]) -> str:
    """An event for people, without what only programs want.

    >>> sentence({"event": "reply", "time": 1.0, "level": "info", "round": 3, "node": "va"})
    'reply: round 3, node va'
    """
    return event_sentence({name: permitted(value) for name, value in event.items()})


def _field(name: str) -> str:
    """Names that the logging module keeps for itself get a dash."""
    return f"{name}_" if name in _OWN else name


def start_logs(file: Path | None = None, level: str = "info") -> logging.Handler:
    """From now on events of the federation are written to a file, or to stderr; returns what `stop_logs` takes."""
    expect_one_of("--log-level", level, LEVELS)
    handler: logging.Handler = logging.StreamHandler(sys.stderr) if file is None else _ToFile(file)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(LOGGER)
    logger.setLevel(level.upper())
    logger.propagate = False
    logger.addHandler(handler)
    return handler


def stop_logs(handler: logging.Handler) -> None:
    """No more lines to this place."""
    logger = logging.getLogger(LOGGER)
    logger.removeHandler(handler)
    handler.close()
    logger.propagate = not logger.handlers
