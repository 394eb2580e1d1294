"""What the papers prove of their methods, as functions of numbers: a file for each paper, and what they say in words.

    import cloister as cl

    factors = cl.theory.clip_factors(norms, clip_norm=0.2)        # alpha-bar and alpha-tilde of one round
    bound = cl.theory.dp_fedsam.convergence(...)                  # Theorem 3 of DP-FedSAM, term by term

Nothing here decides what a run costs: that is `cloister.privacy`. Each function says what its bound is a bound of, what
it assumes, and whether it is a guarantee or an order of magnitude with an unknown constant. Arguments outside of a
theorem's conditions are refused.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from cloister.theory import adap_dp_fl, blur_lus, dp_fedsam, fed_spa, pfl
from cloister.theory.claims import CLAIMS, Claim
from cloister.theory.update_norms import ClipFactors, clip_factors, clip_factors_by_round

__all__ = [
    "CLAIMS",
    "Claim",
    "ClipFactors",
    "adap_dp_fl",
    "blur_lus",
    "clip_factors",
    "clip_factors_by_round",
    "dp_fedsam",
    "fed_spa",
    "pfl",
    "plots",
]


def __getattr__(name: str) -> ModuleType:
    if name == "plots":  # matplotlib is imported for pictures alone
        return importlib.import_module("cloister.theory.plots")
    raise AttributeError(f"module 'cloister.theory' has no attribute {name!r}")
