"""A process that runs cells, one after the other, as `pool.py` tells it by lines of JSON. Not for people."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from cloister.errors import Note

OFTEN = 0.5
"""Seconds between two words about how far a run is."""


class _Answers:
    """Lines that go back to who started this process."""

    def __init__(self, file: TextIO) -> None:
        self.file, self.said = file, 0.0

    def send(self, **answer: Any) -> None:
        self.file.write(json.dumps(answer) + "\n")
        self.file.flush()

    def round(self, line: Mapping[str, Any]) -> None:
        if time.monotonic() >= self.said + OFTEN:
            self.said = time.monotonic()
            self.send(**line)


def _read(told: queue.Queue[dict[str, Any]]) -> None:
    """Put what is told where the main thread takes it. Nobody is left to work for when the pipe is closed."""
    for line in sys.stdin:
        told.put(json.loads(line))
    os._exit(0)  # whatever is under way: runs survive it


def main(threads: int, jobs: int) -> None:
    """Until there is nobody left to work for."""
    answers = _Answers(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what libraries print is for people
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(told,), daemon=True).start()
    import torch

    from cloister.engine.choice import share_gpu
    from cloister.runs.task_cache import TaskCache

    torch.set_num_threads(threads)
    share_gpu(jobs)
    tasks = TaskCache()
    while True:
        _run(told.get(), tasks, answers)


def _run(told: dict[str, Any], tasks: Any, answers: _Answers) -> None:
    from cloister.runs.config import build
    from cloister.studies.execution import run_cell
    from cloister.studies.pool import Failure

    failed, notes = None, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Note)
        try:
            run_cell(build(told["values"], tasks), Path(told["folder"]), answers.round)
        except Exception as error:
            failure = Failure.of(error, traceback.format_exc())
            failed = [failure.message, failure.details]
    for one in caught:
        if issubclass(one.category, Note):
            notes.append(str(one.message))
        else:
            sys.stderr.write(warnings.formatwarning(one.message, one.category, one.filename, one.lineno))
    answers.send(failed=failed, notes=notes)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
