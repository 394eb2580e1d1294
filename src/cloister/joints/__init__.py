"""The joints of a federated round: what each part takes and gives. Frozen values made of pure functions.

    local rule -> transform -> mechanism -> (sum over the cohort) -> transform, backwards -> server optimiser

A method is a composition of these (`Method`); `round.py` is the only place where they meet. The parts live in
`local/`, `transforms/`, `mechanisms/`, `servers.py` and `cohorts.py`, none of which imports another.
"""

from cloister.joints.composition import RELEASED, Cohort, Method, ServerOptimiser, describe
from cloister.joints.learning import (
    Batch,
    Batching,
    Grad,
    LocalRule,
    Lots,
    Phase,
    PrivateSteps,
    Problem,
    SampleGradients,
    Settings,
    State,
    Step,
)
from cloister.joints.release import (
    Announce,
    Bound,
    Correlate,
    Draw,
    Here,
    Mechanism,
    Place,
    Samples,
    Setting,
    Transform,
)

__all__ = [
    "RELEASED",
    "Announce",
    "Batch",
    "Batching",
    "Bound",
    "Cohort",
    "Correlate",
    "Draw",
    "Grad",
    "Here",
    "LocalRule",
    "Lots",
    "Mechanism",
    "Method",
    "Phase",
    "Place",
    "PrivateSteps",
    "Problem",
    "SampleGradients",
    "Samples",
    "ServerOptimiser",
    "Setting",
    "Settings",
    "State",
    "Step",
    "Transform",
    "describe",
]
