"""`cloister federation trial`: a server and nodes as processes, to the last certificate; and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cloister.deploy.operation import trial
from cloister.deploy.operation.provision import FederationFolder
from cloister.deploy.terms.terms import Terms
from cloister.errors import CloisterError

FEW = ["rounds=3", "batch_size=64", "epsilon=8", "delta=1e-3"]


def laid_out(command, path: Path, *words: str) -> FederationFolder:
    done = command("federation", "init", path, *FEW, *words)
    assert done.returncode == 0, done.stderr
    return FederationFolder(path)


def test_everybody_finds_their_data(command, tmp_path):
    terms = Terms.load(laid_out(command, tmp_path / "a", "--nodes", "north,south").terms)
    data = tmp_path / "data"
    data.mkdir()
    for name in ("south.csv", "north.csv", "other.csv"):
        (data / name).touch()
    assert trial.data_of_nodes(terms, data) == {"north": data / "north.csv", "south": data / "south.csv"}
    (data / "south.csv").unlink()
    with pytest.raises(CloisterError, match="for the node 'south', found north, other"):
        trial.data_of_nodes(terms, data)
    (data / "north.csv").rename(data / "any.csv")
    assert list(trial.data_of_nodes(terms, data).values()) == [data / "any.csv", data / "other.csv"]
    assert trial.names_in(data, None) == "any,other"
    (data / "south").mkdir()
    (data / "north").mkdir()
    assert trial.data_of_nodes(terms, data) == {"north": data / "north", "south": data / "south"}


def test_a_trial_needs_everybodys_keys_and_the_same_terms(command, tmp_path):
    folder = laid_out(command, tmp_path / "a", "--nodes", "north,south")
    for words in (["epsilon=4"], ["--nodes", "3"], ["--nodes", "south,north"]):
        done = command("federation", "trial", tmp_path / "a", *words)
        assert done.returncode == 2
        assert "leave that out to go on" in done.stderr
    folder.key("south").unlink()
    done = command("federation", "trial", tmp_path / "a", "--nodes", "north,south", "epsilon=8")
    assert done.returncode == 2
    assert "south.key" in done.stderr


def start(path: Path, output: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "cloister", "federation", "trial", str(path), "--nodes", "north,south", *FEW]
    with open(output, "wb") as file:
        return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def processes_of(path: Path) -> list[str]:
    """What runs for a federation, by its command line."""
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdecimal() and int(one.name) != os.getpid():
            try:
                words = (one / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if any(str(path) in word for word in words) and "--attached" in words:
                found.append(" ".join(words))
    return found


def wait_until(condition, seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupted_trial_leaves_nothing_behind_and_goes_on(tmp_path, number):
    folder, output = FederationFolder(tmp_path / "a"), tmp_path / "out.txt"
    first = start(folder.path, output)
    wait_until(lambda: (folder.server / "accepted").exists() and any((folder.server / "accepted").iterdir()))
    assert len(processes_of(folder.path)) == 3
    first.send_signal(number)
    status = first.wait(60)
    wait_until(lambda: not processes_of(folder.path), 30)
    if number is signal.SIGINT:
        assert status == 130
        assert "goes on from here" in output.read_text()
    assert start(folder.path, output).wait(300) == 0, output.read_text()
    said = output.read_text()
    assert said.count("PRIVACY CERTIFICATE OF A NODE") == 2
    assert said.count("PRIVACY CERTIFICATE OF A SERVER") == 1
    assert processes_of(folder.path) == []
    verified = subprocess.run([sys.executable, "-m", "cloister", "verify", folder.path], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout
    assert "WRONG" not in verified.stdout
