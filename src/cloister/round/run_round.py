"""One round is a straight line, and this is it: the server's half, and both halves one after the other.

    open_round    1 sample     who takes part
                  2 charge     the ledger, before anything is computed; raises BudgetExceededError
                  3 broadcast  what the clients are told beside the model (a shared mask, a clip)
    answer        4 local      each client's update            \\
                  5 encode     clip it, compress it, round it,  >  mapped over the cohort by an engine
                  6 share      add noise, when distributed     /
    close_round   7 aggregate  sum, by client number
                  8 noise      add noise, when central (or what is missing of the clients' shares)
                  9 decode     the transforms' server halves, in reverse order
                  10 step      server optimizer, on the sum divided by a constant

Guarantee, where clients are protected: what leaves the round depends on a client's data only through one term of the
sum, whose norm is at most the bound that the noise was scaled to. Weights are equal, or at most 1; the denominator is a
constant of the run (or the cohort's actual size, which is priced: `charges.cohort_event`).

Guarantee, where samples are: every message is private by itself, and its client has paid for it (`answer`). Who took
part is no secret then, so the sum is divided by how many they were (or, with weights, by their public sizes).

Where messages are sums over samples, and private only together (`methods/secure_sum.py`), a sum is released if it has
the messages of as many members as its noise was counted on, and is divided by the samples expected in their batches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cloister.core import MethodState, State
from cloister.errors import CloisterError, expect
from cloister.privacy.events import NoOp
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import ProtectedUnit
from cloister.round.answer import Engine, answer, names_clients, noise_share
from cloister.round.bind import Federation
from cloister.round.offer import Offer, Reply

SERVER = -1
"""The client number in whose name the server draws noise (and the numbers below, where it draws several parts)."""


class Outcome(NamedTuple):
    """The model after a round, with what the simulator saw on the way (not private: see the certificate)."""

    w: Tensor
    state: MethodState
    cohort_size: int
    nonfinite_updates: Tensor
    """How many updates were not finite; still on its way where a device computes it."""
    dropped: int = 0
    """How many members had no budget left."""
    offer: Offer | None = None
    """What was asked for ..."""
    clients: Tensor | None = None
    """... and who took part: for measurements of the same round (`engine/measure.py`)."""
    mean: Tensor | None = None
    """What the server was given to step with: the released mean, noise included."""


def run_round(fed: Federation, ledger: Ledger, engine: Engine, round: int, w: Tensor, state: MethodState) -> Outcome:
    """One round, numbered from 1, of a federation whose clients are all in this process."""
    offer = open_round(fed, ledger, round, w, state, wait=False)  # the disk has until the answer leaves
    answered = answer(fed, ledger, offer, engine, state.clients)
    w, new, mean = _closed(fed, offer, [answered.reply], state)
    state = replace(new, clients=answered.client_state)
    clients = answered.reply.clients
    return Outcome(w, state, len(clients), answered.nonfinite_updates, answered.refused, offer, clients, mean)


def open_round(fed: Federation, ledger: Ledger, round: int, w: Tensor, state: MethodState, wait: bool = True) -> Offer:
    """Who is asked, and what they are told. Where clients are protected, it is paid for, and on the disk.

    Without `wait`, the ledger reaches the disk only when `ledger.sync` returns, as it does before `answer` lets a reply
    go: for a simulator, where both have the same ledger and nothing leaves in between.
    """
    method, clients = fed.method, fed.population.clients
    members = fed.cohort.sample(fed.streams, round, clients)
    if not names_clients(members, clients):
        raise CloisterError(
            f"Expected the cohort {fed.cohort.name} to name clients 0 to {clients - 1} in rising order, "
            "each once, found something else: fix its sample function."
        )
    if fed.unit is not ProtectedUnit.SAMPLE:  # whose clients pay for themselves (`answer`)
        _charge(fed, ledger, round)
    tell, schedule = method.transform.broadcast, method.noise_schedule
    told = {} if tell is None else fed.broadcast(round, w, state.transform)
    if wait:
        ledger.sync()
    return Offer(round, members, w, told, 1.0 if schedule is None else schedule(state.server))


def _charge(fed: Federation, ledger: Ledger, round: int) -> None:
    """Charge for the round, or note that the cycle it belongs to was charged for.

    A round that is played again with other noise is a release of its own, whatever its cycle has paid.
    """
    unit, replays, event = fed.unit, fed.streams.replays, fed.event
    first = round - (round - 1) % fed.cycle
    if first < round and ledger.has_paid(unit, first) and (replays or not ledger.has_paid(unit, round)):
        event = NoOp()
    ledger.charge(unit, event, round=round, repeatable=replays)


def close_round(
    fed: Federation, offer: Offer, replies: Sequence[Reply], state: MethodState, trusted: bool = False
) -> tuple[Tensor, MethodState]:
    """The next model from the replies to an offer, which are checked unless they are this process's own.

    Messages are added by client number, so that it makes no difference in which order they came. A round is closed
    once: another sum under the same charge, or under the same noise, would be another release.
    """
    if not trusted:
        _expect_open(offer)
        replies = _checked(fed, offer, replies)
    w, state, _ = _closed(fed, offer, replies, state)
    return w, state


def _expect_open(offer: Offer) -> None:
    if offer.closed:
        raise CloisterError(
            f"Expected a round that is open, found round {offer.round}, which was closed: open another."
        )


def _closed(
    fed: Federation, offer: Offer, replies: Sequence[Reply], state: MethodState
) -> tuple[Tensor, MethodState, Tensor]:
    """The next model, the state, and the mean that the server stepped with, from replies that were checked."""
    method, w = fed.method, offer.w
    _expect_open(offer)
    offer.closed.append(True)
    total, took_part, samples = None, 0, 0.0
    for reply in replies:
        # What one node sent is rounded here once more, which changes nothing if it was: nobody has to believe it.
        message = fed.placed(reply.message) if len(reply.clients) == 1 else reply.message
        total = message if total is None else total + message
        took_part += len(reply.clients)
        samples += reply.samples
    if total is None:
        total = fed.blank(w, offer.broadcast).clone()
    total, mechanism_state = _with_server_noise(fed, offer.round, total, took_part, state.mechanism)
    total = total.to(fed.encoded(w, offer.broadcast).dtype)  # of what is released: what was on a grid may leave it
    mean, transform_state = mean_of(fed, offer, total, took_part, samples, state.transform)
    context = replace(fed.context(w, offer.broadcast), released=transform_state)
    w, server_state = method.server.update(w, mean, state.server, context)
    return w, MethodState(transform_state, mechanism_state, server_state, state.clients), mean


def mean_of(
    fed: Federation, offer: Offer, total: Tensor, took_part: int, samples: float, state: State
) -> tuple[Tensor, State]:
    """What a sum of messages stands for: decoded, and divided as sums are; and the transform's state."""
    transform = fed.method.transform
    if transform.decode is not None:
        total, state = transform.decode(total, fed.context(offer.w, offer.broadcast), state)
    averages = transform.weighting is not None and transform.weighting.averages
    return total if averages else total / divisor(fed, offer, took_part, samples), state


