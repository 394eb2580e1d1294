"""Signed requests of a node: it opens sessions as they are needed, and tells what to try again from what is refused."""

from __future__ import annotations

import itertools
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cloister.deploy.transport.https.sessions import answer_to, authorization
from cloister.deploy.wire.canonical import canonical
from cloister.deploy.wire.identity import PrivateKey
from cloister.deploy.wire.refused import Refused, accept_if
from cloister.errors import CloisterError

_SMALL = 2**16
_TRY_AGAIN = {401, 404, 408, 409, 416, 425, 429}


class TryAgain(Exception):
    """The request did not do what it was for, and may do it later; its status, or 0 where none came."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Session:
    """An open session, and what the server said about itself."""

    name: str
    part_bytes: int
    poll_seconds: float


class Client:
    """Requests of one node to one server; may be used by several threads."""

    def __init__(self, url: str, node: str, key: PrivateKey, trusted: Path | None, seconds: float) -> None:
        self._node, self._key, self._seconds = node, key, seconds
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            verify=_trust(trusted),
            timeout=seconds,
            trust_env=False,
            limits=httpx.Limits(max_connections=4, max_keepalive_connections=4, keepalive_expiry=30.0),
        )
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._numbers = itertools.count(1)

    def session(self) -> Session:
        """The open session, or a new one."""
        with self._lock:
            if self._session is None:
                challenge = self._small("/v1/challenge", {"node": self._node})["challenge"]
                signature = answer_to(challenge, self._node, self._key)
                values = {"node": self._node, "challenge": challenge, "signature": signature}
                found = self._small("/v1/session", values)
                self._session = Session(found["session"], int(found["part_bytes"]), float(found["poll_seconds"]))
            return self._session

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        wait: float = 0.0,
        **params: str | int,
    ) -> Iterator[httpx.Response]:
        """A signed request and its response, of which the body was not read yet.

        Raises `TryAgain` where the same request, or another for the same purpose, can do better later.
        """
        session = self.session()
        timeout = httpx.Timeout(self._seconds, read=self._seconds + wait)
        request = self._http.build_request(
            method, path, content=content, params=params, headers=headers, timeout=timeout
        )
        signed = authorization(session.name, next(self._numbers), method, request.url.raw_path, self._key)
        request.headers["authorization"] = signed
        with _transport_errors():
            response = self._http.send(request, stream=True)
            try:
                self._expect_success(response, session)
                if response.status_code == 204:
                    response.read()  # nothing, but a connection whose response was not read to its end is not kept
                yield response
            finally:
                response.close()

    def end(self) -> None:
        """End the session, so that whoever waits on it is let go."""
        session, self._session = self._session, None
        if session is not None:
            number = next(self._numbers)
            header = authorization(session.name, number, "DELETE", b"/v1/session", self._key)
            try:
                self._http.delete("/v1/session", headers={"authorization": header}, timeout=2.0)
            except (httpx.HTTPError, RuntimeError):
                return

    def close(self) -> None:
        """End all connections."""
        self._http.close()

    def _small(self, path: str, values: dict[str, str]) -> dict[str, Any]:
        request = self._http.build_request("POST", path, content=canonical(values))
        with _transport_errors():
            response = self._http.send(request, stream=True)
            try:
                self._expect_success(response, None)
                return small_json(response)
            finally:
                response.close()

    def _expect_success(self, response: httpx.Response, session: Session | None) -> None:
        if response.is_success:
            return
        sentence = _sentence(response)
        if response.status_code == 401 and session is not None:
            with self._lock:
                self._session = None if self._session is session else self._session
        if response.status_code in _TRY_AGAIN or response.status_code >= 500:
            raise TryAgain(sentence, response.status_code)
        raise Refused(sentence)


@contextmanager
def _transport_errors() -> Iterator[None]:
    """Errors of the network are for later; a certificate that is not trusted is not."""
    try:
        yield
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise Refused(
                f"Expected a server with a trusted certificate, found {error}: check the address and the certificate."
            ) from None
        raise TryAgain(f"{type(error).__name__}: {error}") from None
    except RuntimeError as error:  # httpx says so when it was closed meanwhile
        raise TryAgain(str(error)) from None


def _trust(trusted: Path | None) -> ssl.SSLContext:
    """TLS of a node's side: the certificate given is the only one that is trusted."""
    if trusted is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=trusted)
    except (OSError, ssl.SSLError) as error:
        raise CloisterError(f"Expected a certificate in {trusted}, found {error}: ask the server's operator.") from None


class Incoming:
    """A body of known, or of greatest, length; it knows how far it came when its connection broke."""

    def __init__(self, length: int) -> None:
        self._chunks: list[bytes] = []
        self._length, self.at = length, 0

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.at == self._length

    def read(self, response: httpx.Response) -> bytes:
        """Add the bytes of a response; all that there are now."""
        for chunk in response.iter_raw():
            end, most = self.at + len(chunk), self._length
            accept_if(end <= most, f"at most {most} bytes", "more", "check the address of the server")
            self._chunks.append(chunk)
            self.at = end
        return b"".join(self._chunks)


def small_json(response: httpx.Response) -> dict[str, Any]:
    """The object in a small body."""
    body = Incoming(_SMALL).read(response)
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):
        values = None
    accept_if(isinstance(values, dict), "an object in JSON", body[:80], "check the address")
    return dict(values)


def _sentence(response: httpx.Response) -> str:
    """What the server says about a refusal."""
    try:
        return str(small_json(response)["error"])
    except (Refused, KeyError):
        return f"Expected success, found status {response.status_code}: is this a server of a federation?"
