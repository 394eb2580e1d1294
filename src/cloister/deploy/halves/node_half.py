"""What a node computes from its own rows: what a step costs it, whether an offer is one that was agreed, its reply.

Nothing here trusts a number of the server's. Noise, prices and shares follow from the terms and the node's own rows; an
offer has a model and little else, and each part of it is checked (`expect_offer`) before anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cloister import engine as engines
from cloister.client.population import Population
from cloister.core import Samples, Tensors
from cloister.deploy.halves import asked, told
from cloister.deploy.halves.costs import account_of, cost_of, turn_of
from cloister.deploy.halves.masked import mask_settings
from cloister.deploy.halves.own_rows import Rows
from cloister.deploy.halves.prepared import Prepared, finite, prepare
from cloister.deploy.halves.schedule import expect_step, steps_of
from cloister.deploy.halves.steps import UPDATE, VALIDATION, OfferBody, ReplyBody, Step
from cloister.deploy.masking import MaskSettings
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire.canonical import JSON
from cloister.errors import CloisterError, expect
from cloister.privacy.budgets import Budget
from cloister.privacy.ledger import Charge
from cloister.privacy.unit import ProtectedUnit
from cloister.random.samplers import bernoulli_indices
from cloister.round import Engine, Offer, RoundPlan
from cloister.round.answer import total_of
from cloister.round.queries import contribution


@dataclass(frozen=True)
class NodeState:
    """What stays at a node from step to step: what its local rule keeps. It is stored with the reply."""

    kept: Tensors = field(default_factory=dict)

    def tensors(self) -> Tensors:
        """By name, this node's own row of each."""
        return dict(self.kept)

    def content(self) -> dict[str, JSON]:
        """Nothing beside the tensors."""
        return {}


