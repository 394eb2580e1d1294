"""Where the tests of a GPU run, and what stands in for it where there is none.

    make test-gpu                                   # on one GPU, in parallel processes
    python -m pytest -m cuda -n 12 tests/gpu        # the same, without the virtual environment
    CLOISTER_TEST_DEVICE=cpu python -m pytest -m cuda tests/gpu

The last tries the tests themselves on a CPU: `vectorized`, traced at once, stands in for graphs.
"""

from __future__ import annotations

import os

import pytest
import torch

from cloister.engine import Graphed, Loop, Vectorized
from cloister.round import Engine

# Every process of the tests compiles by itself: otherwise each would start a pool of as many compilers as there are
# cores. Inductor reads it when it is first imported, which nothing above does.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

DEVICE = os.environ.get("CLOISTER_TEST_DEVICE", "cuda")
REAL = DEVICE == "cuda"
DTYPES = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["float32", "float64"]
)

ON_DEVICE = [
    pytest.mark.cuda,
    pytest.mark.skipif(REAL and not torch.cuda.is_available(), reason="needs a GPU, and torch.cuda finds none here"),
]
"""For every module of these tests: `pytestmark = ON_DEVICE`."""

NO_STAND_IN = pytest.mark.skipif(not REAL, reason="about graphs, kernels or streams, for which nothing stands in")


def engine_of(name: str, chunk: int = 1000) -> Engine:
    """The engine of that name, or what stands in for it."""
    if name == "loop":
        return Loop()
    if name == "vectorized" or not REAL:
        return Vectorized(chunk, patience=None if name == "vectorized" else 0)
    return Graphed(chunk, compiled=name == "compiled")
