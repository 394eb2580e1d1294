"""What a threshold asks beside the gradients is bounded for one sample; coordinates stay within the clip together."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

import cloister as cl
from cloister.client.thresholds import as_written, quantile, repaired
from cloister.core.sparsity import kept_of

SILENT = torch.zeros(1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("threshold", "most"),
    [
        (repaired(1.0, norm_bound=2.0, alpha=1.0, floor=1e-9), 2.0),
        (as_written(1.0, alpha=1.0, floor=1e-9), 1.0),
    ],
    ids=["repaired", "as_written"],
)
def test_a_sample_of_any_norm_moves_the_answer_by_its_bound_at_most(threshold, most):
    now, expected = torch.tensor([threshold.start], dtype=torch.float64), torch.tensor(1000.0, dtype=torch.float64)
    others = torch.full((50,), 0.5, dtype=torch.float64)

    def answer(*more: float) -> float:
        norms = torch.cat([others, torch.tensor(more, dtype=torch.float64)])
        return float(threshold.follow(now, norms, torch.ones_like(norms, dtype=torch.bool), SILENT, expected)) * 1000

    for norm in (0.1, 1.0, 1.9, 2.0, 5.0, 1e6, 1e300):
        moved = answer(norm) - answer()
        assert moved <= most * (1 + 1e-9)
        assert moved == pytest.approx(min(norm, most))


def test_a_sample_moves_a_count_by_a_half():
    threshold, expected = quantile(1.0, share=0.5, lr=1.0), torch.tensor(1000.0, dtype=torch.float64)
    now, norms = torch.ones(1, dtype=torch.float64), torch.full((50,), 0.5, dtype=torch.float64)

    def answer(count: int) -> float:
        real = torch.arange(50) < count
        found = threshold.follow(now, norms, real, SILENT, expected)
        return -math.log(float(found)) * 1000

    assert answer(31) - answer(30) == pytest.approx(0.5)


@pytest.mark.parametrize("active", [None, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_active_coordinates_stay_within_the_clip_together(active, dtype):
    """Where each of them is at its limit."""
    w = torch.zeros(1000, dtype=dtype)
    count = 1000 if active is None else kept_of(1000, active)
    mask = None if active is None else (torch.arange(1000) < count).to(dtype)
    objective = SimpleNamespace(
        clamped=lambda w, batch, limit, mask: torch.full_like(w, float(limit)) * (1 if mask is None else mask)
    )
    batch = SimpleNamespace(mask=torch.ones(1, dtype=torch.bool))
    found, _ = cl.client.by_active_coordinate(active).sums(objective, w, batch, torch.tensor(0.7, dtype=dtype), mask)
    squares = sum(Fraction(number) ** 2 for number in found.tolist())  # exactly, for rounding is what is left room for
    assert squares <= Fraction(float(torch.tensor(0.7, dtype=dtype))) ** 2
    assert float(found.norm()) == pytest.approx(0.7, rel=1e-4)
