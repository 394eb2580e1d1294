"""The gradients of single samples against a plain reference, against each other and against Opacus."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from cloister.errors import CloisterError
from cloister.joints import Batch, Problem
from cloister.models import CATALOGUE
from cloister.problem import cross_entropy, problem_of
from cloister.samples.alone import Alone
from cloister.samples.books import BookKeeping
from cloister.samples.common import rounding, squared_norms
from cloister.samples.portions import Products
from cloister.streams import Streams
from cloister.views import images


def seeded(make, *arguments, **named) -> nn.Module:
    torch.manual_seed(0)
    return make(*arguments, **named)


class Sequences(nn.Module):
    """Layers on sequences [b, T, n], of which one is wide enough to stay unwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(5, 60), nn.LayerNorm(60)
        self.wide, self.last = nn.Linear(60, 90, bias=False), nn.Linear(90, 3)

    def forward(self, x):
        return self.last(self.wide(self.norm(self.first(x)).tanh()).tanh().mean(1))


class Frozen(nn.Module):
    """Parameters that are not trained beside others that are, in one layer and in several."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.dense = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Linear(64, 3)
        for parameter in (self.conv.weight, self.norm.bias, self.dense.bias):
            parameter.requires_grad_(False)

    def forward(self, x):
        return self.dense(self.norm(self.conv(x)).tanh().flatten(1))


class BatchMean(nn.Module):
    """Subtracts the mean over the batch: one sample changes the gradients of all others."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.dense(x)
        return self.last((x - x.mean(0)).tanh())


class Centred(BatchMean):
    def forward(self, x):
        return self.last(self.dense(x - x.mean(0)).tanh())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.dense(self.dense(x).tanh()).tanh())


class Elsewhere(nn.Module):
    """Uses a weight in a layer, and once more where no layer is."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 3)

    def forward(self, x):
        return self.dense(x) * self.dense.weight.square().sum()


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.last = nn.Parameter(torch.rand(6)), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(x * self.scale)


def convolutions(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3))


def warmed(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    module(torch.zeros(2, *shape))
    return module


PICTURE = (2, 6, 6)
BOOKS = {
    "logistic": (lambda: CATALOGUE["logistic"]((6,), 3), (6,)),
    "mlp": (lambda: CATALOGUE["mlp"]((6,), 3), (6,)),
    "cnn": (lambda: CATALOGUE["cnn"](PICTURE, 3, width=3), PICTURE),
    "tempered": (lambda: CATALOGUE["cnn"](PICTURE, 3, width=3, activation="tempered"), PICTURE),
    "papernot": (lambda: CATALOGUE["papernot_mnist_cnn"]((1, 16, 16), 3), (1, 16, 16)),
    "scatter_linear": (lambda: CATALOGUE["scatter_linear"]((81, 2, 2), 3), (81, 2, 2)),
    "scatter_cnn": (lambda: CATALOGUE["scatter_cnn"]((81, 4, 4), 3), (81, 4, 4)),
    "group_norm": (
        lambda: warmed(convolutions(nn.Conv2d(2, 4, 3, bias=False), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1)), PICTURE),
        PICTURE,
    ),
    "odd_convolutions": (
        lambda: warmed(
            convolutions(nn.Conv2d(2, 4, (3, 2), (2, 1), (2, 1), (1, 2)), nn.Conv2d(4, 3, 2, dilation=2)), PICTURE
        ),
        PICTURE,
    ),
    "wide_convolution": (
        lambda: warmed(convolutions(nn.Conv2d(2, 40, 5), nn.Conv2d(40, 80, 2, bias=True)), PICTURE),
        PICTURE,
    ),
    "group_norm_of_vectors": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Linear(8, 3)), (6,)),
    "sequences": (Sequences, (3, 5)),
    "frozen": (Frozen, PICTURE),
}
ALONE = {
    "char_lstm": (lambda: CATALOGUE["char_lstm"]((5,), 4, hidden=6), (5,)),
    "tied": (Tied, (6,)),
    "elsewhere": (Elsewhere, (6,)),
    "own": (Own, (6,)),
    "groups": (lambda: warmed(convolutions(nn.Conv2d(2, 4, 3, groups=2)), PICTURE), PICTURE),
    "same": (lambda: warmed(convolutions(nn.Conv2d(2, 4, 3, padding="same")), PICTURE), PICTURE),
    "batch_mean": (BatchMean, (6,)),
    "centred": (Centred, (6,)),
}
MODELS = {**BOOKS, **ALONE}


def batch_of(inputs: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor | None = None, key: int = 7) -> Batch:
    mask = torch.ones(len(labels), dtype=torch.bool) if mask is None else mask
    count, live = mask.sum().clamp(min=1), torch.tensor(True)
    return Batch(inputs, labels, mask, count, torch.tensor(key), live, torch.zeros(0))


def made(
    name: str, samples: int = 5, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, Problem, torch.Tensor, Batch]:
    make, shape = MODELS[name]
    module = seeded(make).to(dtype).train()
    few = torch.randn(samples, *shape, dtype=dtype)
    inputs = torch.randint(4, (samples, *shape)) if name == "char_lstm" else few
    labels = torch.randint(3, (samples,))
    problem = problem_of(module, cross_entropy, inputs[:2], labels[:2], 3)
    w = problem.layout.flatten(dict(module.named_parameters()))
    return module, problem, w + 0.1 * torch.randn_like(w), batch_of(inputs, labels)


def one_by_one(module: nn.Module, problem: Problem, w: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The reference: gradients [b, d] of single samples by plain autograd, without the code under test."""
    problem.layout.load(module, w)
    trained = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for x, y in zip(batch.inputs, batch.labels, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(module(x[None]), y[None]), trained)
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


