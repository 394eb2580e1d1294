"""A process that computes plans, as `plan_process.py` asks by lines of JSON. Not for people."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any

from cloister.errors import CloisterError


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """A plan, or why there is none."""
    from cloister.studio.planner import exact, quick

    try:
        return {"plan": (quick if asked["quick"] else exact)(asked["values"])}
    except CloisterError as error:
        return {"error": str(error)}
    except (ArithmeticError, ValueError, MemoryError) as error:  # values at the edge of what a price is known for
        return {"error": f"Expected settings that have a price, found none ({error}): choose less extreme ones."}


def _read(told: queue.Queue[dict[str, Any]]) -> None:
    """Nobody is left to work for when the pipe is closed."""
    for line in sys.stdin:
        told.put(json.loads(line))
    os._exit(0)


def main() -> None:
    """Until there is nobody left to work for."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not for who asked
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(told,), daemon=True).start()
    import torch

    import cloister.studio.planner  # noqa: F401 (what takes long to import is there when the first question comes)

    torch.set_num_threads(1)
    while True:
        out.write(json.dumps(answer(told.get())) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
