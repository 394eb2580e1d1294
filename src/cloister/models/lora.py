"""Low-rank adapters: of a large model only two thin matrices beside each linear layer are trained, and sent.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang & Chen, "LoRA: low-rank adaptation of large language models", ICLR 2022.

    W x + b   becomes   W x + b + (alpha / rank) B A x,   A random, B zero to begin with

Fewer numbers are clipped as a whole and drowned in noise, which is why private training gains from it (Yu et al.,
"Differentially private fine-tuning of language models", ICLR 2022).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cloister.errors import CloisterError, expect, expect_count, expect_positive
from cloister.models.attention import Attention, split_attention
from cloister.models.names import as_patterns, chosen, matches
from cloister.models.replacing import replaced


class LoraLinear(nn.Module):
    """A linear layer that is not trained, and an adapter that is."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer, self.scale = layer, alpha / rank
        self.lora_A = nn.Linear(layer.in_features, rank, bias=False).to(layer.weight)
        self.lora_B = nn.Linear(rank, layer.out_features, bias=False).to(layer.weight)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """W x + b + (alpha / rank) B A x."""
        found: Tensor = self.layer(x) + self.scale * self.lora_B(self.lora_A(x))
        return found

    def merged(self) -> nn.Linear:
        """One plain layer that gives the same."""
        plain = copy.deepcopy(self.layer)
        with torch.no_grad():
            plain.weight = nn.Parameter(self.layer.weight + self.scale * self.lora_B.weight @ self.lora_A.weight)
        return plain


def lora(
    module: nn.Module,
    rank: int,
    alpha: float | None = None,
    targets: Sequence[str] | str | None = None,
    train: Sequence[str] | str | None = None,
) -> nn.Module:
    """A copy in which linear layers have adapters, and nothing else is trained.

    A layer so small that its own weights are fewer numbers than the adapter's is trained itself. Each
    nn.MultiheadAttention becomes an `Attention`, whose query, key, value and output are linear layers. Convolutions
    have no adapters.

    Args:
        rank: of the adapters; a few, such as 4.
        alpha: what adapters are scaled by, as a multiple of 1/rank; by default the rank, which scales by 1.
        targets: names or patterns of the layers ("*.query", "blocks.0"); by default all that are linear.
        train: names or patterns of parameters that are trained in full beside the adapters ("head").

    >>> adapted = lora(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)), rank=2)
    >>> [name for name, p in adapted.named_parameters() if p.requires_grad][:2]
    ['0.lora_A.weight', '0.lora_B.weight']
    """
    expect_count("lora_rank", rank, "the rank of the adapters, such as 4", most=10**6)
    alpha = float(rank) if alpha is None else alpha
    expect_positive("lora_alpha", alpha, "adapters are scaled by alpha / rank")
    patterns = as_patterns("lora_targets", targets)
    module = split_attention(module)  # a copy
    whole = _trained(module, as_patterns("lora_train", train))
    wanted = [layer for layer in _targets(module, patterns).values() if not _among(layer.weight, whole)]
    large = [layer for layer in wanted if rank <= min(layer.weight.shape)]
    most = max((min(layer.weight.shape) for layer in wanted), default=0)
    expect(most > 0, "a linear layer to adapt", type(module).__name__, "leave lora_rank out, or name other layers")
    expect(
        len(large) > 0, f"lora_rank to be at most {most}, the rank of the largest layer", rank, "choose a smaller one"
    )
    small = [layer.weight for layer in wanted if rank > min(layer.weight.shape)]
    for parameter in module.parameters():
        parameter.requires_grad_(_among(parameter, [*whole, *small]))
    adapters = {id(layer): LoraLinear(layer, rank, alpha).train(layer.training) for layer in large}
    return replaced(module, lambda part: adapters.get(id(part)))


def merge_lora(module: nn.Module) -> nn.Module:
    """A copy without adapters that gives the same: each is added to its layer. All of its parameters are trainable.

    Attention that was an nn.MultiheadAttention is one again, so that names and shapes are those of before.

    >>> merge_lora(lora(nn.Sequential(nn.Linear(4, 4)), rank=1))
    Sequential(
      (0): Linear(in_features=4, out_features=4, bias=True)
    )
    """
    module = copy.deepcopy(module)
    module = replaced(module, lambda part: part.merged() if isinstance(part, LoraLinear) else None)
    module = replaced(module, lambda part: part.joined() if isinstance(part, Attention) and part.was_torchs else None)
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    return module


def _linear_layers(module: nn.Module) -> dict[str, nn.Linear]:
    """Every linear layer by each of its names."""
    parts = dict(module.named_modules(remove_duplicate=False))
    adapted = any(isinstance(part, LoraLinear) for part in parts.values())
    expect(not adapted, "a model without adapters", "one that has them", "fold them in with merge_lora(model) first")
    return {name: part for name, part in parts.items() if isinstance(part, nn.Linear)}


def _targets(module: nn.Module, patterns: tuple[str, ...]) -> dict[str, nn.Linear]:
    """The linear layers that are to be adapted."""
    layers = _linear_layers(module)
    others = {name: type(part).__name__ for name, part in module.named_modules() if not list(part.children())}
    for pattern in patterns:
        found = next((f"{name!r}, a {kind}" for name, kind in others.items() if matches(pattern, name)), None)
        if found is not None and not any(matches(pattern, name) for name in layers):
            raise CloisterError(
                f"Expected lora_targets to name linear layers, found {found}: train such a layer in full with "
                "lora_train, or name others."
            )
    names = chosen("lora_targets", patterns, layers, "linear layers") if patterns else list(layers)
    return {name: layers[name] for name in names}


def _trained(module: nn.Module, patterns: tuple[str, ...]) -> list[nn.Parameter]:
    """What is trained in full."""
    named = dict(module.named_parameters(remove_duplicate=False))
    return [named[name] for name in chosen("lora_train", patterns, named, "parameters")]


def _among(parameter: Tensor, others: Sequence[Tensor]) -> bool:
    return any(parameter is other for other in others)
