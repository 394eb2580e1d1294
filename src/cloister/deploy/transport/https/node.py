"""A node's end: it asks for messages and waits, and sends large ones in parts that go on where they broke off."""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from pathlib import Path

from cloister.deploy.transport.base import Unreachable
from cloister.deploy.transport.https.client import Client, Incoming, TryAgain, small_json
from cloister.deploy.wire.fields import integer
from cloister.deploy.wire.identity import PrivateKey
from cloister.deploy.wire.refused import accept_if

LOG = logging.getLogger("cloister.deploy.https")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class HttpsNode:
    """A `NodeTransport` over HTTPS; the server need not be there yet."""

    def __init__(
        self,
        url: str,
        name: str,
        key: PrivateKey,
        trusted: Path | None = None,
        *,
        patience: float = 60.0,
        seconds: float = 30.0,
        most_bytes: int = 2**31,
        stop: threading.Event | None = None,
    ) -> None:
        """`trusted`: the server's certificate, or its authority's (None: those of the system); `patience`: how long
        `send` tries without getting anywhere; `seconds`: how long one step of a request may take;
        `most_bytes`: the longest message that is taken; `stop`: once it is set, `send` tries no more."""
        self._client = Client(url, name, key, trusted, seconds)
        self._patience, self._most = patience, most_bytes
        self._closed, self._stop = threading.Event(), stop or threading.Event()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._has = ""

    def send(self, data: bytes) -> None:
        """Give a message to the server."""
        retry = _Retry(self._closed, self._patience, self._stop)
        name = secrets.token_hex(16)  # under which the server knows this sending of it
        with self._sending:  # the server takes one message of a node at a time
            while True:
                try:
                    part = self._client.session().part_bytes
                    if len(data) > part:
                        return self._upload(name, data, part, retry)
                    with self._client.request("POST", "/v1/messages", content=data):
                        return None
                except TryAgain as error:
                    retry.pause(error)

    def receive(self, timeout: float) -> bytes | None:
        """The next message of the server; a large one may take longer than the timeout once it began to arrive."""
        until = time.monotonic() + timeout
        retry = _Retry(self._closed, self._patience, self._stop)
        with self._receiving:
            while not self._closed.is_set():
                left = max(0.0, until - time.monotonic())
                try:
                    data = self._poll(left)
                    if data is not None:
                        return data
                    retry.progress(0)
                except TryAgain as error:
                    retry.wait(error, most=left)
                except Unreachable as error:
                    LOG.warning("%s", error)
                if time.monotonic() >= until:
                    return None
        return None

    def close(self) -> None:
        """Stop."""
        self._closed.set()
        self._client.end()
        if self._receiving.acquire(timeout=_LONGEST_PAUSE):
            self._client.close()
            self._receiving.release()

    def _upload(self, name: str, data: bytes, part: int, retry: _Retry) -> None:
        """A message in parts, from where the server has it."""
        path = f"/v1/uploads/{name}"
        with self._client.request("POST", path, bytes=len(data)) as response:
            offset = integer(small_json(response), "offset")
        while offset < len(data):
            retry.progress(offset)
            content = data[offset : offset + part]
            with self._client.request("PUT", path, content=content, offset=offset) as response:
                offset = integer(small_json(response), "offset")

    def _poll(self, left: float) -> bytes | None:
        """Ask once; the message that came before is the server's to forget from now on."""
        wait = min(left, self._client.session().poll_seconds)
        ms = int(1000 * wait)
        with self._client.request("GET", "/v1/messages", wait=wait, after=self._has, milliseconds=ms) as response:
            if response.status_code == 204:
                return None
            name, length = response.headers.get("message-name", ""), response.headers.get("message-bytes", "")
            accept_if(length.isdecimal() and len(length) < 16, "the length of a message", length, "check the address")
            if int(length) > self._most:
                self._has = name  # or it would come again and again
            accept_if(int(length) <= self._most, f"a message of at most {self._most} bytes", length, "raise most_bytes")
            incoming = Incoming(int(length))
            data = incoming.read(response)
        if not incoming.is_whole:
            data = self._download(name, incoming)
        self._has = name
        return data

    def _download(self, name: str, incoming: Incoming) -> bytes:
        """A large message, which goes on where it broke off."""
        retry = _Retry(self._closed, self._patience, self._stop)
        while True:
            try:
                headers = {"range": f"bytes={incoming.at}-"}
                with self._client.request("GET", f"/v1/messages/{name}", headers=headers) as response:
                    return incoming.read(response)
            except TryAgain as error:
                if error.status in (404, 416):  # it is outdated: there may be another
                    raise
                retry.progress(incoming.at)
                retry.pause(error)


class _Retry:
    """Pauses that grow while nothing gets on, and an end to patience."""

    def __init__(self, closed: threading.Event, patience: float, stop: threading.Event) -> None:
        self._closed, self._patience, self._stop = closed, patience, stop
        self._since, self._pause, self._reached = time.monotonic(), _FIRST_PAUSE, -1

    def progress(self, reached: int) -> None:
        """Something got on, if it is further than before."""
        if reached > self._reached or reached == 0:
            self._since, self._pause, self._reached = time.monotonic(), _FIRST_PAUSE, reached

    def pause(self, error: Exception) -> None:
        """Wait a little; raise when it was long enough."""
        waited = time.monotonic() - self._since
        if self._closed.is_set() or self._stop.is_set() or waited > self._patience:
            raise Unreachable(f"Expected the server to take part, found that it did not for {waited:.0f} s: {error}")
        self.wait(error)

    def wait(self, error: Exception, most: float = float("inf")) -> None:
        """Wait a little, longer each time."""
        longer = min(2 * self._pause, _LONGEST_PAUSE)
        level = logging.WARNING if self._pause < longer == _LONGEST_PAUSE else logging.INFO  # one warning
        LOG.log(level, "The server did not answer, and is asked again: %s", error)
        self._closed.wait(min(most, self._pause * random.uniform(0.5, 1.0)))
        self._pause = longer
