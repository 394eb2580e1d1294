"""From clients and their samples to mini-batches, for many clients at once, and the one loop over them.

All samples lie in one tensor, sorted by client; a batch is a list of indices into it. Which samples make
which batch depends on the client's key alone, never on who else is in the cohort or how it is chunked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from cloister.client.poisson_batches import DrawnBatches, StepNoise
from cloister.client.population import Population
from cloister.core import Batch, Batching, LocalRule, State, Tensors
from cloister.random.streams import fold


def rows_of(samples: Tensor, rows: Tensor, memory: Tensor | None = None) -> Tensor:
    """samples[rows]; on a CPU by copies of whole rows, which are several times as fast, into `memory` if given."""
    if samples.is_cuda:
        return samples[rows]
    out = None if memory is None else memory[: rows.numel()]
    return torch.index_select(samples, 0, rows.flatten(), out=out).view(*rows.shape, *samples.shape[1:])


class Shape(NamedTuple):
    """The common shape of some clients' batches. It follows from their sizes, before anything is computed."""

    most: int  # samples of the largest client, or more
    passes: int  # how often a client's samples are shuffled
    steps: int
    ragged: bool  # whether some client may have fewer steps, so that steps without a real sample occur


def exactly(count: int) -> int:
    """No padding beyond the largest client."""
    return count


