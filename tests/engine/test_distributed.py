"""Many processes: the result is the single process's, the ledger is written once, a lost rank ends the run cleanly."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cloister.runs.folder import RunFolder

RUN = """
import os, signal, sys
import torch
torch.set_num_threads(1)
import cloister as cl
from cloister import engine
from cloister.engine import Loop

engine.noise_key = lambda run, *_: run  # one process and two draw the same noise here, and only here, to be compared
folder, resume, doomed, every = sys.argv[1], sys.argv[2] == "resume", sys.argv[3], int(sys.argv[4])
if doomed == os.environ.get("RANK"):
    plain, calls = Loop.total, []

    def total(self, plan):
        calls.append(plan)
        if len(calls) == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, plan)

    Loop.total = total
done = cl.run(
    cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2),
    cl.data.digits(partition=cl.data.iid(23)),
    rounds=9, cohort=cl.poisson(0.4), epsilon=8.0, delta=1e-3, dtype="float64", checkpoint_every=every, engine="loop",
    folder=folder, resume=resume,
)
print(f"rank {os.environ.get('RANK')}: {done.accuracy:.6f} {done.epsilon:.6f} {len(done.history)}", flush=True)
"""


def play(
    folder: Path, ranks: int, resume: bool = False, doomed: str = "none", every: int = 2
) -> subprocess.CompletedProcess[str]:
    script = folder.parent / "play.py"
    script.write_text(textwrap.dedent(RUN))
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    words = [str(script), str(folder), "resume" if resume else "begin", doomed, str(every)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(start + words, capture_output=True, text=True, timeout=1200, env=environment)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "alone"
    assert play(folder, ranks=1).returncode == 0
    return folder


def expect_same(folder: Path, alone: Path) -> None:
    one, other = (load_file(f / "model.safetensors") for f in (alone, folder))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-9, atol=1e-12)
    assert (folder / "ledger.jsonl").read_bytes() == (alone / "ledger.jsonl").read_bytes()
    rounds = [line["round"] for line in RunFolder.open(folder).metrics()]
    assert rounds == list(range(1, 10))


@pytest.mark.slow
def test_two_processes_give_the_result_of_one(alone, tmp_path):
    played = play(tmp_path / "two", ranks=2)
    assert played.returncode == 0, played.stderr
    expect_same(tmp_path / "two", alone)
    values = {line.split(": ")[1] for line in played.stdout.splitlines() if line.startswith("rank ")}
    assert played.stdout.count("rank ") == 2, played.stdout
    assert len(values) == 1, "every rank returns the same run"


@pytest.mark.parametrize(
    ("doomed", "every"),
    [
        pytest.param("1", 2, marks=pytest.mark.slow, id="rank 1"),
        pytest.param("0", 100, marks=pytest.mark.slow, id="rank 0, no checkpoint yet"),
    ],
)
def test_a_lost_rank_ends_the_run_and_it_resumes(alone, tmp_path, doomed, every):
    """The ledger of the resumed run is that of one that was never interrupted: nothing was paid for twice."""
    folder = tmp_path / "lost"
    played = play(folder, ranks=2, doomed=doomed, every=every)
    assert played.returncode != 0
    assert not RunFolder.open(folder).finished
    assert RunFolder.open(folder).load("cpu").engine["ranks"] == 2
    assert "cloister resume" in played.stderr, played.stderr
    resumed = play(folder, ranks=2, resume=True, every=every)
    assert resumed.returncode == 0, resumed.stderr
    assert "and is charged" not in resumed.stderr
    expect_same(folder, alone)
