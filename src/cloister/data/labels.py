"""Checks of labels: that they fit the loss, and how many classes there are. Labels on the disk are read in blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from cloister.client.losses import Loss, expect_labels
from cloister.data.arrays import whole
from cloister.data.mapped import Mapped
from cloister.errors import CloisterError, expect

MOST_INFERRED = 10_000
"""More classes than this are not taken from a label, which is then more likely a mistake, but have to be declared."""


def declared_classes(classes: int | None, class_names: Sequence[str], loss: Loss) -> tuple[int | None, bool]:
    """The number of classes, where it is declared, by number or by their names; and whether labels have to tell."""
    inferred = classes is None and loss.classes and not class_names
    if classes is None and class_names and (loss.classes or loss.own):
        classes = len(class_names)  # of multi_label, they are what is asked
    if classes is not None:
        classes = whole("classes", classes, "the number of different labels", least=2)
        expect(classes < 2**48, "classes below 2^48", classes, "number them from 0")
        expect(loss.classes or loss.own, f"no classes with the loss {loss.name}", classes, "leave them out")
    return classes, inferred


def expect_labels_of(parts: Mapping[str, Tensor | Mapped], loss: Loss, classes: int | None) -> int | None:
    """Refuse labels that the loss does not take; the number of classes, which the largest label tells if nobody did."""
    for what, labels in parts.items():
        for _, block in _blocks(labels):
            expect_labels(what, block, loss)
    if not loss.classes:
        return classes
    classes = classes or _inferred(parts.values())
    for what, labels in parts.items():
        for first, block in _blocks(labels):
            expect_classes(what, block, classes, padding=loss.name == "next_token", first=first)
    expect_different(parts["labels"], parts["test labels"])
    return classes


def expect_different(*parts: Tensor | Mapped) -> None:
    """There are two classes at least: of one, every model is right, and an accuracy of 1 says nothing."""
    one, count = None, 0
    for part in parts:
        for _, block in _blocks(part):
            found = block.flatten()
            one = found[0] if one is None and len(found) else one
            if one is not None and bool((found != one).any()):
                return
            count += len(found)
    remedy = "every model would be right, so check the labels"
    if one is not None:
        expect(count < 2, "labels of two classes at least", f"class {int(one)} only", remedy)


def expect_classes(what: str, labels: Tensor, classes: int, padding: bool = False, first: int = 0) -> None:
    """The labels, of rows from `first` on, are whole numbers from 0 to classes - 1; or, where there is padding, also
    below 0."""
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise CloisterError(
            f"Expected {what} to be whole numbers from 0 to {classes - 1}, found {labels.dtype}: convert them; or, "
            "where labels are numbers, give loss = mse (or huber, hazards, ..., or your own)."
        )
    bad = (labels >= classes) if padding else (labels < 0) | (labels >= classes)
    if bad.any():
        row = int(bad.flatten().nonzero()[0])
        raise CloisterError(
            f"Expected {what} from 0 to {classes - 1}, found {int(labels.flatten()[row])} in row {first + row}: number "
            "the classes from 0, or raise classes."
        )


def _blocks(labels: Tensor | Mapped) -> Iterable[tuple[int, Tensor]]:
    return [(0, labels)] if isinstance(labels, Tensor) else labels.blocks()


def _inferred(parts: Iterable[Tensor | Mapped]) -> int:
    """One more than the largest label."""
    largest = (int(block.max()) for part in parts for _, block in _blocks(part) if len(block))
    classes = max(0, *largest) + 1
    expect(
        classes <= MOST_INFERRED,
        f"labels below {MOST_INFERRED} where classes are not declared",
        classes - 1,
        "number the classes from 0, or give classes",
    )
    return classes
