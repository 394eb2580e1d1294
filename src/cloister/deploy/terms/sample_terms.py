"""What a row is, said in advance: the table [schema] of tables, or [samples] of anything else.

A server has no data, and no node may let its own rows decide what a label or a class is: all of it is declared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from cloister.client.losses import Loss, loss_of, made_up_labels
from cloister.client.preprocessing import Preprocessing
from cloister.data.task import Encoder
from cloister.data.user.decoding import ImageForm
from cloister.data.user.image_encoder import ImageEncoder
from cloister.data.user.labels import class_names, loss_for
from cloister.data.user.schema import Schema
from cloister.errors import CloisterError, expect, expect_count, expect_one_of, nearest, shown
from cloister.runs.model_file import PREPROCESSINGS

DTYPES = {"float32": torch.float32, "float64": torch.float64, "uint8": torch.uint8, "int64": torch.int64}
_MOST_NUMBERS = 2**28


@dataclass(frozen=True)
class SampleTerms:
    """What a row is: the shape and type of its inputs, what its label is, and how inputs are seen.

    `labels` is the shape of one label, () for a class or a number. `loss_settings` and `preprocessing` are plain
    values. With a schema, all of this follows from it.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    classes: int | None = None
    labels: tuple[int, ...] = ()
    loss: str = "cross_entropy"
    loss_settings: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] | None = None
    """By default plain, and of images (bytes, [channels, height, width]) scaled to [-1, 1]."""
    class_names: tuple[str, ...] = ()
    resize: bool = False
    """Whether images of other sizes are resized."""
    schema: Schema | None = None

    def __post_init__(self) -> None:
        if self.schema is not None:
            self._take_from_schema(self.schema)
        for name in ("shape", "labels"):
            sides = getattr(self, name)
            fine = isinstance(sides, (list, tuple)) and all(type(side) is int and side > 0 for side in sides)
            expect(fine and math.prod(sides) <= _MOST_NUMBERS, f"{name} to be a list of sides", sides, "such as [13]")
            object.__setattr__(self, name, tuple(sides))
        expect_one_of("dtype", self.dtype, DTYPES)
        if self.classes is not None:
            expect_count("classes", self.classes, "declared, since no node may infer them", least=2, most=2**24)
        names = self.class_names
        words = isinstance(names, (list, tuple)) and all(isinstance(word, str) for word in names)
        fits = words and len(names) in (0, self.classes)
        expect(fits, "a name for every class, or none", names, "give as many")
        object.__setattr__(self, "class_names", tuple(names))
        made = self.loss_function  # refuses unknown ones
        expect(self.classes is not None or not made.classes, f"classes for {self.loss}", None, "declare how many")
        expect(isinstance(self.resize, bool), "resize to be true or false", self.resize, "choose one")
        if self.preprocessing is None:
            object.__setattr__(self, "preprocessing", self._usual_preprocessing())
        expect(isinstance(self.preprocessing, Mapping), "preprocessing to be a table", self.preprocessing, "name one")
        _preprocessing(self.preprocessing)  # which refuses unknown ones

    def _take_from_schema(self, schema: Schema) -> None:
        loss, names = loss_for(schema), class_names(schema)
        derived: dict[str, Any] = {
            "shape": (len(schema.feature_names),),
            "dtype": "float32",
            "classes": len(names) or None,
            "labels": () if len(schema.label) == 1 else (len(schema.label),),
            "loss": loss.name,
            "loss_settings": dict(loss.settings),
            "class_names": names,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def _usual_preprocessing(self) -> dict[str, Any]:
        if not self.are_images:
            return {"name": "plain"}
        half = [0.5] * self.shape[0]
        return {"name": "images", "mean": half, "std": list(half)}

    @property
    def are_images(self) -> bool:
        """Whether inputs are bytes of images, [channels, height, width]."""
        return self.dtype == "uint8" and len(self.shape) == 3

    @cached_property
    def encoder(self) -> Encoder | None:
        """How raw rows become inputs, where they are tables or images."""
        if self.schema is not None or not self.are_images or not self.class_names:
            return self.schema
        channels, height, width = self.shape
        return ImageEncoder(ImageForm(height, width, channels, self.resize), self.class_names)

    @cached_property
    def loss_function(self) -> Loss:
        """What is minimized."""
        return loss_of(self.loss, **self.loss_settings)

    @cached_property
    def seen(self) -> Preprocessing:
        """How stored inputs become what a model sees."""
        return _preprocessing(self.preprocessing)

    def blank(self, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of nobody, in the declared form: the same on all sides."""
        inputs = torch.zeros((count, *self.shape), dtype=DTYPES[self.dtype])
        kind = torch.int64 if self.loss_function.classes else torch.float32
        like = torch.zeros((1, *self.labels), dtype=kind)
        return inputs, made_up_labels(self.loss_function, like, count, self.classes)

    def to_json(self) -> dict[str, Any]:
        """Plain values; of a table, its schema alone."""
        if self.schema is not None:
            return {"schema": self.schema.to_json()}
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "classes": self.classes,
            "labels": list(self.labels),
            "loss": self.loss,
            "loss_settings": dict(self.loss_settings),
            "preprocessing": dict(self.preprocessing or {}),
            "resize": self.resize,
            "class_names": list(self.class_names),
        }

    @classmethod
    def of(cls, samples: Any, schema: Any) -> SampleTerms:
        """From the tables of a TOML file; one of them must be there."""
        given = samples is not None, schema is not None
        expect(sum(given) == 1, "a table [schema] or a table [samples] in the terms", given, "say what rows are, once")
        if schema is not None:
            return cls(schema=Schema.from_dict(schema))
        return cls.from_json(samples)

    @classmethod
    def from_json(cls, values: Any) -> SampleTerms:
        """The inverse of `to_json`."""
        expect(isinstance(values, Mapping), "[samples] to be a table", values, "say what rows are")
        if "schema" in values:
            return cls(schema=Schema.from_json(values["schema"]))
        known = [one.name for one in fields(cls) if one.name != "schema"]
        for name in values:
            if name not in known:
                raise CloisterError(f"Expected a key of [samples], found {shown(name)}: {nearest(name, known)}.")
        expect("shape" in values, "the shape of one input in [samples]", "none", "give it, such as shape = [13]")
        return cls(**values)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _preprocessing(described: Mapping[str, Any] | None) -> Preprocessing:
    """That of this name and these settings."""
    found = described or {}
    name, settings = found.get("name", "plain"), {key: _tuple(value) for key, value in found.items() if key != "name"}
    expect_one_of("preprocessing", name, PREPROCESSINGS)
    try:
        return PREPROCESSINGS[name](**settings)
    except TypeError as error:
        raise CloisterError(
            f"Expected settings of the preprocessing {name}, found others ({error}): fix them."
        ) from None
