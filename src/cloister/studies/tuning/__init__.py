"""Tuning of any key, on public or simulated data by Optuna, on private data at a price."""

from cloister.studies.tuning.result import Trial, Tuned
from cloister.studies.tuning.study import tune

__all__ = ["Trial", "Tuned", "tune"]
