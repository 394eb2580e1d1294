"""What a server computes: who is asked, what they are told, and the next model from their replies. It has no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloister.core import MethodState, Samples, State
from cloister.deploy.halves import asked, checks, told
from cloister.deploy.halves.masked import centered, mask_settings
from cloister.deploy.halves.model_files import write_model
from cloister.deploy.halves.prepared import Prepared, declared_sizes, prepare
from cloister.deploy.halves.progress import Progress
from cloister.deploy.halves.schedule import steps_of
from cloister.deploy.halves.shares import is_secret_sum
from cloister.deploy.halves.steps import UPDATE, VALIDATION, OfferBody, ReplyBody, Step
from cloister.deploy.masking import MaskSettings
from cloister.deploy.terms.terms import Terms
from cloister.errors import CloisterError, expect
from cloister.privacy.budgets import Budget
from cloister.privacy.events import NoOp
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.unit import ProtectedUnit
from cloister.round import SERVER, Offer, Reply, close_round
from cloister.round.answer import noise_share
from cloister.round.queries import closed, received


class ServerHalf:
    """The server's half of a run. It computes and keeps nothing by itself: whoever uses it charges, stores and sends.

    In the order: `next_step`, `members`, `charges` (to be paid and on the disk before anything leaves), `offer`, then
    `check` for each reply, and `close` (or `close_masked`, or `skip`), which moves `progress` on.
    """

    def __init__(self, side: Prepared, run: str) -> None:
        self.side, self.run, self.steps = side, run, steps_of(side)
        w = side.placed.w
        self.progress = Progress(w, side.fed.method.init(w))
        self._known: tuple[tuple[Step, int], State] | None = None
        self._sound: list[tuple[OfferBody, ReplyBody]] = []
        """Replies to the offer that is open which were checked."""

    @classmethod
    def of(cls, terms: Terms, run: str, public: Samples | None = None) -> ServerHalf:
        """That of a run under these terms; `public` are the samples that the terms name, where they do."""
        return cls(prepare(terms, public=public), run)

    @property
    def terms(self) -> Terms:
        return self.side.terms

    @property
    def unit(self) -> ProtectedUnit:
        """Whom the method protects: accounts of samples are the nodes' own."""
        return self.side.fed.unit

    @property
    def budgets(self) -> dict[str, Budget]:
        """What the terms let the server's accounts spend; none where samples are protected."""
        return self.side.budgets if self.unit is ProtectedUnit.CLIENT else {}

    @property
    def repeatable(self) -> bool:
        """Whether a step that is computed again gives the same bits: in test mode alone."""
        return self.side.fed.streams.replays

    def restore(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self.progress, self._known = Progress.restored(content, tensors), None
        asked.load_released(self.side, {f"{asked.PREFIX}{n}": one for n, one in self.progress.released.items()})

    def next_step(self) -> Step | None:
        """What is to be asked next; None at the end."""
        at = self.progress
        return None if at.stopped is not None or at.next >= len(self.steps) else self.steps[at.next]

    def members(self, step: Step) -> tuple[int, ...]:
        """Who is asked: drawn anew at every call, from the system unless in test mode.

        Where a sum needs more replies than a cohort has members, all are asked: such cohorts hide nobody (they are
        full, or those of methods that protect samples, whose price does not count on who takes part).
        """
        clients = self.terms.clients
        if step.what != UPDATE or self.terms.federation.participation == "node":
            return tuple(range(clients))
        fed = self.side.fed
        drawn = tuple(fed.cohort.sample(fed.streams, step.round, clients).tolist())
        too_few = is_secret_sum(fed.method) and len(drawn) < self.terms.federation.fewest
        return tuple(range(clients)) if too_few else drawn

    def charges(self, step: Step) -> dict[str, Charge]:
        """What the server's ledger is charged for a step; nothing where nodes pay from their own accounts."""
        fed = self.side.fed
        if fed.unit is ProtectedUnit.SAMPLE:
            return {}
        if step.what != UPDATE:
            charge = asked.charge_of(self.side, step, fed.unit, asked.sizes_asked(self.side, step))
            return {} if charge is None else {fed.unit: charge}
        first = (step.round - 1) % fed.cycle == 0
        return {fed.unit: Charge(fed.event if first else NoOp())}

    def offer(self, step: Step, members: tuple[int, ...]) -> OfferBody:
        """What those are told who are asked."""
        at, fed = self.progress, self.side.fed
        tensors = {f"{asked.PREFIX}{name}": one for name, one in at.released.items()}
        if step.what != UPDATE:
            return OfferBody(step, tuple(members), {}, {"w": at.newest, **tensors})
        tensors |= {"w": at.w}
        tensors |= told.sent(self.side, self._told(step))
        schedule = fed.method.noise_schedule
        content = {} if schedule is None else {"noise_scale": schedule(at.state.server)}
        return OfferBody(step, tuple(members), content, tensors)

    def min_replies(self, step: Step, offer: OfferBody) -> int:
        """How many replies a step needs to be released.

        Where clients share the noise, as many as it is counted on. Otherwise all noise is there anyway, and a cohort
        that was drawn smaller may be released if all of it answered.
        """
        federation = self.terms.federation
        if is_secret_sum(self.side.fed.method):
            return federation.fewest
        return min(1 if federation.min_replies is None else federation.min_replies, len(offer.asked))

    def fewest(self, step: Step) -> int:
        """How many nodes have to be able to reply for a step to be released at all, whoever is drawn."""
        federation, fed = self.terms.federation, self.side.fed
        if is_secret_sum(fed.method):
            return federation.fewest
        known = step.what != UPDATE or federation.participation == "node" or fed.cohort.name in ("full", "fixed_size")
        if not known or federation.min_replies is None:
            return 1
        everybody = step.what != UPDATE or federation.participation == "node"
        asked = federation.clients if everybody else round(fed.cohort.expected(federation.clients))
        return min(federation.min_replies, asked)

    def masked(self, step: Step) -> MaskSettings | None:
        """How the replies to a step are summed under masks; None where they are sent as they are."""
        return mask_settings(self.side, step)

    def check(self, step: Step, offer: OfferBody, reply: ReplyBody) -> None:
        """Refuse a reply that is none to this offer, or is not what it may be. Looked at once."""
        self._expect_next(step)
        if any(offered is offer and one is reply for offered, one in self._sound):
            return
        self._expect_sound(step, offer, reply)
        self._sound = [*(pair for pair in self._sound if pair[0] is offer), (offer, reply)]

    def _expect_sound(self, step: Step, offer: OfferBody, reply: ReplyBody) -> None:
        checks.expect_asked(offer, reply)
        if step.what == UPDATE:
            sent = self.side.fed.encoded(self.progress.w, {})
            checks.expect_message(reply, sent, checks.largest_norm(self.side))
            checks.expect_weight(self.side, reply)
            return
        query = asked.query_of(self.side, step, self.progress.newest)
        most = checks.largest_answer(self.side, query, asked.sizes_asked(self.side, step)[reply.client])
        checks.expect_message(reply, torch.zeros(query.numbers, dtype=torch.float64), most)

    def close(self, step: Step, offer: OfferBody, replies: Sequence[ReplyBody]) -> None:
        """The next model from replies, which are checked unless they were, and added by client number."""
        least = self.min_replies(step, offer)
        expect(len(replies) >= least, f"replies of {least} nodes at least", len(replies), "skip the step")
        clients = [reply.client for reply in replies]
        expect(len(set(clients)) == len(clients), "one reply of each node", clients, "count the first one alone")
        for reply in replies:
            self.check(step, offer, reply)
        self._sound = []
        replies = sorted(replies, key=lambda reply: reply.client)
        if step.what != UPDATE:
            self._answered(step, replies)
            return
        found = [
            Reply(torch.tensor([reply.client]), reply.tensors["message"], self._expected([reply.client]))
            for reply in replies
        ]
        self._close(step, offer, found)

    def close_masked(
        self, step: Step, offer: OfferBody, total: Tensor, survivors: tuple[int, ...], samples: float = 0.0
    ) -> None:
        """The next model from a sum that masks hid the parts of. Nothing but its form can be checked.

        How many samples it stands for follows from declared sizes, so that `samples` is not used.
        """
        settings = self.masked(step)
        if settings is None:
            raise CloisterError(f"Expected replies one by one to {step}, found a masked sum: close it with them.")
        least = self.min_replies(step, offer)
        expect(len(survivors) >= least, f"a sum of {least} replies at least", len(survivors), "skip the step")
        known = list(survivors) == sorted(set(survivors)) and set(survivors) <= set(offer.asked)
        expect(known, f"survivors among {list(offer.asked)}, in rising order", list(survivors), "open the sum again")
        blank = self._blank()
        expect(total.shape == blank.shape, f"a sum of {len(blank)} numbers", tuple(total.shape), "open the sum again")
        found = centered(total, settings.bits)
        self._close(step, offer, [Reply(torch.tensor(survivors), found, self._expected(survivors))])

    def skip(self, step: Step) -> None:
        """Go on with the model as it is: the step was charged, and is not released."""
        self._expect_next(step)
        self._sound = []
        at = self.progress
        state = self._without_release(step) if step.what == UPDATE else at.state
        self.progress = replace(at, state=state, next=at.next + 1, skipped=(*at.skipped, at.next))

    def _without_release(self, step: Step) -> MethodState:
        """What the method keeps after a round that is not released.

        Noise that is correlated over rounds is drawn all the same: as if the round had been released and nobody had
        looked. Otherwise later noise would cancel against other rounds than was priced.
        """
        at, fed = self.progress, self.side.fed
        mechanism = fed.method.mechanism
        if mechanism.place != "central" or mechanism.correlate is None:
            return at.state
        drawn = noise_share(fed, self._blank(), step.round, SERVER, 1)
        _, kept = mechanism.correlate(drawn, step.round, at.state.mechanism)
        return replace(at.state, mechanism=kept)

    def model_files(self, folder: str | Path, ledger: Ledger | None = None) -> tuple[Path, ...]:
        """Write the model, with a certificate, into a folder of its own, which `cloister.load` reads.

        `ledger` is the server's, where clients are protected.
        """
        return write_model(self.side, self.progress, Path(folder), ledger)

    def _close(self, step: Step, offer: OfferBody, replies: Sequence[Reply]) -> None:
        self._expect_next(step)
        at, side = self.progress, self.side
        known = self._told(step)
        members = torch.tensor(offer.asked, dtype=torch.int64)
        w, state = close_round(side.fed, Offer(step.round, members, at.w, known), replies, at.state, trusted=True)
        kept = side.selection.averaged(at.kept, step.round, w)
        self.progress = replace(at, w=w, state=state, kept=kept, next=at.next + 1)

    def _answered(self, step: Step, replies: Sequence[ReplyBody]) -> None:
        """What a query found: how inputs are seen from now on, or how well the model does."""
        at, side = self.progress, self.side
        query = asked.query_of(side, step, at.newest)
        total = torch.zeros(query.numbers, dtype=torch.float64)
        for reply in replies:
            total = total + received(side.fed, query, reply.tensors["message"])
        clients, sizes = [reply.client for reply in replies], asked.sizes_asked(side, step)
        found = closed(side.fed, query, total, clients, sizes, step.round, side.terms.federation.fewest)
        if step.what != VALIDATION:
            released = {**at.released, **asked.released_by(side, step, found)}
            self.progress = replace(at, next=at.next + 1, released=released)
            return
        kept = side.selection.judged(at.kept, step.round, at.newest, float(found.mean))
        over = side.selection.why_over(kept, step.round)
        stopped = over if step.round < side.request.rounds else None
        self.progress = replace(at, next=at.next + 1, kept=kept, stopped=stopped)

    def _told(self, step: Step) -> State:
        """What clients know in a round beside the model; computed once, for it may take some training."""
        if self._known is None or self._known[0] != (step, self.progress.next):
            at = self.progress
            made = told.told_by(self.side, step.round, at.w, at.state.transform)
            self._known = (step, at.next), made
        return self._known[1]

    def _expected(self, clients: Sequence[int]) -> float:
        """How many samples batches of these clients are expected to have, by declared sizes."""
        local, sizes = self.side.fed.method.local, declared_sizes(self.terms)
        if local.sample_l2 is None or sizes is None:
            return 0.0
        return sum((local.batching.expected(sizes[client]) for client in clients), 0.0)

    def _blank(self) -> Tensor:
        return self.side.fed.blank(self.progress.w, {})  # made once, when parts were found to fit one another

    def _expect_next(self, step: Step) -> None:
        if step != self.next_step():
            raise CloisterError(f"Expected the step {self.next_step()}, found {step}: each is closed once, in order.")
