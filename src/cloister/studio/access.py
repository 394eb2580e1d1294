"""Who may ask, and what every answer says to the browser.

The page is for whoever started it. Others on the same machine can reach the port, and so can any site that is open in
the same browser. The former lack the token. The latter could have a name of theirs resolve to 127.0.0.1, so that only
loopback names are answered; and their requests come without the cookie, which is SameSite=Strict.

To a browser all ports of this machine are one site. A page of another port is told apart by Sec-Fetch-Site, and can
ask for nothing but to be left for this one. Its server, though, is sent the cookie together with its own: a browser
that opens a page which another user of this machine serves tells that user the cookie. No attribute of cookies
prevents that without TLS.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# plotly.js writes style into the page; scripts come from files of ours alone.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_NO_TOKEN = (
    "Expected the address that `cloister studio` printed, with its token, found a request without it: open that "
    "address in this browser.\n"
)
_OTHER_HOST = "Expected a request to this machine by a loopback name, found another host: open the printed address.\n"
_OTHER_PAGE = "Expected a request of this page, found one of another site or port: open the printed address.\n"
_USED = (
    "Expected a token that nobody has used, found one that was: every page is closed now, in case somebody else has "
    "used it. Open the address that `cloister studio` printed.\n"
)
_ONLY_GET = "Expected GET, found {}: this page shows runs and changes nothing.\n"


class Access:
    """An application behind a token."""

    def __init__(self, app: App, port: int) -> None:
        self._app = app
        self.token = secrets.token_urlsafe(24)
        self._once: set[str] = set()
        self._used: set[str] = set()
        self._session = secrets.token_urlsafe(24)
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self._cookie = f"cloister-studio-{port}"  # cookies are shared by all ports of a host

    def one_time_token(self) -> str:
        """A token for one exchange: other users of this machine can read the words that a browser is started with.

        One of them may be faster than the browser. Then the browser comes second, and whoever was first is shut out.
        """
        token = secrets.token_urlsafe(24)
        self._once.add(token)
        return token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, exchange a token for the cookie, or pass on."""
        if scope["type"] != "http":  # that the server begins and ends; uvicorn is told to know no websockets
            await self._app(scope, receive, send)
            return
        headers = [(name.lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        if [value for name, value in headers if name == b"host"] not in ([host] for host in self._hosts):
            await _answer(send, 403, _OTHER_HOST)
            return
        given = _words(scope).get("token") if scope["path"] == "/" else None
        if given is not None:
            await self._exchange(given, send)
        elif not self._knows(value for name, value in headers if name == b"cookie"):
            await _answer(send, 401, _NO_TOKEN)
        elif _is_of_another_page(dict(headers)):
            await _answer(send, 403, _OTHER_PAGE)
        elif scope["method"] != "GET":
            await _answer(send, 405, _ONLY_GET.format(scope["method"]), {"allow": "GET"})
        else:
            await self._app(scope, receive, _with_headers(send))

    async def _exchange(self, given: list[str], send: Send) -> None:
        if any(_same(token, given[0]) for token in self._used):
            self._session = secrets.token_urlsafe(24)
            await _answer(send, 401, _USED)
            return
        found = [token for token in (self.token, *self._once) if _same(token, given[0])]
        if len(given) != 1 or not found:
            await _answer(send, 401, _NO_TOKEN)
            return
        self._used |= self._once & set(found)
        self._once -= set(found)
        cookie = f"{self._cookie}={self._session}; HttpOnly; SameSite=Strict; Path=/"
        await _answer(send, 303, "", {"set-cookie": cookie, "location": "/"})

    def _knows(self, cookies: Iterable[str]) -> bool:
        for text in cookies:
            try:
                found = SimpleCookie(text).get(self._cookie)
            except CookieError:
                continue
            if found is not None and _same(self._session, found.value):
                return True
        return False


def _is_of_another_page(headers: dict[bytes, str]) -> bool:
    """Whether a browser says that something of another origin asks, other than a link that somebody follows."""
    if headers.get(b"sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    return (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) != ("navigate", "document")


def _words(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _same(one: str, other: str) -> bool:
    return secrets.compare_digest(one.encode(), other.encode())


def _with_headers(send: Send) -> Send:
    """The headers of every answer; one that has its own keeps it."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message.get("headers", [])}
            more = [(name.encode(), text.encode()) for name, text in _HEADERS.items() if name.encode() not in own]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    own = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(text.encode())), **(headers or {})}
    encoded = [(name.encode(), value.encode()) for name, value in own.items()]
    sending = _with_headers(send)
    await sending({"type": "http.response.start", "status": status, "headers": encoded})
    await sending({"type": "http.response.body", "body": text.encode()})
