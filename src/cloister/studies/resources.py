"""How many runs at a time this machine takes: by its cores, and by an estimate of the memory that each needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cloister.engine import MEMORY_BUDGET
from cloister.studies.cells import Cell

PROCESS_BYTES = 2**30
"""What a process takes with torch imported, before it has any data, about."""

GPU_PROCESS_BYTES, GPU_CHUNK_BYTES, MOST_ON_A_GPU, MOST_SIDE_BY_SIDE = 3 * 2**29, 2**32, 4, 12
"""On a GPU: what the driver and the libraries take for each process, what a chunk of clients needs to be worth it, and
beyond how many processes they only wait for one another: where they take turns, and under NVIDIA's multi-process
service, which computes small kernels of several processes at the same time."""

USED_OF_FREE = 0.8
"""How much of what is free may be planned for: estimates are off, and others are on the machine."""


def jobs_for(cells: Sequence[Cell], threads: int) -> int:
    """As many as fit; at least one."""
    if "RANK" in os.environ:  # started by torchrun: every run is shared by all processes
        return 1
    most = min(len(cells), max(cores() // threads, 1))
    if most <= 1:
        return 1
    most = min(most, fitting([memory_of(cell) for cell in cells], free_memory()))
    if any(str(cell.experiment.values.get("device", "cpu")).startswith("cuda") for cell in cells):
        most = min(most, _on_gpus(cells))
    return max(most, 1)


def fitting(needs: Sequence[int], free: float) -> int:
    """How many of these fit at a time, whichever they are."""
    total = taken = 0
    for need in sorted(needs, reverse=True):
        total += need
        if total > USED_OF_FREE * free:
            break
        taken += 1
    return taken


def memory_of(cell: Cell) -> int:
    """Bytes that a process needs for a cell: libraries, the samples and a copy of them, a chunk of clients."""
    chunk = cell.experiment.values.get("memory", MEMORY_BUDGET)
    on_gpu = str(cell.experiment.values.get("device", "cpu")).startswith("cuda")
    return PROCESS_BYTES + 2 * cell.experiment.data_bytes + (0 if on_gpu or not isinstance(chunk, int) else chunk)


def _on_gpus(cells: Sequence[Cell]) -> int:
    import torch

    free = [torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count())]
    needs = [GPU_PROCESS_BYTES + GPU_CHUNK_BYTES + 2 * cell.experiment.data_bytes for cell in cells]
    most = MOST_SIDE_BY_SIDE if multi_process_service() else MOST_ON_A_GPU
    return sum(min(fitting(needs, one), most) for one in free)


def multi_process_service() -> bool:
    """Whether NVIDIA's multi-process service is there for processes that this one starts."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps") / "control").exists()


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> float:
    """Bytes that can be had without swapping, also where a container has less than the machine; infinity if unknown."""
    found = [float("inf")]
    with suppress(OSError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024 * int(lines["MemAvailable"].split()[0]))
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(found)


def visible_gpus() -> list[str]:
    """Names under which the GPUs of this process are known to the driver."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [one for one in given.split(",") if one]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