def divisor(fed: Federation, offer: Offer, took_part: int, samples: float) -> float:
    """What a sum is divided by. Where clients are protected it is known before anybody has answered: who does not
    answer may have stayed away because of its data. No sample has a say in how many `samples` are expected."""
    if fed.method.local.sample_l2 is not None:
        return samples or math.inf  # without samples there is nothing but noise to learn from
    if fed.unit is ProtectedUnit.SAMPLE:
        return max(took_part, 1)
    return max(len(offer.clients), 1) if fed.method.average_over == "actual" else fed.denominator


def _with_server_noise(
    fed: Federation, round: int, total: Tensor, took_part: int, state: State
) -> tuple[Tensor, State]:
    """The sum with all the noise that was paid for."""
    mechanism = fed.method.mechanism
    if mechanism.place == "central":
        noise = noise_share(fed, total, round, SERVER, 1)
        if mechanism.correlate is not None:
            noise, state = mechanism.correlate(noise, round, state)
        return total + noise, state
    if mechanism.place == "distributed":
        for number in range(mechanism.missing(took_part)):
            total = total + noise_share(fed, total, round, SERVER - number, max(took_part, 1))
    return total, state


def _checked(fed: Federation, offer: Offer, replies: Sequence[Reply]) -> list[Reply]:
    """The replies by client number; refused where one is not an answer to the offer, or is not what it may be."""
    for reply in replies:
        known = isinstance(reply, Reply) and isinstance(reply.message, Tensor) and isinstance(reply.clients, Tensor)
        known = known and names_clients(reply.clients, fed.population.clients)
        known = known and isinstance(reply.samples, float) and 0 <= reply.samples < math.inf
        known = known and (reply.message.layout, reply.message.device) == (torch.strided, offer.w.device)
        expect(known, "replies with client numbers and a message, as tensors", reply, "leave the others out")
    replies = [replace(reply, message=reply.message.detach()) for reply in replies if len(reply.clients)]
    replies.sort(key=lambda reply: int(reply.clients[0]))
    blank, asked = fed.blank(offer.w, offer.broadcast), set(offer.clients.tolist())
    numbers = [client for reply in replies for client in reply.clients.tolist()]
    twice = sorted(client for client, times in Counter(numbers).items() if times > 1)
    expect(not twice, "one reply of each client", f"several of clients {twice}", "count the first one alone")
    strangers = sorted(set(numbers) - asked)
    expect(not strangers, "replies of clients who were asked", f"others ({strangers})", "leave these out")
    distributed = fed.method.mechanism.place == "distributed"
    if distributed and fed.unit is ProtectedUnit.CLIENT and asked - set(numbers):
        raise CloisterError(
            f"Expected replies of all {len(asked)} clients, whose noise adds up to what was accounted, found "
            f"{len(numbers)}: ask again, or add the noise at the server."
        )
    honest = fed.method.mechanism.honest_fraction
    least = 0 if honest is None else math.ceil(honest * len(asked) - 1e-9)
    if len(numbers) < least:
        raise CloisterError(
            f"Expected replies of at least {least} of {len(asked)} clients, whose noise "
            f"adds up to what was accounted, found {len(numbers)}: ask again, or plan with a smaller honest_fraction."
        )
    for reply in replies:
        message, who = reply.message, reply.clients.tolist()
        alike = message.shape == blank.shape and message.dtype == blank.dtype
        expect(
            alike,
            f"a message of {blank.dtype}, {tuple(blank.shape)}",
            f"{message.dtype}, {tuple(message.shape)}",
            f"leave out what came from {who}",
        )
        expect(bool(torch.isfinite(message).all()), "finite numbers", f"others in what came from {who}", "leave it out")
        if not distributed and fed.unit is ProtectedUnit.CLIENT:  # noise in a message has no bound
            most, norm = len(who) * fed.sensitivity.l2, float(message.double().norm())
            expect(
                norm <= most * (1 + 1e-6),
                f"a message of norm at most {most:g}",
                f"{norm:g} from {who}",
                "leave it out: a client's part in the sum is what was accounted",
            )
    return replies
