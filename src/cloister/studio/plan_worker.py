"""A process that computes plans, as `plan_process.py` asks by lines of JSON. Not for people."""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
from typing import Any

from cloister.errors import CloisterError

_MOST_BYTES = 4 * 2**30


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """A plan, or why there is none."""
    from cloister.studio.planner import exact, quick

    try:
        return {"plan": (quick if asked["quick"] else exact)(asked["values"])}
    except CloisterError as error:
        return {"error": str(error)}
    except (ArithmeticError, ValueError, MemoryError) as error:  # values at the edge of what a price is known for
        return {"error": f"Expected settings that have a price, found none ({error}): choose less extreme ones."}


def _limit_memory() -> None:
    """Numbers that nobody has, such as a billion clients with samples each, must not take the machine's memory."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    least = min(one for one in (_MOST_BYTES, *resource.getrlimit(resource.RLIMIT_DATA)) if one >= 0)
    resource.setrlimit(resource.RLIMIT_DATA, (least, least))


def _read(told: queue.Queue[dict[str, Any]]) -> None:
    """Nobody is left to work for when the pipe is closed."""
    for line in sys.stdin:
        told.put(json.loads(line))
    os._exit(0)


def main() -> None:
    """Until there is nobody left to work for."""
    _limit_memory()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not for who asked
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(told,), daemon=True).start()
    importlib.import_module("cloister.studio.planner")  # takes long: it is there when the first question comes
    importlib.import_module("torch").set_num_threads(1)
    while True:
        out.write(json.dumps(answer(told.get())) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
