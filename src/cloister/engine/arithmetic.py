"""How this machine rounds: what must be the same for a computation to give the same bits again.

Floating-point sums depend on the order in which they are taken, and that depends on the number of threads, on the
instructions of the processor, and on how libraries are set up. A round that is computed again elsewhere is therefore
NOT the same release, even from the same seed.
"""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Arithmetic = dict[str, Any]


def arithmetic(device: torch.device) -> Arithmetic:
    """What is known to decide how sums are rounded in this process, as plain values."""
    return {
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "libraries": {name: value for name, value in sorted(os.environ.items()) if _matters(name)},
        "probe": probe(),
    }


_LIBRARIES = ("ATEN_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_DYNAMIC", "OMP_SCHEDULE", "OMP_THREAD_LIMIT", "ONEDNN_")
"""How the names of variables begin that make libraries take other kernels, or other numbers of threads."""

_OF_SCIKIT_LEARN = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")
"""What importing scikit-learn sets: how a second OpenMP library is loaded and forked, and nothing of its sums. Whether
something else was imported before must not change the noise of a run, or whether it resumes."""


def _matters(name: str) -> bool:
    return name.startswith(_LIBRARIES) and name not in _OF_SCIKIT_LEARN


_IDENTITY = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "cache size",
    "flags",
    "Features",
    "CPU part",
)


@cache
def processor() -> str:
    """Which processor this is: libraries choose kernels and block sizes by its model, its caches and what it can do."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        first = ""
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
    known = "/".join(facts.get(name, "") for name in _IDENTITY)
    name = facts.get("model name") or f"{platform.machine()} {platform.processor()}".strip()
    return f"{name} {hashlib.sha256(known.encode()).hexdigest()[:8]}"


def probe() -> str:
    """A hash of the bits that some sums, products, convolutions and exponentials come to.

    It notices what has no name here: environment variables and switches that make libraries take other kernels.
    """
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.float64):
        numbers = (_numbers(40_000) / 2**15).to(dtype)
        left, right = numbers[:12_000].view(60, 200), numbers[12_000:32_000].view(200, 100)
        images, kernels = numbers[:6_400].view(4, 4, 20, 20), numbers[6_400:7_264].view(24, 4, 3, 3)
        tiny = torch.full((4,), 1e-310 if dtype == torch.float64 else 1e-40, dtype=dtype) * 0.5  # flushed to zero?
        results = [
            numbers.sum(),
            torch.linalg.vector_norm(numbers),
            left @ right,
            left[:7] @ right[:, :3],
            numbers[:4_000] @ numbers[4_000:16_000].view(4_000, 3),
            numbers[:8_000].view(2, 4_000) @ numbers[8_000:12_000],
            torch.bmm(left.view(6, 10, 200), right.view(1, 200, 100).expand(6, -1, -1)),
            torch.nn.functional.conv2d(images, kernels),
            torch.nn.functional.conv2d(images.view(1, 16, 20, 20), kernels.view(24, 4, 3, 3)[:16], groups=4),
            torch.log_softmax(left, 1),
            torch.tanh(left),
            tiny,
        ]
        for found in results:
            digest.update(found.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _numbers(count: int) -> Tensor:
    """Scattered whole numbers below 2^15 in size, the same everywhere."""
    return torch.arange(count, dtype=torch.int64).mul(48_271).remainder(65_537) - 32_768
