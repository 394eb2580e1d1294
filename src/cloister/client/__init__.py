"""Local rules: what a client computes from its data, as pure functions that can be mapped over a cohort."""

from cloister.client import gradients, losses
from cloister.client.clipped_sum import clipped_sum
from cloister.client.dp_sgd import Clipping, by_active_coordinate, by_coordinate, by_norm, dp_sgd
from cloister.client.sparsification import Importance, keep_important, keep_largest
from cloister.client.thresholds import Threshold, as_written, fixed, quantile, released, repaired
from cloister.client.training import LocalSGD, Optimizer, adam, one_gradient, sgd, sgd_optimizer

__all__ = [
    "Clipping",
    "Importance",
    "LocalSGD",
    "Optimizer",
    "Threshold",
    "adam",
    "as_written",
    "by_active_coordinate",
    "by_coordinate",
    "by_norm",
    "clipped_sum",
    "dp_sgd",
    "fixed",
    "gradients",
    "keep_important",
    "keep_largest",
    "losses",
    "one_gradient",
    "quantile",
    "released",
    "repaired",
    "sgd",
    "sgd_optimizer",
]
