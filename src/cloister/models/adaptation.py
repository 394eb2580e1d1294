"""What is done to a model before it is trained: weights are loaded, parts are frozen, adapters are put in."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from torch import nn

from cloister.core.arguments import Group
from cloister.errors import CloisterError, expect, expect_count, expect_one_of, expect_positive, expect_type
from cloister.models.lora import lora
from cloister.models.names import as_patterns, chosen, matches
from cloister.models.norms import group_norm
from cloister.models.weights import Weights, load_weights, read_weights

MODEL = Group("model")
Patterns = list[str] | None


@dataclass(frozen=True)
class Adaptation:
    """In this order: weights, normalization, what is frozen, adapters.

    Patterns are names, of which * and ? stand for anything; the name of a part stands for all that lies in it. What is
    frozen is a public constant of the run: it is neither trained nor sent, clipped or noised.
    """

    given_as_keywords: ClassVar[bool] = True

    weights: Annotated[
        str | None, "a .safetensors file with the weights to start from; they count as public", MODEL
    ] = None
    weights_skip: Annotated[
        Patterns, "parameters that are not taken from it, such as head (of other classes)", MODEL
    ] = None
    batch_norm: Annotated[Literal["refuse", "group_norm"], "group_norm: convert the model's BatchNorm", MODEL] = (
        "refuse"
    )
    freeze: Annotated[Patterns, "parameters that are not trained, such as blocks.0,*.bias", MODEL] = None
    lora_rank: Annotated[int | None, "train adapters of this rank in place of the linear layers (LoRA)", MODEL] = None
    lora_alpha: Annotated[float | None, "adapters are scaled by alpha / rank (by default 1)", MODEL] = None
    lora_targets: Annotated[
        Patterns, "layers with adapters, such as *.query,*.value (by default all linear)", MODEL
    ] = None
    lora_train: Annotated[Patterns, "parameters that are trained in full beside adapters, such as head", MODEL] = None

    def __post_init__(self) -> None:
        if isinstance(self.weights, Path):
            object.__setattr__(self, "weights", str(self.weights))
        expect_type("weights", self.weights, (str, type(None)), "the path of a file", "give a .safetensors file")
        expect_one_of("batch_norm", self.batch_norm, ("refuse", "group_norm"))
        for name in ("weights_skip", "freeze", "lora_targets", "lora_train"):
            given = as_patterns(name, getattr(self, name))
            object.__setattr__(self, name, list(given) or None)
        if self.lora_rank is not None:
            expect_count("lora_rank", self.lora_rank, "the rank of the adapters, such as 4", most=10**6)
        if self.lora_alpha is not None:
            expect_positive("lora_alpha", self.lora_alpha, "adapters are scaled by alpha / rank")
        needs = {"lora_alpha": "lora_rank", "lora_targets": "lora_rank", "lora_train": "lora_rank"}
        for name, needed in (needs | {"weights_skip": "weights"}).items():
            alone = getattr(self, name) is not None and getattr(self, needed) is None
            expect(not alone, f"{needed} beside {name}", "none", f"give {needed}, or leave {name} out")
        both = self.freeze is not None and self.lora_rank is not None
        remedy = "adapters freeze all that is not in lora_train, and lora_targets says where they are"
        expect(not both, "freeze or lora_rank", "both", remedy)

    def read(self) -> Weights | None:
        """The weights to start from, where there are some."""
        return None if self.weights is None else read_weights(self.weights)

    def apply(self, module: nn.Module, weights: Weights | None = None) -> nn.Module:
        """The model as it is trained; the given one may be changed. Adapters are drawn from torch's generator."""
        weights = weights or self.read()
        if weights is not None:
            load_weights(module, weights, tuple(self.weights_skip or ()))
        return self.restructure(module)

    def restructure(self, module: nn.Module) -> nn.Module:
        """The same without any weights: for a model whose trained ones are loaded afterwards."""
        if self.batch_norm == "group_norm":
            module = group_norm(module)
        if self.freeze:
            _freeze(module, self.freeze)
        if self.lora_rank is not None:
            module = self._with_adapters(module)
        return module

    def _with_adapters(self, module: nn.Module) -> nn.Module:
        assert self.lora_rank is not None
        # What is not in the file is random, and would be of no use if it stayed so.
        skip = self.weights_skip or ()
        fresh = [name for name, _ in module.named_parameters() if any(matches(pattern, name) for pattern in skip)]
        return lora(module, self.lora_rank, self.lora_alpha, self.lora_targets, [*(self.lora_train or ()), *fresh])

    def to_json(self) -> dict[str, Any]:
        """What is asked for, as plain values; of the weights the name of the file, wherever it lies."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["weights"] = None if self.weights is None else Path(self.weights).name
        return {name: value for name, value in values.items() if value is not None and value != "refuse"}


def _freeze(module: nn.Module, patterns: list[str]) -> None:
    named = dict(module.named_parameters(remove_duplicate=False))
    for name in chosen("freeze", patterns, named, "parameters"):
        named[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in named.values()):
        raise CloisterError("Expected freeze to leave parameters to train, found none left: freeze fewer.")
