"""No process is left behind: not when a block ends, not when the parent is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from cloister.deploy.operation.processes import Child, Children

SLEEPER = "import time; print('here', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
ATTACHED = f"from cloister.deploy.operation.processes import end_with_parent; end_with_parent(); {SLEEPER}"
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition, seconds: float = 30.0) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("program", [SLEEPER, STUBBORN], ids=["usual", "stubborn"])
def test_children_are_gone_when_the_block_ends(tmp_path, monkeypatch, program):
    monkeypatch.setattr("cloister.deploy.operation.processes.SECONDS_TO_END", 0.3)
    output = tmp_path / "out"
    with open(output, "wb") as file:
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=file)
    with Children() as children:
        children.all.append(Child("a", process, output))
        assert wait_until(lambda: output.read_text() == "here\n")
    assert process.poll() is not None


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads /proc")
def test_a_child_ends_when_its_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT, ATTACHED], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    assert is_there(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: not is_there(child))


def test_a_child_says_what_it_ended_with(tmp_path):
    with Children() as children:
        child = children.start("a", ["methods", "nothing"], tmp_path / "logs" / "a.txt")
        assert child.process.wait(60) == 2
    assert child.last_words().startswith("Expected ")
