"""A model from its model.json (`model_json.py`): made again, with its loss, its preprocessing and its encoder."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cloister.client import preprocessing as preprocessings
from cloister.client.centering import CENTERED, Centering
from cloister.client.losses import CATALOGUE as LOSSES
from cloister.client.losses import Loss, loss_of
from cloister.client.preprocessing import Preprocessing
from cloister.client.standardization import STANDARDIZED, Standardization
from cloister.data.task import Encoder, Task
from cloister.errors import CloisterError, Corrupted, expect
from cloister.models import Adaptation
from cloister.runs.model_json import FORMAT, ModelJson
from cloister.runs.model_source import ModelSource, source_of

PREPROCESSINGS: dict[str, Callable[..., Preprocessing]] = {
    "plain": preprocessings.plain,
    "images": preprocessings.images,
}
OWN = "own"


@dataclass(frozen=True)
class ModelFile(ModelJson):
    """What model.json holds, and what is made of it."""

    @classmethod
    def of(
        cls, task: Task, model: Any, adaptation: Adaptation, metrics: list[str], dtype: str, configuration: str
    ) -> ModelFile:
        """What is known of a model when its run begins; `model` is the module, or what makes it."""
        source, inputs = source_of(model), task.population.inputs
        return cls(
            format=FORMAT,
            model=source.to_json() if source else {"name": OWN, "arguments": {}},
            outputs=task.outputs,
            dtype=dtype,
            loss={"name": task.loss.name, "settings": dict(task.loss.settings), "own": task.loss.own},
            metrics=metrics,
            classes=task.classes,
            class_names=list(task.class_names),
            preprocessing={"name": task.preprocessing.name, "settings": dict(task.preprocessing.settings)},
            inputs={"dtype": _kind(inputs.dtype), "shape": list(inputs.shape[1:])},
            encoder=task.encoder.to_json() if task.encoder is not None else None,
            adaptation=adaptation.to_json() or None,
            standardization=None,
            configuration_sha256=configuration,
        )

    def make(self, given: Any) -> nn.Module:
        """The module as it was trained, with other weights; `given` is what whoever loads it says of an own one."""
        module = self._made(given)
        if self.adaptation is None:
            return module
        try:
            return Adaptation(**self.adaptation).restructure(module)
        except TypeError:
            raise Corrupted("Expected a readable model.json, found a damaged adaptation: restore it.") from None

    def _made(self, given: Any) -> nn.Module:
        """The module before it was adapted.

        A file may come from anybody, so that code of other packages is never run because a file names it.
        """
        if isinstance(given, nn.Module):
            return copy.deepcopy(given)
        name = self.model["name"]
        if isinstance(given, str):
            if name == OWN:
                return ModelSource(given, {})(shape=self.seen_shape(), classes=self.outputs)
            expect(given == name, f"the model {name} of this run", given, "give that one, or a module in Python")
            return ModelSource(given, self.model["arguments"])()
        if given is not None:
            expect(callable(given), "model to be a torch module, or a function that makes one", given, "give one")
            made: nn.Module = given()
            expect(isinstance(made, nn.Module), "model() to make a torch module", made, "return one")
            return made
        if name == OWN:
            raise CloisterError(
                "Expected the module that was trained, found none, for this model was built in Python: give it as "
                "model=..., or on the command line a function that makes it as --model package.module:function."
            )
        source = ModelSource(name, self.model["arguments"])
        if source.is_outside:
            raise CloisterError(
                f"Expected your word that code of {name} may run, found none: give model={name!r}, or on the command "
                f"line --model {name}."
            )
        return source()

    def loss_of(self, given: Any) -> Loss | None:
        """The loss; None where it is somebody's own function and was not given again."""
        if given is not None:
            return loss_of(given)
        if self.loss["own"] or self.loss["name"] not in LOSSES:
            return None
        return loss_of(self.loss["name"], **self.loss["settings"])

    def preprocessing_of(self, given: Preprocessing | None) -> Preprocessing:
        """How stored inputs become what the model sees."""
        inner = self._inner_preprocessing(given)
        if self.standardization is None:
            return inner
        kind = Centering if "axes" in self.standardization else Standardization
        return kind.from_json(inner, self.standardization).preprocessing

    def _inner_preprocessing(self, given: Preprocessing | None) -> Preprocessing:
        if given is not None:
            expect(isinstance(given, Preprocessing), "preprocessing to be a Preprocessing", given, "give one")
            return given
        name, settings = self.preprocessing["name"], dict(self.preprocessing["settings"])
        if self.standardization is not None:
            name = name.removesuffix(STANDARDIZED).removesuffix(CENTERED)
            for own in ("bound", "center_rank", "decorrelates"):
                settings.pop(own, None)
        remedy = "give it again as preprocessing=..."
        expect(name in PREPROCESSINGS, f"one of the preprocessings {', '.join(PREPROCESSINGS)}", name, remedy)
        return PREPROCESSINGS[name](**{key: _tuple(value) for key, value in settings.items()})

    def seen_shape(self) -> tuple[int, ...]:
        """The shape of one input as the model sees it."""
        stored = torch.zeros((1, *self.inputs["shape"]), dtype=getattr(torch, self.inputs["dtype"]))
        return tuple(self.preprocessing_of(None).test(stored, torch.float32).shape[1:])

    def encoder_of(self) -> Encoder | None:
        """How raw rows become stored inputs, where they do."""
        from cloister.data.encoders import encoder_from_json

        return None if self.encoder is None else encoder_from_json(self.encoder)


def _kind(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
