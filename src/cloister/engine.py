"""Engines: how `client_round` is mapped over a cohort. They change the speed of a run and nothing else.

* `Loop`: one client after the other, each with its own shapes; nothing is padded.
* `Vectorised`: many clients as one batched computation (`torch.func.vmap`), in chunks that fit a memory
  budget; clients of unequal size are padded and masked.
* `choose` times both on made-up data of the right shape and takes the faster.

Messages are summed as they come; a cohort's messages are never all kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cloister.batches import Population
from cloister.cohorts import everyone
from cloister.errors import expect
from cloister.joints import Batch, Function
from cloister.round import ClientRound, Engine, Federation, Work, WorkOf, cohort_total

MEMORY_BUDGET = 2**30
"""Bytes that a chunk of clients may take, unless the user says otherwise."""

ENGINES = ("auto", "loop", "vectorised")


@dataclass(frozen=True)
class Loop:
    """Client by client, each with its own shapes; plans are made for a few clients at once."""

    chunk: int = 64
    name: str = "loop"

    def total(self, client_round: ClientRound, work_of: WorkOf, cohort: Tensor) -> tuple[Tensor, int]:
        total, rejected = None, 0
        for clients in torch.split(cohort, self.chunk):
            stacked, _ = work_of(clients)
            for one in zip(*stacked, strict=True):
                message, finite = client_round(_trimmed(Work(*one)), ragged=False, grad=_autograd)
                total = message if total is None else total + message
                rejected += int(not finite)
        assert total is not None
        return total, rejected


def _trimmed(work: Work) -> Work:
    """One client's work without the padding that made it as large as the others'."""
    steps, width = int(work.mask.any(1).sum()), int(work.mask.any(0).sum())
    return Work(
        work.samples[:steps, :width],
        work.mask[:steps, :width],
        work.real[:steps],
        work.key[:steps],
        work.share,
    )


def _autograd(function: Function) -> Function:
    """`torch.func.grad` without its overhead, for code that runs under no transform."""

    def gradient(w: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            return torch.autograd.grad(function(leaf), leaf)[0]

    return gradient


@dataclass(frozen=True)
class Vectorised:
    """`chunk` clients at a time, as one batched computation."""

    chunk: int
    name: str = "vectorised"

    def total(self, client_round: ClientRound, work_of: WorkOf, cohort: Tensor) -> tuple[Tensor, int]:
        total, rejected = None, 0
        for clients in torch.split(cohort, self.chunk):
            work, ragged = work_of(clients)
            messages, finite = torch.func.vmap(partial(client_round, ragged=ragged, grad=torch.func.grad))(work)
            part = messages.sum(0)
            total = part if total is None else total + part
            rejected += int(len(clients) - finite.sum())
        assert total is not None
        return total, rejected


def expect_known(name: str) -> None:
    """Refuse an engine that does not exist."""
    expect(name in ENGINES, f"engine to be one of {', '.join(ENGINES)}", name, "choose one")


def build(name: str, fed: Federation, w: Tensor, memory: int = MEMORY_BUDGET) -> Engine:
    """The engine of that name for a federation; "auto" measures."""
    expect_known(name)
    if name == "loop":
        return Loop()
    vectorised = Vectorised(chunk_size(fed, w, memory))
    return vectorised if name == "vectorised" else choose(fed, w, vectorised)


def describe(engine: Engine) -> dict[str, int | str]:
    """An engine as plain values, so that a resumed run rounds the way it did before."""
    return {"engine": engine.name, "chunk": engine.chunk}


def restore(description: Mapping[str, Any]) -> Engine:
    """The inverse of `describe`."""
    kind = Loop if description["engine"] == "loop" else Vectorised
    return kind(chunk=int(description["chunk"]))


def chunk_size(fed: Federation, w: Tensor, memory: int) -> int:
    """How many clients fit the memory budget: what autograd keeps for one batch, and copies of the model."""
    made_up = _made_up(fed, clients=1)
    kept = 0

    def count(saved: Tensor) -> Tensor:
        nonlocal kept
        kept += saved.numel() * saved.element_size()
        return saved

    width = min(fed.method.local.batching.batch, max(int(fed.population.sizes.max()), 1))
    rows = torch.zeros(width, dtype=torch.int64, device=w.device)
    batch = Batch(
        made_up.population.inputs[rows],
        made_up.population.labels[rows],
        torch.ones(width, dtype=torch.bool, device=w.device),
        torch.tensor(width, device=w.device),
        torch.zeros((), dtype=torch.int64, device=w.device),
    )
    with torch.autograd.graph.saved_tensors_hooks(count, lambda saved: saved):
        fed.problem.loss(w.detach().requires_grad_(), batch)
    copies_of_model = 6  # parameters, gradient, velocity, update, message, and one in passing
    per_client = 2 * kept + copies_of_model * w.numel() * w.element_size()
    return max(1, int(memory // max(per_client, 1)))


def choose(fed: Federation, w: Tensor, vectorised: Vectorised, sample: int = 24, repeats: int = 3) -> Engine:
    """The faster engine for this model, batch shape and device, by trying both.

    Nobody's data are touched: the trial runs on made-up clients of the same sizes.
    """
    expected = max(1, round(fed.denominator))
    made_up = _made_up(fed, clients=min(sample, expected, vectorised.chunk))
    candidates: list[Engine] = [Loop(), vectorised]
    return min(candidates, key=lambda engine: _seconds(engine, made_up, w, repeats))


def _seconds(engine: Engine, fed: Federation, w: Tensor, repeats: int) -> float:
    """The best time over a few rounds, after one to warm up."""
    cohort = torch.arange(fed.population.clients)
    best = float("inf")
    for attempt in range(repeats + 1):
        start = time.perf_counter()
        cohort_total(fed, engine, 0, w, cohort)
        if w.is_cuda:
            torch.cuda.synchronize(w.device)
        best = min(best, time.perf_counter() - start) if attempt else best
    return best


def _made_up(fed: Federation, clients: int) -> Federation:
    """The same federation over a few clients of typical sizes whose samples are all zero."""
    real = fed.population
    typical = real.sizes.sort().values[torch.linspace(0, real.clients - 1, clients).long()]
    samples = max(int(typical.sum()), 1)
    population = Population(
        real.inputs.new_zeros((samples, *real.inputs.shape[1:])),
        real.labels.new_zeros((samples, *real.labels.shape[1:])),
        typical.cumsum(0) - typical,
        typical,
    )
    return replace(fed, population=population, cohort=everyone())
