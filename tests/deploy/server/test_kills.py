"""A few kills (kill -9 of real processes) of what `benchmarks/kill_federation.py` does by the dozen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "kill_federation.py"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pfl", "ddgauss"])
def test_killed_servers_and_nodes_go_on(method, tmp_path):
    kills = ["--server-kills", "2", "--node-kills", "2", "--rounds", "6", "--seed", "1"]
    command = [sys.executable, str(SCRIPT), *kills, "--methods", method, "--no-write", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert found["kills"] == {"server": 2, "nodes": 2}