def clipped_by_hand(rows: torch.Tensor, clip: float) -> torch.Tensor:
    return torch.stack([row * min(1.0, clip / max(float(row.norm()), 1e-300)) for row in rows]).sum(0)


def plain_grad(function, has_aux=False):
    """As an engine has it that runs under no transform."""

    def gradient(arguments):
        with torch.enable_grad():
            leaves = tuple(a.detach().requires_grad_() for a in arguments)
            value, aux = function(leaves)
            return torch.autograd.grad(value, leaves), aux

    return gradient


def near(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-10) -> bool:
    return bool((found - expected).norm() <= tolerance * expected.norm())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("grad", [torch.func.grad, plain_grad], ids=["func", "plain"])
def test_samples_have_the_gradients_that_they_have_alone(name, grad):
    module, problem, w, batch = made(name)
    rows = one_by_one(module, problem, w, batch)
    assert isinstance(problem.samples.way, BookKeeping if name in BOOKS else Alone)
    for clip in (float(rows.norm(dim=1).median()), torch.tensor(0.01), float("inf")):
        total, norms = problem.samples.clipped(grad, w, batch, clip, None)
        assert near(total, clipped_by_hand(rows, float(clip)))
        assert near(norms, rows.norm(dim=1))
        assert not total.requires_grad
        assert not norms.requires_grad
    limit = float(rows.abs().mean())
    assert near(problem.samples.clamped(grad, w, batch, limit, None), rows.clamp(-limit, limit).sum(0))


@pytest.mark.parametrize("name", MODELS)
def test_where_a_gradient_is_inactive_it_counts_as_zero(name):
    module, problem, w, batch = made(name)
    active = (torch.rand(len(w)) < 0.3).to(w.dtype)
    rows = one_by_one(module, problem, w, batch) * active
    clip, limit = float(rows.norm(dim=1).median()), float(rows.abs().max()) / 2
    for kind in (active, active.bool()):
        total, norms = problem.clipped(w, batch, clip, kind)
        assert near(total, clipped_by_hand(rows, clip))
        assert near(norms, rows.norm(dim=1))
        assert near(problem.clamped(w, batch, limit, kind), rows.clamp(-limit, limit).sum(0))


