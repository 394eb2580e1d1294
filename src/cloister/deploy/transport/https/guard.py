"""Around every route: a body that is too long, or too slow, and a response that nobody takes, end the request."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloister.deploy.transport.https.connections import Connection, Connections
from cloister.deploy.transport.https.limits import HttpsLimits
from cloister.deploy.transport.https.refusals import Refusal


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, limits: HttpsLimits, connections: Connections) -> None:
        self._app, self._limits, self._connections = app, limits, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        connection = self._connections.of(scope.get("client"))
        request = _Request(receive, send, self._limits, _declared(scope))
        try:
            await self._app(scope, request.receive, request.send)
        except _NotTaken as error:
            self._connections.refused(_who(connection), str(error))
            if connection is not None:
                connection.abort()
            await asyncio.sleep(0)
            await asyncio.sleep(0)


class _NotTaken(BaseException):
    """A response that the other side does not take; no handler of errors is to answer it."""


class _Request:
    """What a request may still send and take."""

    def __init__(self, receive: Receive, send: Send, limits: HttpsLimits, declared: int | None) -> None:
        self._receive, self._send, self._limits, self._declared = receive, send, limits, declared
        self._bytes, self._until, self._whole = 0, 0.0, False

    async def receive(self) -> Message:
        """The next bytes of the body."""
        if self._whole:
            return await self._receive()
        most, seconds = self._limits.part_bytes, self._limits.body_seconds
        if self._declared is not None and self._declared > most:
            raise Refusal(413, f"Expected a body of at most {most} bytes, found {self._declared}: send less.")
        self._until = self._until or asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(
                408, f"Expected a body within {seconds:g} s, found a part of it: send less at once."
            ) from None
        self._whole = not message.get("more_body", False)
        self._bytes += len(message.get("body", b""))
        if self._bytes > most:
            raise Refusal(413, f"Expected a body of at most {most} bytes, found more: send less.")
        return message

    async def send(self, message: Message) -> None:
        """The next part of the response."""
        seconds = self._limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                await self._send(message)
        except TimeoutError:
            raise _NotTaken(f"Expected the response to be taken within {seconds:g} s, found a part waiting.") from None


def _declared(scope: Scope) -> int | None:
    """The length of the body as its header has it."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return None


def _who(connection: Connection | None) -> str:
    return "somebody" if connection is None else connection.who
