"""Cells that are run: the same bits whatever the number of jobs, and nothing lost when one of them fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cloister import engine as engines
from cloister.errors import CloisterError
from cloister.runs.folder import RunFolder
from cloister.studies import resources
from cloister.studies.execution import CellsFailed, run_cells
from cloister.studies.planning import planned
from cloister.studies.pool import WorkerPool

RUN = {
    "method": "dp_fedavg",
    "data": "digits",
    "clients": 20,
    "clip_norm": 1.0,
    "local_steps": 1,
    "sampling_rate": 0.5,
    "rounds": 2,
    "delta": 1e-2,
    "epsilon": 4.0,
    "engine": "vectorized",
}
MODELS = """
import os, pathlib, signal, torch

def works():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

def fails():
    if not pathlib.Path("corrected").exists():
        raise RuntimeError("no such\\n luck")
    return works()

def dies():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A module with models, in the current folder."""
    (tmp_path / "troubled.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "troubled", raising=False)
    return tmp_path


def bits(folder: Path) -> dict[str, bytes]:
    """All of a run that does not tell the time."""
    names = ("ledger.jsonl", "model.safetensors", "certificate.json", "config.toml", "description.json")
    return {name: (folder / name).read_bytes() for name in names}


def test_a_worker_gives_the_bits_of_a_single_run_and_says_what_failed(models, command):
    """A process for all of them, until one takes it along."""
    over = {"model": [f"troubled:{name}" for name in ("works", "fails", "dies")]}
    cells = planned(RUN, over)
    with WorkerPool(1, threads=1) as pool:
        found = [(cell, failure) for cell, failure, _ in pool.run(cells, models / "runs", lambda *_: None)]
    assert [cell.folder for cell, _ in found] == [cell.folder for cell in cells]
    works, fails, dies = (failure for _, failure in found)
    assert works is None
    assert fails.message.startswith("Expected a model that can be made, found that it fails (no such")
    assert "in fails" in fails.details, "the traceback is there"
    assert "stopped by SIGKILL" in dies.message
    (models / "keys.toml").write_text(cells[0].experiment.toml)
    assert command("run", "keys.toml", "--folder", "single", "--quiet").returncode == 0
    assert bits(models / "single") == bits(models / "runs" / cells[0].folder)


@pytest.mark.slow
def test_several_jobs_give_the_bits_of_one(models):
    cells = planned(RUN, {"model": ["troubled:works", "troubled:fails"], "seed": [0, 1, 2], "engine": "auto"})
    for jobs in (2, 1):
        with pytest.raises(CellsFailed, match="Expected all 6 runs to end, found that 3 failed") as failed:
            list(run_cells(cells, models / str(jobs), jobs=jobs))
        assert list(failed.value.failures) == [cell.folder for cell in cells[3:]]
        assert (models / str(jobs) / "errors.txt").read_text().count("in fails") == 3
    for cell in cells[:3]:
        assert bits(models / "1" / cell.folder) == bits(models / "2" / cell.folder)


def test_a_failure_loses_nothing_and_the_same_call_goes_on(models):
    cells = planned(RUN, {"model": ["troubled:fails", "troubled:works"]})
    done = []
    with pytest.raises(CellsFailed, match=r"model-troubled_fails-\w+: Expected a model that can be made"):
        done.extend(cell.folder for cell, _ in run_cells(cells, models / "runs"))
    assert done == [cells[1].folder]
    before = bits(models / "runs" / done[0])
    Path("corrected").touch()
    assert [cell.folder for cell, _ in run_cells(cells, models / "runs")] == [cells[1].folder, cells[0].folder]
    assert bits(models / "runs" / done[0]) == before
    assert not (models / "runs" / "errors.txt").exists()
    with pytest.raises(CloisterError, match=r"was run \(rounds = 2\), found rounds = 3: choose another"):
        list(run_cells(planned({**RUN, "rounds": 3}, {"model": ["troubled:fails", "troubled:works"]}), models / "runs"))


def test_two_in_one_folder_are_told_apart_before_anything_runs(tmp_path):
    """Else each fails on what the other is at, and whoever ends last writes results with half of the runs."""
    cells = planned({**RUN, "rounds": 1}, {"seed": [0, 1]})
    first = run_cells(cells, tmp_path / "runs")
    next(first)
    with pytest.raises(CloisterError, match=r"to be the only one at work in .*runs, found another process"):
        next(run_cells(cells, tmp_path / "runs"))
    assert len([cell for cell, _ in first]) == 1
    assert len(list(run_cells(cells, tmp_path / "runs"))) == 2
    with pytest.raises(CloisterError, match=r"found dp_fedavg-seed-1 in .*runs: ask for that run, too, or choose"):
        next(run_cells(cells[:1], tmp_path / "runs"))


def test_threads_are_those_of_the_caller_again(models, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    told = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    list(run_cells(planned(RUN), models / "runs", threads=2))
    assert told == [2, 3]


@pytest.mark.parametrize(("jobs", "threads"), [(0, 1), ("many", 1), (1, 0), (True, 1)])
def test_wrong_numbers_are_refused(models, jobs, threads):
    with pytest.raises(CloisterError, match="a whole number of at least 1"):
        list(run_cells(planned(RUN), models / "runs", jobs, threads=threads))


def test_as_many_jobs_as_cores_and_memory_allow(monkeypatch):
    cells = planned(RUN, {"seed": list(range(9))})
    need = resources.memory_of(cells[0])
    assert need > cells[0].experiment.data_bytes > 1797 * 64
    monkeypatch.setattr(resources, "cores", lambda: 8)
    for free, jobs in ((1e15, 8), (need * 3.8, 3), (need / 2, 1)):
        monkeypatch.setattr(resources, "free_memory", lambda free=free: free)
        assert resources.jobs_for(cells, 1) == jobs
    monkeypatch.setattr(resources, "free_memory", lambda: 1e15)
    assert resources.jobs_for(cells, 4) == 2
    assert resources.jobs_for(cells[:3], 1) == 3
    assert 0 < resources.fitting([10, 1, 1], 14) < 3, "the largest may come together"


def test_data_are_let_go_of_until_a_run_starts():
    """A sweep over fifty partitions would hold fifty data sets, in the process that starts the others."""
    cells = planned(RUN, {"split_seed": list(range(9))})
    assert all(cell.experiment.task is None for cell in cells)
    assert all(cell.experiment.data_bytes > 1797 * 64 for cell in cells)


def test_processes_that_ask_at_once_choose_the_same_engine(monkeypatch):
    measured = []

    def choose(*_):
        measured.append(1)
        time.sleep(0.2)
        return engines.Loop(chunk=len(measured))

    monkeypatch.setattr(engines, "choose", choose)
    monkeypatch.setattr(engines.CHOICES, "_in_this_process", {})
    found = []
    askers = [threading.Thread(target=lambda: found.append(engines._chosen(None, None, 1, 1, "a key"))) for _ in "ab"]
    for one in askers:
        one.start()
    for one in askers:
        one.join()
    assert found == [engines.Loop(chunk=1)] * 2


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_ctrl_c_ends_all_of_them(models):
    (models / "keys.toml").write_text("".join(f"{key} = {value!r}\n" for key, value in RUN.items()))
    words = ["compare", "keys.toml", "--folder", "runs", "--jobs", "2"]
    first = [sys.executable, "-m", "cloister", *words, "model=[troubled:dies,troubled:works]", "seed=[0,1]"]
    done = subprocess.run(first, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("stopped by SIGKILL") >= 2
    assert len([one for one in Path("runs").glob("*works*") if RunFolder.open(one).finished]) == 2
    long = subprocess.Popen(
        [sys.executable, "-m", "cloister", *words[:3], "other", *words[4:], "rounds=100000", "seed=[0,1]"],
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(Path("other").glob("*/metrics.jsonl"))) < 2:
        time.sleep(0.2)
        assert long.poll() is None
    children = Path(f"/proc/{long.pid}/task/{long.pid}/children").read_text().split()
    long.send_signal(signal.SIGINT)
    _, said = long.communicate()
    assert long.returncode == 130
    assert "the same command with --folder other goes on from here" in said
    assert len(children) == 2
    assert not [one for one in children if os.path.exists(f"/proc/{one}")]


def test_more_runs_share_a_gpu_where_they_compute_side_by_side(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (140 * 2**30, 140 * 2**30))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    cells = [SimpleNamespace(experiment=SimpleNamespace(data_bytes=2**20))] * 30
    assert resources._on_gpus(cells) == resources.MOST_ON_A_GPU
    (tmp_path / "control").touch()  # as the service's daemon does
    assert resources._on_gpus(cells) == resources.MOST_SIDE_BY_SIDE
