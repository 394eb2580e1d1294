"""Engines: how the work of clients is mapped over a cohort. They change the speed of a run and nothing else.

* `Loop`: one client after the other (or one per core, in processes), each with its own shapes; nothing is padded.
* `Vectorized`: many clients as one batched computation (`torch.func.vmap`), in chunks that fit a memory budget.
* `Graphed`: the same on a GPU, captured as a CUDA graph once and replayed in every round; "compiled" first fuses its
  kernels, which takes a while and pays over many rounds.
* `Switching`: graphs at once, and the compiled program when it is ready, which "auto" takes for long runs on a GPU.
* `Sharded`: any of them on many GPUs or machines.
* `choose` tries them on made-up data of the right shape and takes the one that finishes first.

Messages are summed as they come; a cohort's messages are never all kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor

from cloister.engine.arithmetic import Arithmetic, arithmetic
from cloister.engine.choice import MEMORY_BUDGET, choose, chunk_size, expect_able, memory_budget
from cloister.engine.cuda.graphs import Graphed
from cloister.engine.cuda.switching import Switching
from cloister.engine.cuda.tiles import CHOSEN
from cloister.engine.disk_cache import DiskCache
from cloister.engine.distributed import Ranks, Sharded, assist, in_words_when_stopped, join, leave, local_device
from cloister.engine.fusion import keep_caches
from cloister.engine.loop import Loop
from cloister.engine.vectorized import Vectorized
from cloister.engine.workers import can_fork, dismiss
from cloister.errors import expect, expect_one_of, note
from cloister.round import Engine, Federation

CHOICES = DiskCache("engines.json")
"""What "auto" chose, by what it was chosen for."""

ENGINES = ("auto", "loop", "vectorized", "graphed", "compiled")

__all__ = [
    "CHOICES",
    "ENGINES",
    "MEMORY_BUDGET",
    "Arithmetic",
    "Graphed",
    "Loop",
    "Ranks",
    "Sharded",
    "Switching",
    "Vectorized",
    "arithmetic",
    "assist",
    "build",
    "choose",
    "chunk_size",
    "describe",
    "dismiss",
    "expect_known",
    "in_words_when_stopped",
    "join",
    "leave",
    "local_device",
    "memory_budget",
    "noise_key",
    "restore",
    "same_bits",
]


def expect_known(name: str) -> None:
    """Refuse an engine that does not exist."""
    expect_one_of("engine", name, ENGINES)


def build(
    name: str, fed: Federation, w: Tensor, memory: int | None = None, rounds: int = 100, key: str | None = None
) -> Engine:
    """The engine of that name for a federation; "auto" measures, and under a `key` chooses as it chose before."""
    expect_known(name)
    if name == "loop":
        return Loop()
    captured = name in ("graphed", "compiled")
    expect(w.is_cuda or not captured, f"a GPU for the {name} engine", w.device.type, "use auto")
    if w.is_cuda:
        keep_caches()
    chunk = chunk_size(fed, w, memory or memory_budget(w.device))
    if name == "auto":
        return _said(_chosen(fed, w, chunk, rounds, key))
    if captured:
        return Graphed(chunk, compiled=name == "compiled")
    expect_able(Vectorized(chunk), fed, w)
    return Vectorized(chunk)


def _chosen(fed: Federation, w: Tensor, chunk: int, rounds: int, key: str | None) -> Engine:
    if key is None:
        return choose(fed, w, chunk, rounds)
    known = _recalled(key, chunk)
    if known is not None:
        return known
    with CHOICES.alone():  # of several processes that ask the same at once, one measures, and the others do as it does
        engine = _recalled(key, chunk) or choose(fed, w, chunk, rounds)
        CHOICES.remember(key, describe(engine))
    return engine


def _recalled(key: str, chunk: int) -> Engine | None:
    """What was chosen before, in chunks that fit today."""
    known = CHOICES.recall(key)
    if known is None:
        return None
    with suppress(AttributeError, KeyError, TypeError, ValueError):  # written by something else: choose anew
        fits = int(known["chunk"]) if known["engine"] == "loop" else min(int(known["chunk"]), chunk)
        return restore({**known, "chunk": fits})
    return None


def _said(engine: Engine) -> Engine:
    if isinstance(engine, Switching):
        note(f"rounds are replayed from graphs, and from round {engine.compiled_from} on from a compiled program")
    return engine


def describe(engine: Engine) -> dict[str, Any]:
    """An engine as plain values, so that a resumed run rounds the way it did before."""
    if isinstance(engine, Sharded):
        return {**describe(engine.inner), "ranks": engine.ranks.size}
    described = {"engine": engine.name, "chunk": engine.chunk, "ranks": 1}
    if isinstance(engine, Loop):
        return {
            **described,
            "workers": engine.workers,
            "processes": engine.processes,
            "channels_last": engine.channels_last,
        }
    if isinstance(engine, Switching):
        described["compiled_from"] = engine.compiled_from
    return {**described, "convolutions": dict(CHOSEN)}


def restore(description: Mapping[str, Any]) -> Engine:
    """The inverse of `describe`, for one rank."""
    chunk, name = int(description["chunk"]), description["engine"]
    if name == "loop":
        processes = bool(description.get("processes")) and can_fork()
        return Loop(chunk, int(description["workers"]), processes, bool(description.get("channels_last")))
    CHOSEN.update(description["convolutions"])
    if name == Switching.name:
        return Switching(chunk, int(description["compiled_from"]))
    return Vectorized(chunk) if name == "vectorized" else Graphed(chunk, compiled=name == "compiled")


def noise_key(run: str, engine: Engine, machines: list[Arithmetic]) -> str:
    """What names the noise of a run: all that it computes with, and how.

    Two runs with the same settings and other engines, or on other machines, differ by rounding. With the same noise,
    their difference would show what was rounded, which nothing protects.
    """
    on_gpu = any(machine["gpu"] for machine in machines)
    chosen_by_the_machine = ("convolutions", "chunk") if on_gpu else ("convolutions",)  # by its clock and free memory
    described = {name: value for name, value in describe(engine).items() if name not in chosen_by_the_machine}
    return hashlib.sha256(json.dumps([run, described, machines], sort_keys=True).encode()).hexdigest()


def same_bits(before: Mapping[str, Any], engine: Engine, machines: list[Arithmetic]) -> bool:
    """Whether a round that was computed `before` gives the same bits when it is computed again here.

    Never again after noise was drawn anew: what was charged since cannot be repeated.
    """
    named = [(name, value) for name, value in describe(engine).items() if name != "convolutions"]  # of a GPU alone
    alike = all(before.get(name) == value for name, value in named)
    return alike and before.get("machines") == machines and not before.get("renewed", True)
