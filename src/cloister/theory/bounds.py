"""All bounds in a list: paper, part, function; and what each says of itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from cloister.theory import adap_dp_fl, blur_lus, dp_fedsam, fed_spa, pfl

BOUNDS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("000", "eq. 2", blur_lus.update_error),
    ("000", "eq. 2", blur_lus.best_clip_norm),
    ("000", "Lemma 1", blur_lus.gaussian_mechanism),
    ("000", "Lemma 2", blur_lus.discounts),
    ("000", "Theorem 1", blur_lus.noise_multiplier),
    ("000", "Theorem 1", blur_lus.true_constant),
    ("000", "Theorem 2", blur_lus.convergence),
    ("000", "Corollary 1", blur_lus.private_convergence),
    ("000", "Corollary 1", blur_lus.best_rate),
    ("001", "Theorem 1", dp_fedsam.sensitivity_of_sam),
    ("001", "Theorem 1", dp_fedsam.sensitivity_of_sgd),
    ("001", "Lemma 1", dp_fedsam.sensitivity_of_mean),
    ("001", "Theorem 2", dp_fedsam.privacy),
    ("001", "Theorem 3", dp_fedsam.convergence),
    ("001", "Theorem 4", dp_fedsam.round_privacy),
    ("001", "Theorem 5", dp_fedsam.generalization),
    ("002", "Theorem 1", fed_spa.privacy_at),
    ("002", "Theorem 1", fed_spa.largest_order),
    ("002", "Theorem 1", fed_spa.privacy),
    ("002", "Theorem 1", fed_spa.noise_for),
    ("002", "Theorem 2", fed_spa.private_variance),
    ("002", "eq. 5", fed_spa.masked_variance),
    ("002", "Section 5.2", fed_spa.best_keep_fraction),
    ("002", "Theorem 2", fed_spa.largest_lr),
    ("002", "Theorem 2", fed_spa.convergence),
    ("002", "Lemma 3", fed_spa.rate),
    ("003", "Theorem 1", pfl.parallel_composition),
    ("003", "Observation 1", pfl.intermediate_epsilon),
    ("003", "Appendix A", pfl.mean_noise_norm),
    ("003", "Theorem 2", pfl.degradation),
    ("003", "Definition 2", pfl.utility),
    ("003", "Theorem 3", pfl.least_utility),
    ("004", "Theorem 1", adap_dp_fl.sampling_rate),
    ("004", "Theorem 1", adap_dp_fl.privacy),
    ("004", "Theorem 1", adap_dp_fl.true_price),
    ("004", "eq. 9", adap_dp_fl.decayed),
)

_KINDS = re.compile(r"\b(Not a guarantee|An order of magnitude|A guarantee|Exact|Not a bound)\b")


def kind_of(function: Callable[..., Any]) -> str:
    """What a bound's docstring says that it is; empty where it does not say.

    >>> kind_of(pfl.degradation), kind_of(dp_fedsam.convergence)
    ('a guarantee', 'an order of magnitude')
    """
    found = _KINDS.search(inspect.getdoc(function) or "")
    return found[1][0].lower() + found[1][1:] if found else ""


def summary_of(function: Callable[..., Any]) -> str:
    """The first sentence of its docstring, on one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
