"""Many short runs at once with and without one canary sample, for methods that protect single samples.

A lane is a client, whose messages are private by themselves; or, where only a sum is private, the clients of one sum.
The engine's own program trains all of them at once: secret batches, clipped gradients, noise in the steps or in the
shares. All samples but the canary have no gradient, and the canary's is far longer than the clip.

The server is the attacker here, who may send any model: it sends the same in every round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cloister.auditing.likelihood import Seen
from cloister.auditing.worst_case import FAR
from cloister.client.batches import shapes_of
from cloister.client.population import Population
from cloister.core import Tensors
from cloister.engine.chunking import ChunkProgram
from cloister.engine.compilation import Compiled, traced
from cloister.round import Federation, Offer, RoundPlan
from cloister.server.cohorts import full

_PATIENCE = 4
"""How often a step is computed before it is traced."""


class Messages(ChunkProgram):
    """A chunk of clients as an engine computes it, whose messages are not added up."""

    def together(self, messages: Tensor) -> Tensor:
        """Each of them."""
        return messages


@dataclass(frozen=True)
class Lanes:
    """So many clients a lane, the first of which may have the canary among its samples."""

    fed: Federation
    clients: int
    """In a lane."""

    @classmethod
    def of(cls, fed: Federation, world: Tensor, replaces: bool) -> Lanes:
        """World True: the canary is there; False: it is not, or another, as far from it as can be, is in its place."""
        summed = fed.method.mechanism.settings.get("trust") == "sum"
        clients, size = fed.population.clients if summed else 1, int(fed.population.counts[0])
        sizes = torch.tensor([size, *[1] * (clients - 1)]).repeat(len(world))
        starts = sizes.cumsum(0) - sizes
        width, like = fed.population.inputs.shape[1], fed.population.inputs
        inputs = torch.zeros(int(sizes.sum()), width, dtype=like.dtype, device=like.device)
        signs = torch.randint(2, (width,), generator=torch.Generator().manual_seed(1)) * 2.0 - 1
        canary = (FAR * signs).to(like)
        inputs[starts[::clients][world.cpu()].to(like.device)] = canary
        if replaces:
            inputs[starts[::clients][~world.cpu()].to(like.device)] = -canary
        labels = torch.zeros(len(inputs), dtype=torch.int64, device=like.device)
        people = Population(inputs, labels, starts.to(like.device), sizes.to(like.device))
        own = fed.multipliers[:1] * len(sizes) if fed.multipliers else ()
        return cls(replace(fed, population=people, cohort=full(), multipliers=own), clients)


@dataclass
class Player:
    """Plays lanes; what the engine's program compiled for some serves the next."""

    rounds: int
    tick: Callable[[], None] = lambda: None
    towards: list[Tensor] | None = None
    """By round: what the canary adds to a message on average, found on runs of its own."""
    middle: list[Tensor] = field(default_factory=list)
    """By round: a message without the canary."""
    public: Federation | None = None
    """Whose broadcasts all runs share (a rotation, a mask): they are public, and the canary points where they say."""

    def play(self, fed: Federation, w: Tensor, world: Tensor, replaces: bool) -> Seen:
        """So many rounds in as many lanes as `world` [lanes] has; the first time, also without noise."""
        lanes = Lanes.of(fed, world, replaces)
        first = self.towards is None
        self.public = self.public or fed
        seen = self.messages(lanes, w, noise=True)
        if first:
            silent = self.messages(lanes, w, noise=False)
            self.towards = [row[world].mean(0) - row[~world].mean(0) for row in silent]
            self.middle = [row[~world].mean(0) for row in silent]
        assert self.towards is not None
        clean = self._projected(silent) if first else torch.empty(0, dtype=torch.float64)
        return Seen(self._projected(seen), clean, world)

    def _projected(self, messages: list[Tensor]) -> Tensor:
        """How far every message points to the canary: from 0 (not there) to 1, if it was in every batch."""
        assert self.towards is not None
        rows = [
            ((row - middle) * towards).sum(1) / towards.square().sum().clamp(min=1e-300)
            for row, towards, middle in zip(messages, self.towards, self.middle, strict=True)
        ]
        return torch.stack(rows)

    def messages(self, lanes: Lanes, w: Tensor, noise: bool) -> list[Tensor]:
        """By round: what each lane releases, [lanes, m], in float64."""
        fed, method = lanes.fed, lanes.fed.method
        everybody = torch.arange(fed.population.clients)
        kept: Tensors = {}
        found = []
        shapes = shapes_of(fed.population.counts, method.local)
        program = Messages(fed, any(s.ragged for s in shapes), lambda step: Compiled(step, traced, _PATIENCE))
        state = method.init(w)
        for round in range(1, self.rounds + 1):
            broadcast = (self.public or fed).broadcast(round, w, state.transform)
            offer = Offer(round, everybody, w, broadcast, 1.0 if noise else 0.0)
            shared = method.mechanism.place == "distributed" and noise
            sharing = frozenset(everybody.tolist()) if shared else frozenset()
            kept = fed.client_state(w, kept) if method.local.client_state else {}
            plan = RoundPlan(fed, offer, everybody, lanes.clients, sharing, kept)
            chunk, drawn = plan.chunk(everybody), plan.drawn(everybody, len(everybody))
            (messages, _), states = program.total(fed.population, chunk, shapes, drawn)
            plan.remember(everybody, states)
            kept = plan.client_state
            found.append(messages.double().view(-1, lanes.clients, messages.shape[1]).sum(1))
            self.tick()
        return found
