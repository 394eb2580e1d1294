"""DP-FTRL: noise that is correlated over rounds, for clients that take turns; nothing is sampled.

Kairouz, McMahan, Song, Thakkar, Thakurta & Xu, "Practical and private (deep) learning without sampling or shuffling",
ICML 2021 (tree); Choquette-Choo et al., "(Amplified) banded matrix factorization", NeurIPS 2023, with the square-root
coefficients of Kalinin & Lampert, "Banded square root matrix factorization", NeurIPS 2024 (banded).

    sums of all rounds: X + C^-1 Z in place of X + Z, with C lower-triangular and Z independent Gaussian noise

Clients take turns (cohort = cyclic): each is in one round of a cycle. The model is a sum of all rounds, and its noise
grows more slowly than with independent noise, at the same price.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD
from cloister.core import BindContext, Method
from cloister.core.arguments import flat_arguments
from cloister.errors import expect, expect_count, expect_one_of
from cloister.methods.arguments import ClipNorm, NoiseMultiplier, Server
from cloister.methods.registry import register
from cloister.methods.weighting import CappedWeights
from cloister.server import optimizers


@register("Kairouz et al., ICML 2021", "all noisy sums, without sampling", "server", cohort="cyclic")
@flat_arguments
def dp_ftrl(
    clip_norm: ClipNorm,
    factorization: Annotated[Literal["banded", "tree"], "how noise is correlated: banded or tree"] = "banded",
    band: Annotated[int | None, "over how many rounds noise cancels (by default 16, or a cycle)"] = None,
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    server: Server = None,
) -> Method:
    """DP-FedAvg with correlated noise, over cyclic cohorts. A `band` (16) longer than a cycle is cut to it.

    Guarantee: the noisy sums of all rounds together are differentially private for a client and all its data, at the
    epsilon that the run's certificate states, without amplification by sampling.
    """
    expect_one_of("factorization", factorization, ("banded", "tree"))
    if band is not None:
        expect(factorization == "banded", "a band for factorization = banded", factorization, "leave band out")
        expect_count("band", band, "over how many rounds noise cancels")

    def bind(method: Method, context: BindContext) -> Method:
        z, cycle = method.mechanism.noise_multiplier, context.min_separation
        expect(
            cycle > 1,
            "clients that take turns, because that is what correlated noise is priced for",
            "cohorts in which a client may come in every round",
            "use cohort = cyclic with a size below the number of clients",
        )
        made = mechanisms.tree(z, cycle) if factorization == "tree" else mechanisms.banded(z, min(band or 16, cycle))
        return replace(method, mechanism=made)

    return Method(
        name="dp_ftrl",
        local=client.sgd(training=training),
        transform=weighting.after(transforms.clip_l2(clip_norm)),
        mechanism=mechanisms.gaussian(noise_multiplier),
        server=server or optimizers.sgd(),
        bind=bind,
        notes=weighting.notes,
    )
