"""Weights by data size: what any number of samples does to any message."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cloister as cl
from cloister.core import Context, Sensitivity, Transform
from cloister.errors import CloisterError
from cloister.transforms import capped_weights, clip_l2, size_weights

WHOLE = st.integers(0, 2**62)
CAPS = st.floats(1e-6, 1e12)


def encoded(transform: Transform, update: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    context = Context(None, None, 1.0, update, torch.tensor(0), len(update), samples=samples)
    return transform.encode(update, context)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(values=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=5), samples=WHOLE, cap=CAPS)
def test_a_capped_weight_is_at_most_one(dtype, values, samples, cap):
    update = torch.tensor(values, dtype=dtype)
    found = encoded(capped_weights(cap), update, torch.tensor(samples))
    assert (found.abs() <= update.abs()).all()
    weight = min(samples / cap, 1.0)
    np.testing.assert_allclose(found, update.numpy() * weight, rtol=1e-6, atol=1e-37)
    if samples == 0:
        assert not found.any()
    if samples >= cap:
        assert torch.equal(found, update)


@pytest.mark.parametrize(("samples", "weight"), [(math.nan, 0), (math.inf, 1), (-math.inf, 0), (-3.0, 0)])
def test_what_is_no_number_of_samples_has_no_weight_beyond_the_cap(samples, weight):
    update = torch.tensor([3.0, -4.0])
    assert torch.equal(encoded(capped_weights(10.0), update, torch.tensor(samples)), update * weight)


@given(samples=st.lists(st.integers(0, 10**6), min_size=1, max_size=6), seed=st.integers(0, 100))
def test_size_weights_give_the_weighted_mean(samples, seed):
    updates = np.random.default_rng(seed).normal(size=(len(samples), 4))
    sent = [
        encoded(size_weights(), torch.from_numpy(u), torch.tensor(n)) for u, n in zip(updates, samples, strict=True)
    ]
    found, _ = size_weights().decode(torch.stack(sent).sum(0), None, {})
    expected = np.average(updates, axis=0, weights=samples) if sum(samples) else np.zeros(4)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_what_they_say_of_their_messages():
    known = Sensitivity(0.5, 10, assumed_l2=0.1)
    assert capped_weights(3.0).sensitivity(known, None) == known
    unbounded = size_weights().sensitivity(known, None)
    assert (unbounded.l2, unbounded.length) == (math.inf, 11)
    assert size_weights().sensitivity(Sensitivity(), None).length is None


def test_numbers_at_the_end_may_be_spared():
    weigh, update = capped_weights(10.0, 0.5, spared=2), torch.tensor([1.0, 2.0, 3.0])
    assert encoded(weigh, update, torch.tensor(1)).tolist() == pytest.approx([0.1, 2.0, 3.0])
    assert weigh.decode(update, None, {})[0].tolist() == [2.0, 2.0, 3.0]


def test_weights_need_to_know_how_many_samples_there_are():
    with pytest.raises(CloisterError, match="how many samples"):
        encoded(capped_weights(1.0), torch.ones(2), None)


def test_one_number_more_is_sent_and_counted():
    """Of a client that trains a part of the model: that part, and its size."""
    found = cl.methods.fed_spa(local_steps=1, keep_fraction=0.4, client_weights="size", public_sizes=True).transform
    alone = cl.methods.fed_spa(local_steps=1, keep_fraction=0.4).transform
    assert found.entries(101) == alone.entries(100) + 1
    assert clip_l2(1.0).weighting is None