@pytest.mark.parametrize("name", MODELS)
def test_padding_counts_as_zero(name):
    module, problem, w, batch = made(name)
    mask = torch.tensor([True, False, True, True, False])
    rows = one_by_one(module, problem, w, batch)[mask]
    clip = float(rows.norm(dim=1).median())
    padded = batch_of(batch.inputs, batch.labels, mask)
    total, norms = problem.clipped(w, padded, clip)
    assert near(total, clipped_by_hand(rows, clip))
    assert near(norms[mask], rows.norm(dim=1))
    assert norms[~mask].tolist() == [0, 0]
    assert near(problem.clamped(w, padded, clip / 9), rows.clamp(-clip / 9, clip / 9).sum(0))
    for empty in (
        batch_of(batch.inputs, batch.labels, torch.zeros_like(mask)),
        batch_of(batch.inputs[:0], batch.labels[:0]),
    ):
        total, norms = problem.clipped(w, empty, 1.0)
        assert total.shape == w.shape
        assert not total.any()
        assert norms.tolist() == [0] * len(empty.mask)
        assert not problem.clamped(w, empty, 1.0).any()


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"char_lstm", "batch_mean", "centred"}))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e200])
def test_a_sample_without_a_finite_gradient_counts_as_zero(name, value):
    module, problem, w, batch = made(name)
    spoiled = batch.inputs.clone()
    spoiled[1].view(-1)[2] = value
    spoiled[3] = value
    batch = batch_of(spoiled, batch.labels)
    total, norms = problem.clipped(w, batch, 0.5)
    assert total.isfinite().all()
    assert norms.isfinite().all()
    assert problem.clamped(w, batch, 0.01).isfinite().all()
    if value != 1e200:  # which normalisation and saturation can make finite again
        rows = one_by_one(module, problem, w, batch)
        good = rows.isfinite().all(1)
        assert near(total, clipped_by_hand(rows[good], 0.5))
        assert not norms[~good].any()


@pytest.mark.parametrize("way", ["books", "alone"])
@pytest.mark.parametrize("size", [1e15, 1e18, 1e25, 1e37, 1e38])
@pytest.mark.parametrize("clip", [1e-6, 1.0])
@pytest.mark.parametrize("width", [4, 128])
def test_a_huge_gradient_is_clipped_or_dropped(way, size, clip, width):
    """In float32 its square overflows, and the factor that brings it down can lose its precision."""
    module = nn.Sequential(nn.Linear(width, 3, bias=False)).train()
    inputs, labels = torch.rand(2, width), torch.tensor([0, 1])
    problem = problem_of(module, cross_entropy, inputs, labels, 3)
    how = problem.samples.way if way == "books" else Alone(problem.samples.model)
    w = torch.zeros(3 * width)
    total, norms = how.clipped(torch.func.grad, w, batch_of(inputs * size, labels), clip, None)
    assert total.isfinite().all()
    assert norms.isfinite().all()
    alone = how.clipped(torch.func.grad, w, batch_of(inputs[:1] * size, labels[:1]), clip, None)[0].double().norm()
    assert alone == 0 or clip * (1 - 1e-5) <= alone <= clip
    assert alone > 0 or size > 1e17, "what float32 can square is not dropped"


@pytest.mark.parametrize("width", [1, 128])
@pytest.mark.parametrize(("large", "small"), [(1e28, 1e-25), (1e18, 1e-21), (1e-25, 1e28), (1e-21, 1e18)])
def test_a_small_factor_of_a_large_product_is_not_taken_for_nothing(width, large, small):
    """The squares of float32 numbers vanish below 1e-23; the norm of a product of such a one must not."""
    module = nn.Sequential(nn.Linear(width, 2, bias=False)).train()

    def loss(outputs, labels):
        return outputs.sum(1) * labels

    inputs, labels = torch.full((1, width), large), torch.full((1,), small)
    problem = problem_of(module, loss, torch.ones(2, width), torch.ones(2), None)
    assert isinstance(problem.samples.way, BookKeeping)
    for active in (None, torch.ones(2 * width)):
        for clip in (1e-5, 1.0):
            total, _ = problem.clipped(torch.zeros(2 * width), batch_of(inputs, labels), clip, active)
            assert total.double().norm() <= clip


def test_long_rows_have_norms_that_no_order_of_summation_makes_too_small():
    torch.manual_seed(0)
    for length in (7, 64, 97, 640, 3969, 10_007, 65_536):
        rows = torch.cat([torch.rand(20, length), torch.full((20, length), 1.1) * torch.rand(20, 1)])
        exact = rows.double().square().sum(1)
        found = squared_norms(rows)
        assert found.dtype == torch.float64
        assert ((found / exact).sqrt() > 1 - rounding(rows) / 2).all()


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Dropout2d(0.4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3)
    )