class NodeHalf:
    """A node's half of a run. It computes and keeps nothing by itself: whoever uses it charges, stores and sends.

    In the order: `expect_offer`, `participates`, `charges` (to be paid and on the disk first), `answer`, and when the
    reply is stored with its state, `node_state = state`.
    """

    def __init__(self, side: Prepared, run: str, client: int, engine: Engine) -> None:
        self.side, self.run, self.client, self.engine = side, run, client, engine
        self.steps = steps_of(side)
        self.node_state = NodeState()
        self._last: tuple[OfferBody, Offer] | None = None

    @classmethod
    def of(
        cls, terms: Terms, run: str, name: str, rows: Rows, engine: str = "loop", public: Samples | None = None
    ) -> NodeHalf:
        """That of a node with its own rows; `public` are the samples that the terms name, where they do."""
        client = terms.federation.client_of(name)
        side = prepare(terms, client, (rows.inputs, rows.labels), public)
        made = engines.build(engine, side.fed, side.placed.w, None, side.request.rounds, run)
        return cls(side, run, client, made)

    @property
    def unit(self) -> str:
        """The account that this run's charges are for, as the library calls it."""
        return account_of(self.side, self.client)

    @property
    def budget(self) -> Budget | None:
        """What the terms let this run spend; where noise follows releases, with the order of its filter."""
        return self.side.budgets.get(self.unit)

    @property
    def repeatable(self) -> bool:
        """Whether a step that is computed again gives the same bits: in test mode alone."""
        return self.side.fed.streams.replays

    def restore(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Take what was stored with the last reply."""
        self.node_state = NodeState(dict(tensors))

    def participates(self, step: Step) -> bool:
        """Whether this node takes part in a step that it is asked for. Where the terms say that nodes draw, a secret
        coin of its own decides, at every call anew: draw once for a step, and keep what came out."""
        fed = self.side.fed
        if step.what != UPDATE or self.side.terms.federation.participation == "server":
            return True
        if self.side.terms.test_mode:
            clients = fed.cohort.sample(fed.streams, step.round, fed.population.clients).tolist()
            return self.client in clients
        rate = fed.cohort.expected(fed.population.clients) / fed.population.clients
        drawn = bernoulli_indices(rate, 1, lambda count, n: fed.streams.protective_uniform(count, "cohort", n))
        return len(drawn) > 0

    def masked(self, step: Step) -> MaskSettings | None:
        """How the replies to a step are summed under masks, by the terms; None where they are sent as they are."""
        return mask_settings(self.side, step)

    def expect_offer(self, offer: OfferBody) -> None:
        """Refuse an offer that was not agreed: everything that a node can check before it pays."""
        self._checked(offer)

    def charges(self, step: Step, offer: OfferBody | None) -> Charge | None:
        """What a step costs this node; None where it costs nothing.

        Where clients are protected, every elapsed round is charged, whether this node was asked or not (offer None):
        the price of a drawn cohort is that of not knowing who was in it. Where turns are public, its own turns are.
        Where samples are protected, what this node answers is charged.
        """
        expect_step(self.steps, step)
        if self.side.fed.unit is ProtectedUnit.CLIENT:
            return cost_of(self.side, self.client, step)
        if offer is None:
            return None
        expect(offer.step == step, f"an offer of {step}", str(offer.step), "charge for that one")
        return cost_of(self.side, self.client, step, self._checked(offer).noise_scale)

    def answer(self, offer: OfferBody) -> tuple[ReplyBody, NodeState]:
        """The reply to an offer that was paid for, and what stays here. Nothing is kept: `node_state` is as before."""
        fed, given = self.side.fed, self._checked(offer)
        mine = torch.tensor([self.client])
        if offer.step.what != UPDATE:
            query, step = asked.query_of(self.side, offer.step, given.w), offer.step
            fewest = self.side.terms.federation.fewest
            found = contribution(fed, query, self._people(step), [self.client], step.round, fewest)
            return ReplyBody(self.client, {}, {"message": found.cpu()}), self.node_state
        plan = RoundPlan.of(fed, given, mine, self._table())
        message, _ = total_of(plan, self.engine)
        kept = {name: table[self.client].clone() for name, table in plan.client_state.items()}
        sent = message.to(fed.encoded(given.w, given.broadcast).dtype)  # exact, of one message on a grid
        return ReplyBody(self.client, {}, {"message": sent}), NodeState(kept)

    def _table(self) -> Tensors:
        """What this node keeps, as a row among those of clients who are elsewhere."""
        clients, table = self.side.fed.population.clients, {}
        for name, row in self.node_state.kept.items():
            table[name] = row.expand(clients, *row.shape).clone()
        return table

    def _checked(self, offer: OfferBody) -> Offer:
        """The offer as a round takes it, where everything in it is what it may be; looked at once."""
        if self._last is None or self._last[0] is not offer:
            self._last = offer, self._looked_at(offer)
        return self._last[1]

    def _looked_at(self, offer: OfferBody) -> Offer:
        step, layout = offer.step, self.side.fed.objective.layout
        expect_step(self.steps, step)
        self._expect_asked(offer)
        tensors = dict(offer.tensors)
        w = tensors.pop("w", None)
        shape, like = (layout.size,), self.side.placed.w
        fine = isinstance(w, Tensor) and (tuple(w.shape), w.dtype) == (shape, like.dtype)
        expect(fine, f"a model of {layout.size} numbers of {like.dtype}", _form(w), "refuse the offer")
        assert w is not None
        expect(finite(w), "a model of finite numbers", "others", "refuse the offer")
        update = step.what == UPDATE
        known = told.received(self.side, step.round, w, tensors) if update else {}
        own = (told.PREFIX, asked.PREFIX) if update else (asked.PREFIX,)
        others = [name for name in tensors if not name.startswith(own)]
        expect(not others, "a model, and what belongs to it", sorted(others), "refuse the offer")
        asked.load_released(self.side, tensors)
        members = torch.tensor(offer.asked, dtype=torch.int64)
        scale = self._noise_scale(offer.content, update)
        return Offer(step.round, members, w.to(like.device), known, scale)

    def _people(self, step: Step) -> Population:
        """The rows that a step is about."""
        held_out = self.side.held_out
        return self.side.fed.population if step.what != VALIDATION or held_out is None else held_out

    def _noise_scale(self, content: Mapping[str, JSON], update: bool) -> float:
        """The factor on the noise of this round. It is charged as it is: less noise costs more."""
        if self.side.fed.method.noise_schedule is None or not update:
            expect(not content, "nothing beside the tensors in this offer", sorted(content), "refuse the offer")
            return 1.0
        scale = content.get("noise_scale")
        fine = set(content) == {"noise_scale"} and isinstance(scale, float) and 0 < scale <= 1
        expect(fine, "a factor on the noise above 0, at most 1", dict(content), "refuse the offer")
        assert isinstance(scale, float)
        return scale

    def _expect_asked(self, offer: OfferBody) -> None:
        """This node is among those who are asked; and it is its turn, where turns are public."""
        clients, members = self.side.fed.population.clients, offer.asked
        rising = all(type(one) is int for one in members) and list(members) == sorted(set(members))
        inside = rising and all(0 <= one < clients for one in members)
        expect(inside, f"clients 0 to {clients - 1} in rising order, each once", list(members), "refuse the offer")
        expect(self.client in members, f"an offer to client {self.client}", list(members), "refuse the offer")
        turn = turn_of(self.side, offer.step.round)
        if offer.step.what == UPDATE and self.client not in turn:
            raise CloisterError(
                f"Expected an offer in this node's own turn, found round {offer.step.round}, which is that of {turn}: "
                "refuse it, since one turn in a cycle is all that is paid for."
            )
        if self.side.fed.cohort.name in ("full", "cyclic") and self.masked(offer.step) is not None:
            remedy = "refuse the offer: among fewer, fewer who collude could open a sum than the certificate says"
            expect(list(members) == turn, f"{turn} to be asked, as the terms have it", list(members), remedy)


def _form(found: object) -> str:
    return f"{found.dtype}, {tuple(found.shape)}" if isinstance(found, Tensor) else "none"
