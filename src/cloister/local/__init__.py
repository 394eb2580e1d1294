"""Local rules: what a client computes from its data, as pure functions that can be mapped over a cohort."""

from cloister.local.optimisers import Optimiser, adam
from cloister.local.private import Clipping, by_coordinate, by_norm, dp_sgd
from cloister.local.thresholds import Threshold, as_written, fixed, quantile, repaired
from cloister.local.training import Importance, LocalSGD, keep_important, keep_largest, one_gradient, sgd

__all__ = [
    "Clipping",
    "Importance",
    "LocalSGD",
    "Optimiser",
    "Threshold",
    "adam",
    "as_written",
    "by_coordinate",
    "by_norm",
    "dp_sgd",
    "fixed",
    "keep_important",
    "keep_largest",
    "one_gradient",
    "quantile",
    "repaired",
    "sgd",
]
