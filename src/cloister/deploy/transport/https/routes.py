"""The routes of the server: a session, messages to it, messages from it, and its health."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from cloister.deploy.transport.https.arrivals import Arrivals
from cloister.deploy.transport.https.connections import Connections
from cloister.deploy.transport.https.limits import HttpsLimits
from cloister.deploy.transport.https.mailboxes import Letter, Mailboxes
from cloister.deploy.transport.https.refusals import Refusal
from cloister.deploy.transport.https.sessions import Sessions
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import parse_canonical
from cloister.errors import CloisterError

_CHUNK = 2**18
_SMALL = 4096
_RANGE = re.compile(r"bytes=(\d{1,18})-", re.ASCII)


class Routes:
    """What the routes share."""

    def __init__(
        self,
        sessions: Sessions,
        arrivals: Arrivals,
        mailboxes: Mailboxes,
        connections: Connections,
        limits: HttpsLimits,
    ) -> None:
        self._sessions, self._arrivals, self._mailboxes = sessions, arrivals, mailboxes
        self._connections, self._limits = connections, limits
        self.seen: dict[str, float] = {}

    def add_to(self, app: FastAPI) -> None:
        """Mount them."""
        routes: list[tuple[str, str, Callable[..., Awaitable[Response]]]] = [
            ("/health", "GET", self.health),
            ("/v1/challenge", "POST", self.challenge),
            ("/v1/session", "POST", self.open_session),
            ("/v1/session", "DELETE", self.end_session),
            ("/v1/messages", "POST", self.take_message),
            ("/v1/uploads/{name}", "POST", self.begin_upload),
            ("/v1/uploads/{name}", "PUT", self.take_part),
            ("/v1/messages", "GET", self.poll),
            ("/v1/messages/{name}", "GET", self.download),
        ]
        for path, method, route in routes:
            app.add_api_route(path, route, methods=[method], response_model=None)
        app.add_exception_handler(Refusal, self._refuse)

    async def health(self) -> Response:
        """Whether the server is there; says nothing else."""
        return JSONResponse({"status": "ok"})

    async def challenge(self, request: Request) -> Response:
        """What a node must sign to open a session."""
        values = await self._values(request)
        return JSONResponse({"challenge": self._sessions.challenge(_text(values, "node"))})

    async def open_session(self, request: Request) -> Response:
        """A session for a node that signed a challenge."""
        values = await self._values(request)
        node = _text(values, "node")
        session = self._sessions.open(node, _text(values, "challenge"), _text(values, "signature"))
        self.seen[node] = time.time()
        limits = self._limits
        told = {"part_bytes": limits.part_bytes, "poll_seconds": limits.poll_seconds}
        return JSONResponse({"session": session, "message_bytes": limits.message_bytes, **told})

    async def end_session(self, request: Request) -> Response:
        """A node goes; what of it waits for messages is let go."""
        node = self._node(request)
        self._sessions.end(node)
        self._mailboxes.wake(node, look_again=False)
        return Response(status_code=204)

    async def take_message(self, request: Request) -> Response:
        """A message that fits into one request."""
        self._node(request)
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            self._arrivals.expect_room(len(data))
        self._arrivals.deliver(data)
        return Response(status_code=204)

    async def begin_upload(self, name: str, request: Request) -> Response:
        """Begin a message in parts, or ask where to go on."""
        node = self._node(request)
        if len(name) > 64:
            raise Refusal(400, f"Expected a name of at most 64 letters, found {len(name)}: choose another.")
        return JSONResponse({"offset": self._arrivals.begin(node, name, _number(request, "bytes"))})

    async def take_part(self, name: str, request: Request) -> Response:
        """A part of a message; what came of it before a break counts."""
        node = self._node(request)
        upload = self._arrivals.upload(node, name, _number(request, "offset"))
        turn = upload.turn
        async for chunk in request.stream():
            upload.add(chunk, turn)
        return JSONResponse({"offset": await self._arrivals.finish(node, upload)})

    async def poll(self, request: Request) -> Response:
        """The first message that waits, once the node has said which one it has."""
        node = self._node(request)
        self._mailboxes.acknowledge(node, request.query_params.get("after", ""))
        wait = min(_number(request, "milliseconds") / 1000, self._limits.poll_seconds)
        letter = await self._mailboxes.first(node, wait)
        self.seen[node] = time.time()
        if letter is None:
            return Response(status_code=204)
        headers = {"message-name": letter.name, "message-bytes": str(len(letter.data))}
        inline = letter.data if len(letter.data) <= self._limits.part_bytes else b""
        return Response(inline, headers=headers, media_type="application/octet-stream")

    async def download(self, name: str, request: Request) -> Response:
        """A message, or the rest of it."""
        letter = self._mailboxes.letter(self._node(request), name)
        if letter is None:
            raise Refusal(404, "Expected a message that waits, found none of this name: ask for messages again.")
        match = _RANGE.fullmatch(request.headers.get("range", "bytes=0-"))
        start, length = int(match[1]) if match else -1, len(letter.data)
        if not 0 <= start < length:
            raise Refusal(416, f"Expected a range within {length} bytes, found another: ask for messages again.")
        headers = {"content-length": str(length - start), "content-range": f"bytes {start}-{length - 1}/{length}"}
        return _Rest(letter, start, headers)

    def _node(self, request: Request) -> str:
        """The node that signed a request, before anything of its body is read."""
        target = request.scope["raw_path"]
        if request.scope["query_string"]:
            target += b"?" + request.scope["query_string"]
        node = self._sessions.node_of(request.headers.get("authorization", ""), request.method, target)
        self._connections.prove(request.scope.get("client"), node)
        self.seen[node] = time.time()
        return node

    async def _values(self, request: Request) -> dict[str, Any]:
        """A small JSON body."""
        data = b""
        async for chunk in request.stream():
            data += chunk
            if len(data) > _SMALL:
                raise Refusal(413, f"Expected a body of at most {_SMALL} bytes, found more: send less.")
        try:
            values = parse_canonical(data)
        except CloisterError as error:
            raise Refusal(400, str(error)) from None
        return values if isinstance(values, dict) else {}

    async def _refuse(self, request: Request, error: Exception) -> Response:
        """The answer to a request that is refused; the connection ends, since a body may still be on its way."""
        assert isinstance(error, Refusal)
        connection = self._connections.of(request.scope.get("client"))
        who = "somebody" if connection is None else connection.who
        self._connections.refused(who, error.sentence)
        return JSONResponse({"error": error.sentence}, error.status, headers={"connection": "close"})


class _Rest(Response):
    """The bytes of a letter from a place on, without a copy of them all."""

    def __init__(self, letter: Letter, start: int, headers: dict[str, str]) -> None:
        super().__init__(status_code=206, headers=headers, media_type="application/octet-stream")
        self._data, self._start = memoryview(letter.data), start

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for at in range(self._start, len(self._data), _CHUNK):
            more = at + _CHUNK < len(self._data)
            await send({"type": "http.response.body", "body": self._data[at : at + _CHUNK], "more_body": more})


def _text(values: dict[str, Any], name: str) -> str:
    try:
        return fields.text(values, name)
    except CloisterError as error:
        raise Refusal(400, str(error)) from None


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise Refusal(400, f"Expected a number as {name}, found another text: send one.")
    return int(text)
