"""A sample moves the sum of clipped gradients by no more than the clip, whatever its data."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.client.per_sample.common import rounding, squared_norms
from cloister.client.per_sample.ghost_clipping import GhostClipping, layers_of
from cloister.client.per_sample.norms import Products
from cloister.client.per_sample.vmap import PerSampleVmap
from cloister.core import Batch, Objective
from per_sample.cases import MODELS, batch_of, clipped_by_hand, made, near, one_by_one


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"char_lstm", "batch_mean", "centred"}))
@pytest.mark.parametrize(
    "value", [float("nan"), *(pytest.param(x, marks=pytest.mark.slow) for x in (float("inf"), -float("inf"), 1e200))]
)
def test_a_sample_without_a_finite_gradient_counts_as_zero(name, value):
    module, objective, w, batch = made(name)
    spoiled = batch.inputs.clone()
    spoiled[1].view(-1)[2] = value
    spoiled[3] = value
    batch = batch_of(spoiled, batch.labels)
    total, norms = objective.clipped(w, batch, 0.5)
    assert total.isfinite().all()
    assert norms.isfinite().all()
    assert objective.clamped(w, batch, 0.01).isfinite().all()
    if value != 1e200:  # which normalization and saturation can make finite again
        rows = one_by_one(module, objective, w, batch)
        good = rows.isfinite().all(1)
        assert near(total, clipped_by_hand(rows[good], 0.5))
        assert not norms[~good].any()


@pytest.mark.parametrize("way", ["books", "alone"])
@pytest.mark.parametrize("size", [1e15, 1e18, 1e25, 1e37, 1e38])
@pytest.mark.parametrize("clip_norm", [1e-6, 1.0])
@pytest.mark.parametrize("width", [4, 128])
def test_a_huge_gradient_is_clipped_or_dropped(way, size, clip_norm, width):
    """In float32 its square overflows, and the factor that brings it down can lose its precision."""
    module = nn.Sequential(nn.Linear(width, 3, bias=False)).train()
    inputs, labels = torch.rand(2, width), torch.tensor([0, 1])
    objective = objective_of(module, cross_entropy, inputs, labels, 3)
    how = objective.per_sample.way if way == "books" else PerSampleVmap(objective.per_sample.model)
    w = torch.zeros(3 * width)
    total, norms = how.clipped(torch.func.grad, w, batch_of(inputs * size, labels), clip_norm, None)
    assert total.isfinite().all()
    assert norms.isfinite().all()
    alone = how.clipped(torch.func.grad, w, batch_of(inputs[:1] * size, labels[:1]), clip_norm, None)[0].double().norm()
    assert alone == 0 or clip_norm * (1 - 1e-5) <= alone <= clip_norm
    assert alone > 0 or size > 1e17, "what float32 can square is not dropped"


@pytest.mark.parametrize("way", ["books", "alone"])
@pytest.mark.parametrize("size", [1e-12, 1e-20, 1e-25, 1e-30])
@pytest.mark.parametrize("clip_norm", [1e-15, 1e-22, 1e-28])
def test_a_tiny_gradient_is_not_taken_for_nothing(way, size, clip_norm):
    """In float32 the squares of numbers below 1e-19 are zero, and what has no norm would not be clipped."""
    module = nn.Sequential(nn.Linear(128, 3, bias=False)).train()
    inputs, labels = torch.rand(2, 128), torch.tensor([0, 1])
    objective = objective_of(module, cross_entropy, inputs, labels, 3)
    how = objective.per_sample.way if way == "books" else PerSampleVmap(objective.per_sample.model)
    total, _ = how.clipped(torch.func.grad, torch.zeros(384), batch_of(inputs[:1] * size, labels[:1]), clip_norm, None)
    assert total.double().norm() <= clip_norm


@pytest.mark.parametrize(("inwards", "outwards"), [(1, 2), (128, 2), (1, 128)])
@pytest.mark.parametrize(("large", "small"), [(1e28, 1e-25), (1e18, 1e-21), (1e-25, 1e28), (1e-21, 1e18)])
def test_a_small_factor_of_a_large_product_is_not_taken_for_nothing(inwards, outwards, large, small):
    """The squares of float32 numbers vanish below 1e-23; the norm of a product of such a one must not."""
    module = nn.Sequential(nn.Linear(inwards, outwards, bias=False)).train()

    def loss(outputs, labels):
        return outputs.sum(1) * labels

    inputs, labels = torch.full((1, inwards), large), torch.full((1,), small)
    objective = objective_of(module, loss, torch.ones(2, inwards), torch.ones(2), None)
    size, model = inwards * outwards, objective.per_sample.model
    layers = layers_of(model, torch.zeros(size), batch_of(torch.ones(1, inwards), torch.ones(1)))
    ghost = GhostClipping(model, layers)
    for active in (None, torch.ones(size)):
        for clip_norm in (1e-5, 1.0):
            total, _ = ghost.clipped(torch.func.grad, torch.zeros(size), batch_of(inputs, labels), clip_norm, active)
            assert total.double().norm() <= clip_norm


def test_long_rows_have_norms_that_no_order_of_summation_makes_too_small():
    torch.manual_seed(0)
    for length in (7, 64, 97, 640, 3969, 10_007, 65_536):
        rows = torch.cat([torch.rand(20, length), torch.full((20, length), 1.1) * torch.rand(20, 1)])
        exact = rows.double().square().sum(1)
        found = squared_norms(rows)
        assert found.dtype == torch.float64
        assert ((found / exact).sqrt() > 1 - rounding(rows) / 2).all()


@pytest.mark.parametrize("name", ["batch_mean", "centred"])
def test_a_model_that_mixes_samples_is_run_sample_by_sample(name):
    """Whatever the others are, a sample moves the sum by its own clipped gradient alone."""
    _, objective, w, batch = made(name)
    with_it, norms = objective.clipped(w, batch, 0.1)
    without, _ = objective.clipped(w, batch_of(batch.inputs[:-1], batch.labels[:-1]), 0.1)
    assert norms[-1] > 0.1 or name == "batch_mean"
    assert (with_it - without).norm() <= 0.1 * (1 + 1e-12)


def test_what_cancels_is_not_scaled_up():
    """Terms of a sum that nearly cancel: the unwritten form must not take what rounding leaves for less than it is."""
    torch.manual_seed(0)
    g, a = torch.randn(20, 30, 1), torch.randn(20, 40, 1)
    g = torch.cat([g, -g], 2)
    a = torch.cat([a, a * (1 + 1e-7 * torch.randn_like(a))], 2)
    layer_gradients = Products(g, a, None)
    norms = layer_gradients.squared_norms().sqrt()
    for i in range(20):
        factors = torch.zeros(20)
        factors[i] = 1.0
        assert layer_gradients.weighted(factors)[0].double().norm() <= norms[i]


KINDS = ["mlp", "cnn", "group_norm", "wide_convolution", "sequences", "own"]
PROBLEMS: dict[str, tuple[Objective, torch.Tensor, Batch]] = {}


@given(
    st.sampled_from(KINDS),
    st.lists(st.floats(-4, 25), min_size=2, max_size=2),
    st.integers(0, 2**31),
    st.floats(-3, 3),
    st.sampled_from([None, 0.5]),
)
@settings(max_examples=120, deadline=None)
def test_one_sample_more_moves_the_sum_by_no_more_than_the_clip(name, magnitudes, seed, clip_norm, density):
    """In float32, for samples and parameters of any magnitude; sums are compared in what float32 leaves of them."""
    if name not in PROBLEMS:
        PROBLEMS[name] = made(name, dtype=torch.float32)[1:]
    objective, w, batch = PROBLEMS[name]
    random = torch.Generator().manual_seed(seed)
    inputs, clip_norm = batch.inputs.clone(), 10.0**clip_norm
    inputs[-1] = torch.randn(inputs[-1].shape, generator=random) * 10.0 ** magnitudes[0]
    w = w * 10.0 ** (magnitudes[1] / 10)
    active = None if density is None else (torch.rand(len(w), generator=random) < density).float()
    mask = torch.arange(len(batch.mask)) == len(batch.mask) - 1
    alone, norms = objective.clipped(w, batch_of(inputs, batch.labels, mask), clip_norm, active)
    assert alone.double().norm() <= clip_norm
    if magnitudes[0] < 10 and norms[-1] > 1e-6:
        assert alone.double().norm() >= min(clip_norm, float(norms[-1])) * (1 - 1e-5), "nor is it clipped too much"
    everybody, _ = objective.clipped(w, batch_of(inputs, batch.labels), clip_norm, active)
    others, _ = objective.clipped(w, batch_of(inputs, batch.labels, ~mask), clip_norm, active)
    moved = (everybody.double() - others.double()).norm()
    assert moved <= clip_norm * (1 + 1e-6) + 1e-6 * float(others.norm())
