"""What clients are asked to do in a round: from the cohort to tensors that an engine can compute with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cloister.batches import Shape, exactly, plan, shape_of
from cloister.federation import Federation
from cloister.joints import State
from cloister.lots import Lots, StepNoise, draw_lots
from cloister.streams import fold


class Moment(NamedTuple):
    """Where in the run a round stands, as tensors on its device: a captured computation is fed with them."""

    number: Tensor  # the round's, from 1
    batches: Tensor  # keys: which samples make which batch, ...
    model: Tensor  # ... and for what is random in the model


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
    start: State  # [k, ...]: what each client starts with of its own

    @property
    def has_data(self) -> Tensor:
        """[k]: whether a client has a sample at all."""
        return self.phases[0].live.any(-1)


@dataclass(frozen=True)
class Turn:
    """What an engine is asked for: the sum of the messages of these clients in this round."""

    round: int
    w: Tensor
    clients: Tensor  # their numbers, on the host, by size
    cohort_size: int  # of the whole cohort, of which these may be a part
    said: State  # by the server, to every client
    sharing: frozenset[int]  # whose messages carry a share of distributed noise
    tempered: float = 1.0  # factor on the noise multipliers of private steps
    kept: State = field(default_factory=dict)  # what clients keep from round to round: a row for each client there is

    @classmethod
    def of(
        cls, fed: Federation, round: int, w: Tensor, cohort: Tensor, said: State, state: State | None = None
    ) -> Turn:
        """That of a whole cohort; clients of like size go together."""
        by_size = cohort[fed.population.counts[cohort].argsort(stable=True)]
        mechanism = fed.method.mechanism
        sharing = cohort.sort().values[: mechanism.most] if mechanism.place == "distributed" else cohort[:0]
        kept = {name: table.clone() for name, table in fed.kept(w, state or {}).items()}
        tempered = fed.tempered(state or {})
        return cls(round, w, by_size, len(cohort), said, frozenset(sharing.tolist()), tempered, kept)

    def keys(self, fed: Federation) -> list[int]:
        """The round's keys, in the order of a `Moment`."""
        return [fed.streams.key(purpose, self.round) for purpose in ("batches", "model")]

    def moment(self, fed: Federation) -> Moment:
        """Where in the run this is."""
        number = torch.tensor(float(self.round), dtype=torch.float64, device=self.w.device)
        return Moment(number, *torch.tensor(self.keys(fed), device=self.w.device))

    def shares(self, fed: Federation, clients: Tensor) -> Tensor:
        """The parts of the noise that some of the clients add, [k, m]; [k, 0] where clients add none."""
        mechanism = fed.method.mechanism
        if mechanism.place != "distributed":
            return self.w.new_empty(len(clients), 0)
        like = fed.blank(self.w, self.said)
        return torch.stack(
            [
                mechanism.share(fed.streams, like, fed.bound, self.round, client, self.cohort_size)
                if client in self.sharing
                else torch.zeros_like(like)
                for client in clients.tolist()
            ]
        )

    def lots(self, fed: Federation, clients: Tensor, places: int) -> list[Lots | None]:
        """The secret lots of each phase, where it has some."""
        sizes = fed.population.counts[clients].tolist()
        return [
            draw_lots(
                fed.streams, self.round, number, phase.batching, clients.tolist(), sizes, places, not self.w.is_cuda
            )
            if phase.batching.lots
            else None
            for number, phase in enumerate(fed.method.local.phases)
        ]

    def noise(self, fed: Federation, clients: Tensor, places: int) -> StepNoise | None:
        """The noise of private steps, which draws it as it is asked for; None where steps have none."""
        private = fed.method.local.private
        if private is None:
            return None
        like = self.w.new_empty(private.draws(self.w.shape[0]))
        sizes, batching = fed.population.counts[clients].tolist(), fed.method.local.batching
        sources = [
            (client, fed.noise_of(client) * self.tempered, batching.steps_for(size))
            for client, size in zip(clients.tolist(), sizes, strict=True)
        ]
        return StepNoise(fed.streams, self.round, sources, like, places)

    def remember(self, clients: Tensor, states: State) -> None:
        """Keep what clients want to keep; not of one whose numbers are no longer finite."""
        for name, table in self.kept.items():
            rows = clients.to(table.device)
            new = states[name][: len(rows)]
            sound = torch.isfinite(new).flatten(1).all(1).view(-1, *[1] * (new.dim() - 1))
            table[rows] = torch.where(sound, new, table[rows])


