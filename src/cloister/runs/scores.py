"""Scores along one run: the last, the best (which is selected on test data), and the one at a given epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloister.errors import CloisterError, expect_epsilon
from cloister.runs.metric_text import SMALLER_IS_BETTER

if TYPE_CHECKING:
    from cloister.privacy.certificate import Certificate

Lines = Sequence[Mapping[str, Any]]
"""A run's, one for each round."""

SELECTED_ON_TEST = "selected on test data"
"""The mark of every score that was the best of several rounds."""


@dataclass(frozen=True)
class BestScore:
    """The best score over the rounds of a run: selected on test data, so that it is no estimate of anything."""

    metric: str
    value: float
    round: int
    mark: str = SELECTED_ON_TEST


@dataclass(frozen=True)
class ScoreAtEpsilon:
    """The last score of a run before it had spent more than `asked`."""

    metric: str
    asked: float
    value: float
    round: int
    epsilon: float
    """What that cost at the run's delta: all that had been spent by then, or, where the run ended there by what it had
    released, what it would have spent if it had gone on (`asked` at most)."""


def watched_in(lines: Lines) -> tuple[str, float | None]:
    """The metric that a run watched, and its last value; where lines name none, it is accuracy."""
    name = next((line["monitor"] for line in reversed(lines) if "monitor" in line), "accuracy")
    return name, last_of(lines, name)


def last_of(lines: Lines, name: str) -> float | None:
    """The last value of a metric; None where it was undefined in the end, whatever it had been before: a training that
    diverged has the score of no earlier round.

    >>> last_of([{"mae": 2.0}, {"mae": 1.0}, {}], "mae"), last_of([{"mae": 2.0}, {"mae": None}, {}], "mae")
    (1.0, None)
    """
    found = next((line[name] for line in reversed(lines) if name in line), None)
    return found if isinstance(found, (int, float)) and found == found else None


def nonfinite_share(lines: Lines) -> float:
    """How many of a run's updates were not finite, and counted as zero.

    >>> nonfinite_share([{"cohort": 3, "nonfinite_updates": 3}, {"cohort": 1, "nonfinite_updates": 0}])
    0.75
    """
    sent = sum(line.get("cohort", 0) for line in lines)
    return sum(line.get("nonfinite_updates", 0) for line in lines) / sent if sent else 0.0


def best_of(lines: Lines, name: str | None = None) -> BestScore | None:
    """The best value of a metric over the rounds, and the first round that had it; by default of the watched one.

    >>> best_of([{"round": 1, "accuracy": 0.7}, {"round": 2, "accuracy": 0.9}, {"round": 3, "accuracy": 0.8}])
    BestScore(metric='accuracy', value=0.9, round=2, mark='selected on test data')
    """
    metric = name or watched_in(lines)[0]
    sign = -1.0 if metric in SMALLER_IS_BETTER else 1.0
    scored = [line for line in lines if isinstance(line.get(metric), (int, float)) and line[metric] == line[metric]]
    best = max(scored, key=lambda line: sign * line[metric], default=None)
    return None if best is None else BestScore(metric, float(best[metric]), int(best["round"]))


def score_at_epsilon(
    lines: Lines, asked: float, name: str | None = None, certificate: Certificate | None = None, stopped: bool = False
) -> ScoreAtEpsilon | None:
    """The last score whose cumulative epsilon is at most `asked`; None where even the first had spent more.

    Had the run been planned with that budget and the same noise, it would have ended there: the number of rounds
    follows from the price, and not from what any of them reached. Where that round was not evaluated, it is the last
    one before it that was.

    >>> score_at_epsilon([{"round": r, "epsilon": r / 2, "accuracy": r / 10} for r in (1, 2, 3, 4)], 1.7)
    ScoreAtEpsilon(metric='accuracy', asked=1.7, value=0.3, round=3, epsilon=1.5)
    """
    expect_epsilon(asked)
    _expect_added_up(lines, certificate, stopped)
    metric = name or watched_in(lines)[0]
    paid = [line for line in lines if float(line["epsilon"]) <= asked and isinstance(line.get(metric), (int, float))]
    if not paid:
        return None
    last = paid[-1]
    spent = float(last["epsilon"])
    if stopped and certificate is not None and float(lines[-1]["epsilon"]) <= asked:
        spent = max(spent, min(asked, certificate.epsilon))
    return ScoreAtEpsilon(metric, asked, float(last[metric]), int(last["round"]), spent)


def _expect_added_up(lines: Lines, certificate: Certificate | None, stopped: bool) -> None:
    """Refuse runs whose certificate is not what the last line says: then the lines before it do not hold either."""
    if certificate is None or not lines or stopped or certificate.filter is not None:
        return
    if certificate.rounds_charged > len(lines):  # of a run that was interrupted, which has no line for its last charge
        return
    spent = float(lines[-1]["epsilon"])
    if certificate.epsilon > spent * (1 + 1e-6) + 1e-9:
        raise CloisterError(
            f"Expected a run whose epsilon adds up round by round, found {certificate.epsilon:g} in its certificate "
            f"and {spent:g} in its last line, as where clients overlap: only the certificate's holds."
        )
