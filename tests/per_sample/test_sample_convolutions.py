"""The gradients of a convolution's weights sample by sample, as torch's own library computes them on a CPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.client.per_sample import convolutions
from cloister.client.per_sample.convolutions import weight_gradients
from cloister.client.per_sample.ghost_clipping import GhostClipping
from cloister.engine.compilation import Compiled, traced
from per_sample.cases import batch_of, clipped_by_hand, made, near, one_by_one

SETTINGS = ([2, 3], [2, 1], [1, 2], [1, 2])


def by_autograd(images, g, kernel, stride, padding, dilation):
    """The reference: a convolution's own gradient, one sample after the other."""
    found = []
    for image, outputs in zip(images, g, strict=True):
        weight = torch.zeros(len(outputs), len(image), *kernel, dtype=image.dtype, requires_grad=True)
        made = torch.nn.functional.conv2d(image[None], weight, None, stride, padding, dilation)
        found.append(torch.autograd.grad((made * outputs).sum(), weight)[0])
    return torch.stack(found) if found else g.new_zeros(0, g.shape[1], images.shape[1], *kernel)


def drawn(samples, channels, outputs, size, kernel, stride, padding, dilation, seed=0, dtype=torch.float64):
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(samples, channels, *size, generator=random, dtype=dtype)
    wide = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    ]
    return images, torch.randn(samples, outputs, *wide, generator=random, dtype=dtype)


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(list)


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(0, 4),
    channels=st.integers(1, 3),
    outputs=st.integers(1, 4),
    size=st.tuples(st.integers(7, 9), st.integers(7, 9)).map(list),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)).map(list),
    dilation=pairs,
    seed=st.integers(0, 99),
)
def test_any_convolution(samples, channels, outputs, size, kernel, stride, padding, dilation, seed):
    images, g = drawn(samples, channels, outputs, size, kernel, stride, padding, dilation, seed)
    found = weight_gradients(images, g, kernel, stride, padding, dilation)
    torch.testing.assert_close(found, by_autograd(images, g, kernel, stride, padding, dilation))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("channels", "outputs", "size"), [(3, 32, 32), (64, 64, 16), (40, 24, 9)])
def test_sizes_for_which_the_library_has_ways_of_its_own(channels, outputs, size, channels_last):
    wanted = ([3, 3], [1, 1], [1, 1], [1, 1])
    images, g = drawn(6, channels, outputs, [size, size], *wanted)
    expected = by_autograd(images, g, *wanted)
    images, g = images.float(), g.float()
    if channels_last:
        images, g = (t.to(memory_format=torch.channels_last) for t in (images, g))
    found = weight_gradients(images, g, *wanted).double()
    assert near(found, expected, 1e-6)
    assert not near(found.roll(1, 0), expected, 0.5), "samples that change places would be noticed"


def test_many_clients_at_once():
    images, g = (t.view(3, 4, *t.shape[1:]) for t in drawn(12, 2, 3, [7, 8], *SETTINGS))
    expected = torch.stack([by_autograd(some, outputs, *SETTINGS) for some, outputs in zip(images, g, strict=True)])
    mapped = torch.func.vmap(lambda images, g: weight_gradients(images, g, *SETTINGS))
    torch.testing.assert_close(mapped(images, g), expected)
    shared = torch.func.vmap(lambda images, g: weight_gradients(images, g, *SETTINGS), in_dims=(None, 0))
    torch.testing.assert_close(shared(images[0], g)[0], expected[0])


def test_in_a_traced_program():
    program = Compiled(lambda images, g: (weight_gradients(images, g, *SETTINGS),), traced, patience=0)
    for seed in range(3):
        images, g = drawn(4, 2, 3, [7, 8], *SETTINGS, seed=seed)
        torch.testing.assert_close(program(images, g)[0], by_autograd(images, g, *SETTINGS))


CONVOLUTIONS = [
    "cnn",
    "tempered",
    "papernot",
    "scatter_cnn",
    "group_norm",
    "odd_convolutions",
    "wide_convolution",
    "frozen",
]


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("much", [0, 1 << 60])
def test_clipped_sums_are_the_same_either_way(name, much, monkeypatch):
    monkeypatch.setattr(convolutions, "MUCH", much)
    calls = []
    plainly = convolutions.weight_gradients
    monkeypatch.setattr(convolutions, "weight_gradients", lambda *given: calls.append(1) or plainly(*given))
    module, objective, w, batch = made(name)
    assert isinstance(objective.per_sample.way, GhostClipping)
    rows, calls[:] = one_by_one(module, objective, w, batch), []
    clip_norm = float(rows.norm(dim=1).median())
    total, norms = objective.clipped(w, batch, clip_norm)
    assert near(total, clipped_by_hand(rows, clip_norm), 1e-9)
    torch.testing.assert_close(norms, rows.norm(dim=1))
    active = (torch.arange(len(w)) % 3 > 0).to(w.dtype)
    total, norms = objective.clipped(w, batch, clip_norm, active)
    assert near(total, clipped_by_hand(rows * active, clip_norm), 1e-9)
    limit = float(rows.abs().max()) / 2
    assert near(objective.clamped(w, batch, limit), rows.clamp(-limit, limit).sum(0))
    assert bool(calls) == (much == 0 and name != "frozen"), "frozen: its convolution has a bias alone"


def test_a_sample_that_is_not_finite_spoils_no_other(monkeypatch):
    monkeypatch.setattr(convolutions, "MUCH", 0)
    module, objective, w, batch = made("cnn")
    spoiled = batch.inputs.clone()
    spoiled[1, 0, 2] = torch.nan
    spoiled[3] = torch.inf
    batch = batch_of(spoiled, batch.labels)
    rows = one_by_one(module, objective, w, batch)
    good = rows.isfinite().all(1)
    total, norms = objective.clipped(w, batch, 0.5)
    assert near(total, clipped_by_hand(rows[good], 0.5), 1e-9)
    assert good.sum() == 3
    assert not norms[~good].any()
