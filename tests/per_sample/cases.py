"""Models of all kinds, batches of their samples, and a reference that knows nothing of the code under test."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.core import Batch, Objective
from cloister.models import CATALOGUE


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
    "pfl_scatter_linear": (lambda: CATALOGUE["pfl_scatter_linear"]((81, 2, 2), 3), (81, 2, 2)),
    "pfl_scatter_cnn": (lambda: CATALOGUE["pfl_scatter_cnn"]((81, 5, 5), 3), (81, 5, 5)),
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
) -> tuple[nn.Module, Objective, torch.Tensor, Batch]:
    make, shape = MODELS[name]
    module = seeded(make).to(dtype).train()
    few = torch.randn(samples, *shape, dtype=dtype)
    inputs = torch.randint(4, (samples, *shape)) if name == "char_lstm" else few
    labels = torch.randint(3, (samples,))
    objective = objective_of(module, cross_entropy, inputs[:2], labels[:2], 3)
    w = objective.layout.flatten(dict(module.named_parameters()))
    return module, objective, w + 0.1 * torch.randn_like(w), batch_of(inputs, labels)


def one_by_one(module: nn.Module, objective: Objective, w: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The reference: gradients [b, d] of single samples by plain autograd, without the code under test."""
    objective.layout.load(module, w)
    trained = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for x, y in zip(batch.inputs, batch.labels, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(module(x[None]), y[None]), trained)
        rows.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(rows)


def clipped_by_hand(rows: torch.Tensor, clip_norm: float) -> torch.Tensor:
    return torch.stack([row * min(1.0, clip_norm / max(float(row.norm()), 1e-300)) for row in rows]).sum(0)


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
