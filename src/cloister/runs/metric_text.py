"""Values of metrics as people read them."""

from __future__ import annotations

SMALLER_IS_BETTER = frozenset({"mae", "mse", "rmse", "perplexity", "loss"})
"""Metrics without a best value but zero, or one; of all others 1 is the best there is."""

SHARES = frozenset(
    {"accuracy", "balanced_accuracy", "f1", "precision", "recall", "auroc", "average_precision", "concordance"}
)
"""Metrics that lie between 0 and 1, so that no interval reaches beyond."""


def figure(name: str, value: float | None, digits: int = 3) -> str:
    """A value as people read it: decimals where 1 is the best there is, leading digits where labels have units.

    >>> figure("accuracy", 0.98765), figure("mae", 1234.5678), figure("auroc", None)
    ('0.988', '1235', '-')
    """
    if value is None:
        return "-"
    return f"{value:.{digits + 1}g}" if name in SMALLER_IS_BETTER else f"{value:.{digits}f}"
