"""Tuning of any key, on public or simulated data by Optuna, on private data at a price.

Names are imported when they are first used: slips are refused without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.studies.tuning.result import Trial, Tuned
    from cloister.studies.tuning.study import tune

__all__ = ["Trial", "Tuned", "tune"]


def __getattr__(name: str) -> Any:
    if name == "tune":
        from cloister.studies.tuning.study import tune

        return tune
    if name in __all__:
        from cloister.studies.tuning import result

        return getattr(result, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