def rounded_up(count: int, finer: int = 0) -> int:
    """The next of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: few shapes, at most a quarter too large.

    >>> [rounded_up(n) for n in (3, 8, 9, 17, 33)]
    [3, 8, 10, 20, 40]
    """
    unit = 1 << max((count - 1).bit_length() - 3 - finer, 0)
    return -(-count // unit) * unit


def shapes_of(sizes: Tensor, rule: LocalRule, up: Callable[[int], int] = exactly) -> tuple[Shape, ...]:
    """The shape of each phase that holds clients of these sizes (a tensor on the host), padded by `up`."""
    found: list[Shape] = []
    for phase in rule.phases:
        again = phase.batching.again
        found.append(
            found[-1]._replace(steps=min(found[-1].steps, 1)) if again else shape_of(sizes, phase.batching, up)
        )
    return tuple(found)


def shape_of(sizes: Tensor, batching: Batching, up: Callable[[int], int] = exactly) -> Shape:
    """The shape of one phase."""
    if batching.batch_sampling:  # batches are as wide as they turn out, and who is ragged in a round is so in all
        own = [batching.most_steps(size, max(len(batching.by_round), 1), 1) for size in sizes.tolist()]
        return Shape(batching.batch_size, 1, max(own), min(own) < max(own))
    largest = max(int(sizes.max()), 1)
    pieces = up(-(-largest // batching.batch_size))
    most = pieces * batching.batch_size if pieces > 1 else min(up(largest), batching.batch_size)
    if batching.local_epochs is not None:
        steps = batching.local_epochs * pieces if int(sizes.max()) else 0
        own_pieces = -(-int(sizes.min()) // batching.batch_size)
        return Shape(most, batching.local_epochs, steps, own_pieces < pieces)
    assert batching.local_steps is not None
    some = sizes[sizes > 0]
    if not len(some):
        return Shape(most, 1, 0, False)
    fewest = -(-int(some.min()) // batching.batch_size)
    passes = min(up(-(-batching.local_steps // fewest)), batching.local_steps)
    return Shape(most, passes, batching.local_steps, len(some) < len(sizes))


class Chunk(NamedTuple):
    """Some clients of a round, as tensors on its device: what an engine computes with, and may capture or send."""

    round: Tensor  # the round's number, from 1
    batch_key: Tensor  # which samples make which batch ...
    model_key: Tensor  # ... and what is random in the model
    w: Tensor
    broadcast: State
    clients: Tensor  # [k]
    counted: Tensor  # [k]: where it is False, a client only fills a place
    shares: Tensor  # [k, m] when noise is distributed, otherwise [k, 0]
    client_state: Tensors  # [k, ...]: what each keeps from round to round


class Batches(NamedTuple):
    """The batches of one phase for k clients, stacked. Without its first dimension it is one client's."""

    samples: Tensor  # [k, steps, batch]: which rows of the population
    mask: Tensor  # [k, steps, batch]: which of these are real
    divisor: Tensor  # [k, steps]: what a sum over a batch is divided by
    key: Tensor  # [k, steps]: for what is random in the model
    live: Tensor  # [k, steps]: whether it is a step of the client's


class Work(NamedTuple):
    """What k clients need for one round, stacked. Without its first dimension it is one client's work."""

    phases: tuple[Batches, ...]
    key: Tensor  # [k]: for what is random in a transform
    share: Tensor  # [k, m] when noise is distributed, otherwise [k, 0]
    start: Tensors  # [k, ...]: what each client starts with of its own
    samples: Tensor  # [k]: how many samples each client has

    @property
    def has_data(self) -> Tensor:
        """[k]: whether a client has a sample at all."""
        return self.phases[0].live.any(-1)


class Drawn(NamedTuple):
    """What was drawn in secret for a chunk, on the host: batches by phase, and the noise of private steps."""

    batches: list[DrawnBatches | None]
    noise: StepNoise | None


def work_of(
    population: Population,
    rule: LocalRule,
    shapes: tuple[Shape, ...],
    chunk: Chunk,
    drawn: list[DrawnBatches | None] | None = None,
) -> Work:
    """The work of a chunk of clients, padded to shapes."""
    clients = chunk.clients
    own, batch_key = fold(chunk.model_key, clients), fold(chunk.batch_key, clients)
    first = drawn[0] if drawn else None
    if first is not None:  # secret, as all that is random about batches that are drawn
        own = first.round_keys.to(clients.device)
    phases: list[Batches] = []
    for number, (phase, shape) in enumerate(zip(rule.phases, shapes, strict=True)):
        drawn_batches = drawn[number] if drawn else None
        if drawn_batches is not None:
            phases.append(_drawn(population, drawn_batches, chunk))
            continue
        step = torch.arange(shape.steps, device=clients.device)
        keys = fold((fold(own, -1 - number) if number else own)[:, None], step)
        if phase.batching.again:
            phases.append(_last_again(phases[-1], keys))
        else:
            shuffle = fold(batch_key, -1 - number) if number else batch_key
            samples, mask = shuffled(population, phase.batching, shape, clients, shuffle)
            phases.append(Batches(samples, mask, mask.sum(2).clamp(min=1), keys, mask.any(2)))
    start = torch.func.vmap(partial(rule.own, chunk.w))(own) if rule.own else {}
    for name, path in rule.told.items():  # the same for all
        told: Tensor = reduce(lambda scope, part: scope[part], path[:-1], chunk.broadcast)[path[-1]]
        start[name] = told.expand(len(clients), *told.shape)
    return Work(tuple(phases), own, chunk.shares, {**start, **chunk.client_state}, population.sizes[clients])


def _drawn(population: Population, drawn_batches: DrawnBatches, chunk: Chunk) -> Batches:
    """Batches that were drawn. Places that are filled up repeat a sample of the same client."""
    device, starts, steps = chunk.clients.device, population.starts[chunk.clients], drawn_batches.samples.shape[1]
    samples = (drawn_batches.samples.to(device) + starts[:, None, None]).clamp(max=max(len(population.labels) - 1, 0))
    live = torch.arange(steps, device=device) < drawn_batches.steps.to(device)[:, None]
    count = drawn_batches.expected.clamp(min=torch.finfo(chunk.w.dtype).tiny).to(device, chunk.w.dtype)
    divisor = count[:, None].expand(-1, steps)
    return Batches(samples, drawn_batches.mask.to(device), divisor, drawn_batches.keys.to(device), live)


def _last_again(before: Batches, keys: Tensor) -> Batches:
    """The last batch of every client."""
    last = (before.live.sum(1) - 1).clamp(min=0)
    wide = last[:, None, None].expand(-1, keys.shape[1], before.samples.shape[2])
    count, live = (
        column.gather(1, last[:, None].expand(-1, keys.shape[1])) for column in (before.divisor, before.live)
    )
    return Batches(before.samples.gather(1, wide), before.mask.gather(1, wide), count, keys, live)


def local_steps(
    population: Population, work: Work, widths: Sequence[Sequence[int] | None] | None, noise: StepNoise | None
) -> Iterator[tuple[int, Batch]]:
    """The one local loop: the phase and the batch of every step, for one client, or for k at once (tensors [k, ...]).

    `widths` says for each phase how many samples of a step's batch are looked at; without them all are. On a CPU the
    inputs of a step lie where those of the step before lay: new memory for each would have to be cleared first.
    """
    stacked = work.key.dim()
    none = work.key.new_empty(*work.key.shape, 0)  # of noise
    for phase, batches in enumerate(work.phases):
        wide = None if widths is None else widths[phase]
        memory = _memory_for(population.inputs, batches, stacked, wide)
        for number, (inputs, labels, rows) in enumerate(population.near(batches.samples, stacked)):
            width = rows.shape[-1] if wide is None else wide[number]
            rows = rows[..., :width]
            mask = batches.mask.select(stacked, number)[..., :width].contiguous()
            divisor = batches.divisor.select(stacked, number).contiguous()
            key = batches.key.select(stacked, number).contiguous()
            live = batches.live.select(stacked, number).contiguous()
            drawn = none if noise is None else noise.at(number) if stacked else noise.at(number)[0]
            yield phase, Batch(rows_of(inputs, rows, memory), rows_of(labels, rows), mask, divisor, key, live, drawn)


def _memory_for(inputs: Tensor, batches: Batches, stacked: int, widths: Sequence[int] | None) -> Tensor | None:
    """Where the inputs of one step of a phase fit in, whichever it is; None on a GPU, whose memory is kept by torch."""
    if inputs.is_cuda:
        return None
    width = batches.samples.shape[-1] if widths is None else max(widths, default=0)
    return inputs.new_empty(math.prod(batches.samples.shape[:stacked]) * width, *inputs.shape[1:])


def shuffled(
    population: Population, batching: Batching, shape: Shape, clients: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows of samples, and which are real, [k, steps, batch], padded to a common shape that is large enough.

    A client's samples are shuffled anew for every pass and cut into pieces of `batching.batch_size`; the last
    piece of a pass may be short. Padding repeats a sample of the same client, so that nothing a client
    computes ever depends on anybody else's data. Nothing here waits for the device.
    """
    starts, sizes = population.starts[clients], population.sizes[clients]
    pieces = (sizes + batching.batch_size - 1) // batching.batch_size
    per_pass = pieces.clamp(min=1)
    own_steps = pieces * batching.local_epochs if batching.local_epochs is not None else (sizes > 0) * shape.steps

    order = _shuffles(keys, sizes, shape.passes, shape.most)
    step = torch.arange(shape.steps, device=sizes.device)
    slot = torch.arange(min(batching.batch_size, shape.most), device=sizes.device)
    of_pass = (step // per_pass[:, None]).clamp(max=shape.passes - 1)
    position = (step % per_pass[:, None] * batching.batch_size)[:, :, None] + slot
    mask = (position < sizes[:, None, None]) & (step < own_steps[:, None])[:, :, None]
    flat = of_pass[:, :, None] * shape.most + torch.where(mask, position, 0)
    index = order.flatten(1).gather(1, flat.flatten(1)).view(flat.shape) + starts[:, None, None]
    return index.clamp(max=max(len(population.labels) - 1, 0)), mask


def _shuffles(keys: Tensor, sizes: Tensor, passes: int, most: int) -> Tensor:
    """For each client and pass a shuffle [k, passes, most] of 0..size-1, followed by padding."""
    sample = torch.arange(most, device=keys.device)
    pass_keys = fold(keys[:, None], torch.arange(passes, device=keys.device))
    ranks = fold(pass_keys[:, :, None], sample)
    ranks = torch.where(sample < sizes[:, None, None], ranks, torch.iinfo(torch.int64).max)
    return ranks.argsort(dim=-1, stable=True)