@pytest.mark.parametrize("name", [*BOOKS, "dropout"])
def test_both_ways_agree_in_float32(name):
    if name == "dropout":
        module = seeded(dropping).train()
        inputs, labels = torch.randn(6, *PICTURE), torch.arange(6) % 3
        problem = problem_of(module, cross_entropy, inputs[:2], labels[:2], 3)
        w, batch = problem.layout.flatten(dict(module.named_parameters())), batch_of(inputs, labels)
    else:
        _, problem, w, batch = made(name, samples=6, dtype=torch.float32)
    books, alone = problem.samples.way, Alone(problem.samples.model)
    assert isinstance(books, BookKeeping)
    norms = alone.clipped(torch.func.grad, w, batch, 1.0, None)[1]
    for clip in (float(norms.median()), float("inf")):
        (total, some), (expected, others) = (
            way.clipped(torch.func.grad, w, batch, clip, None) for way in (books, alone)
        )
        assert near(total, expected, 1e-5)
        assert near(some, others, 1e-5)
    found, expected = (way.clamped(torch.func.grad, w, batch, 0.01, None) for way in (books, alone))
    assert near(found, expected, 1e-5)


def test_samples_are_seen_as_a_batch_and_dropped_by_their_place():
    """Crops, flips and dropout of a sample follow from the batch's key and its place, in both ways."""
    module = seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(72, 3))).double().train()
    inputs, labels = torch.randint(256, (4, 2, 6, 6), dtype=torch.uint8), torch.tensor([0, 1, 2, 0])
    view = images((0.5, 0.5), (0.2, 0.2), pad=2, flip=True)
    problem = problem_of(module, cross_entropy, inputs[:2], labels[:2], 3, view)
    w = problem.layout.flatten(dict(module.named_parameters()))
    same = batch_of(inputs[:1].expand(4, -1, -1, -1), labels[:1].expand(4))
    found = [
        way.clipped(torch.func.grad, w, same, 0.5, None) for way in (problem.samples.way, Alone(problem.samples.model))
    ]
    assert near(found[0][0], found[1][0])
    assert near(found[0][1], found[1][1])
    assert len(set(found[0][1].tolist())) == 4, "the same sample is another in every place"
    mean = problem.gradient(w, same)
    assert near(problem.clipped(w, same, float("inf"))[0] / 4, mean), "and what trains without clipping"


