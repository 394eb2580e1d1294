"""Many short runs at once with and without one canary client, for methods that protect clients.

A run is a lane of a batch. What a client sends (`message_of`: encode, clip, its share of the noise) and what the server
does with the sum (`close_round`: noise, decode, step) are the round's own functions, mapped over lanes; so is who takes
part (`Cohort.sample`). The canary's update is the attacker's choice. The others have no data, and add their noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cloister.auditing.likelihood import Seen
from cloister.auditing.worst_case import direction
from cloister.core import Context, Mechanism, Method, MethodState, ServerOptimizer, State
from cloister.core.state import flatten
from cloister.privacy.events import Gaussian
from cloister.random.streams import Streams
from cloister.round import Federation, Offer, Reply, close_round
from cloister.round.answer import Sending, message_of, noise_share

CANARY = 0
SEEN = "seen by the audit"
MANY = 10**6
"""Samples of the canary: no cap on a client's weight leaves it less than all of it."""


@dataclass
class Lanes:
    """A federation whose noise is drawn for many lanes in one call of the mechanism's own function."""

    fed: Federation
    lane: list[Tensor] = field(default_factory=list)
    """Which lane is being computed, inside of `vmap`."""
    count: int = 0
    group: str = ""
    """Which of a round's groups is being computed: each has noise of its own, or trials would not be independent."""

    @classmethod
    def of(cls, fed: Federation) -> Lanes:
        lanes = cls(fed)
        local = replace(fed.method.local, update=lambda layout, state, w: state["update"], client_state=())
        mechanism = replace(fed.method.mechanism, draw=lanes.draw_of(fed.method.mechanism))
        server = fed.method.server if fed.method.server.takes_updates else STILL
        method = replace(fed.method, local=local, mechanism=mechanism, transform=watched(fed.method), server=server)
        lanes.fed = replace(fed, method=method)
        return lanes

    def draw_of(self, mechanism: Mechanism) -> Callable[..., Tensor]:
        real = mechanism.draw

        def draw(multiplier: float, streams: Streams, like: Tensor, *rest: Any) -> Tensor:
            """The noise of all lanes in one draw, of which each takes its row."""
            blank = torch.zeros(self.count * like.numel(), dtype=like.dtype, device=like.device)
            own = replace(streams, run=f"{streams.run} {self.group}")
            table = real(multiplier, own, blank, *rest).view(self.count, like.numel())
            return table.index_select(0, self.lane[-1][None])[0]

        return draw


STILL = ServerOptimizer("still", {}, lambda w: {}, lambda w, mean, state, context: (w, state), takes_updates=False)
"""In the place of a server that trains a model of its own on what was released, which gives nothing more away."""


def watched(method: Method) -> Any:
    """The transform, whose decoding also leaves in its state what it was given: the released sum."""
    real = method.transform.decode

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        decoded, new = (total, state) if real is None else real(total, context, state)
        return decoded, {**new, SEEN: total}

    return replace(method.transform, decode=decode)


def play(
    fed: Federation, w: Tensor, rounds: int, world: Tensor, replaces: bool, tick: Callable[[], None] = lambda: None
) -> Seen:
    """So many rounds in as many lanes as `world` [lanes] has. World True: the canary's data are there; False: they are
    not, or others, as far from these as can be, are in their place (`replaces`)."""
    lanes, count = Lanes.of(fed), len(world)
    state = vars(lanes.fed.method.init(w))
    lanes.fed.blank(w, lanes.fed.broadcast(1, w, state["transform"]))  # which is kept, and so must not be a lane's
    states = {part: _spread(state[part], count) for part in ("transform", "mechanism", "server")}
    models = w.expand(count, -1).contiguous()
    update = direction(len(w), w)
    shown, clean = [], []
    for round in range(1, rounds + 1):
        row_shown = torch.zeros(count, dtype=torch.float64, device=w.device)
        row_clean = torch.zeros_like(row_shown)
        new_models, parts = torch.empty_like(models), []
        for members, inside, some in _cohorts(fed, round, count):
            own = {part: _rows(states[part], some) for part in states}
            found = _round(lanes, round, models[some], own, members, inside, update, world[some], replaces)
            new_models[some], row_shown[some], row_clean[some] = found[0], found[2], found[3]
            parts.append((some, found[1]))
        models, states = new_models, {part: _joined(parts, part, count) for part in states}
        shown.append(row_shown)
        clean.append(row_clean)
        tick()
    return Seen(torch.stack(shown), torch.stack(clean), world)


def _cohorts(fed: Federation, round: int, lanes: int) -> Iterator[tuple[int, bool, Tensor]]:
    """How many take part, whether the canary does, and in which lanes; of all groups that there are.

    Where clients are counted by nothing, all cohorts with the canary are alike, and all without it.
    """
    clients, streams, everyone = fed.population.clients, fed.streams, torch.arange(lanes)
    if isinstance(fed.cohort.event(1.0, clients), Gaussian):  # nothing is drawn: the same in all lanes
        members = fed.cohort.sample(streams, round, clients)
        yield len(members), bool((members == CANARY).any()), everyone
        return
    counted = fed.method.mechanism.place == "distributed" or fed.method.average_over == "actual"
    groups: dict[tuple[int, bool], list[int]] = {}
    for lane in range(lanes):
        members = fed.cohort.sample(replace(streams, run=f"{streams.run} lane {lane}"), round, clients)
        inside = len(members) > 0 and int(members[0]) == CANARY
        groups.setdefault((len(members) if counted else int(inside), inside), []).append(lane)
    for (size, inside), some in groups.items():
        yield size, inside, torch.tensor(some)


