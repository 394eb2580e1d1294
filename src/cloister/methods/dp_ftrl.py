"""DP-FTRL: noise that is correlated over rounds, for clients that take turns; nothing is sampled.

Kairouz, McMahan, Song, Thakkar, Thakurta & Xu, "Practical and private (deep) learning without sampling or shuffling",
ICML 2021 (tree); Choquette-Choo et al., "(Amplified) banded matrix factorization", NeurIPS 2023, with the square-root
coefficients of Kalinin & Lampert, "Banded square root matrix factorization", NeurIPS 2024 (banded).

Clients take turns (cohort = cyclic): each is in one round of a cycle. The model is a sum of all rounds, and its noise
grows more slowly than with independent noise, at the same price.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cloister import local, mechanisms, servers, transforms
from cloister.errors import expect, expect_count, expect_one_of
from cloister.joints import Method, ServerOptimiser, Setting
from cloister.methods.cards import card


@card(
    "Kairouz et al., ICML 2021",
    "all noisy sums, without sampling",
    "server",
)
def dp_ftrl(
    clip: float,
    factorisation: Literal["banded", "tree"] = "banded",
    band: int | None = None,
    lr: float = 0.1,
    batch: int = 10,
    steps: int | None = None,
    epochs: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    noise_multiplier: float | None = None,
    server: ServerOptimiser | None = None,
) -> Method:
    """DP-FedAvg with correlated noise, over cyclic cohorts. A `band` (16) longer than a cycle is cut to it.

    Guarantee: the noisy sums of all rounds together are differentially private for a client and all its data, at the
    epsilon that the run's certificate states, without amplification by sampling.
    """
    expect_one_of("factorisation", factorisation, ("banded", "tree"))
    if band is not None:
        expect(factorisation == "banded", "a band for factorisation = banded", factorisation, "leave band out")
        expect_count("band", band, "over how many rounds noise cancels")

    def fit(method: Method, setting: Setting) -> Method:
        z, cycle = method.mechanism.noise_multiplier, setting.separation
        expect(
            cycle > 1,
            "clients that take turns, because that is what correlated noise is priced for",
            "cohorts in which a client may come in every round",
            "use cohort = cyclic with a size below the number of clients",
        )
        made = mechanisms.tree(z, cycle) if factorisation == "tree" else mechanisms.banded(z, min(band or 16, cycle))
        return replace(method, mechanism=made)

    return Method(
        name="dp_ftrl",
        local=local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay),
        transform=transforms.clip_l2(clip),
        mechanism=mechanisms.gaussian(noise_multiplier),
        server=server or servers.sgd(),
        fit=fit,
    )
