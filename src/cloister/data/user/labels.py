"""What labels are for: which losses fit the columns that are declared as label, and what their classes are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloister.client.losses import CATALOGUE, Loss, LossFunction, loss_of
from cloister.errors import CloisterError, expect, nearest, shown

if TYPE_CHECKING:
    from cloister.data.user.schema import Schema

LOSSES = {
    "classes": ("cross_entropy", "ordinal"),
    "levels": ("ordinal", "cross_entropy"),
    "a number": ("mse", "mae", "huber"),
    "yes-or-no questions": ("multi_label",),
    "a time and an event": ("hazards", "cox"),
}
"""The losses that fit each kind of label, the usual one first."""


def label_kind(schema: Schema) -> str:
    """What the label is: one of `LOSSES`."""
    if not schema.label:
        raise CloisterError("Expected the name of the label's column, found none: say label = ... in the schema.")
    kinds = [schema.columns[name].kind for name in schema.label]
    if len(kinds) == 1 and kinds[0] in ("category", "boolean", "ordinal", "number"):
        return {"ordinal": "levels", "number": "a number"}.get(kinds[0], "classes")
    if len(kinds) > 1 and set(kinds) == {"boolean"}:
        return "yes-or-no questions"
    if kinds == ["number", "boolean"]:
        return "a time and an event"
    found = ", ".join(f"{name} ({kind})" for name, kind in zip(schema.label, kinds, strict=True))
    raise CloisterError(
        f"Expected label to be one category, ordinal, boolean or number, several booleans, or a number (time) and a "
        f"boolean (event), found {found}: declare its columns so."
    )


def loss_for(
    schema: Schema, loss: Loss | LossFunction | str | None = None, intervals: Sequence[float] | None = None
) -> Loss:
    """The loss that goes with the declared label; one that is asked for has to fit."""
    kind = label_kind(schema)
    wanted = schema.loss if loss is None else loss
    expect_intervals_used(intervals, kind == "a time and an event" and wanted in (None, "hazards"))
    if kind != "a time and an event":
        expect_intervals_used(schema.intervals or None, False)
    if wanted is not None and not isinstance(wanted, str):
        return loss_of(wanted)
    ends = list(schema.intervals if intervals is None else intervals)
    if wanted is None and kind == "a time and an event" and not ends:
        raise CloisterError(
            "Expected intervals for survival (a time and an event), found none: declare their ends, such as "
            'intervals = [365, 730], or say loss = "cox".'
        )
    wanted = wanted or LOSSES[kind][0]
    if wanted not in LOSSES[kind]:
        close = "choose one of these" if wanted in CATALOGUE else nearest(wanted, LOSSES[kind], "choose one of these")
        raise CloisterError(
            f"Expected a loss for {kind} ({', '.join(LOSSES[kind])}), found {shown(wanted)}: {close}, or declare the "
            "label as what it is."
        )
    if wanted == "hazards":
        return loss_of(wanted, intervals=ends) if ends else loss_of(wanted)
    return loss_of(wanted, **_scale(schema)) if kind == "a number" else loss_of(wanted)


def expect_intervals_used(intervals: Sequence[float] | None, used: bool) -> None:
    """Nobody's intervals are passed over without a word."""
    remedy = "remove them, or name the columns of a time (number) and an event (boolean) as label"
    wanted = "no intervals beside a label or a loss that is not for survival in intervals"
    expect(intervals is None or used, wanted, intervals, remedy)


def _scale(schema: Schema) -> dict[str, float]:
    column = schema.columns[schema.label[0]]
    known = "range" in column.declared or {"center", "scale"} <= set(column.declared)
    remedy = "a model learns numbers around 0, so declare what they can be"
    expect(known, f"a range (or center and scale) for the label {column.name!r}", "none", remedy)
    center, scale = column.middle_and_half
    return {"center": center, "scale": scale}


def class_names(schema: Schema) -> tuple[str, ...]:
    """What classes are called, where the label has some."""
    if label_kind(schema) not in ("classes", "levels"):
        return ()
    column = schema.columns[schema.label[0]]
    return ("false", "true") if column.kind == "boolean" else column.categories
