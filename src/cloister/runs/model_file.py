"""model.json: what it takes beside the weights to use a model, declared values alone.

Nothing in it depends on what the clients' samples are like (scores do, and stay in the private checkpoint), so that it
can be published with the model.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from cloister.client import preprocessing as preprocessings
from cloister.client.losses import CATALOGUE as LOSSES
from cloister.client.losses import Loss, loss_of
from cloister.client.preprocessing import Preprocessing
from cloister.client.standardization import STANDARDIZED, Standardization
from cloister.data.task import Encoder, Task
from cloister.errors import CloisterError, Corrupted, expect
from cloister.models import Adaptation
from cloister.privacy.description import RunDescription, plain
from cloister.runs.model_source import ModelSource, source_of

FORMAT = "cloister model 1"
PREPROCESSINGS: dict[str, Callable[..., Preprocessing]] = {
    "plain": preprocessings.plain,
    "images": preprocessings.images,
}
OWN = "own"


@dataclass(frozen=True)
class ModelFile:
    """What model.json holds."""

    format: str
    model: dict[str, Any]
    """Its name and arguments (`ModelSource`); the name is "own" where it was built in Python."""
    outputs: int
    dtype: str
    loss: dict[str, Any]
    metrics: list[str]
    """By which it was judged."""
    classes: int | None
    class_names: list[str]
    preprocessing: dict[str, Any]
    inputs: dict[str, Any]
    """dtype and shape of one stored input."""
    encoder: dict[str, Any] | None
    adaptation: dict[str, Any] | None
    standardization: dict[str, Any] | None
    configuration_sha256: str

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

    def to_bytes(self) -> bytes:
        """As a file that people can read."""
        return (json.dumps(plain(self), indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, place: object) -> ModelFile:
        """The inverse; refuses what does not fit."""
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        named = isinstance(found, dict) and found.get("format")
        if named and named != FORMAT:
            raise CloisterError(f"Expected {FORMAT!r} in {place}, found {named!r}: use the version that wrote it.")
        if not isinstance(found, dict) or not _is_whole(found):
            raise Corrupted(f"Expected a readable model.json in {place}, found it damaged: restore it.")
        return cls(**found)

    def expect_of(self, description: RunDescription, place: object) -> None:
        """It is about the run that is described."""
        task = description.task
        same = (
            self.configuration_sha256 == description.configuration_hash
            and {"name": self.loss["name"], **self.loss["settings"]} == plain(task.loss)
            and {"name": self.preprocessing["name"], **self.preprocessing["settings"]} == plain(task.preprocessing)
        )
        if not same:
            raise Corrupted(f"Expected the model.json of the run in {place}, found another: restore it.")

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
        return Standardization.from_json(inner, self.standardization).preprocessing

    def _inner_preprocessing(self, given: Preprocessing | None) -> Preprocessing:
        if given is not None:
            expect(isinstance(given, Preprocessing), "preprocessing to be a Preprocessing", given, "give one")
            return given
        name, settings = self.preprocessing["name"], dict(self.preprocessing["settings"])
        if self.standardization is not None:
            name = name.removesuffix(STANDARDIZED)
            settings.pop("bound", None)
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


def _is_whole(found: dict[str, Any]) -> bool:
    """Whether all is there that a model's file has, and of the right types."""
    parts = {
        "model": {"name": str, "arguments": dict},
        "loss": {"name": str, "settings": dict, "own": bool},
        "preprocessing": {"name": str, "settings": dict},
        "inputs": {"dtype": str, "shape": list},
    }
    if set(found) != {field.name for field in fields(ModelFile)}:
        return False
    for part, wanted in parts.items():
        values = found[part]
        if not isinstance(values, dict) or {name: type(value) for name, value in values.items()} != wanted:
            return False
    counts = [*found["inputs"]["shape"], found["outputs"], *([] if found["classes"] is None else [found["classes"]])]
    whole = all(type(count) is int and count >= 0 for count in counts)
    names = all(_words(found[name]) for name in ("class_names", "metrics"))
    more = all(isinstance(found[name], (dict, type(None))) for name in ("encoder", "adaptation", "standardization"))
    return whole and names and more and all(isinstance(found[name], str) for name in ("dtype", "configuration_sha256"))


def _words(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _kind(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def expect_hashes(files: Mapping[str, Any] | None, contents: Mapping[str, bytes], place: object) -> None:
    """Every file is the one whose hash is in the certificate."""
    for name, content in contents.items():
        known = files.get(name) if isinstance(files, Mapping) else None
        if hashlib.sha256(content).hexdigest() != known:
            raise Corrupted(f"Expected the {name} that the certificate in {place} is about, found another: restore it.")