@pytest.mark.parametrize("name", ["mlp", "papernot", "group_norm", "wide_convolution", "sequences", "char_lstm", "own"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
def test_clients_can_be_mapped_and_traced(name, shared):
    _, problem, w, batch = made(name, samples=8)
    ws = w if shared else torch.stack([w, w + 0.1 * torch.randn_like(w)])
    columns = [column.unflatten(0, (2, 4)) for column in (batch.inputs, batch.labels)]
    mask, keys = torch.tensor([[True] * 4, [True, False, True, False]]), torch.tensor([3, 4])
    clips = torch.tensor([0.5, 2.0])
    active = (torch.rand(len(w)) < 0.5).to(w.dtype)

    def of_one(w, inputs, labels, mask, key, clip):
        one = Batch(inputs, labels, mask, mask.sum(), key, mask.any(), torch.zeros(0))
        return (*problem.clipped(w, one, clip), problem.clipped(w, one, clip, active)[0], problem.clamped(w, one, 0.01))

    arguments = (ws, *columns, mask, keys, clips)
    mapped = torch.func.vmap(of_one, in_dims=(None if shared else 0, 0, 0, 0, 0, 0))
    problem.samples._way = None  # decided under the transforms
    traced = make_fx(mapped)(*arguments)
    for together in (mapped(*arguments), traced(*arguments), traced(*arguments)):
        for i in range(2):
            alone = of_one(w if shared else ws[i], *(column[i] for column in arguments[1:]))
            for found, expected in zip(together, alone, strict=True):
                assert near(found[i], expected)


@pytest.mark.parametrize("name", ["batch_mean", "centred"])
def test_a_model_that_mixes_samples_is_run_sample_by_sample(name):
    """Whatever the others are, a sample moves the sum by its own clipped gradient alone."""
    _, problem, w, batch = made(name)
    with_it, norms = problem.clipped(w, batch, 0.1)
    without, _ = problem.clipped(w, batch_of(batch.inputs[:-1], batch.labels[:-1]), 0.1)
    assert norms[-1] > 0.1 or name == "batch_mean"
    assert (with_it - without).norm() <= 0.1 * (1 + 1e-12)


def test_a_model_that_cannot_take_one_sample_is_refused():
    class Squeezing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(6, 3)

        def forward(self, x):
            return self.dense(x.unsqueeze(2).squeeze())

    labels = torch.tensor([0, 1, 2])
    problem = problem_of(Squeezing(), cross_entropy, torch.rand(3, 6), labels, 3)
    with pytest.raises(CloisterError, match="takes a single sample"):
        problem.samples.bytes_for(3)


class Choosing(nn.Module):
    def __init__(self, choose) -> None:
        super().__init__()
        self.choose, self.dense, self.last = choose, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.dense(x)) if self.choose(x) else self.last(x)


def test_a_forward_pass_that_depends_on_the_batch_is_refused():
    labels = torch.tensor([0, 1, 2, 0, 1])
    problem = problem_of(Choosing(lambda x: x.max() > 0), cross_entropy, torch.rand(3, 6), labels[:3], 3)
    with pytest.raises(CloisterError, match=r"takes a single sample.*torch\.where"):
        problem.samples.bytes_for(3)
    problem = problem_of(Choosing(lambda x: len(x) < 5), cross_entropy, torch.rand(3, 6), labels[:3], 3)
    w = torch.randn(problem.layout.size)
    for batch in (batch_of(torch.rand(5, 6), labels), batch_of(torch.rand(4, 6), labels[:4])):
        if len(batch.labels) == 5:
            with pytest.raises(CloisterError, match="alike"):
                problem.clipped(w, batch, 1.0)
        else:
            assert problem.clipped(w, batch, 1.0)[0].any()


def test_the_way_is_decided_once_and_not_before_it_is_needed(monkeypatch):
    import cloister.samples

    decided = []
    monkeypatch.setattr(cloister.samples, "fitting", lambda *given: decided.append(given) or Alone(given[0]))
    _, problem, w, batch = made("mlp")
    problem.gradient(w, batch)
    assert not decided
    threads = [threading.Thread(target=problem.clipped, args=(w, batch, 1.0)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decided) == 1


def test_the_decision_leaves_the_random_numbers_alone():
    _, problem, *_ = made("mlp")
    before = torch.get_rng_state()
    assert problem.samples.bytes_for(10) > 0
    assert torch.equal(before, torch.get_rng_state())


def test_memory_grows_with_the_batch_and_is_bounded_where_samples_run_alone():
    _, problem, *_ = made("papernot")
    assert problem.samples.bytes_for(20) == 2 * problem.samples.bytes_for(10)
    _, lstm, *_ = made("char_lstm")
    most = lstm.samples.bytes_for(10**9)
    assert most == lstm.samples.bytes_for(10**8) <= 2**24 * 24


def test_samples_alone_are_computed_in_chunks(monkeypatch):
    _, problem, w, batch = made("own", samples=7)
    whole = problem.clipped(w, batch, 0.5)
    monkeypatch.setattr("cloister.samples.alone._MOST_NUMBERS", 2 * len(w))
    pieces = problem.clipped(w, batch, 0.5)
    assert near(pieces[0], whole[0])
    assert near(pieces[1], whole[1])


def test_what_cancels_is_not_scaled_up():
    """Terms of a sum that nearly cancel: the unwritten form must not take what rounding leaves for less than it is."""
    torch.manual_seed(0)
    g, a = torch.randn(20, 30, 1), torch.randn(20, 40, 1)
    g = torch.cat([g, -g], 2)
    a = torch.cat([a, a * (1 + 1e-7 * torch.randn_like(a))], 2)
    portion = Products(g, a, None)
    norms = portion.squared_norms().sqrt()
    for i in range(20):
        factors = torch.zeros(20)
        factors[i] = 1.0
        assert portion.weighted(factors)[0].double().norm() <= norms[i]


KINDS = ["mlp", "cnn", "group_norm", "wide_convolution", "sequences", "own"]
PROBLEMS: dict[str, tuple[Problem, torch.Tensor, Batch]] = {}


@given(
    st.sampled_from(KINDS),
    st.lists(st.floats(-4, 25), min_size=2, max_size=2),
    st.integers(0, 2**31),
    st.floats(-3, 3),
    st.sampled_from([None, 0.5]),
)
@settings(max_examples=120, deadline=None)
def test_one_sample_more_moves_the_sum_by_no_more_than_the_clip(name, magnitudes, seed, clip, density):
    """In float32, for samples and parameters of any magnitude; sums are compared in what float32 leaves of them."""
    if name not in PROBLEMS:
        PROBLEMS[name] = made(name, dtype=torch.float32)[1:]
    problem, w, batch = PROBLEMS[name]
    random = torch.Generator().manual_seed(seed)
    inputs, clip = batch.inputs.clone(), 10.0**clip
    inputs[-1] = torch.randn(inputs[-1].shape, generator=random) * 10.0 ** magnitudes[0]
    w = w * 10.0 ** (magnitudes[1] / 10)
    active = None if density is None else (torch.rand(len(w), generator=random) < density).float()
    mask = torch.arange(len(batch.mask)) == len(batch.mask) - 1
    alone, norms = problem.clipped(w, batch_of(inputs, batch.labels, mask), clip, active)
    assert alone.double().norm() <= clip
    if magnitudes[0] < 10 and norms[-1] > 1e-6:
        assert alone.double().norm() >= min(clip, float(norms[-1])) * (1 - 1e-5), "nor is it clipped too much"
    everybody, _ = problem.clipped(w, batch_of(inputs, batch.labels), clip, active)
    others, _ = problem.clipped(w, batch_of(inputs, batch.labels, ~mask), clip, active)
    moved = (everybody.double() - others.double()).norm()
    assert moved <= clip * (1 + 1e-6) + 1e-6 * float(others.norm())


@pytest.mark.parametrize(
    ("name", "shape", "samples"),
    [("papernot_mnist_cnn", (1, 28, 28), 16), ("mlp", (64,), 10), ("scatter_linear", (81, 7, 7), 16)],
)
def test_opacus_computes_the_same(name, shape, samples):
    """One step of DP-SGD without noise, on the same lot, by its DPOptimizer."""
    pytest.importorskip("opacus")
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module = seeded(CATALOGUE[name], shape, 10).train()
    inputs, labels = torch.randn(samples, *shape), torch.randint(10, (samples,))
    problem = problem_of(module, cross_entropy, inputs[:2], labels[:2], 10)
    assert isinstance(problem.samples.way, BookKeeping)
    w = problem.layout.flatten(dict(module.named_parameters()))
    batch = batch_of(inputs, labels)
    norms = problem.clipped(w, batch, 1.0)[1]
    for clip in (0.1, float(norms.median()), 100.0):
        theirs = GradSampleModule(CATALOGUE[name](shape, 10))
        problem.layout.load(theirs._module, w)
        optimizer = DPOptimizer(
            torch.optim.SGD(theirs.parameters(), lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=samples,
        )
        F.cross_entropy(theirs(inputs), labels).backward()
        optimizer.step()
        stepped = problem.layout.flatten(dict(theirs._module.named_parameters()))
        ours = problem.clipped(w, batch, clip)[0] / samples
        assert near(ours, torch.cat([p.grad.flatten() for p in theirs.parameters()]), 1e-5)
        assert near(w - ours, stepped, 1e-5)


def test_protective_draws_are_untouched():
    """Dropout of a sample alone continues the batch's draws, and these are what they always were."""
    from cloister.problem import KeyedDropout

    x = torch.ones(5, 3, 4)
    key = torch.tensor(Streams(0).key("model", 1))
    for drop in (F.dropout, F.dropout1d):
        with KeyedDropout(key):
            whole = drop(x, 0.5)
        for slot in range(5):
            with KeyedDropout(key, torch.tensor(slot)):
                assert torch.equal(drop(x[:1], 0.5), whole[slot : slot + 1])
