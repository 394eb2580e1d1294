"""A plan from keys: those of a run, as far as a price depends on them, and those of `plan` itself.

Where `data` is given, the data say who has how many samples. Otherwise the keys do, and nothing is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from cloister.errors import CloisterError, expect_count
from cloister.runs.choices import Catalogue
from cloister.runs.keys import Key
from cloister.runs.resolution import method_facts, resolve

if TYPE_CHECKING:
    from cloister.runs.planned import Plan

_FROM_DATA = ("clients", "sizes", "parameters", "public_samples")
"""What data know of themselves."""


@dataclass(frozen=True)
class Question:
    """The keys of a plan, completed: its parts, its own keys, and those of a run, on which no price depends."""

    values: dict[str, Any]
    parts: list[str]
    own: list[Key]
    others: list[Key]

    def check(self, catalogue: Catalogue) -> None:
        """Refuse what the catalogue does not know."""
        resolve(catalogue, self.values, self.parts, [*self.own, *self.others])


def question_of(catalogue: Catalogue, values: Mapping[str, Any]) -> Question:
    """What is asked by these keys."""
    values, with_data, with_model = dict(values), "data" in values, "model" in values
    _expect_no_second_source(values, with_data)
    values.setdefault("cohort", _cohort(catalogue, values))
    values |= _stand_ins(catalogue, values)
    own = [key for key in catalogue.plan if not (with_data and key.name in _FROM_DATA)]
    names = {key.name for key in own}
    others = [key for key in catalogue.run if key.name not in names]
    parts = ["method", "cohort", "server", *(["data", "partition", "model"] if with_data else [])]
    if with_model and not with_data:
        parts.append("model")
        others += catalogue.model_input
    return Question(values, parts, own, others)


def plan_of(values: Mapping[str, Any]) -> Plan:
    """The plan of a run with these keys."""
    from cloister.runs.config import parts_of
    from cloister.runs.plan import plan
    from cloister.runs.signatures import introspected

    asked = question_of(introspected(), values)
    parts = parts_of(asked.values, asked.parts, [*asked.own, *asked.others])
    given = {name: parts.resolved.get(name) for name in {key.name for key in asked.own}}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    method, cohort = parts.make("method", **parts.make_if_chosen("server")), parts.make("cohort")
    model: Any = None
    if "data" in asked.parts:
        task = parts.make("data", **parts.make_if_chosen("partition"))
        model = partial(parts.make, "model", shape=task.shape, classes=task.outputs)
        return plan(method, task, cohort=cohort, model=model, **options)
    if "model" in asked.parts:
        shape, classes = model_input(parts.resolved["shape"], parts.resolved["classes"])
        model = partial(parts.make, "model", shape=shape, classes=classes)
    return plan(method, cohort=cohort, model=model, **options)


def model_input(
    shape: Annotated[list[int], "shape of one input, such as [1, 28, 28]; where no data are given"],
    classes: Annotated[int, "number of classes; where no data are given"],
) -> tuple[tuple[int, ...], int]:
    """What a model has to know of the data."""
    for size in shape:
        expect_count("shape", size, "the shape of one input, such as [1, 28, 28]")
    expect_count("classes", classes, "the number of classes", least=2)
    return tuple(shape), classes


def _expect_no_second_source(values: Mapping[str, Any], with_data: bool) -> None:
    found = next((name for name in ("sizes", "parameters") if name in values), None)
    if with_data and found:
        raise CloisterError(
            f"Expected data, or {found}, found both: the data know their own, so leave {found} out, or data."
        )


def _cohort(catalogue: Catalogue, values: Mapping[str, Any]) -> str:
    """What the keys say of who takes part; nothing: the method's own cohort, or everybody."""
    own = method_facts(catalogue, {**_stand_ins(catalogue, values), **values}).defaults.get("cohort", "full")
    if "sampling_rate" in values and "clients_per_round" in values:
        raise CloisterError(
            f"Expected a sampling_rate or clients_per_round, found sampling_rate {values['sampling_rate']} and "
            f"clients_per_round {values['clients_per_round']}: a cohort is drawn one way."
        )
    if "sampling_rate" in values:
        return "poisson"
    return "fixed_size" if "clients_per_round" in values and own != "cyclic" else own


def _stand_ins(catalogue: Catalogue, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a method needs and no price depends on: the clip, which noise is a multiple of, and, where clients are
    protected, how long they train."""
    chosen = catalogue.choice("method", catalogue.option("method", values))
    keys = {key.name: key.default for key in chosen.keys}
    found: dict[str, Any] = {}
    if "clip_norm" not in values and keys.get("clip_norm") is inspect.Parameter.empty:
        found["clip_norm"] = 1.0
    protects_samples = chosen.facts is None or chosen.facts.unit == "sample"
    if not protects_samples and "local_steps" in keys and not {"local_steps", "local_epochs"} & values.keys():
        found["local_steps"] = 1
    return found
