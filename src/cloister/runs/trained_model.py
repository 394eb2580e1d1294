"""What one does with a model that was trained: predict, evaluate, export."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloister.client.losses import Loss, expect_labels
from cloister.client.objective import explained
from cloister.data.arrays import tensor_of
from cloister.data.labels import expect_classes
from cloister.data.raw import Array
from cloister.data.task import Encoder
from cloister.errors import CloisterError, expect
from cloister.privacy.certificate import Certificate
from cloister.privacy.certificate_text import round_up
from cloister.runs.evaluate import columns_of
from cloister.runs.metric_catalogue import CATALOGUE, watched_for
from cloister.runs.model_file import ModelFile

BATCH = 2048
"""Rows at a time: as many as when a run is evaluated, so that sums are rounded in the same way."""


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model with its certificate. Raw data are whatever the task's encoder takes; without one, an array of inputs."""

    module: nn.Module
    """Takes stored inputs: preprocessing is inside."""
    about: ModelFile
    certificate: Certificate
    certificate_file: bytes
    loss: Loss | None
    encoder: Encoder | None
    scores: dict[str, Any] | None
    """Of the final model on the test set, where it was loaded from its run (they are not published)."""
    name: str = "model"

    def __repr__(self) -> str:
        price = self.certificate.prices[0]
        spent = "no guarantee" if price.epsilon_pld is None else f"epsilon {round_up(price.epsilon_pld)}"
        kind = f"{self.about.classes} classes" if self.about.classes else str(self.about.loss["name"])
        return f"<TrainedModel {self.name}: {self.about.model['name']}, {kind}, {spent} at delta {price.delta:g}>"

    @property
    def certificate_sha256(self) -> str:
        """The hash of the file certificate.json."""
        return hashlib.sha256(self.certificate_file).hexdigest()

    def outputs(self, raw: Any) -> Tensor:
        """The model's own numbers for every row."""
        return self._outputs(self._inputs(self._read(raw)))

    def predict(self, raw: Any) -> Array:
        """What people read: a class (by its name where it has one), a number in its own units, a risk."""
        return self.predictions(self.outputs(raw))

    def predict_proba(self, raw: Any) -> Array:
        """Probabilities: of every class, or of surviving every interval."""
        return self.probabilities(self.outputs(raw))

    def predictions(self, outputs: Tensor) -> Array:
        """What outputs say."""
        found: Array = (outputs if self.loss is None else self.loss.predict(outputs)).numpy()
        names = self.about.class_names
        if not names or self.loss is None or not self.loss.classes:
            return found
        more = map(str, range(len(names), int(found.max(initial=0)) + 1))  # a model may have outputs to spare
        return np.array([*names, *more])[found]

    def probabilities(self, outputs: Tensor) -> Array:
        """The probabilities that outputs say."""
        if self.loss is None or self.loss.predict_proba is None:
            raise CloisterError(
                f"Expected a loss with probabilities, found {self.about.loss['name']}: use predict, or outputs."
            )
        found: Array = self.loss.predict_proba(outputs).numpy()
        return found

    def evaluate(self, raw: Any, labels: Any = None) -> dict[str, float | None]:
        """How good the model is on these rows: the mean loss, and the metrics of the run, as training reports them."""
        raw = self._read(raw)
        truth = self.labels_of(raw) if labels is None else labels
        remedy = "give evaluate(inputs, labels), or a column of labels"
        expect(truth is not None, "labels to compare with", "none", remedy)
        return self.scores_of(self._outputs(self._inputs(raw)), truth)

    def scores_of(self, outputs: Tensor, labels: Any) -> dict[str, float | None]:
        """The scores of outputs where the labels are known."""
        if self.loss is None:
            raise CloisterError(
                f"Expected a loss that Cloister knows, found {self.about.loss['name']}: give it again as load(folder, "
                "loss=...)."
            )
        truth = self._labels(labels, len(outputs))
        wide = truth.shape[1] if truth.dim() > 1 else 1
        watching = watched_for(self.loss, self.about.classes, wide, self.about.metrics)
        with explained(f"labels that fit the loss {self.loss.name}"):
            pairs = zip(torch.split(outputs, BATCH), torch.split(truth, BATCH), strict=True)
            parts = [columns_of(self.loss, watching, some, wanted) for some, wanted in pairs]
            columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            found = {one.name: one(columns, watching.kind, watching.classes) for one in watching.metrics}
        if "right" in columns:
            found = {"accuracy": CATALOGUE["accuracy"](columns, watching.kind, 0), **found}
        return {"loss": float(columns["losses"].mean()), **found}

    def export(self, path: str | Path, format: str = "onnx", force: bool = False) -> Path:
        """Write the model for other programs, with what it cost: onnx, torchscript or safetensors."""
        from cloister.runs.export import export

        return export(self, path, format, force)

    def labels_of(self, raw: Any) -> Any:
        """The labels among raw rows, where there are some."""
        labels = getattr(self.encoder, "labels", None)
        return None if labels is None else labels(raw)

    def _read(self, raw: Any) -> Any:
        read = getattr(self.encoder, "read", None)
        return raw if read is None else read(raw)

    def _inputs(self, raw: Any) -> Tensor:
        """Raw rows as stored inputs, of the kind and the shape that the model was trained on."""
        if self.encoder is None and isinstance(raw, (str, Path)):
            raise CloisterError(
                f"Expected an array of inputs, found the path {str(raw)!r}: this model was trained on arrays, so give "
                "one (on the command line a file .npz with inputs)."
            )
        inputs = tensor_of("inputs", raw) if self.encoder is None else self.encoder.encode(raw)
        kind, shape = self.about.inputs["dtype"], tuple(self.about.inputs["shape"])
        found = str(inputs.dtype).removeprefix("torch.")
        fits = inputs.is_floating_point() if kind.startswith(("float", "bfloat")) else found == kind
        expect(fits, f"inputs of {kind}, as in training", found, "convert them as they were converted then")
        one = tuple(inputs.shape) == shape and len(shape) > 0
        remedy = "put it into a list" if one else "one row is one sample"
        expect(tuple(inputs.shape[1:]) == shape, f"inputs of shape {('n', *shape)}", tuple(inputs.shape), remedy)
        expect(len(inputs) > 0, "at least one row", 0, "give some data")
        return inputs

    @torch.no_grad()
    def _outputs(self, inputs: Tensor) -> Tensor:
        with explained("inputs that the model takes"):
            return torch.cat([self.module(some) for some in torch.split(inputs, BATCH)])

    def _labels(self, labels: Any, rows: int) -> Tensor:
        """Labels as the loss takes them; classes also by their names."""
        assert self.loss is not None
        names = self.about.class_names
        found = labels if isinstance(labels, Tensor) else np.asarray(labels)
        if names and isinstance(found, np.ndarray) and found.dtype.kind in "UO":
            unknown = sorted(set(map(str, found.flat)) - set(names))
            expect(not unknown, f"labels among {', '.join(names[:20])}", unknown[:3], "use the names of training")
            found = np.vectorize(names.index, otypes=[np.int64])(found)
        truth = tensor_of("labels", found)
        expect(len(truth) == rows, f"as many labels as rows ({rows})", len(truth), "give one for every row")
        expect_labels("labels", truth, self.loss)
        if self.loss.classes and self.about.classes is not None:
            expect_classes("labels", truth, self.about.classes, padding=self.loss.name == "next_token")
        return truth.long() if self.loss.classes else truth if self.loss.own else truth.float()
