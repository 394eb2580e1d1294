"""What transforms tell clients beside the model: drawn by both sides from a public key, or sent and checked.

Signs and random masks are as large as the model and follow from the run's public randomness: both sides draw them, and
none of them travels. What follows from released sums (a clip) or from public samples (a mask) is sent. A node checks
that it is what the transform's bound was proven for, whoever made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cloister.core import Sensitivity, State, Tensors, Transform
from cloister.core.state import flatten, unflatten
from cloister.deploy.halves.prepared import Prepared
from cloister.errors import expect, expect_one_of

PREFIX = "told/"
_DRAWN = ("random_mask", "common_part", "quantize", "quantize_to_levels")
"""Transforms whose broadcast follows from the run's public randomness alone."""


def told_by(side: Prepared, round: int, w: Tensor, state: State) -> State:
    """All that clients know in a round beside the model; `state` is the transform's."""
    return replace(side.fed, streams=side.public_streams).broadcast(round, w, state)


def sent(side: Prepared, told: State) -> Tensors:
    """Those tensors of it that a node cannot draw by itself."""
    drawn = tuple(_telling(side, drawn=True))
    return {f"{PREFIX}{name}": one for name, one in flatten(told).items() if not name.startswith(drawn)}


def received(side: Prepared, round: int, w: Tensor, tensors: Mapping[str, Tensor]) -> State:
    """All that a node knows in a round: what it draws, and what was sent, which is checked."""
    given = {name.removeprefix(PREFIX): one for name, one in tensors.items() if name.startswith(PREFIX)}
    wanted = {scope + _name_of(part): part for scope, part in _telling(side, drawn=False).items()}
    expect(set(given) == set(wanted), f"{sorted(wanted)} beside the model", sorted(given), "refuse the offer")
    for name, part in wanted.items():
        _CHECKS[part.name][1](side, part, given[name])
    drawn, found = tuple(_telling(side, drawn=True)), dict(given)
    if drawn:
        made = flatten(told_by(side, round, w, side.fed.method.init(w).transform))
        found |= {name: one for name, one in made.items() if name.startswith(drawn)}
    return unflatten(found)


def _telling(side: Prepared, drawn: bool) -> dict[str, Transform]:
    """The parts that tell something, by scope: those whose words are drawn, or those whose words are sent."""
    parts = {scope: part for scope, part in _parts(side.fed.method.transform) if part.broadcast is not None}
    for part in parts.values():
        expect_one_of("a transform that tells nodes something", part.name, (*_DRAWN, *_CHECKS))
    return {scope: part for scope, part in parts.items() if (part.name in _DRAWN) is drawn}


def _parts(transform: Transform, scope: str = "") -> Iterator[tuple[str, Transform]]:
    if not transform.parts:
        yield scope, transform
    for number, part in enumerate(transform.parts):
        yield from _parts(part, f"{scope}{number}/")


def _name_of(part: Transform) -> str:
    return _CHECKS[part.name][0]


def _expect_clip(side: Prepared, part: Transform, found: Tensor) -> None:
    start = part.settings["clip_norm"]
    fine = found.shape == () and found.dtype == torch.float64
    fine = fine and start * 1e-6 * (1 - 1e-9) <= float(found) <= start * 1e6 * (1 + 1e-9)
    expect(fine, f"a clip within a factor of a million of {start:g}", found, "refuse the offer")


def _expect_mask(side: Prepared, part: Transform, found: Tensor) -> None:
    layout = side.fed.objective.layout
    length = part.sensitivity(Sensitivity(length=layout.size), layout).length
    fine = found.dtype == torch.int64 and found.shape == (length,)
    fine = fine and bool((found[1:] > found[:-1]).all()) and 0 <= int(found[0]) <= int(found[-1]) < layout.size
    expect(fine, f"{length} different coordinates of {layout.size}, in rising order", "others", "refuse the offer")


_CHECKS: dict[str, tuple[str, Callable[[Prepared, Transform, Tensor], None]]] = {
    "adaptive_clip": ("clip_norm", _expect_clip),
    "public_mask": ("mask", _expect_mask),
}
"""Transforms whose words are sent: what these are called, and what a node expects of them."""
