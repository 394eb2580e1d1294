"""What a round's updates and gradients looked like before they were clipped: exact, and so NOT PRIVATE.

The round is over when this is called, and is not touched: the cohort's work is done once more, one client after the
other, by the functions and with the keys of the round. So the updates are those of the round: to the bit where the
`Loop` computed it, up to rounding elsewhere. That needs draws that can be repeated, which those of the system cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from cloister.client.batches import Work, shapes_of, work_of
from cloister.core import Batch, Tensors
from cloister.core.precision import multiplying
from cloister.engine.loop import autograd, trained
from cloister.engine.update_sums import Sent
from cloister.errors import CloisterError
from cloister.round import Federation, RoundPlan
from cloister.round.answer import Advance, Sending, message_of, steps_of


@dataclass(frozen=True)
class Measured:
    """One client of a round. Nothing of it is private."""

    client: int
    finite: bool
    """Whether its update is; if not, it counted as zero, and has no norm."""
    norm: float
    """Of what is clipped: of the update, or of what the transforms before the clip leave of it."""
    clip_norm: float | None
    """The norm to which updates are clipped, where they are."""
    factor: float
    """min(1, clip_norm / norm); 1 where nothing is clipped."""
    gradient_norms: Tensor
    """Of the samples in the batches of its steps, before clipping, where that was asked for."""
    gradient_factors: Tensor
    """min(1, C / norm) of each, where every step clips them by their norm."""


Watch = Callable[[int, Sent], None]
"""Is shown the update of one client after the other, with its number."""


def measure(plan: RoundPlan, gradients: bool = False, watch: Watch | None = None) -> Iterator[Measured]:
    """The clients of a plan who have data, one after the other; `gradients`: also those of single samples.

    `watch` is shown every update that is finite, and its message, as they are WITHOUT noise. Where the noise is in the
    steps, the client is trained once more for that, with the same batches and no noise.
    """
    fed, local = plan.fed, plan.fed.method.local
    if fed.streams.secure:
        raise CloisterError(
            "Expected draws that can be repeated, to measure a round that is over, found those of the system: use a "
            "simulation (secure_rng = false)."
        )
    plan = replace(plan, sharing=frozenset())  # what is measured has no share of the noise in it yet
    with_data = plan.clients[fed.population.counts[plan.clients] > 0]
    for client in with_data[:, None]:
        chunk, drawn = plan.chunk(client), plan.drawn(client, 1).batches
        work = work_of(fed.population, local, shapes_of(fed.population.counts[client], local), chunk, drawn)
        norms: list[Tensor] = []
        factors: list[Tensor] = []
        steps = steps_of(fed, autograd, False)
        if gradients:
            steps[0] = partial(_watched, fed, steps[0], norms, factors)
        with multiplying(fed.precision, plan.offer.w.device):
            state, own = trained(plan, steps, chunk, work, bool(drawn), False, 0)
            found = _measured(plan, int(client), state, own, _joined(norms), _joined(factors))
            if watch is not None and found.finite:
                if local.private is not None:
                    silent = replace(plan, offer=replace(plan.offer, noise_scale=0.0))
                    state, own = trained(silent, steps_of(fed, autograd, False), chunk, work, bool(drawn), False, 0)
                watch(int(client), _sent(plan, state, own))
        yield found


def _sent(plan: RoundPlan, state: Tensors, work: Work) -> Sent:
    """What a client would send without noise, and what it is made of."""
    fed, w, transform = plan.fed, plan.offer.w, plan.fed.method.transform
    update = fed.method.local.update(fed.objective.layout, state, w)
    message, _ = message_of(fed, w, plan.offer.broadcast, state, Sending.of(work))
    context = fed.context(w, plan.offer.broadcast, work.key, work.samples)
    error = None if transform.clip_error is None else transform.clip_error(update, context)
    weighs = next((part for part in transform.parts or (transform,) if part.weighting is not None), None)
    weight = 1.0 if weighs is None else float(weighs.encode(update.new_ones(2), context)[0])
    return Sent(update, weight, message, error)


def _measured(plan: RoundPlan, client: int, state: Tensors, work: Work, norms: Tensor, factors: Tensor) -> Measured:
    fed, w, clipped = plan.fed, plan.offer.w, plan.fed.method.transform.clipped
    update = fed.method.local.update(fed.objective.layout, state, w)
    finite = bool(torch.isfinite(update).all())
    update = update if finite else torch.zeros_like(update)
    if clipped is None:
        norm, clip_norm, factor = float(torch.linalg.vector_norm(update.double())), None, 1.0
    else:
        found = clipped(update, fed.context(w, plan.offer.broadcast, work.key))
        norm, clip_norm, factor = (float(value) for value in found)
    return Measured(client, finite, norm, clip_norm, factor, norms, factors)


def _watched(
    fed: Federation,
    step: Advance,
    norms: list[Tensor],
    factors: list[Tensor],
    w: Tensor,
    round: Tensor,
    state: Tensors,
    batch: Batch,
) -> Tensors:
    """A step of training, and the norms of its samples' gradients where the step starts from."""
    local = fed.method.local
    here = state.get("w", w)  # of a single gradient there is no other
    found = replace(fed.objective, grad=autograd).clipped(here, batch, 1.0, state.get("active"))[1]
    real = found[batch.mask].double().cpu()
    norms.append(real)
    constant = local.sample_l2 if local.private is None else local.private.clip_norm
    if (constant is not None or "threshold" in state) and local.settings.get("clipping") == "norm":
        limit = float(state["threshold"][0]) if "threshold" in state else constant
        assert limit is not None
        factors.append(
            torch.where(real <= limit, 1.0, limit / real).nan_to_num(0.0)
        )  # what is no number counts as zero
    return step(w, round, state, batch)


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)
