"""How a node gets the terms from a server that it knows only by address: it proves to have the key of a member.

What it gets is not believed: its operator agrees to a digest, which comes from the other members as well.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire.identity import SIGNATURE_BYTES, PrivateKey, PublicKey
from cloister.errors import CloisterError

PATH = "/terms"
_MOST_BYTES = 2**24
_PAUSE = 1.0


def terms_route(terms: Terms) -> Callable[[FastAPI], None]:
    """What adds the route to the server's application: members get the terms, strangers learn nothing."""
    members = [key.text for key in terms.register.nodes.values()]
    content = terms.to_json()

    async def give(request: Request) -> Response:
        if not _is_member(request, members):
            return PlainTextResponse("Not found", status_code=404)
        return JSONResponse(content, headers={"Cache-Control": "no-store"})

    def add(app: FastAPI) -> None:
        app.add_api_route(PATH, give, methods=["GET"], include_in_schema=False, response_model=None)

    return add


def fetch_terms(
    url: str, key: PrivateKey, authority: Path | None, patience: float = 60.0, told: Callable[[str], None] | None = None
) -> Terms:
    """The terms at an address, for whoever has the key of a node in them; waits for a server that is not there yet.

    `told` is told once what it waits for.
    """
    until, said = time.monotonic() + patience, False
    with httpx.Client(verify=_context(authority), base_url=url, timeout=20.0, trust_env=False) as client:
        while True:
            try:
                return Terms.from_json(_answer(client, url, key))
            except httpx.TransportError as error:
                if _is_not_trusted(error):
                    raise CloisterError(
                        f"Expected a certificate of {url} that is trusted here, found another: give the authority.pem "
                        "of the federation as --authority, and the address that its server certificate names."
                    ) from None
                if time.monotonic() > until:
                    raise CloisterError(
                        f"Expected a server at {url}, found none for {patience:.0f} s ({type(error).__name__}): check "
                        "the address, and that it runs."
                    ) from None
                if told is not None and not said:
                    told(f"waiting for the server at {url}")
                said = True
                time.sleep(_PAUSE)


def _answer(client: httpx.Client, url: str, key: PrivateKey) -> object:
    host = client.base_url.netloc.decode()
    signature = base64.urlsafe_b64encode(key.sign(_words(host))).decode()
    response = client.get(PATH, headers={"Cloister-Key": key.public.text, "Cloister-Signature": signature})
    if response.status_code == 404:
        raise CloisterError(
            f"Expected terms at {url} that list the key {key.public.fingerprint}, found none: give its public line "
            "(`cloister keys show FILE`) to whoever writes the terms, or check the address."
        )
    try:
        if response.status_code == 200 and len(response.content) <= _MOST_BYTES:
            return json.loads(response.content)
    except (ValueError, RecursionError):
        pass
    raise CloisterError(
        f"Expected the server of a federation at {url}, found something else (status {response.status_code}): check "
        "the address."
    )


def _is_member(request: Request, members: list[str]) -> bool:
    claimed, text = request.headers.get("cloister-key", ""), request.headers.get("cloister-signature", "")
    if claimed not in members:
        return False
    try:
        signature = base64.urlsafe_b64decode(text.encode())
    except ValueError:
        return False
    host = request.headers.get("host", "")
    return len(signature) == SIGNATURE_BYTES and PublicKey.from_text(claimed).verify(_words(host), signature)


def _words(host: str) -> bytes:
    """What a node signs: good for asking one server for terms, and for nothing else."""
    return f"cloister terms request 1\n{host}".encode()


def _context(authority: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if authority is None else str(authority))
    except (OSError, ssl.SSLError):
        raise CloisterError(
            f"Expected a certificate in {authority}, found none: give the authority.pem of the federation."
        ) from None


def _is_not_trusted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False
