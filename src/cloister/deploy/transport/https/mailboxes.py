"""What waits for nodes, and nodes that wait: a message stays until its node says that it has it."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True)
class Letter:
    """A message for a node, and the name under which it is fetched; the name tells this server from an earlier one."""

    name: str
    data: bytes


class Mailboxes:
    """Queues of letters; `put` and `clear` may be called from any thread, the rest by the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._letters: dict[str, dict[str, Letter]] = defaultdict(dict)
        self._waiting: dict[str, set[asyncio.Future[bool]]] = defaultdict(set)
        self._closed = False

    def put(self, node: str, data: bytes) -> None:
        """Queue a message."""
        letter = Letter(secrets.token_hex(12), data)
        with self._lock:
            if self._closed:
                return
            self._letters[node][letter.name] = letter
        self._loop.call_soon_threadsafe(self.wake, node)

    def clear(self, node: str) -> None:
        """Forget what is queued."""
        with self._lock:
            self._letters[node].clear()

    def acknowledge(self, node: str, name: str) -> None:
        """The node has a letter."""
        with self._lock:
            self._letters[node].pop(name, None)

    def letter(self, node: str, name: str) -> Letter | None:
        """The letter of a name, if it is still there."""
        with self._lock:
            return self._letters[node].get(name)

    async def first(self, node: str, seconds: float) -> Letter | None:
        """The oldest letter; waits for one."""
        until = self._loop.time() + seconds
        while True:
            with self._lock:
                letter = next(iter(self._letters[node].values()), None)
            left = until - self._loop.time()
            if letter is not None or left <= 0 or self._closed:
                return letter
            if not await self._change(node, left):
                return None

    async def _change(self, node: str, seconds: float) -> bool:
        """Wait; whether to look again."""
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting[node].add(future)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return False
        finally:
            self._waiting[node].discard(future)

    def wake(self, node: str, look_again: bool = True) -> None:
        """Let those who wait for this node's letters look again, or go."""
        for future in self._waiting[node]:
            if not future.done():
                future.set_result(look_again)

    def close(self) -> None:
        """Let everybody go, and take nothing more."""
        with self._lock:
            self._closed = True
            self._letters.clear()
        for node in list(self._waiting):
            self.wake(node)
