"""The catalogue of methods: one paper per file, each a short composition of joints."""

from __future__ import annotations

from collections.abc import Callable

from cloister.joints import Method
from cloister.methods.adap_dp_fl import adap_dp_fl
from cloister.methods.adaptive_clipping import adaptive_clipping
from cloister.methods.ae_dpfl import ae_dpfl
from cloister.methods.blur_lus import blur, blur_lus, lus
from cloister.methods.cards import CARDS, Card
from cloister.methods.cpsgd import cpsgd
from cloister.methods.ddgauss import ddgauss
from cloister.methods.dp_fedavg import dp_fedavg
from cloister.methods.dp_fedprox import dp_fedprox
from cloister.methods.dp_fedsam import dp_fedsam, dp_fedsam_top_k
from cloister.methods.dp_ftrl import dp_ftrl
from cloister.methods.fed_smp import fed_smp_rand_k, fed_smp_top_k
from cloister.methods.fed_spa import dp_fed, fed_spa
from cloister.methods.fedavg import fedavg
from cloister.methods.pfl import pfl

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
        pfl,
        fed_spa,
        dp_fed,
        adap_dp_fl,
        cpsgd,
    )
}

USUAL: dict[str, dict[str, str]] = {
    name: {"cohort": "everyone"} | ({"server": "adam"} if name == "fed_spa" else {})
    for name, card in CARDS.items()
    if card.unit == "sample"
}
"""Parts that a method comes with, where they are not what others come with: who takes part hides no sample."""

__all__ = [
    "CARDS",
    "CATALOGUE",
    "USUAL",
    "Card",
    "adap_dp_fl",
    "adaptive_clipping",
    "ae_dpfl",
    "blur",
    "blur_lus",
    "cpsgd",
    "ddgauss",
    "dp_fed",
    "dp_fedavg",
    "dp_fedprox",
    "dp_fedsam",
    "dp_fedsam_top_k",
    "dp_ftrl",
    "fed_smp_rand_k",
    "fed_smp_top_k",
    "fed_spa",
    "fedavg",
    "lus",
    "pfl",
]