def _round(
    lanes: Lanes,
    round: int,
    models: Tensor,
    states: dict[str, State],
    size: int,
    inside: bool,
    update: Tensor,
    world: Tensor,
    replaces: bool,
) -> tuple[Tensor, dict[str, State], Tensor, Tensor]:
    """One round of some lanes with cohorts of one size: models, states, what was shown of the canary, with and without
    noise."""
    fed, w = lanes.fed, models
    mechanism = fed.method.mechanism
    numbers = torch.arange(size) if inside else torch.arange(1, size + 1)
    shares = mechanism.place == "distributed"
    sharing = set(numbers[: mechanism.most].tolist()) if shares else set()
    lanes.count, lanes.group = len(models), f"group {size} {inside}"
    seed = fed.streams.key(f"audit keys, {fed.streams.run}, {lanes.group}", round, len(models))
    random = torch.Generator().manual_seed(seed & (2**63 - 1))
    keys = torch.randint(2**62, (len(models),), generator=random).to(w.device)
    yes, no = torch.tensor(True, device=w.device), torch.tensor(False, device=w.device)
    many = torch.tensor(MANY, device=w.device)

    # What follows from public data and the model may follow from any model: it is the attacker's.
    keeps = bool(flatten(states["transform"]))
    told = {} if keeps else fed.broadcast(round, update * 0, states["transform"])

    def lane_round(lane: Tensor, w: Tensor, own: dict[str, State], key: Tensor, present: Tensor) -> Any:
        lanes.lane.append(lane)
        broadcast = fed.broadcast(round, w, own["transform"]) if keeps else told
        blank = fed.blank(w, broadcast)

        def sent(update: Tensor, has_data: Tensor, share: Tensor) -> Tensor:
            return message_of(fed, w, broadcast, {"update": update}, Sending(has_data, key, share, many))[0]

        silent = torch.zeros_like(blank)
        there, gone = sent(update, yes, silent), sent(-update if replaces else update, yes if replaces else no, silent)
        mine = torch.where(present, there, gone)
        total, message, clean = silent, mine, mine if inside else silent
        for number in numbers.tolist():
            share = noise_share(fed, blank, round, number, size) if number in sharing else None
            if number == CANARY:
                if share is not None:
                    with_data = present | yes if replaces else present
                    message = sent(torch.where(present, update, -update if replaces else update), with_data, share)
                total = total + message
            elif share is not None:  # who has neither data nor noise sends zeros
                total = total + sent(torch.zeros_like(update), no, share)
        offer = Offer(round, numbers, w, broadcast)
        new, after = close_round(fed, offer, [Reply(numbers, total)], MethodState(**own), trusted=True)
        own_message = message if inside else silent  # who does not take part sends nothing
        seen = own_message if fed.method.local_only else after.transform[SEEN]
        middle, half = (gone, there - gone) if not replaces else ((there + gone) / 2, (there - gone) / 2)
        length = _product(half, half).clamp(min=1e-300)
        kept = {name: value for name, value in after.transform.items() if name != SEEN}
        lanes.lane.pop()
        return (
            new,
            {"transform": kept, "mechanism": after.mechanism, "server": after.server},
            _product(seen - middle, half) / length,
            _product(clean - middle, half) / length,
        )

    arguments = (torch.arange(len(models), device=w.device), models, states, keys, world)
    found: tuple[Tensor, dict[str, State], Tensor, Tensor] = torch.func.vmap(lane_round, randomness="same")(*arguments)
    return found


def _product(one: Tensor, other: Tensor) -> Tensor:
    """The inner product in float64, also of whole numbers."""
    return (one * other).sum(dtype=torch.float64)


def _spread(state: State, count: int) -> State:
    return {
        name: _spread(value, count) if isinstance(value, dict) else value.expand(count, *value.shape).clone()
        for name, value in state.items()
    }


def _rows(state: State, some: Tensor) -> State:
    return {name: _rows(value, some) if isinstance(value, dict) else value[some] for name, value in state.items()}


def _joined(parts: list[tuple[Tensor, dict[str, State]]], part: str, count: int) -> State:
    """The states of all groups, by lane."""

    def join(states: list[Any]) -> Any:
        if isinstance(states[0], dict):
            return {name: join([state[name] for state in states]) for name in states[0]}
        whole = states[0].new_empty(count, *states[0].shape[1:])
        for (some, _), state in zip(parts, states, strict=True):
            whole[some] = state
        return whole

    joined: State = join([states[part] for _, states in parts])
    return joined


def correlation_of(fed: Federation, w: Tensor, rounds: int) -> Tensor | None:
    """How the noise of each round is made of independent draws, [rounds, rounds]; None where it is independent."""
    correlate = fed.method.mechanism.correlate
    if correlate is None:
        return None
    state: State = {}
    rows = []
    for round in range(1, rounds + 1):
        drawn = torch.zeros(rounds, dtype=torch.float64)
        drawn[round - 1] = 1
        row, state = correlate(drawn, round, state)
        rows.append(row)
    return torch.stack(rows)
