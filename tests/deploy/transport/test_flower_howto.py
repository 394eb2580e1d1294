"""docs/federation.md, Flower: the commands of the page are run, with three hospitals and fewer rounds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower has an environment with it")

from cloister.deploy.operation.flower_programs import free_port
from deploy.operation.test_howto import PAGE, heart_data, run

pytestmark = pytest.mark.slow

ALL, THREE = "cleveland hungarian switzerland va", "cleveland hungarian va"
WATCH = """
( while sleep 5; do if grep -l "^error:" */join.txt; then kill $$; fi; done ) > watched.txt 2>&1 &
"""
END = """
for site in cleveland hungarian va; do
  for second in $(seq 120); do grep -q receipt $site/join.txt && break; sleep 1; done
done
cloister verify --terms coordinator/terms.toml coordinator/server cleveland hungarian va
"""


def script() -> str:
    """Keys, terms and digest as for https; then everything of Flower, at ports that are free."""
    keys, terms, digest, *_ = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    flower = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(flower) == 5
    last = flower.pop()
    text = "\n".join([keys, terms, digest, *flower, WATCH, last, END])
    text = text.replace(ALL, THREE).replace("rounds=20", "rounds=2")
    text = text.replace("9092", str(free_port())).replace("port=9094", "port=PORTS").replace("$((port + 1))", "MORE")
    ports = [free_port() for _ in range(3)]
    return text.replace("port=PORTS", f"set -- {' '.join(map(str, ports))}; port=$1").replace(
        "port=MORE", "shift; port=${1:-}"
    )


def test_the_page_is_run_over_flower(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    done = run(script(), tmp_path, heart_data(tmp_path))
    logs = "\n".join(path.read_text()[-2000:] for path in tmp_path.glob("*/join.txt"))
    assert done.returncode == 0, done.stdout[-3000:] + logs
    assert "flower://" in done.stdout
    assert (tmp_path / "coordinator" / "server" / "certificate.txt").is_file()
    assert len(list(tmp_path.glob("*/data.ledger/runs/*/certificate.txt"))) == 3
