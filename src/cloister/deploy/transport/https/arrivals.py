"""Messages that arrive: in one request, or in parts that go on where they broke off; then they wait for the loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from cloister.deploy.transport.https.limits import HttpsLimits
from cloister.deploy.transport.https.refusals import Refusal

_FINISHED = 16
_SMALL = 16384
_STALE_SECONDS = 900.0


class Upload:
    """A message of which the first bytes are here."""

    def __init__(self, name: str, length: int, now: float) -> None:
        self.name, self.length, self.changed = name, length, now
        self.here, self.turn = 0, 0
        self._chunks: list[bytes | bytearray] = []

    def add(self, chunk: bytes, turn: int) -> None:
        """The next bytes, from the request whose turn it is."""
        if turn != self.turn:
            raise Refusal(409, "Expected one part at a time, found a second: ask where to go on.")
        if self.here + len(chunk) > self.length:
            raise Refusal(413, f"Expected a message of {self.length} bytes, found more: declare its true length.")
        last = self._chunks[-1] if self._chunks else None
        if len(chunk) >= _SMALL:
            self._chunks.append(chunk)
        elif isinstance(last, bytearray) and len(last) < _SMALL:  # single bytes would take forty times their memory
            last += chunk
        else:
            self._chunks.append(bytearray(chunk))
        self.here += len(chunk)

    def whole(self) -> bytes:
        """The message. Whether it is what its sender signed, its own hash says to whoever opens it."""
        return b"".join(self._chunks)


class Arrivals:
    """The uploads of all nodes, one of each, and what arrived whole; `receive` may be called from any thread."""

    def __init__(self, limits: HttpsLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._uploads: dict[str, Upload] = {}
        self._finished: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_FINISHED))
        self._whole: queue.SimpleQueue[bytes | bytearray | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0

    def expect_room(self, length: int) -> None:
        """Refuse a message that is too long, or for which there is no memory now."""
        if length > self._limits.message_bytes:
            most = self._limits.message_bytes
            raise Refusal(413, f"Expected a message of at most {most} bytes, found {length}: send less.")
        reserved = sum(upload.length for upload in self._uploads.values())
        if self._waiting_bytes + reserved + length > self._limits.memory_bytes:
            raise Refusal(503, "Expected memory for a message, found none: try again in a moment.")

    def begin(self, node: str, name: str, length: int) -> int:
        """Begin an upload, or go on with it; how many of its bytes are here (all of them: it is done)."""
        if name in self._finished[node]:
            return length
        now = self._clock()
        self._uploads = {who: one for who, one in self._uploads.items() if now - one.changed < _STALE_SECONDS}
        upload = self._uploads.get(node)
        if upload is None or (upload.name, upload.length) != (name, length):
            self._uploads.pop(node, None)
            self.expect_room(length)
            upload = self._uploads[node] = Upload(name, length, now)
        return upload.here

    def upload(self, node: str, name: str, offset: int) -> Upload:
        """The upload to which a part belongs that begins at an offset."""
        upload = self._uploads.get(node)
        if upload is None or upload.name != name:
            raise Refusal(404, "Expected a part of an upload that began, found another: begin it again.")
        if offset != upload.here:
            raise Refusal(409, f"Expected a part at {upload.here}, found one at {offset}: ask where to go on.")
        upload.changed = self._clock()
        upload.turn += 1  # a request that broke off may still be read: it is not to mix with this one
        return upload

    async def finish(self, node: str, upload: Upload) -> int:
        """Deliver an upload if it is whole; how many of its bytes are here."""
        if upload.here < upload.length:
            return upload.here
        data = await asyncio.get_running_loop().run_in_executor(None, upload.whole)
        if upload.name in self._finished[node]:  # its last part came twice
            return upload.length
        if self._uploads.get(node) is not upload:
            raise Refusal(409, "Expected one message at a time, found that another began: begin it again.")
        del self._uploads[node]
        self._finished[node].append(upload.name)
        self.deliver(data)
        return upload.length

    def deliver(self, data: bytes | bytearray) -> None:
        """A whole message for the server's loop."""
        with self._lock:
            self._waiting_bytes += len(data)
        self._whole.put(data)

    def receive(self, timeout: float) -> bytes | None:
        """The next whole message."""
        try:
            data = self._whole.get(timeout=max(timeout, 0.0))
        except queue.Empty:
            return None
        if data is None:
            return None
        with self._lock:
            self._waiting_bytes -= len(data)
        return bytes(data)

    def close(self) -> None:
        """Let go whoever waits."""
        self._whole.put(None)
