"""The catalogue of methods: one paper per file, each a short composition of joints."""

from __future__ import annotations

from collections.abc import Callable

from cloister.joints import Method
from cloister.methods.adaptive_clipping import adaptive_clipping
from cloister.methods.ae_dpfl import ae_dpfl
from cloister.methods.blur_lus import blur, blur_lus, lus
from cloister.methods.cards import CARDS, Card
from cloister.methods.ddgauss import ddgauss
from cloister.methods.dp_fedavg import dp_fedavg
from cloister.methods.dp_fedprox import dp_fedprox
from cloister.methods.dp_fedsam import dp_fedsam, dp_fedsam_top_k
from cloister.methods.dp_ftrl import dp_ftrl
from cloister.methods.fed_smp import fed_smp_rand_k, fed_smp_top_k
from cloister.methods.fedavg import fedavg

CATALOGUE: dict[str, Callable[..., Method]] = {
    made.__name__: made
    for made in (
        fedavg,
        dp_fedavg,
        blur,
        lus,
        blur_lus,
        dp_fedsam,
        dp_fedsam_top_k,
        fed_smp_rand_k,
        fed_smp_top_k,
        ddgauss,
        ae_dpfl,
        adaptive_clipping,
        dp_ftrl,
        dp_fedprox,
    )
}

__all__ = [
    "CARDS",
    "CATALOGUE",
    "Card",
    "adaptive_clipping",
    "ae_dpfl",
    "blur",
    "blur_lus",
    "ddgauss",
    "dp_fedavg",
    "dp_fedprox",
    "dp_fedsam",
    "dp_fedsam_top_k",
    "dp_ftrl",
    "fed_smp_rand_k",
    "fed_smp_top_k",
    "fedavg",
    "lus",
]
