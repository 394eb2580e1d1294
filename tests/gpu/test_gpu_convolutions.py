"""Every way to convolve, on the device: as precise as it says, and what one client at a time gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cloister.core.precision import multiplying
from cloister.engine.cuda import conv_algorithms
from cloister.engine.cuda.convolutions import PerClient
from engine.test_convolutions import CASES, WAYS, example
from gpu.device import DEVICE, NO_STAND_IN, ON_DEVICE, REAL

pytestmark = ON_DEVICE


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_is_a_convolution(way, case):
    stride, padding, kernel = case
    x, w, b, gy, y, gx, gw = example(*case, device=DEVICE)
    torch.testing.assert_close(way.forward(x, w, b, stride, padding), y)
    torch.testing.assert_close(way.input_gradient(gy, w, (9, 8), stride, padding), gx)
    torch.testing.assert_close(way.weight_gradient(gy, x, (kernel, kernel), stride, padding), gw)


@pytest.mark.parametrize("shared", [False, True], ids=["own weights", "shared weights"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["float32", "float64"]
)
def test_conv2d_is_caught_under_vmap_and_differentiated(case, shared, dtype, tolerance):
    """Whichever way is the fastest here, against one client after the other in double precision on the host."""
    stride, padding, _ = case
    x, w, b, *_ = example(*case)
    w, b = (w[:1].expand_as(w), b[:1].expand_as(b)) if shared else (w, b)

    def loss(w, b, x):
        return (F.relu(F.conv2d(x, w, b, stride, padding)) ** 2).sum()

    gradient = torch.func.grad(loss, argnums=(0, 1, 2))
    singly = [torch.stack(g) for g in zip(*(gradient(*one) for one in zip(w, b, x, strict=True)), strict=True)]
    w, b, x = (tensor.to(DEVICE, dtype) for tensor in (w, b, x))
    dims = (None, None, 0) if shared else (0, 0, 0)
    w, b = (w[0], b[0]) if shared else (w, b)
    with multiplying("exact", x.device), PerClient("exact"):
        caught = torch.func.vmap(gradient, in_dims=dims)(w, b, x)
    for one, other in zip(caught, singly, strict=True):
        assert (one.double().cpu() - other).norm() <= tolerance * other.norm()


@NO_STAND_IN
@pytest.mark.parametrize("operation", ["forward", "input_gradient", "weight_gradient"])
@pytest.mark.parametrize("precision", ["exact", "tf32", "bf16"])
@pytest.mark.parametrize(
    "shape", [(3, 4, 5, 9, 6, 3, 1, 1), (2, 3, 32, 10, 64, 5, 1, 0), (2, 3, 16, 9, 32, 3, 2, 1)], ids=str
)
def test_every_way_to_convolve_is_as_precise_as_it_says(shape, precision, operation):
    clients, images, channels, size, out, kernel, stride, padding = shape
    torch.manual_seed(0)
    x = torch.randn(clients, images, channels, size, size, device=DEVICE)
    w = torch.randn(clients, out, channels, kernel, kernel, device=DEVICE)
    y = conv_algorithms.Grouped.forward(x, w, None, stride, padding)
    gy = torch.randn_like(y)
    arguments = {
        "forward": (x, w, None, stride, padding),
        "input_gradient": (gy, w, (size, size), stride, padding),
        "weight_gradient": (gy, x, (kernel, kernel), stride, padding),
    }[operation]
    double = [a.double() if isinstance(a, torch.Tensor) else a for a in arguments]
    truth = getattr(conv_algorithms.Grouped, operation)(*double)
    with multiplying(precision, x.device):
        options = conv_algorithms.ways(operation, precision, *arguments)
        apart = {n: float((way(*arguments).double() - truth).norm() / truth.norm()) for n, way in options.items()}
    assert len(options) >= 4 or operation == "input_gradient"
    assert max(apart.values()) < {"exact": 3e-6, "tf32": 2e-3, "bf16": 2e-2}[precision], apart
    if precision == "exact":  # three tf32 products are no worse than what the library calls float32
        split = [error for name, error in apart.items() if name.startswith("tf32x3")]
        assert all(error <= 1.5 * max(apart["unfold"], apart["grouped"]) for error in split), apart


def test_exact_is_exact_although_torch_would_round_convolutions():
    """cuDNN takes tf32 for large convolutions unless it is told not to."""
    x, w = torch.randn(64, 128, 16, 16, device=DEVICE), torch.randn(128, 128, 3, 3, device=DEVICE)
    truth = torch.conv2d(x.double(), w.double())
    with multiplying("exact", x.device):
        assert (torch.conv2d(x, w) - truth).norm() < 1e-5 * truth.norm()
    with multiplying("tf32", x.device):
        assert not REAL or (torch.conv2d(x, w) - truth).norm() > 1e-4 * truth.norm()
