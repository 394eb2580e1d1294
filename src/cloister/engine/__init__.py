"""Engines: how `client_round` is mapped over a cohort. They change the speed of a run and nothing else.

* `Loop`: one client after the other (or one per core), each with its own shapes; nothing is padded.
* `Vectorised`: many clients as one batched computation (`torch.func.vmap`), in chunks that fit a memory budget.
* `Graphed`: the same on a GPU, captured as a CUDA graph once and replayed in every round; "compiled" first fuses its
  kernels, which takes a while and pays over many rounds.
* `Sharded`: any of them on many GPUs or machines.
* `choose` tries them on made-up data of the right shape and takes the one that finishes first.

Messages are summed as they come; a cohort's messages are never all kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cloister.engine.choice import MEMORY_BUDGET, choose, chunk_size, expect_able, memory_budget
from cloister.engine.convolutions import CHOSEN
from cloister.engine.graphed import Graphed
from cloister.engine.loop import Loop
from cloister.engine.ranks import Ranks, Sharded, assist, in_words_when_stopped, join, leave, local_device
from cloister.engine.vectorised import Vectorised
from cloister.errors import expect, expect_one_of
from cloister.federation import Federation
from cloister.round import Engine

ENGINES = ("auto", "loop", "vectorised", "graphed", "compiled")

__all__ = [
    "ENGINES",
    "MEMORY_BUDGET",
    "Graphed",
    "Loop",
    "Ranks",
    "Sharded",
    "Vectorised",
    "assist",
    "build",
    "choose",
    "chunk_size",
    "describe",
    "expect_known",
    "in_words_when_stopped",
    "join",
    "leave",
    "local_device",
    "memory_budget",
    "restore",
    "same_bits",
]


def expect_known(name: str) -> None:
    """Refuse an engine that does not exist."""
    expect_one_of("engine", name, ENGINES)


def build(name: str, fed: Federation, w: Tensor, memory: int | None = None, rounds: int = 100) -> Engine:
    """The engine of that name for a federation; "auto" measures."""
    expect_known(name)
    if name == "loop":
        return Loop()
    captured = name in ("graphed", "compiled")
    expect(w.is_cuda or not captured, f"a GPU for the {name} engine", w.device.type, "use auto")
    chunk = chunk_size(fed, w, memory or memory_budget(w.device))
    if name == "auto":
        return choose(fed, w, chunk, rounds)
    if captured:
        return Graphed(chunk, compiled=name == "compiled")
    expect_able(Vectorised(chunk), fed, w)
    return Vectorised(chunk)


def describe(engine: Engine) -> dict[str, Any]:
    """An engine as plain values, so that a resumed run rounds the way it did before."""
    if isinstance(engine, Sharded):
        return {**describe(engine.inner), "ranks": engine.ranks.size}
    described = {"engine": engine.name, "chunk": engine.chunk, "ranks": 1, "threads": torch.get_num_threads()}
    if isinstance(engine, Loop):
        return {**described, "workers": engine.workers}
    return {**described, "convolutions": dict(CHOSEN)}


def restore(description: Mapping[str, Any]) -> Engine:
    """The inverse of `describe`, for one rank."""
    chunk, name = int(description["chunk"]), description["engine"]
    if name == "loop":
        return Loop(chunk, int(description["workers"]))
    CHOSEN.update(description["convolutions"])
    return Vectorised(chunk) if name == "vectorised" else Graphed(chunk, compiled=name == "compiled")


def same_bits(description: Mapping[str, Any], repeatable: bool) -> bool:
    """Whether this process rounds sums as the one that was described, so that a repeated round gives the same bits.

    Never again after noise was drawn anew: what was charged since cannot be repeated.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    repeatable = repeatable and not description.get("renewed", False)
    return repeatable and (description["ranks"], description["threads"]) == (ranks, torch.get_num_threads())
