"""Every update at the same norm."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cloister as cl
from cloister.errors import CloisterError
from cloister.transforms.clipping import scale_to_norm


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=9), st.floats(1e-3, 1e3)
)
def test_any_update_has_the_norm_or_is_zero(values, norm):
    update = torch.tensor(values)
    found = scale_to_norm(update, norm).double().norm()
    assert found <= norm
    assert not update.any() or found >= norm * (1 - 1e-4) or update.abs().max() < 1e-30


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_next_to_nothing_is_not_scaled_too_far(dtype):
    """The smallest numbers there are: a norm of sqrt(2) of them would be rounded to one of them."""
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for times in ([1, 1], [1, -2], [3, 1, 2], [1] * 20, [0, 5, 0, 8], [1000, 999]):
        found = float(scale_to_norm(torch.tensor(times, dtype=torch.float64).to(dtype) * least, 1.0).double().norm())
        assert 0.97 < found <= 1


def test_a_run_with_normalized_updates_costs_the_same():
    task = cl.data.digits(clients=30)
    keys = {"clip_norm": 0.1, "lr": 0.5, "local_steps": 1, "batch_size": 100}
    runs = [
        cl.run(cl.methods.dp_fedavg(**keys, clipping=how), task, rounds=3, epsilon=8.0, delta=1e-3, progress=False)
        for how in ("clip", "normalize")
    ]
    assert runs[0].epsilon == runs[1].epsilon
    with pytest.raises(CloisterError, match="as published"):
        cl.methods.dp_fedavg(**keys, clipping="normalize", mode="as_published")
