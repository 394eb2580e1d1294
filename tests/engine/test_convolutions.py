"""Every way to convolve many clients at once gives what one client at a time gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cloister.engine.cuda.conv_algorithms import Grouped, Unfold
from cloister.engine.cuda.convolutions import PerClient

CASES = [(1, 0, 3), (1, 1, 3), (2, 1, 3), (2, 0, 1), (1, 2, 5)]  # stride, padding, kernel
WAYS = {"grouped": Grouped, "unfold": Unfold}


def example(stride: int, padding: int, kernel: int, clients: int = 3, dtype=torch.float64, device="cpu"):
    """Images, weights, biases, an output gradient, and what autograd makes of them client by client."""
    random = torch.Generator().manual_seed(kernel + 10 * stride)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float64)

    x, w, b = normal(clients, 4, 5, 9, 8), normal(clients, 6, 5, kernel, kernel), normal(clients, 6)
    x.requires_grad_(), w.requires_grad_()
    y = torch.stack([F.conv2d(x[i], w[i], b[i], stride, padding) for i in range(clients)])
    gy = normal(*y.shape)
    gx, gw = torch.autograd.grad(y, (x, w), gy)
    tensors = (x.detach(), w.detach(), b, gy, y.detach(), gx, gw)
    return [tensor.to(device, dtype) for tensor in tensors]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_is_a_convolution(way, case):
    stride, padding, kernel = case
    x, w, b, gy, y, gx, gw = example(*case)
    torch.testing.assert_close(way.forward(x, w, b, stride, padding), y)
    torch.testing.assert_close(way.input_gradient(gy, w, (9, 8), stride, padding), gx)
    torch.testing.assert_close(way.weight_gradient(gy, x, (kernel, kernel), stride, padding), gw)


@pytest.mark.parametrize("shared", [False, True], ids=["own weights", "shared weights"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv2d_is_caught_under_vmap_and_differentiated(case, shared):
    stride, padding, _ = case
    x, w, b, *_ = example(*case)
    dims = (None, None, 0) if shared else (0, 0, 0)
    w, b = (w[0], b[0]) if shared else (w, b)

    def loss(w, b, x):
        return (F.relu(F.conv2d(x, w, b, stride, padding)) ** 2).sum()

    plain = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims=dims)(w, b, x)
    with PerClient("exact"):
        caught = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims=dims)(w, b, x)
    for one, other in zip(caught, plain, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "settings", [{"dilation": 2}, {"groups": 5}, {"padding": "same"}, {"padding": (1, 2)}], ids=str
)
def test_what_no_way_covers_is_left_to_torch(settings):
    x = torch.randn(2, 4, 5, 9, 8, dtype=torch.float64)
    w = torch.randn(2, 5, 5 // settings.get("groups", 1), 3, 3, dtype=torch.float64)
    plain = torch.stack([F.conv2d(x[i], w[i], **settings) for i in range(2)])
    with PerClient("exact"):
        caught = torch.func.vmap(lambda x, w: F.conv2d(x, w, **settings))(x, w)
    torch.testing.assert_close(caught, plain)
