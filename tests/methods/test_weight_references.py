"""Means that are weighted by data size, by the papers' formulas, in numpy: clients of 0 to 12 samples, over rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from references import (
    SIZES,
    Named,
    batches_of,
    check_messages,
    check_rounds,
    clipped,
    engines,
    federated,
    flat,
    members,
    named,
    normal,
    plain,
    trained,
)
from torch import Tensor

import cloister as cl
from cloister.privacy.budgets import Budget
from cloister.privacy.ledger import Ledger
from cloister.round import cohort_total, run_round
from cloister.round.bind import Federation

CLIP, LR, Z, CAP, MEAN, RATE = 0.3, 0.4, 0.8, 5.0, 0.7, 0.6
RULE = {"lr": LR, "batch_size": 4, "local_steps": 3}


def update(fed: Federation, round: int, client: int, start: Named) -> Tensor:
    return flat(trained(start, batches_of(fed, round, client), plain, LR)) - flat(start)


def updates(fed: Federation, round: int, w: Tensor) -> dict[int, np.ndarray]:
    """Of who takes part and has data."""
    return {c: update(fed, round, c, named(w)).numpy() for c in members(fed, round) if SIZES[c]}


def test_fedavg_with_weights_is_that_of_its_paper():
    """sum of n_i u_i / sum of n_i, over the cohort as it came (McMahan et al. 2017, Algorithm 1)."""
    fed, w, _ = federated(cl.methods.fedavg(**RULE, client_weights="size"), cl.poisson(RATE))
    unequal = []

    def step(round: int, w: Tensor) -> Tensor:
        found = updates(fed, round, w)
        sizes = np.array([SIZES[c] for c in found], dtype=float)
        mean = np.average(np.stack(list(found.values())), axis=0, weights=sizes)
        unequal.append(np.abs(mean - np.mean(list(found.values()), axis=0)).max())
        return w + torch.from_numpy(mean)

    check_rounds(fed, w, step, 4)
    assert max(unequal) > 1e-3, "weights matter here"


def test_a_cohort_without_samples_leaves_the_model_as_it_is():
    fed, w, _ = federated(cl.methods.fedavg(**RULE, client_weights="size"))
    for members_now in ([3], []):
        nobody = replace(fed.cohort, sample=lambda streams, round, clients, now=members_now: torch.tensor(now).long())
        for engine in engines():
            after = run_round(
                replace(fed, cohort=nobody), Ledger.create(None, "t", {}), engine, 1, w, fed.method.init(w)
            )
            assert torch.equal(after.w, w)


def weight(client: int) -> float:
    return min(SIZES[client] / CAP, 1.0)


@pytest.mark.parametrize("noise", ["central", "distributed"])
@pytest.mark.parametrize("mean", [None, MEAN])
def test_capped_weights_are_the_estimator_with_a_fixed_denominator(noise, mean):
    """f_f of McMahan et al. 2018: sum of w_i clip(u_i) + N(0, (z S)^2), over q W, with W = N mean_weight declared."""
    made = cl.methods.dp_fedavg(
        CLIP, noise_multiplier=Z, noise=noise, client_weights="size", weight_cap=CAP, mean_weight=mean, **RULE
    )
    fed, w, _ = federated(made, cl.poisson(RATE))
    assert {weight(c) for c in range(len(SIZES))} >= {0.0, 0.2, 1.0}

    def step(round: int, w: Tensor) -> Tensor:
        total = sum(weight(c) * clipped(torch.from_numpy(u), CLIP) for c, u in updates(fed, round, w).items())
        there = members(fed, round)
        shares = [normal(fed, round, c) / np.sqrt(len(there)) for c in there]
        drawn = torch.stack(shares).sum(0) if noise == "distributed" else normal(fed, round)
        return w + (total + Z * CLIP * drawn) / (RATE * len(SIZES) * (mean or 1.0))

    check_rounds(fed, w, step, 3)
    if noise == "central":
        check_messages(fed, w, lambda fed, round, c, start: weight(c) * clipped(update(fed, round, c, start), CLIP))


def test_with_a_clip_that_follows_updates_are_weighted_and_the_count_is_not():
    made = cl.methods.adaptive_clipping(
        CLIP, noise_multiplier=Z, client_weights="size", weight_cap=CAP, mean_weight=MEAN, **RULE
    )
    fed, w, _ = federated(made)
    bit = fed.method.transform.parts[0].settings["bit_weight"]

    def message(fed: Federation, round: int, client: int, start: Named) -> Tensor:
        u = update(fed, round, client, start)
        within = 0.5 if float(u.norm()) <= CLIP else -0.5
        return torch.cat([weight(client) * clipped(u, CLIP) / CLIP, torch.tensor([bit * within], dtype=torch.float64)])

    check_messages(fed, w, message)

    def step(round: int, w: Tensor) -> Tensor:  # the first one, whose clip is known
        total = sum(message(fed, round, c, named(w)) for c in members(fed, round) if SIZES[c])
        scale = Z * np.sqrt(1 + bit**2 / 4)
        noisy = total + scale * normal(fed, round, size=len(w) + 1)
        return w + CLIP * noisy[:-1] / (len(SIZES) * MEAN)

    check_rounds(fed, w, step, 1)


def test_blur_as_published_averages_over_who_came():
    """Algorithm 1 of Cheng et al. 2022: w + (1/|P_t|) sum of (clip(u_i) + N(0, (z S)^2 / |P_t|)), BLUR switched off."""
    made = cl.methods.blur(CLIP, 0.0, noise_multiplier=Z, noise="distributed", mode="as_published", **RULE)
    fed, w, _ = federated(made, cl.poisson(RATE))
    sizes = [len(members(fed, round)) for round in (1, 2, 3)]
    assert len(set(sizes)) > 1

    def step(round: int, w: Tensor) -> Tensor:
        there, found = members(fed, round), updates(fed, round, w)
        sent = [
            (clipped(torch.from_numpy(found[c]), CLIP) if c in found else 0.0)
            + Z * CLIP / np.sqrt(len(there)) * normal(fed, round, c)
            for c in there
        ]
        return w + torch.stack(sent).mean(0)

    check_rounds(fed, w, step, 3)


PRIVATE = {"clip_norm": 0.5, "lr": 0.3, "batch_size": 4, "local_epochs": 1, "noise_multiplier": 1.1}


@pytest.mark.parametrize(
    ("make", "public", "poor"),
    [
        (cl.methods.pfl, {"public_sizes": True}, None),
        (cl.methods.pfl, {"public_sizes": True}, 4),
        (cl.methods.fed_spa, {"batch_sampling": "fixed_size", "server": cl.server.sgd()}, None),
        (cl.methods.adap_dp_fl, {"public_sizes": True, "noise_decay": 1.0}, None),
    ],
)
def test_private_updates_are_weighted_by_public_sizes(make, public, poor):
    """Adap DP-FL, Algorithm 1: sum of p_k w_k with p_k = |D_k| / |D|, over those who are still in. Whose updates are
    what they are with equal weights, noise and all."""
    settings = {**PRIVATE, **public}
    if make is cl.methods.adap_dp_fl:  # which counts steps
        del settings["local_epochs"]
    fed, w, _ = federated(make(**settings, client_weights="size"))
    settings.pop("public_sizes", None)
    equal, _, _ = federated(make(**settings))
    budgets = {} if poor is None else {f"sample of client {poor}": Budget(1e-6, 1e-9)}
    for engine in engines():
        before, ledger = w, Ledger.create(None, "t", budgets)
        for round in (1, 2):
            there = [c for c in range(len(SIZES)) if SIZES[c] and c != poor]
            alone = [cohort_total(equal, engine, round, before, torch.tensor([c]))[0].numpy() for c in there]
            mean = np.average(np.stack(alone), axis=0, weights=[SIZES[c] for c in there])
            after = run_round(fed, ledger, engine, round, before, fed.method.init(w)).w
            np.testing.assert_allclose((after - before).numpy(), mean, rtol=1e-9, atol=1e-13)
            before = after