def shapes_of(fed: Federation, clients: Tensor, up: Callable[[int], int] = exactly) -> tuple[Shape, ...]:
    """The shape of each phase for these clients."""
    found: list[Shape] = []
    for phase in fed.method.local.phases:
        again = phase.batching.again
        found.append(
            found[-1]._replace(steps=min(found[-1].steps, 1))
            if again
            else shape_of(fed.population.counts[clients], phase.batching, up)
        )
    return tuple(found)


def ragged(shapes: tuple[Shape, ...]) -> bool:
    """Whether steps occur that are not every client's."""
    return any(shape.ragged for shape in shapes)


def work_of(
    fed: Federation,
    shapes: tuple[Shape, ...],
    moment: Moment,
    w: Tensor,
    clients: Tensor,
    shares: Tensor,
    lots: list[Lots | None] | None = None,
    kept: State | None = None,
) -> Work:
    """The work of some clients in some round, padded to shapes. Clients, shares and what is kept are on the device."""
    own, batch_key = fold(moment.model, clients), fold(moment.batches, clients)
    first = lots[0] if lots else None
    if first is not None and first.keys.shape[1]:  # secret, as all that is random about lots
        own = fold(first.keys[:, 0].to(clients.device), _OF_THE_ROUND)
    phases: list[Batches] = []
    for number, (phase, shape) in enumerate(zip(fed.method.local.phases, shapes, strict=True)):
        drawn = lots[number] if lots else None
        if drawn is not None:
            phases.append(_of_lots(fed, drawn, w, clients))
            continue
        step = torch.arange(shape.steps, device=clients.device)
        keys = fold((fold(own, -1 - number) if number else own)[:, None], step)
        if phase.batching.again:
            phases.append(_last_again(phases[-1], keys))
        else:
            shuffle = fold(batch_key, -1 - number) if number else batch_key
            batches = plan(fed.population, phase.batching, shape, clients, shuffle)
            count, live = batches.mask.sum(2).clamp(min=1), batches.mask.any(2)
            phases.append(Batches(batches.samples, batches.mask, count, keys, live))
    return Work(tuple(phases), own, shares, _start(fed, w, own, kept or {}))


_OF_THE_ROUND = -2
"""Below the positions of steps and of what transforms fold into a key."""


def _start(fed: Federation, w: Tensor, keys: Tensor, kept: State) -> State:
    local = fed.method.local
    return {**(torch.func.vmap(partial(local.own, w))(keys) if local.own else {}), **kept}


def _of_lots(fed: Federation, lots: Lots, w: Tensor, clients: Tensor) -> Batches:
    """Lots as batches. Places that are filled up repeat a sample of the same client."""
    device, starts, steps = clients.device, fed.population.starts[clients], lots.samples.shape[1]
    samples = (lots.samples.to(device) + starts[:, None, None]).clamp(max=max(len(fed.population.labels) - 1, 0))
    live = torch.arange(steps, device=device) < lots.steps.to(device)[:, None]
    count = lots.expected.clamp(min=torch.finfo(w.dtype).tiny).to(device, w.dtype)
    divisor = count[:, None].expand(-1, steps)
    return Batches(samples, lots.mask.to(device), divisor, lots.keys.to(device), live)


def _last_again(before: Batches, keys: Tensor) -> Batches:
    """The last batch of every client."""
    last = (before.live.sum(1) - 1).clamp(min=0)
    wide = last[:, None, None].expand(-1, keys.shape[1], before.samples.shape[2])
    count, live = (
        column.gather(1, last[:, None].expand(-1, keys.shape[1])) for column in (before.divisor, before.live)
    )
    return Batches(before.samples.gather(1, wide), before.mask.gather(1, wide), count, keys, live)
