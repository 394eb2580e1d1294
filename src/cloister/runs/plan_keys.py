"""A plan from keys: those of a run, as far as a price depends on them, and those of `plan` itself.

Where `data` is given, the data say who has how many samples. Otherwise the keys do, and nothing is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import Annotated, Any

from cloister.errors import CloisterError, expect_count
from cloister.runs.config import method_info, parts_of
from cloister.runs.keys import Key, keys_in, keys_of, run_keys
from cloister.runs.plan import plan
from cloister.runs.planned import Plan
from cloister.runs.request import Options

_NOT_KEYS = ("method", "task", "cohort", "model", "noise_multiplier")
_FROM_DATA = ("clients", "sizes", "parameters", "public_samples")
"""What data know of themselves."""


def plan_keys(with_data: bool = False) -> list[Key]:
    """The keys of a plan beside those of its parts."""
    return keys_in(plan, "every plan", (*_NOT_KEYS, *(_FROM_DATA if with_data else ())))


def shown_keys() -> list[Key]:
    """What help lists: with the noise, which most methods have as a key of their own."""
    shown = ("noise_multiplier", "standardize", "validation_share")
    options = [field.name for field in fields(Options)]
    return keys_in(plan, "every plan", tuple(name for name in (*_NOT_KEYS, *options) if name not in shown))


def plan_of(values: Mapping[str, Any]) -> Plan:
    """The plan of a run with these keys."""
    values, with_data, with_model = dict(values), "data" in values, "model" in values
    _expect_no_second_source(values, with_data)
    values.setdefault("cohort", _cohort(values))
    values |= _stand_ins(values)
    more = plan_keys(with_data)
    names = {key.name for key in more}
    more += [key for key in run_keys() if key.name not in names]
    among = ["method", "cohort", "server", *(["data", "partition", "model"] if with_data else [])]
    if with_model and not with_data:
        among.append("model")
        more += keys_in(_input, "a model without data")
    parts = parts_of(values, among, more)
    asked: dict[str, Any] = {name: parts.resolved.get(name) for name in names if parts.resolved.get(name) is not None}
    method, cohort = parts.make("method", **parts.make_if_chosen("server")), parts.make("cohort")
    model: Any = None
    if with_data:
        task = parts.make("data", **parts.make_if_chosen("partition"))
        model = partial(parts.make, "model", shape=task.shape, classes=task.outputs)
        return plan(method, task, cohort=cohort, model=model, **asked)
    if with_model:
        shape, classes = _input(parts.resolved["shape"], parts.resolved["classes"])
        model = partial(parts.make, "model", shape=shape, classes=classes)
    return plan(method, cohort=cohort, model=model, **asked)


def _input(
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


def _cohort(values: Mapping[str, Any]) -> str:
    """What the keys say of who takes part; nothing: the method's own cohort, or everybody."""
    own = method_info({**_stand_ins(values), **values}).defaults.get("cohort", "full")
    if "sampling_rate" in values and "clients_per_round" in values:
        raise CloisterError(
            f"Expected a sampling_rate or clients_per_round, found sampling_rate {values['sampling_rate']} and "
            f"clients_per_round {values['clients_per_round']}: a cohort is drawn one way."
        )
    if "sampling_rate" in values:
        return "poisson"
    return "fixed_size" if "clients_per_round" in values and own != "cyclic" else own


def _stand_ins(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a method needs and no price depends on: the clip, which noise is a multiple of, and, where clients are
    protected, how long they train."""
    from cloister.methods import REGISTRY
    from cloister.runs.keys import PARTS, choice

    name = choice("method", values.get("method", PARTS["method"].default))
    keys = {key.name: key.default for key in keys_of("method", name)}
    found: dict[str, Any] = {}
    if "clip_norm" not in values and keys.get("clip_norm") is inspect.Parameter.empty:
        found["clip_norm"] = 1.0
    protects_samples = name not in REGISTRY or REGISTRY[name].unit == "sample"
    if not protects_samples and "local_steps" in keys and not {"local_steps", "local_epochs"} & values.keys():
        found["local_steps"] = 1
    return found
