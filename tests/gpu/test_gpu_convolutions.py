"""Kernels on the device: as precise as they say, and what one client at a time gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cloister.core.precision import multiplying
from cloister.engine.compilation import trace
from cloister.engine.cuda import conv_algorithms, tiles
from cloister.engine.cuda.conv_algorithms import Tiles, Unfold, algorithm_for
from cloister.engine.cuda.convolutions import PerClient
from cloister.engine.disk_cache import DiskCache
from cloister.random.streams import coins, fold
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
@pytest.mark.parametrize("precision", ["exact", "tf32", "bf16"])
@pytest.mark.parametrize(
    "shape",
    [(3, 4, 5, 9, 6, 3, 1, 1), (2, 3, 32, 10, 64, 5, 1, 0), (2, 3, 16, 9, 32, 3, 2, 1), (2, 3, 16, 9, 32, 1, 2, 0)],
    ids=str,
)
def test_every_tile_is_as_precise_as_it_says(shape, precision, monkeypatch):
    """At stride 1 and 2, few channels and many; of bfloat16 images too, where products are that coarse."""
    clients, images, channels, size, out, kernel, stride, padding = shape
    torch.manual_seed(0)
    x = torch.randn(clients, images, channels, size, size, device=DEVICE)
    w = torch.randn(clients, out, channels, kernel, kernel, device=DEVICE)
    y = Unfold.forward(x, w, None, stride, padding)
    gy = torch.randn_like(y)
    arguments = {
        "forward": (x, w, None, stride, padding),
        "input_gradient": (gy, w, (size, size), stride, padding),
        "weight_gradient": (gy, x, (kernel, kernel), stride, padding),
    }
    algorithm_for(x, (kernel, kernel), precision)  # which loads the kernels
    with multiplying(precision, x.device):
        for operation, given in arguments.items():
            double = [a.double() if isinstance(a, torch.Tensor) else a for a in given]
            truth = getattr(Unfold, operation)(*double)

            def error(way, operation=operation, given=given, truth=truth, dtype=torch.float32):
                typed = [a.to(dtype) if isinstance(a, torch.Tensor) else a for a in given]
                return float((getattr(way, operation)(*typed).double() - truth).norm() / truth.norm())

            kind = "weight_gradient" if operation == "weight_gradient" else "convolve"
            for choice in tiles._TILES[kind, precision]:
                monkeypatch.setattr(conv_algorithms, "default_tile", lambda *_, choice=choice: choice)
                for dtype in (torch.float32, torch.bfloat16) if precision == "bf16" else (torch.float32,):
                    found = error(Tiles(precision), dtype=dtype)
                    assert found < {"exact": 3e-6, "tf32": 2e-3, "bf16": 2e-2}[precision], (operation, choice, dtype)
                if choice[0] == "tf32x3":  # no worse than what the library calls float32, of which short sums are good
                    assert found <= max(1.5 * error(Unfold), 2e-7), (operation, choice)


@NO_STAND_IN
def test_a_tile_that_was_tried_is_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tiles, "CHOSEN", {})
    x = torch.randn(2, 3, 9, 9, 16, device=DEVICE)
    w = torch.randn(2, 32, 3, 3, 16, device=DEVICE)
    algorithm_for(x, (3, 3), "tf32")

    def convolve(x, w):
        how, tile = tiles.default_tile("convolve", "tf32")
        return (torch.ops.cloister.convolve(x, w, None, [7, 7], 1, 0, 1, list(tile), how),)

    for tried in (True, False):
        graph = trace(convolve, (x, w))
        with monkeypatch.context() as patch:
            calls = []
            plain = tiles._milliseconds
            patch.setattr(tiles, "_milliseconds", lambda *a, p=plain, c=calls: (c.append(1), p(*a))[1])
            tiles.tune(graph)
        assert bool(calls) is tried
        torch.testing.assert_close(graph(x, w)[0], convolve(x, w)[0], rtol=1e-2, atol=1e-2)
        tiles.CHOSEN.clear()
        monkeypatch.setattr(tiles, "_ON_DISK", DiskCache("tiles.json"))


@NO_STAND_IN
@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_coins_are_the_same_by_the_kernel(probability):
    keys = fold(torch.tensor(7, device=DEVICE), torch.arange(6, device=DEVICE))

    def throw(key):
        return coins(key, (5, 1003), probability)

    plain = torch.func.vmap(throw)(keys)
    with PerClient("exact"):
        assert torch.equal(torch.func.vmap(throw)(keys), plain)
    assert torch.equal(plain.cpu(), torch.func.vmap(throw)(keys.cpu()))


@NO_STAND_IN
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [(8, 6), (7, 9)], ids=str)
def test_pooling_is_torchs(size, dtype):
    """Ties, numbers that are none, and lines that are in no window."""
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, *size, device=DEVICE).relu().to(dtype)
    x[0, 0, 0, 0, 1] = torch.nan
    weights = torch.randn(size[0] // 2, size[1] // 2, device=DEVICE).to(dtype)

    def loss(x):
        return (F.max_pool2d(x, 2) * weights).sum()

    expected = torch.func.vmap(torch.func.grad_and_value(loss))(x)
    with PerClient("exact"):
        found = torch.func.vmap(torch.func.grad_and_value(loss))(x)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@NO_STAND_IN
@pytest.mark.parametrize(("precision", "tolerance"), [("exact", 1e-6), ("tf32", 1e-3)])
def test_linear_layers_descend_in_place(precision, tolerance):
    from cloister.engine.cuda.update_kernels import descend, multiplied

    torch.manual_seed(0)
    clients, out, batch, into = 3, 70, 37, 131
    rows = torch.randn(clients, out * into + 40, device=DEVICE)
    left = torch.randn(clients, batch, out, device=DEVICE).transpose(1, 2)
    right, live = torch.randn(clients, batch, into, device=DEVICE), torch.tensor([True, False, True], device=DEVICE)
    before = rows.double()
    with multiplying(precision, rows.device):
        descend(rows[:, 8:], left, right, live[:, None], 0.25, multiplied(left.dtype))
    step = 0.25 * (left.double() @ right.double()).flatten(1) * live[:, None]
    expected = before.clone()
    expected[:, 8 : 8 + out * into] -= step
    assert (rows.double() - expected).norm() < tolerance * step.norm()
    assert torch.equal(rows[1].double(), before[1])
    assert torch.equal(rows[:, :8].double(), before[:, :8])


def test_exact_is_exact_although_torch_would_round_convolutions():
    """cuDNN takes tf32 for large convolutions unless it is told not to."""
    x, w = torch.randn(64, 128, 16, 16, device=DEVICE), torch.randn(128, 128, 3, 3, device=DEVICE)
    truth = torch.conv2d(x.double(), w.double())
    with multiplying("exact", x.device):
        assert (torch.conv2d(x, w) - truth).norm() < 1e-5 * truth.norm()
    with multiplying("tf32", x.device):
        assert not REAL or (torch.conv2d(x, w) - truth).norm() > 1e-4 * truth.norm()


@NO_STAND_IN
def test_a_step_is_warmed_up_without_a_kernel_and_tiles_are_tried_with_them(tmp_path, monkeypatch):
    """Gradients too, which torch computes in a thread of its own; and a trial that launches nothing would time it."""
    from cloister.engine.cuda import launches

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tiles, "CHOSEN", {})
    x, w = torch.randn(3, 4, 5, 8, 8, device=DEVICE), torch.randn(3, 6, 5, 3, 3, device=DEVICE)
    launched: list[str] = []
    plain = launches.Launch.__call__
    monkeypatch.setattr(
        launches.Launch, "__call__", lambda self: (launched.append(self.kernel.__name__), plain(self))[1]
    )

    def gradient(w, x):
        loss = torch.func.grad(lambda w, x: (F.conv2d(x, w) ** 2).sum(), argnums=(0, 1))
        with PerClient("tf32"):
            return torch.func.vmap(loss)(w, x)

    noted: list[list[str]] = []

    def compute():
        gradient(w, x)
        noted.append(list(launched))
        tiles.tune(trace(lambda w, x: gradient(w, x), (w, x)))
        noted.append(list(launched))

    launches.warm_up(compute)
    assert noted[0] == []
    assert {"_convolve", "_weight_gradient"} <= set(noted[1])
    assert {"_convolve", "_weight_gradient"} <= set(launched[len(noted[1]) :])


@NO_STAND_IN
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("shape", [(2, 10, 12544, 128), (3, 16, 64, 64), (1, 3, 1000, 5), (2, 10, 128, 3000)], ids=str)
def test_thin_products_are_float32(shape, turned):
    """No further from the truth than what the library calls float32."""
    from cloister.engine.cuda.product_kernels import multiply

    clients, rows, deep, wide = shape
    torch.manual_seed(0)
    thin = torch.randn(clients, rows, deep, device=DEVICE)
    large = torch.randn(clients, wide, deep, device=DEVICE).transpose(1, 2)
    large = large if turned else large.contiguous()
    truth = thin.double() @ large.double()
    found = multiply(thin, large)
    assert torch.equal(torch.ops.cloister.multiply(thin, large), found), "also as an operation of a traced step"
    assert found.shape == truth.shape
    with multiplying("exact", thin.device):
        usual = (torch.bmm(thin, large) - truth).norm()
    assert (found - truth).norm() <= max(2 * usual, 3e-7 * truth.norm())
