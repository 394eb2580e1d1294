"""What came out of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from cloister.client.preprocessing import Preprocessing
from cloister.privacy.certificate import Certificate
from cloister.privacy.certificate_text import round_up
from cloister.runs.client_scores import ClientScores
from cloister.runs.communication import Communication
from cloister.runs.metric_text import figure
from cloister.runs.personalization import Personalized
from cloister.runs.recorded import Recorded
from cloister.runs.scores import BestScore, ScoreAtEpsilon, best_of, score_at_epsilon


@dataclass(frozen=True, repr=False)
class Run:
    """What came out: the model, what it cost, and a line per round."""

    model: nn.Module
    accuracy: float | None
    """Test accuracy of this model (None where labels are no classes)."""
    certificate: Certificate
    history: list[dict[str, Any]]
    folder: Path | None
    engine: str
    seconds: float
    stopped: str | None
    """Why the run ended before its last round, if it did."""
    best_round: int | None = None
    """The round with the best validation, where there is one; with `restore_best` the model is from it."""
    scores: dict[str, float | None] = field(default_factory=dict)
    """The metrics of the final model, by name; None where one is undefined."""
    monitor: str = "accuracy"
    """The metric that is watched."""
    client_scores: ClientScores | None = None
    """That metric on every client's own test samples, where clients have some. Exact, and so not private."""
    personalized: Personalized | None = None
    """The same before and after personalization, where that was asked for. Not private either."""

    communication: Communication | None = None
    """What the clients sent to the server, in bytes."""
    preprocessing: Preprocessing | None = None
    """How inputs become what the model sees, where a query of the run decided about it (`standardize`)."""

    recorded: Recorded | None = None
    """What was measured round by round, where `record` asked for it. NOT PRIVATE, but for thresholds."""

    def __repr__(self) -> str:
        watched = self.scores.get(self.monitor, self.accuracy)
        value = "none" if watched is None else figure(self.monitor, watched, 4)
        price = self.certificate.prices[0]
        spent = f"epsilon {round_up(price.epsilon_pld)} at delta {price.delta:g}"
        rounds = f"{len(self.history)} round{'' if len(self.history) == 1 else 's'}"
        return f"<Run: {self.monitor} {value}, {spent}, {rounds}, {self.engine} engine>"

    @property
    def best_on_test(self) -> BestScore | None:
        """The best test score over the rounds, beside which `scores` has the final model's: selected on test data."""
        return best_of(self.history)

    def at_epsilon(self, epsilon: float, metric: str | None = None) -> ScoreAtEpsilon | None:
        """The last test score before the run had spent more than `epsilon`; None where there is none."""
        return score_at_epsilon(self.history, epsilon, metric, self.certificate, self.stopped is not None)

    @property
    def epsilon(self) -> float:
        """The certified epsilon at the run's delta (infinite without privacy)."""
        return self.certificate.epsilon
