"""Where a status comes from: the folder of a server on this machine, or the page of one elsewhere."""

from __future__ import annotations

import json
import secrets
import ssl
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from cloister.deploy.operation.status import Status
from cloister.errors import CloisterError, Corrupted
from cloister.runs.files import read_bytes, read_json, write_atomically

FILE = "status.json"
TOKEN = "status-token"
_MOST_BYTES = 2**22


def status_at(where: str, authority: Path | None = None) -> Status:
    """The status of the server with a folder, or at an address."""
    if where.startswith("https://"):
        return Status.from_json(_fetched(where, authority))
    return status_in(Path(where))


def status_in(path: Path) -> Status:
    """The status of the server with a folder, or with that of a whole federation."""
    for folder in (path, path / "server"):
        if (folder / FILE).is_file():
            return Status.from_json(read_json(folder / FILE))
    if (path / "terms.toml").is_file():
        raise CloisterError(
            f"Expected a server that was started, found only terms in {path}: `cloister serve {path / 'terms.toml'}`, "
            f"or `cloister federation trial {path}`."
        )
    raise CloisterError(f"Expected the folder of a server, found no {FILE} in {path}: check the name.")


def status_token(folder: Path) -> str:
    """The word without which nobody sees the status page; made once, and kept where only the server's owner reads it.

    Who was asked in a round, and how often, is a secret that some prices rest on.
    """
    path = folder / TOKEN
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, secrets.token_urlsafe(24).encode(), private=True)
    token = read_bytes(path).decode(errors="replace").strip()
    if len(token) < 20:
        raise Corrupted(f"Expected a token in {path}, found it damaged: remove the file, and a new one is made.")
    return token


def status_url(url: str, token: str) -> str:
    """The address of the status page."""
    return f"{url.rstrip('/')}/status?{urlencode({'token': token})}"


def _fetched(url: str, authority: Path | None) -> object:
    parts = urlsplit(url)
    token = parse_qs(parts.query).get("token", [""])[0]
    if not token:
        raise CloisterError(
            "Expected the address of a status page with its token, found none: use the address that `cloister serve` "
            "printed, https://HOST:PORT/status?token=..."
        )
    address = urlunsplit(("https", parts.netloc, "/status.json", "", ""))
    request = Request(address, headers={"Authorization": f"Bearer {token}"})
    try:
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
    except (OSError, ssl.SSLError):
        raise CloisterError(f"Expected a certificate in {authority}, found none: check --authority.") from None
    try:
        with urlopen(request, timeout=20, context=context) as response:
            return json.loads(response.read(_MOST_BYTES))
    except HTTPError as error:
        reason = "its token is another one" if error.code in (401, 403, 404) else f"status {error.code}"
        raise CloisterError(f"Expected a status at {parts.netloc}, found that {reason}: check the address.") from None
    except URLError as error:
        raise CloisterError(_unreachable(parts.netloc, error.reason)) from None
    except (OSError, ValueError) as error:
        raise CloisterError(_unreachable(parts.netloc, error)) from None


def _unreachable(place: str, reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return (
            f"Expected a certificate of {place} that is trusted here, found another ({reason.verify_message}): give "
            "the authority.pem of the federation as --authority."
        )
    return f"Expected a server at {place}, found none ({reason}): check the address, and that it runs."
