"""What of a local update is kept: its largest coordinates, or its most important ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from cloister.core import Batch, Batching, Layout, LocalRule, Objective, Phase, Step, Tensors
from cloister.core.sparsity import (
    Scope,
    Ties,
    beside_default,
    expect_fraction,
    expect_scope,
    expect_ties,
    largest,
)
from cloister.errors import expect_one_of


def keep_largest(rule: LocalRule, keep: float, ties: Ties = "keep", scope: Scope = "layer") -> LocalRule:
    """Of a rule's update, only the coordinates of largest magnitude, in each layer or in the whole model.

    Which ones these are is as private as the update itself: noise must cover all coordinates.
    """
    expect_fraction("keep", keep)
    expect_ties(ties)
    expect_scope(scope)

    def update(layout: Layout, state: Tensors, start: Tensor) -> Tensor:
        whole = rule.update(layout, state, start)
        return _kept(whole, largest(whole.abs(), layout, keep, ties, scope))

    settings = {**rule.settings, "keep": keep, "ties": ties, **beside_default(scope)}
    return replace(rule, name=f"{rule.name}, largest", settings=settings, update=update)


def _kept(update: Tensor, mask: Tensor) -> Tensor:
    """What the mask keeps; and what is not finite, so that the round sees it and counts the client as broken."""
    return torch.where(mask | ~torch.isfinite(update), update, torch.zeros_like(update))


Importance = Literal["all", "batch"]


def keep_important(
    rule: LocalRule, keep: float, data: Importance = "all", ties: Ties = "keep", scope: Scope = "layer"
) -> LocalRule:
    """Of a rule's update, only the coordinates e with the largest |df/dw_e (w_e - w0_e)| in each layer (LUS), or in the
    whole model.

    The gradient is that of the final local model, over all the client's data (one more pass) or over its last batch.
    Which coordinates are kept is as private as the update itself: noise must cover all of them.
    """
    expect_fraction("keep", keep)
    expect_ties(ties)
    expect_scope(scope)
    expect_one_of("importance", data, get_args(Importance), "choose which data the gradient is over")

    def init(w: Tensor) -> Tensors:
        return {**rule.init(w), "gradient": torch.zeros_like(w)}

    def with_gradient(step: Step) -> Step:
        return lambda objective, state, *rest: {**state, **step(objective, state, *rest)}

    def add_up(objective: Objective, state: Tensors, start: Tensor, batch: Batch, round: Tensor) -> Tensors:
        gradient = objective.gradient(state["w"], batch) * batch.count  # means over batches of unequal size
        return {**state, "gradient": state["gradient"] + gradient}

    def update(layout: Layout, state: Tensors, start: Tensor) -> Tensor:
        whole = rule.update(layout, state, start)
        return _kept(whole, largest((state["gradient"] * whole).abs(), layout, keep, ties, scope))

    size = rule.batching.batch_size
    closing = Batching(size, local_epochs=1) if data == "all" else Batching(size, again=True)
    return LocalRule(
        name=f"{rule.name}, important",
        settings={**rule.settings, "keep": keep, "importance": data, "ties": ties, **beside_default(scope)},
        phases=(*(Phase(p.batching, with_gradient(p.step)) for p in rule.phases), Phase(closing, add_up)),
        init=init,
        update=update,
    )
