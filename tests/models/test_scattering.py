"""Scattering features, against kymatio's other implementation."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module

import numpy as np
import pytest
import torch

from cloister.errors import CloisterError
from cloister.models import scatter, scatter_linear

GRAY = np.random.default_rng(0).integers(0, 256, (5, 1, 28, 28), dtype=np.uint8)
COLOR = np.random.default_rng(1).integers(0, 256, (5, 3, 32, 32), dtype=np.uint8)


def reference(images: np.ndarray) -> np.ndarray:
    numpy_frontend = import_module("kymatio.scattering2d.frontend.numpy_frontend")
    n, c, h, w = images.shape
    features = numpy_frontend.ScatteringNumPy2D(J=2, shape=(h, w), L=8)(images.astype(np.float32))
    return features.reshape(n, 81 * c, h // 4, w // 4)


@pytest.mark.parametrize(("images", "shape"), [(GRAY, (5, 81, 7, 7)), (COLOR, (5, 243, 8, 8))], ids=["gray", "color"])
def test_features_are_those_of_kymatios_numpy(images, shape):
    unit = images / np.float32(255)
    features = scatter(unit, batch_size=2)
    assert features.shape == shape
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, reference(unit), rtol=0, atol=1e-5)
    np.testing.assert_allclose(scatter(images), 255 * features, rtol=1e-4, atol=1e-3)
    assert scatter_linear(shape[1:], 10)(torch.from_numpy(features)).shape == (5, 10)


def test_a_sample_does_not_depend_on_its_neighbors():
    whole = scatter(COLOR, batch_size=5)
    for batch in (1, 2):
        np.testing.assert_allclose(scatter(COLOR, batch_size=batch), whole, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(scatter(COLOR[::-1]), whole[::-1], rtol=1e-5, atol=1e-4)


def test_batches_side_by_side_give_the_same_bits_and_leave_torch_as_it_was():
    before = torch.get_num_threads()
    images = np.concatenate([GRAY] * 20)
    try:
        torch.set_num_threads(1)
        alone = scatter(images, batch_size=3)
        torch.set_num_threads(3)
        np.testing.assert_array_equal(scatter(images, batch_size=3), alone)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_tensors_arrays_and_read_only_memory_give_the_same():
    frozen = GRAY.copy()
    frozen.setflags(write=False)
    wide = GRAY.astype(np.float64)
    channels_last = torch.from_numpy(GRAY).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = [scatter(x) for x in (GRAY, frozen, wide, torch.from_numpy(GRAY), channels_last)]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_no_images_have_no_features():
    assert scatter(GRAY[:0]).shape == (0, 81, 7, 7)


@pytest.mark.parametrize("shape", [(4, 4), (5, 7), (30, 30)])
def test_odd_sizes_are_rounded_down(shape):
    images = np.random.default_rng(2).random((2, 2, *shape), dtype=np.float32)
    np.testing.assert_allclose(scatter(images), reference(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (GRAY[:, 0], r"shape \(n, channels, height, width\)"),
        (GRAY[:, :, :3], "at least 4x4"),
        (GRAY[:, :0], "at least 4x4"),
        (GRAY.astype(np.int64), "uint8 or floats"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.bool), "uint8 or floats"),
    ],
)
def test_what_are_not_images_is_refused(images, message):
    with pytest.raises(CloisterError, match=message):
        scatter(images)
    with pytest.raises(CloisterError, match="batch"):
        scatter(GRAY, batch_size=0)


def test_without_kymatio_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kymatio.scattering2d.frontend.torch_frontend", None)
    with pytest.raises(CloisterError, match=r"pip install 'cloister\[scattering\]'"):
        scatter(GRAY)


def test_kymatio_waits_until_it_is_needed():
    code = "import sys, cloister.models; print('kymatio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
