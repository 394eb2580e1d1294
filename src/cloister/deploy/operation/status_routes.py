"""The server's web page: /status for people, /status.json for programs.

Both want a token, since both tell who was asked.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from cloister.deploy.operation.status import Status
from cloister.deploy.operation.status_page import POLICY, page
from cloister.deploy.operation.status_source import status_in
from cloister.errors import CloisterError

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def status_routes(folder: Path, token: str) -> Callable[[FastAPI], None]:
    """What adds the pages to the server's application; they read what the loop writes to its folder."""

    def answered(request: Request, made: Callable[[Status], Response]) -> Response:
        if not _knows(request, token):
            return PlainTextResponse("Not found", status_code=404, headers=_HEADERS)
        try:
            found = status_in(folder)
        except CloisterError:
            return PlainTextResponse("No status yet", status_code=503, headers={**_HEADERS, "Retry-After": "2"})
        response = made(found)
        response.headers.update(_HEADERS)
        return response

    async def html(request: Request) -> Response:
        return answered(request, lambda status: HTMLResponse(page(status)))

    async def as_json(request: Request) -> Response:
        return answered(request, lambda status: JSONResponse(status.to_json()))

    def add(app: FastAPI) -> None:
        app.add_api_route("/status", html, methods=["GET"], include_in_schema=False, response_model=None)
        app.add_api_route("/status.json", as_json, methods=["GET"], include_in_schema=False, response_model=None)

    return add


def _knows(request: Request, token: str) -> bool:
    """Whether somebody has the token, in the address or as a bearer."""
    given = request.query_params.get("token") or request.headers.get("authorization", "").removeprefix("Bearer ")
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())
