"""The command: where it listens, what it prints, and how it ends."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from studio_runs import train


def started(folder: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """The command in a process of its own, and the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cloister", "studio", str(folder), "--no-browser", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def address_of_this_machine() -> str | None:
    """One that is not loopback; None where there is none."""
    with contextlib.suppress(OSError):
        found = socket.gethostbyname(socket.gethostname())
        return None if found.startswith("127.") else found
    return None


def test_it_listens_on_loopback_alone_and_ends_with_ctrl_c_while_runs_are_followed(tmp_path):
    train(tmp_path / "one")
    (tmp_path / "one" / "certificate.json").unlink()  # as if it went on
    process, address = started(tmp_path)
    try:
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32})", address)
        assert match, address
        port = int(match.group(1))
        own = address_of_this_machine()
        if own is not None:
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((own, port), timeout=5)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            assert client.get("/").status_code == 401
            assert client.get(address, follow_redirects=True).status_code == 200
            with client.stream("GET", "/api/follow/one") as stream:
                lines = stream.iter_lines()
                assert next(lines) == "event: news"
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=60) == 0
        output, errors = process.communicate()
        assert output == ""
        assert errors.splitlines()[-1] == "ended"
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "Expected a folder of runs, found no folder nothing"),
        ([".", "--port", "0"], "Expected a port between 1 and 65535, found 0"),
        ([".", "--port", "99999"], "Expected a port between 1 and 65535, found 99999"),
    ],
)
def test_mistakes_are_one_sentence(command, tmp_path, words, message):
    done = command("studio", *words, "--no-browser", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_port_that_is_taken_is_one_sentence(command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = command("studio", str(tmp_path), "--no-browser", "--port", port)
    assert done.returncode == 2
    assert f"Expected to listen on 127.0.0.1:{port}" in done.stderr
