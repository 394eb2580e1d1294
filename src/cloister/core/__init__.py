"""What a method is made of: what each part takes and gives. Frozen values made of pure functions.

    local rule -> transform -> mechanism -> (sum over the cohort) -> transform, backwards -> server optimizer

A method is a composition of these (`Method`); `round/` is the only place where they meet. The parts live in `client/`,
`transforms/`, `mechanisms/` and `server/`.
"""

from cloister.core.cohort import Cohort
from cloister.core.context import BindContext, Context, Samples
from cloister.core.first_query import FirstQuery
from cloister.core.local_rule import (
    Batching,
    BatchSampling,
    LocalRule,
    Phase,
    PoissonRate,
    PrivateSteps,
    Settings,
    Step,
)
from cloister.core.mechanism import Correlate, Draw, Mechanism, Place
from cloister.core.method import RELEASED, Method, describe
from cloister.core.objective import Batch, Grad, Layout, Objective, SampleGradients
from cloister.core.sensitivity import Sensitivity
from cloister.core.server_optimizer import ServerOptimizer
from cloister.core.state import MethodState, State, Tensors
from cloister.core.transform import Broadcast, Transform, Weighting

__all__ = [
    "RELEASED",
    "Batch",
    "BatchSampling",
    "Batching",
    "BindContext",
    "Broadcast",
    "Cohort",
    "Context",
    "Correlate",
    "Draw",
    "FirstQuery",
    "Grad",
    "Layout",
    "LocalRule",
    "Mechanism",
    "Method",
    "MethodState",
    "Objective",
    "Phase",
    "Place",
    "PoissonRate",
    "PrivateSteps",
    "SampleGradients",
    "Samples",
    "Sensitivity",
    "ServerOptimizer",
    "Settings",
    "State",
    "Step",
    "Tensors",
    "Transform",
    "Weighting",
    "describe",
]
