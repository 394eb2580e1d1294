"""Processes that run cells one after the other, so that imports, data and compiled kernels serve many cells.

They are started as `python -m cloister.studies.worker`, which needs nothing of the program that starts them: a script
without a main guard or a notebook will do. A line of JSON goes in for every cell, lines of JSON come back. A process
that dies takes its cell with it and is replaced.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cloister.errors import CloisterError
from cloister.studies.cells import Cell
from cloister.studies.resources import visible_gpus


@dataclass(frozen=True)
class Failure:
    """Why a cell did not end."""

    message: str
    """In one sentence."""
    details: str
    """In full."""

    @classmethod
    def of(cls, error: Exception, trace: str) -> Failure:
        """An error of ours is a sentence already; of others the type is told, too."""
        said = str(error) if isinstance(error, CloisterError) else f"{type(error).__name__}: {error}"
        return cls(" ".join(said.split()), trace)


class WorkerPool:
    """Some workers, which end with the block."""

    def __init__(self, jobs: int, threads: int) -> None:
        self._jobs, self._threads = jobs, threads
        self._workers: dict[int, _Worker] = {}
        self._answers: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self._started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.end()

    def run(
        self, cells: Sequence[Cell], folder: Path, at: Callable[[Cell, dict[str, Any]], None]
    ) -> Iterator[tuple[Cell, Failure | None, Sequence[str]]]:
        """Each cell when it has ended or failed, with the notes of its run; `at` is told how far each is."""
        waiting, running = deque(cells), dict[int, Cell]()
        for place in range(min(self._jobs, len(cells))):
            self._feed(self._start(place), waiting, folder, running)
        while running:
            number, answer = self._answers.get()
            if number not in running:
                continue  # one that had nothing to do and has left
            if answer is not None and "round" in answer:
                at(running[number], answer)
                continue
            cell, notes = running.pop(number), [] if answer is None else answer["notes"]
            if answer is None:
                worker = self._workers.pop(number)
                failure: Failure | None = worker.death()
                number = self._start(worker.place) if waiting else number
            else:
                failure = Failure(*answer["failed"]) if answer["failed"] else None
            if waiting:
                self._feed(number, waiting, folder, running)
            yield cell, failure, notes

    def _start(self, place: int) -> int:
        self._started += 1
        self._workers[self._started] = _Worker(self._started, place, self._jobs, self._threads, self._answers)
        return self._started

    def _feed(self, number: int, waiting: deque[Cell], folder: Path, running: dict[int, Cell]) -> None:
        cell = running[number] = waiting.popleft()
        self._workers[number].send({"values": cell.experiment.values, "folder": str(folder / cell.folder)})


class _Worker:
    """One process, and the thread that listens to it."""

    def __init__(self, number: int, place: int, jobs: int, threads: int, answers: queue.Queue[Any]) -> None:
        self.place = place
        apart: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}  # Ctrl-C is for who leads
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cloister.studies.worker", str(threads), str(jobs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(place, threads),
            **apart,
        )
        threading.Thread(target=self._listen, args=(number, answers), daemon=True).start()

    def _listen(self, number: int, answers: queue.Queue[Any]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # the last line of a process that was killed may be half of one
                answers.put((number, json.loads(line)))
        answers.put((number, None))

    def send(self, told: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has died, which its end of the other pipe will tell
            self._process.stdin.write(json.dumps(told).encode() + b"\n")
            self._process.stdin.flush()

    def death(self) -> Failure:
        """How it ended, in words."""
        code = self._process.wait()
        how = f"was stopped by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        remedy = "if memory ran out, take fewer --jobs"
        said = f"Expected the process of this run to go on, found that it {how}: {remedy}."
        return Failure(said, said + "\n")

    def end(self) -> None:
        """At once: a run survives it, and is resumed from its folder."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _environment(place: int, threads: int) -> dict[str, str]:
    """That of this process: the same packages are found, with so many threads and a GPU each in turn."""
    found = [str(Path(one).absolute()) for one in sys.path if one]
    made = {**os.environ, "PYTHONPATH": os.pathsep.join(found), "OMP_NUM_THREADS": str(threads)}
    gpus = visible_gpus()
    return made if len(gpus) < 2 else {**made, "CUDA_VISIBLE_DEVICES": gpus[place % len(gpus)]}
