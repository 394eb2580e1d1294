"""ReLU and max-pooling joined in a traced step compute what they did apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cloister.engine.compilation import trace
from cloister.engine.cuda.pooling import _MaxPool
from cloister.engine.cuda.relu_in_pooling import relu_in_pooling
from cloister.engine.fusion import once


@pytest.fixture(autouse=True, scope="module")
def by_hand():
    """The two operations on a CPU, by torch's own."""

    def windows(x):
        _, h, w, _ = x.shape
        return x.unflatten(1, (h // 2, 2)).unflatten(3, (w // 2, 2)).permute(0, 1, 3, 5, 2, 4).flatten(4)

    def pool(x, relu):
        best, which = windows(x).max(-1)
        nowhere = (best <= 0) & relu
        return torch.where(nowhere, 0.0, best), torch.where(nowhere, 4, which).to(torch.int8)

    def spread(gy, which, size):
        places = torch.arange(4) == which[..., None]
        four = torch.where(places, gy[..., None], 0.0).unflatten(-1, (2, 2))
        return four.permute(0, 1, 4, 2, 5, 3).flatten(3, 4).flatten(1, 2)

    library = torch.library.Library("cloister", "IMPL", "CPU")
    library.impl("pool", pool)
    library.impl("spread", spread)
    yield
    library._destroy()


def pooled(x):
    return _MaxPool.apply(x)[0]


MODELS = {
    "relu, then pooling": (lambda x: pooled(F.relu(x)), True),
    "pooling, then relu": (lambda x: F.relu(pooled(x)), False),
    "relu twice": (lambda x: pooled(F.relu(x)) + F.avg_pool2d(F.relu(x * 2), 2), True),
    "what relu leaves is used as well": (lambda x: pooled(y := F.relu(x)) * y.mean(), False),
    "another activation": (lambda x: pooled(F.leaky_relu(x)), False),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_that_of_torch(name):
    model, joined = MODELS[name]
    torch.manual_seed(0)
    x, weights = torch.randn(3, 2, 5, 6, 8), torch.randn(5, 3, 4)
    x[:, :, :, :2, :2] = -x[:, :, :, :2, :2].abs()  # windows of which nothing is above zero
    x[0, 0, 0, 2:4] = 0.5  # and ties

    def gradient(x):
        return torch.func.vmap(torch.func.grad_and_value(lambda x: (model(x) * weights).sum()))(x)

    graph = trace(gradient, (x,))
    before = graph(x)
    once(graph)
    relu_in_pooling(graph)
    pools = [node for node in graph.graph.nodes if str(node.target) == "cloister.pool.default"]
    assert [node.args[1] for node in pools] == [joined]
    for found, expected in zip(graph(x), before, strict=True):
        assert torch.equal(found, expected)
    plain = {"pooled": lambda x: F.max_pool2d(x, 2)}
    reference = torch.func.vmap(torch.func.grad_and_value(lambda x: (_like(name, plain)(x) * weights).sum()))(x)
    for found, expected in zip(before, reference, strict=True):
        torch.testing.assert_close(found, expected)


def _like(name, names):
    """The same model with torch's own pooling."""
    pool = names["pooled"]
    return {
        "relu, then pooling": lambda x: pool(F.relu(x)),
        "pooling, then relu": lambda x: F.relu(pool(x)),
        "relu twice": lambda x: pool(F.relu(x)) + F.avg_pool2d(F.relu(x * 2), 2),
        "what relu leaves is used as well": lambda x: pool(y := F.relu(x)) * y.mean(),
        "another activation": lambda x: pool(F.leaky_relu(x)),
    }[name]


def test_a_relu_that_is_used_elsewhere_stays():
    """Also where nobody asks for a gradient."""

    def forward(x):
        y = F.relu(x)
        return pooled(y).sum(), y

    torch.manual_seed(0)
    x = torch.randn(2, 5, 6, 8)
    graph = trace(forward, (x,))
    before = graph(x)
    relu_in_pooling(graph)
    for found, expected in zip(graph(x), before, strict=True):
        assert torch.equal(found, expected)
