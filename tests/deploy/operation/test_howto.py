"""docs/federation.md: the commands of the page are run, from keys to certificates, by processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from cloister.data.user.schema import Schema
from cloister.deploy.operation.made_up_data import file_name, write_rows

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "federation.md").read_text()
SITES = ("cleveland", "hungarian", "switzerland", "va")
SCHEMA = ROOT / "experiments" / "heart-schema.toml"


def heart_data(tmp_path: Path) -> Path:
    """The real files where they are, else made-up ones in the same form."""
    real = Path(os.environ.get("CLOISTER_DATA", "nowhere")) / "heart_disease"
    if all((real / f"processed.{site}.data").is_file() for site in SITES):
        return real
    schema, folder = Schema.from_toml(SCHEMA), tmp_path / "heart_disease"
    folder.mkdir()
    for number, site in enumerate(SITES):
        write_rows(folder / file_name(schema, site), schema, seed=number)
    return folder


def script(rounds: int) -> str:
    """The page's commands, in fewer rounds, and at a port that is free."""
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 7
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    text = "\n".join(blocks)
    assert "rounds=20" in text
    return text.replace("rounds=20", f"rounds={rounds}").replace(":8443", f":{port}")


def run(text: str, cwd: Path, data: Path) -> subprocess.CompletedProcess[str]:
    """In a shell of its own, of which no process remains."""
    (cwd / "bin").mkdir()
    program = cwd / "bin" / "cloister"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cloister "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{cwd / 'bin'}:{os.environ['PATH']}",
        "DATA": str(data),
        "SCHEMA": str(SCHEMA),
        "PYTHONPATH": str(ROOT / "src"),
    }
    shell = subprocess.Popen(
        ["bash", "-eu", "-c", text],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=600)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(shell.args, shell.returncode, output, "")


@pytest.mark.slow
def test_four_hospitals_from_keys_to_certificates(tmp_path):
    done = run(script(rounds=3), tmp_path, heart_data(tmp_path))
    words = {path: path.read_text()[-2000:] for path in tmp_path.glob("*/join.txt")}
    assert done.returncode == 0, (done.stdout, words, (tmp_path / "server.txt").read_text())
    assert "WRONG" not in done.stdout
    assert (tmp_path / "predictions.csv").is_file()
    assert done.stdout.count("PRIVACY CERTIFICATE") == 2
    released = json.loads((tmp_path / "coordinator" / "server" / "certificate.json").read_text())
    assert released["private"] is True
    for site in SITES:
        (file,) = (tmp_path / site / "data.ledger" / "runs").glob("*/certificate.json")
        spent = json.loads(file.read_text())
        assert (spent["node"], spent["private"], spent["run"]["rounds"]) == (site, True, 3)
        assert 1.0 < spent["run"]["epsilon"] <= 2.0
        assert f"and {site} were told" in done.stdout or f"{site} and" in done.stdout


def test_the_page_names_options_that_exist(command):
    for name in ("serve", "join", "verify", "federation init", "federation terms", "federation status"):
        page = command(*name.split(), "--help").stdout
        for words in re.findall(rf"cloister {name} ((?:[^`\n\\]|\\\n)*)", PAGE):
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", words):
                assert option in page, (name, option)
