"""Secret batches: the samples of a step that is private by itself, drawn anew for every step, and the step's noise.

Both protect somebody, so both come from protective randomness, on the host, whatever the engine. A client's draws
depend on the round and on itself alone, never on who else is there or on how clients are put together.

So do the keys of what is random in the model (dropout, random views). Masks follow from a sample's place in its batch,
and without one of the samples the others move up. To whoever knows the key, that would move a sum by more than the
clip; to all others, a sample's mask is as good as one of its own. What a client sends may tell the key of its round
(which coordinates it trained), so that this one is drawn apart, and the steps' keys do not follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cloister.core import Batching
from cloister.core.noise_grid import points_of
from cloister.random.rounded_normal import rounded_normal
from cloister.random.samplers import bernoulli_indices, subsets
from cloister.random.streams import Streams


class DrawnBatches(NamedTuple):
    """The batches of k clients: sample numbers (within the client) and which are real, [k, steps, width]."""

    samples: Tensor
    mask: Tensor
    steps: Tensor  # [k]: how many steps are the client's own
    expected: Tensor  # [k]: what a batch's sum is divided by
    keys: Tensor  # [k, steps]: for what is random in the model
    round_keys: Tensor  # [k]: for what is random in the round, beside its steps
    widths: tuple[int, ...]  # by step: how many places hold every client's batch


def draw_batches(
    streams: Streams,
    round: int,
    phase: int,
    batching: Batching,
    clients: Sequence[int],
    sizes: Sequence[int],
    places: int,
    of_all: int | None = None,
) -> DrawnBatches:
    """The batches of some clients in a round, laid out for `places` clients (the others take no step).

    `of_all`, the samples of the largest client there is, where another width is another program: then all steps of a
    run have the same, but for one in a million.
    """
    drawn = [_batches_of(streams, round, phase, batching, who, n) for who, n in zip(clients, sizes, strict=True)]
    own = [batching.steps_for(n, round) for n in sizes]
    steps = max(own, default=0)
    counts = np.zeros((places, steps), dtype=np.int64)
    for place, (step, _) in enumerate(drawn):
        counts[place] = np.bincount(step, minlength=steps)
    largest = of_all or max(sizes)
    widths = [_width(batching, int(most), largest, places, bool(of_all)) for most in counts.max(0, initial=0)]
    samples = np.zeros((places, steps, max(widths, default=0)), dtype=np.int64)
    for place, (step, sample) in enumerate(drawn):
        first = np.cumsum(counts[place]) - counts[place]
        samples[place, step, np.arange(len(step)) - first[step]] = sample
    mask = np.arange(samples.shape[2]) < counts[:, :, None]
    rest = places - len(drawn)
    own_steps = torch.tensor([*own, *[0] * rest])
    expected = torch.tensor([*map(batching.expected, sizes), *[0.0] * rest], dtype=torch.float64)
    keys = torch.zeros(places, steps, dtype=torch.int64)
    round_keys = torch.zeros(places, dtype=torch.int64)
    for place, (client, taken) in enumerate(zip(clients, own, strict=True)):
        keys[place, :taken] = streams.protective_bits(taken, keys.device, "step keys", round, client, phase)
        round_keys[place] = streams.protective_bits(1, keys.device, "round key", round, client, phase)[0]
    batches, real = torch.from_numpy(samples), torch.from_numpy(mask)
    return DrawnBatches(batches, real, own_steps, expected, keys, round_keys, tuple(widths))


Drawn = tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]
"""The step and the sample of everything that was drawn, by step."""


def _batches_of(streams: Streams, round: int, phase: int, batching: Batching, client: int, size: int) -> Drawn:
    steps = batching.steps_for(size, round)
    if not steps:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    if batching.batch_sampling == "poisson":  # one row of coins for all steps
        found = bernoulli_indices(
            batching.sampling_rate(size),
            steps * size,
            lambda count, n: streams.protective_uniform(count, "poisson batch", round, client, phase, n),
        ).numpy()
        return found // size, found % size

    batch_size = min(batching.batch_size, size)
    samples = subsets(
        steps,
        batch_size,
        size,
        lambda count, n: streams.protective_integers(count, size, "poisson batch", round, client, phase, n),
    )
    return np.repeat(np.arange(steps), batch_size), samples.flatten().numpy()


def _width(batching: Batching, most: int, largest: int, clients: int, constant: bool) -> int:
    """At least `most`, and one of a few: what is compiled or captured for a shape serves many steps.

    The largest of so many Poisson batches is about so many deviations above a batch's size; what is seldom smaller need
    not have shapes of its own.
    """
    whole = 1 << largest.bit_length()  # no batch is larger than its client
    batch_size = min(batching.batch_size, whole) if batching.sample_rate is None else batching.usual_size(largest)
    if batching.batch_sampling == "fixed_size":
        return min(batch_size, largest)
    usual = batch_size + 0.8 * math.sqrt(2 * math.log(clients) * batch_size) if clients > 1 else 1
    usual = min(batch_size + 5 * math.sqrt(batch_size) + 2, largest) if constant else usual
    unit = max(4, 1 << max(batch_size.bit_length() - 4, 0))
    return -(-max(most, int(usual)) // unit) * unit


class StepNoise:
    """The noise of some clients' steps, drawn a few steps at a time: all of a round's may not fit into memory."""

    def __init__(
        self,
        streams: Streams,
        round: int,
        sources: Sequence[tuple[int, float, int]],
        like: Tensor,
        places: int,
        grid: float | None = None,
    ) -> None:
        """`sources`: each client's number, noise multiplier and number of steps; `like` [n] is the noise of a step.
        With a `grid`, noise is rounded to it, exactly."""
        self.streams, self.round, self.sources, self.like, self.places = streams, round, sources, like, places
        self.grid = grid
        self.block = max(1, AHEAD // max(like.numel(), 1))
        self.most = max((steps for _, _, steps in sources), default=0)
        self._drawn: tuple[int, Tensor] | None = None

    def at(self, step: int) -> Tensor:
        """[places, n]: of one step of every client; who does not take it, or is not there, has none.

        Steps are asked for in turn: on a CPU, what was returned is valid until a step of the next block is asked for.
        """
        number, inside = divmod(step, self.block)
        if self._drawn is None or self._drawn[0] != number:
            self._drawn = number, self._draw(number)
        return self._drawn[1][inside]

    def _draw(self, number: int) -> Tensor:
        """The next steps: [steps, places, n]. How many a client draws depends on nobody else."""
        first = number * self.block
        drawn = self._memory(min(self.block, self.most - first))
        drawn[:, len(self.sources) :] = 0

        def draw(place: int, source: tuple[int, float, int]) -> None:
            client, scale, steps = source
            taken = max(min(steps - first, self.block), 0)
            own = drawn[:taken, place]
            if self.grid is not None and scale:
                points = points_of(scale, self.grid)
                direct = own.dtype == torch.float64 and own.is_contiguous() and not own.is_cuda
                at, out = (self.round, client, number), own if direct else None
                noise = rounded_normal(own.numel(), points, self.streams, "step noise", *at, out=out).mul_(self.grid)
                if not direct:
                    own.copy_(noise.view(own.shape))
            else:
                noise = self.streams.protective_normal(own, "step noise", self.round, client, number)
                torch.mul(noise, scale, out=own)
            drawn[taken:, place] = 0

        several = len(self.sources) > 1 and not drawn.is_cuda and torch.get_num_threads() > 1
        each = _pool(torch.get_num_threads()).map if several and drawn.numel() > _WORTH_THREADS else map
        for _ in each(draw, range(len(self.sources)), self.sources):
            pass
        return drawn

    def _memory(self, steps: int) -> Tensor:
        """[steps, places, n], not yet written: on a CPU that of the steps before, which are over."""
        if self._drawn is not None and not self._drawn[1].is_cuda and steps <= len(self._drawn[1]):
            return self._drawn[1][:steps]
        return self.like.new_empty(steps, self.places, self.like.numel())


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    """NumPy draws without holding the interpreter."""
    return ThreadPoolExecutor(workers, "noise", initializer=torch.set_num_threads, initargs=(1,))


_WORTH_THREADS = 2**22
"""From so many numbers on; fewer are drawn sooner by one thread, beside which torch has others of its own."""

AHEAD = 2**18
"""About how many numbers are drawn at once for a client."""
