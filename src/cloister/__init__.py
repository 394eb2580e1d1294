"""Cloister: differentially private federated learning in PyTorch, under one honest accountant.

    import cloister as cl

    task = cl.data.digits(clients=300)
    method = cl.methods.dp_fedavg(clip=1.0, lr=1.0, steps=5)
    run = cl.run(method, task, rounds=60, cohort=cl.poisson(0.5), epsilon=2.0, delta=1e-3)
    print(run.accuracy, run.epsilon, run.certificate)

Names are imported when they are first used, so `import cloister` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister import cohorts, data, gradients, local, mechanisms, methods, models, servers, transforms
    from cloister.cohorts import cyclic, everyone, fixed, poisson
    from cloister.errors import BudgetExceededError, CloisterError, Corrupted, UnsupportedMechanismError
    from cloister.experiments.run import run
    from cloister.experiments.training import Run
    from cloister.joints import Cohort, LocalRule, Mechanism, Method, ServerOptimizer, Transform
    from cloister.privacy.calibrate import calibrate
    from cloister.privacy.ledger import Budget, Ledger

__version__ = "0.1.0"

# Where each public name lives.
_HOMES = {
    "BudgetExceededError": "errors",
    "UnsupportedMechanismError": "errors",
    "CloisterError": "errors",
    "Corrupted": "errors",
    "Budget": "privacy.ledger",
    "Ledger": "privacy.ledger",
    "calibrate": "privacy.calibrate",
    "Cohort": "joints",
    "LocalRule": "joints",
    "Mechanism": "joints",
    "Method": "joints",
    "ServerOptimizer": "joints",
    "Transform": "joints",
    "cyclic": "cohorts",
    "everyone": "cohorts",
    "fixed": "cohorts",
    "poisson": "cohorts",
    "Run": "experiments.training",
    "run": "experiments.run",
}
_ROOMS = ("cohorts", "data", "gradients", "local", "mechanisms", "methods", "models", "servers", "transforms")

__all__ = [
    "Budget",
    "BudgetExceededError",
    "CloisterError",
    "Cohort",
    "Corrupted",
    "Ledger",
    "LocalRule",
    "Mechanism",
    "Method",
    "Run",
    "ServerOptimizer",
    "Transform",
    "UnsupportedMechanismError",
    "calibrate",
    "cohorts",
    "cyclic",
    "data",
    "everyone",
    "fixed",
    "gradients",
    "local",
    "mechanisms",
    "methods",
    "models",
    "poisson",
    "run",
    "servers",
    "transforms",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"cloister.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"cloister.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'cloister' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
