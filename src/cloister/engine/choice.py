"""Which engine, and how many clients at a time: decided by trying, on made-up data of the right shape."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from cloister.client.clipped_sum import PIECE
from cloister.client.objective import explained
from cloister.client.poisson_batches import AHEAD
from cloister.core import Batch
from cloister.engine.chunking import constant_places
from cloister.engine.cuda.graphs import Graphed
from cloister.engine.cuda.switching import Switching
from cloister.engine.loop import Loop
from cloister.engine.made_up import made_up_clients, with_fewer_steps
from cloister.engine.vectorized import Vectorized
from cloister.engine.workers import can_fork, dismiss
from cloister.errors import CloisterError, Note
from cloister.round import Engine, Federation, cohort_total

MEMORY_BUDGET = 2**30
"""Bytes that a chunk of clients may take on a CPU, unless the user says otherwise."""

COMPILING = 36.0
"""Seconds that compiling takes, about, the first time, in the background, where it shares the interpreter."""

WORTH_TRYING, LONG = 5.0, 1.0
"""Seconds that a run must take for more than two engines to be tried, and of a trial that is not repeated."""

STEPS_TRIED, STEPS_TRIED_ON_A_GPU = 16, 64
"""Of a phase of local work in a trial: a round of many epochs takes as long as a run, and tells no more."""


_processes_on_gpu = 1


def share_gpu(processes: int) -> None:
    """Say that so many processes like this one compute on the GPUs at the same time."""
    global _processes_on_gpu
    _processes_on_gpu = processes


def memory_budget(device: torch.device) -> int:
    """Bytes that a chunk of clients may take: on a GPU half of what is free, or a share of that."""
    free_share = 2 * _processes_on_gpu
    return torch.cuda.mem_get_info(device)[0] // free_share if device.type == "cuda" else MEMORY_BUDGET


def chunk_size(fed: Federation, w: Tensor, memory: int) -> int:
    """How many clients go together: as many as fit the memory budget, in chunks of about the same size."""
    fitting = max(1, int(memory // max(bytes_per_client(fed, w), 1)))
    if w.is_cuda:  # where another size of a chunk is another program
        return constant_places(fed, fitting, dist.get_world_size() if dist.is_initialized() else 1)
    expected = max(1, round(fed.denominator))
    return fitting if fitting >= 2 * expected else math.ceil(expected / math.ceil(expected / fitting))


def bytes_per_client(fed: Federation, w: Tensor) -> int:
    """What one client takes in a batched computation: what autograd keeps for a batch, and copies of the model."""
    made_up = made_up_clients(fed, clients=1)
    kept = 0

    def count(saved: Tensor) -> Tensor:
        nonlocal kept
        kept += saved.numel() * saved.element_size()
        return saved

    local = fed.method.local
    whole = local.batching.usual_size(max(int(fed.population.counts.max()), 1))
    width = whole if local.sample_l2 is None else min(whole, PIECE)
    rows = torch.zeros(width, dtype=torch.int64, device=w.device)
    batch = Batch(
        made_up.population.inputs[rows],
        made_up.population.labels[rows],
        torch.ones(width, dtype=torch.bool, device=w.device),
        torch.tensor(width, device=w.device),
        torch.zeros((), dtype=torch.int64, device=w.device),
        torch.tensor(True, device=w.device),
        w.new_empty(0),
    )
    with torch.autograd.graph.saved_tensors_hooks(count, lambda saved: saved):
        fed.objective.loss(w.detach().requires_grad_(), batch)
    copies_of_model = 6  # parameters, gradient, velocity, update, message, and one in passing
    taken = 2 * kept + copies_of_model * w.numel() * w.element_size()
    if local.private is not None:  # single samples' gradients, and noise that was drawn ahead
        taken += fed.objective.per_sample.bytes_for(width) + max(AHEAD, w.numel()) * w.element_size()
    if local.sample_l2 is not None:  # the same of a piece of the batch, and all its inputs
        taken += fed.objective.per_sample.bytes_for(width) + (whole - width) * made_up.population.inputs[:1].nbytes
    return taken


def choose(fed: Federation, w: Tensor, chunk: int, rounds: int, sample: int = 24, repeats: int = 3) -> Engine:
    """The engine that finishes first, for this model, batch shape, cohort, number of rounds and device.

    Nobody's data are touched: the trial runs on made-up clients of the same sizes. What cannot be computed client by
    client is refused; an engine that cannot do what the loop can is left out, with a note.
    """
    expected = max(1, round(fed.denominator))
    most = min(expected, chunk)
    if w.is_cuda:
        return _on_a_gpu(fed, w, chunk, rounds)
    few, times_as_many = with_fewer_steps(made_up_clients(fed, clients=min(sample, most)), STEPS_TRIED)
    return _on_a_cpu(few, w, chunk, repeats, times_as_many * rounds * expected / few.population.clients)


def _on_a_gpu(fed: Federation, w: Tensor, chunk: int, rounds: int) -> Engine:
    """Captured graphs at once; and a compiled program later, where that pays over the rounds.

    From which round on is decided here, once: a seed must give the same run again, whatever the clock says then.
    """
    short, times_as_many = with_fewer_steps(made_up_clients(fed, chunk), STEPS_TRIED_ON_A_GPU)
    seconds = _seconds_if_able(Graphed(chunk), short, w, repeats=1)
    if math.isinf(seconds):
        slow: list[Engine] = [Loop(), Vectorized(chunk)]
        few, _ = with_fewer_steps(made_up_clients(fed, min(chunk, 2)), STEPS_TRIED_ON_A_GPU)
        return min(slow, key=lambda engine: _seconds_if_able(engine, few, w, 1))
    seconds *= times_as_many * math.ceil(max(1, round(fed.denominator)) / chunk)
    if seconds * rounds < 2 * COMPILING:  # at least half of the run shall gain by it
        return Graphed(chunk)
    return Switching(chunk, compiled_from=2 + math.ceil(COMPILING / seconds))


def _on_a_cpu(few: Federation, w: Tensor, chunk: int, repeats: int, times_as_many: float) -> Engine:
    """One client at a time, many as one computation, or one on each core: the loop's layout is that of its workers.

    The run is so many times as much work as a trial; of one that is over soon nothing more is tried.
    """
    best: tuple[float, Engine] = math.inf, Loop()

    def attempt(engine: Engine) -> float:
        nonlocal best
        seconds = _seconds_if_able(engine, few, w, repeats)
        best = min(best, (seconds, engine), key=lambda tried: tried[0])
        return seconds

    loop, cores = Loop(), torch.get_num_threads()
    alone = attempt(loop)
    attempt(Vectorized(chunk))
    if best[0] * times_as_many < WORTH_TRYING:
        return best[1]
    if few.population.inputs.dim() == 4 and attempt(replace(loop, channels_last=True)) < alone:
        loop = replace(loop, channels_last=True)
    if cores > 1:
        forked = attempt(replace(loop, workers=cores, processes=True)) if can_fork() else math.inf
        dismiss(few)
        if forked == math.inf:
            attempt(replace(loop, workers=cores))
    return best[1]


def _seconds_if_able(engine: Engine, fed: Federation, w: Tensor, repeats: int) -> float:
    """As `_seconds`; endless, with a note, where the engine cannot do it though the loop can."""
    if engine == Loop():
        with explained("a model that can be trained client by client"):
            return _seconds(engine, fed, w, repeats)
    try:
        return _seconds(engine, fed, w, repeats)
    except CloisterError:
        if isinstance(engine, Loop):  # whose other forms are a matter of speed
            return math.inf
        raise
    except Exception as error:  # what torch raises for what it cannot map, capture or compile has no common type
        if not isinstance(engine, Loop):
            note = f"the {engine.name} engine is left out, because it cannot train this model{_why(error)}"
            warnings.warn(note, Note, stacklevel=2)
        return math.inf


def expect_able(engine: Engine, fed: Federation, w: Tensor) -> None:
    """Refuse an engine that was asked for and cannot do it, before anything is written."""
    try:
        _seconds(engine, made_up_clients(fed, clients=min(2, max(1, round(fed.denominator)))), w, repeats=0)
    except CloisterError:
        raise
    except Exception as error:
        raise CloisterError(
            f"Expected a model that the {engine.name} engine can train, found that it fails{_why(error)}: use "
            "engine = auto or loop."
        ) from error


def _why(error: Exception) -> str:
    reason = " ".join(str(error).split())
    return f" ({reason[:160]}{'...' if len(reason) > 160 else ''})" if reason else ""


def _seconds(engine: Engine, fed: Federation, w: Tensor, repeats: int) -> float:
    """The best time over a few rounds, after one to warm up; endless where there is not enough memory."""
    cohort = torch.arange(fed.population.clients)
    best = math.inf
    for attempt in range(repeats + 1):
        start = time.perf_counter()
        try:
            cohort_total(fed, engine, 1, w, cohort)
            if w.is_cuda:
                torch.cuda.synchronize(w.device)
        except torch.OutOfMemoryError:
            return math.inf
        seconds = time.perf_counter() - start
        best = min(best, seconds) if attempt else best
        if attempt and seconds > LONG:
            break
    return best
