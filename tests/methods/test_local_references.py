"""BLUR, LUS, SAM and FedProx against plain loops: every client's message, and models over rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from references import (
    CLIENTS,
    FLAT,
    SINGLE,
    TIED,
    Blur,
    Direction,
    Message,
    Named,
    asam,
    batches_of,
    check_messages,
    check_rounds,
    clipped,
    data_of,
    federated,
    flat,
    gradient,
    largest_of_all,
    norm,
    normal,
    only_largest,
    plain,
    proximal,
    sam,
    summed,
    trained,
)
from torch import Tensor

import cloister as cl
from cloister.engine import Loop
from cloister.round import cohort_total
from cloister.round.bind import Federation

CLIP, LR = 0.3, 0.4
RULE = {"lr": LR, "batch_size": 4, "local_epochs": 3}
HEAVY = {"momentum": 0.5, "weight_decay": 0.01, "lr_decay": 0.9}
OFFICIAL = {"momentum": 0.5, "weight_decay": 5e-4, "lr_decay": 0.998}

Sparse = Callable[[Federation, int, int, Named, Named], Named]
"""(federation, round, client, w at the end, update) -> update"""
Select = Callable[[Named, Named, Fraction, str], Named]


def lus(
    importance: str = "all", ties: str = "keep", kept: Fraction = Fraction(3, 10), select: Select = only_largest
) -> Sparse:
    def of(fed: Federation, round: int, client: int, w: Named, update: Named) -> Named:
        data = data_of(fed, client) if importance == "all" else batches_of(fed, round, client)[-1]
        g = gradient(w, data)
        return select(update, {n: g[n] * update[n] for n in w}, kept, ties)

    return of


def top_k(ties: str = "keep", select: Select = only_largest) -> Sparse:
    return lambda fed, round, client, w, update: select(update, update, Fraction(2, 5), ties)


def dense(fed: Federation, round: int, client: int, w: Named, update: Named) -> Named:
    return update


def whole(update: Named) -> Tensor:
    return clipped(flat(update), CLIP)


def each_tensor(update: Named) -> Tensor:
    return flat({n: clipped(u.flatten(), CLIP) for n, u in update.items()})


def message_by(
    direction: Direction, sparse: Sparse = dense, clip_norm: Callable[[Named], Tensor] = whole, **rule: float
) -> Message:
    """Local training -> mask -> clip."""

    def of(fed: Federation, round: int, client: int, start: Named) -> Tensor:
        lr = LR * rule.get("lr_decay", 1.0) ** (round - 1)
        how = {"momentum": rule.get("momentum", 0.0), "decay": rule.get("weight_decay", 0.0)}
        w = trained(start, batches_of(fed, round, client), direction, lr, **how)
        return clip_norm(sparse(fed, round, client, w, {n: w[n] - start[n] for n in w}))

    return of


SAM = {**RULE, "rho": 0.5, "clip_norm": CLIP}
CASES = {
    "blur": (cl.methods.blur(CLIP, **RULE), message_by(Blur(0.4, CLIP))),
    "blur, heavy": (cl.methods.blur(CLIP, blur_lambda=2.0, **RULE, **HEAVY), message_by(Blur(2.0, CLIP), **HEAVY)),
    "lus": (cl.methods.lus(CLIP, **RULE), message_by(plain, lus())),
    **{  # of layers with 5, 30 and 15 numbers: 3, 15 and 8; 1 (of a half), 3 and 2; 1 (of a quarter), 2 and 1
        f"lus, {kept} of it": (cl.methods.lus(CLIP, float(1 - kept), **RULE), message_by(plain, lus(kept=kept)))
        for kept in (Fraction(1, 2), Fraction(1, 10), Fraction(1, 20))
    },
    "lus, heavy": (cl.methods.lus(CLIP, **RULE, **HEAVY), message_by(plain, lus(), **HEAVY)),
    "lus, first": (
        cl.methods.lus(CLIP, ties="first", **RULE, **HEAVY),
        message_by(plain, lus("all", "first"), **HEAVY),
    ),
    "lus, batch": (
        cl.methods.lus(CLIP, importance="batch", **RULE, **HEAVY),
        message_by(plain, lus("batch"), **HEAVY),
    ),
    "blur_lus": (cl.methods.blur_lus(CLIP, **RULE, **HEAVY), message_by(Blur(0.4, CLIP), lus(), **HEAVY)),
    "blur_lus, batch, first": (
        cl.methods.blur_lus(CLIP, importance="batch", ties="first", **RULE, **HEAVY),
        message_by(Blur(0.4, CLIP), lus("batch", "first"), **HEAVY),
    ),
    "dp_fedsam": (cl.methods.dp_fedsam(**SAM), message_by(asam(0.5), **OFFICIAL)),
    "dp_fedsam, plain": (cl.methods.dp_fedsam(**SAM, sam="plain"), message_by(sam(0.5), **OFFICIAL)),
    "dp_fedsam, as published": (
        cl.methods.dp_fedsam(**SAM, mode="as_published"),
        message_by(asam(0.5), clip_norm=each_tensor, **OFFICIAL),
    ),
    "dp_fedsam_top_k, A": (cl.methods.dp_fedsam_top_k(**SAM), message_by(asam(0.5), top_k(), **OFFICIAL)),
    "dp_fedsam_top_k, A, first": (
        cl.methods.dp_fedsam_top_k(**SAM, ties="first"),
        message_by(asam(0.5), top_k("first"), **OFFICIAL),
    ),
    **{
        f"dp_fedsam_top_k, A, model, {ties}": (
            cl.methods.dp_fedsam_top_k(**SAM, ties=ties, scope="model"),
            message_by(asam(0.5), top_k(ties, largest_of_all), **OFFICIAL),
        )
        for ties in ("keep", "first")
    },
    "lus, model": (cl.methods.lus(CLIP, scope="model", **RULE), message_by(plain, lus(select=largest_of_all))),
    "dp_fedprox": (cl.methods.dp_fedprox(CLIP, 0.7, **RULE, **HEAVY), message_by(proximal(0.7), **HEAVY)),
    "dp_fedavg, as published": (
        cl.methods.dp_fedavg(CLIP, mode="as_published", **RULE),
        message_by(plain, clip_norm=each_tensor),
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    method, message = CASES[request.param]
    mechanism = replace(method.mechanism, noise_multiplier=0.8)
    return replace(method, mechanism=mechanism), message


def test_every_clients_message_is_the_references(case):
    method, message = case
    fed, w, _ = federated(method)
    check_messages(fed, w, message)


def test_models_over_rounds_are_the_references(case):
    """Poisson cohorts, central noise 0.8 * clip on every coordinate, and a constant denominator q N."""
    method, message = case
    fed, w, _ = federated(method, cl.poisson(0.7))

    def step(round: int, w: Tensor) -> Tensor:
        return w + (summed(fed, message, round, w) + 0.8 * CLIP * normal(fed, round)) / (0.7 * 8)

    check_rounds(fed, w, step)


# ---- the cases are what they are meant to be --------------------------------------------------------------------


def test_blur_switches_on_in_the_middle_of_training():
    fed, _, start = federated(cl.methods.blur(CLIP, noise_multiplier=0.0, **RULE))
    both = 0
    for client in (0, 1, SINGLE, 4):
        rule = Blur(0.4, CLIP)
        trained(start, batches_of(fed, 1, client), rule, LR)
        both += min(rule.seen) > 0
    assert both >= 2


def test_the_flat_client_has_no_gradient_and_the_tied_one_has_ties():
    fed, _, start = federated(cl.methods.lus(CLIP, noise_multiplier=0.0, **RULE))
    assert norm(gradient(start, data_of(fed, FLAT))) == 0
    w = trained(start, batches_of(fed, 1, TIED), plain, LR, decay=0.01)
    g, update = gradient(w, data_of(fed, TIED))["first.weight"], (w["first.weight"] - start["first.weight"])
    assert (g[:, 1:] == 0).all()
    assert (update[:, 1:].abs() == update[0, 1].abs()).all()
    assert update[0, 1] != 0
    assert (update[:, 0].abs() > update[0, 1].abs()).all()


def test_where_scores_tie_all_stay_or_the_first():
    kept = {}
    for ties in ("keep", "first"):
        fed, w, _ = federated(cl.methods.lus(CLIP, ties=ties, noise_multiplier=0.0, **RULE, **HEAVY))
        message = cohort_total(fed, Loop(), 1, w, torch.tensor([TIED]))[0]
        kept[ties] = [int((part != 0).sum()) for part in message.split([5, 30, 15])]
    assert kept == {"keep": [2, 30, 5], "first": [2, 9, 5]}


def test_clipping_is_at_work_for_some_and_not_for_all():
    fed, _, start = federated(cl.methods.dp_fedavg(CLIP, noise_multiplier=0.0, **RULE))
    unclipped = message_by(plain, clip_norm=flat)
    norms = [float(unclipped(fed, 1, client, start).norm()) for client in CLIENTS]
    assert min(norms) < CLIP < max(norms)
