"""A round: a federation is bound once, the server opens a round, clients answer, the server closes it."""

from cloister.round.answer import Engine, RoundPlan, Sum, answer, cohort_total
from cloister.round.bind import Federation, bind
from cloister.round.offer import Answer, Offer, Reply
from cloister.round.run_round import SERVER, Outcome, close_round, open_round, run_round

__all__ = [
    "SERVER",
    "Answer",
    "Engine",
    "Federation",
    "Offer",
    "Outcome",
    "Reply",
    "RoundPlan",
    "Sum",
    "answer",
    "bind",
    "close_round",
    "cohort_total",
    "open_round",
    "run_round",
]
