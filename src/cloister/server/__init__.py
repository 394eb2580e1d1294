"""The server's half: optimizers that use the mean update, and cohorts (who takes part)."""

from cloister.server import cohorts
from cloister.server.optimizers import adam, decay_on_loss, sgd, student

__all__ = ["adam", "cohorts", "decay_on_loss", "sgd", "student"]
