"""How plans are computed beside the server: one process, one question at a time, ended when nobody waits any more."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from cloister.errors import CloisterError

_PATIENCE = 2.0
"""Seconds for an answer that nobody waits for any more: most come within, and a new process takes longer to start."""
_LONGEST = 60.0
_REMEMBERED = 500
_OFTEN = 0.05

Wanted = Callable[[], Awaitable[bool]]
"""Whether somebody still waits."""


class Stale(Exception):
    """Nobody waits for this answer any more."""


class PlanProcess:
    """Answers questions about plans, and remembers the answers."""

    def __init__(self, quick: bool) -> None:
        self._quick = quick
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._known: dict[str, dict[str, Any]] = {}

    async def start(self) -> None:
        """Have a process that is ready, or soon will be."""
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "cloister.studio.plan_worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the server, which ends this
            )

    async def end(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def ask(self, values: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
        """The plan, or why there is none; `Stale` where nobody waits for it any more."""
        question = json.dumps({"quick": self._quick, "values": dict(values)}, sort_keys=True)
        if question in self._known:
            return self._known[question]
        async with self._turn:
            if not await wanted():
                raise Stale
            if question not in self._known:
                found = await self._computed(question, wanted)
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[question] = found
        return self._known[question]

    async def _computed(self, question: str, wanted: Wanted) -> dict[str, Any]:
        await self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question.encode() + b"\n")
        line = asyncio.ensure_future(process.stdout.readline())
        began = time.monotonic()
        try:
            while not (await asyncio.wait({line}, timeout=_OFTEN))[0]:
                waited = time.monotonic() - began
                if waited > _LONGEST:
                    raise CloisterError(
                        f"Expected a plan within {_LONGEST:.0f} seconds, found none: `cloister plan` has no time limit."
                    )
                if waited > _PATIENCE and not await wanted():
                    raise Stale
            found = line.result()
            if not found:
                raise CloisterError("Expected a plan, found that the process that computes it has ended: try again.")
        except BaseException:
            line.cancel()
            await self.end()
            raise
        answered: dict[str, Any] = json.loads(found)
        return answered
