"""The status over HTTP and from a folder: with a token, and only with it."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from cloister.deploy.operation.status import NodeStatus, Status
from cloister.deploy.operation.status_routes import status_routes
from cloister.deploy.operation.status_source import status_at, status_in, status_token, status_url
from cloister.errors import CloisterError

STATUS = Status("four <hospitals>", "running", 3, 20, time.time(), nodes=(NodeStatus("va"),))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "status.json").write_text(json.dumps(STATUS.to_json()))
    return tmp_path / "server"


@pytest.fixture
def get(folder):
    """Ask the application, without a network."""
    app = FastAPI()
    status_routes(folder, status_token(folder))(app)

    def ask(path: str, **options) -> httpx.Response:
        async def answer() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://a") as client:
                return await client.get(path, **options)

        return asyncio.run(answer())

    return ask


def test_with_the_token_there_is_a_page_and_json(get, folder):
    token = status_token(folder)
    page = get("/status", params={"token": token})
    assert page.status_code == 200
    assert "four &lt;hospitals&gt;" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    found = get("/status.json", headers={"Authorization": f"Bearer {token}"})
    assert Status.from_json(found.json()) == STATUS


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%C3%A9", "?token=%F0"])
@pytest.mark.parametrize("path", ["/status", "/status.json"])
def test_without_it_nothing_is_told(get, path, query):
    answer = get(path + query)
    assert (answer.status_code, answer.text) == (404, "Not found")


def test_a_server_that_has_no_status_yet_says_so(get, folder):
    (folder / "status.json").unlink()
    assert get("/status", params={"token": status_token(folder)}).status_code == 503


def test_the_token_is_made_once_and_is_its_owners(tmp_path):
    token = status_token(tmp_path / "server")
    assert status_token(tmp_path / "server") == token
    assert stat.S_IMODE((tmp_path / "server" / "status-token").stat().st_mode) == 0o600
    assert status_url("https://a:1/", token) == f"https://a:1/status?token={token}"
    (tmp_path / "server" / "status-token").write_text("")
    with pytest.raises(CloisterError, match="found it damaged"):
        status_token(tmp_path / "server")


def test_a_folder_is_that_of_the_server_or_of_the_federation(folder, tmp_path):
    assert status_in(folder) == status_in(folder.parent) == status_at(str(folder)) == STATUS
    with pytest.raises(CloisterError, match=r"found no status\.json"):
        status_in(tmp_path / "nothing")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "terms.toml").touch()
    with pytest.raises(CloisterError, match="found only terms"):
        status_in(tmp_path / "new")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://127.0.0.1:1/status", "with its token, found none"),
        ("https://127.0.0.1:1/status?token=x", "Expected a server at 127.0.0.1:1, found none"),
    ],
)
def test_addresses_without_a_server_are_told(url, message):
    with pytest.raises(CloisterError, match=message):
        status_at(url)
    with pytest.raises(CloisterError, match=r"with its token|Expected a certificate in"):
        status_at(url, authority=Path("/nothing.pem"))
