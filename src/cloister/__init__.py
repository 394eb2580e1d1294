"""Cloister: differentially private federated learning in PyTorch, under one accountant.

    import cloister as cl

    task = cl.data.digits(clients=300)
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=1.0, local_steps=5)
    run = cl.run(method, task, rounds=60, cohort=cl.poisson(0.5), epsilon=2.0, delta=1e-3)
    print(run.accuracy, run.epsilon, run.certificate)

Names are imported when they are first used, so `import cloister` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister import client, data, mechanisms, methods, models, server, theory, transforms
    from cloister.auditing import Audit, audit
    from cloister.core import Cohort, LocalRule, Mechanism, Method, ServerOptimizer, Transform
    from cloister.errors import BudgetExceededError, CloisterError, Corrupted, UnsupportedMechanismError
    from cloister.privacy.budgets import Budget
    from cloister.privacy.calibration import calibrate
    from cloister.privacy.ledger import Ledger
    from cloister.runs import trackers
    from cloister.runs.callbacks import Callback, Record, StopTraining
    from cloister.runs.load import load
    from cloister.runs.personalization import personalize
    from cloister.runs.plan import plan
    from cloister.runs.planned import Plan
    from cloister.runs.result import Run
    from cloister.runs.run import run
    from cloister.runs.trained_model import TrainedModel
    from cloister.server.cohorts import cyclic, fixed_size, full, poisson
    from cloister.studies.compare import Comparison, compare
    from cloister.studies.html.render import report
    from cloister.studies.landscape import landscape
    from cloister.studies.papers.reproduce import reproduce
    from cloister.studies.papers.table import Reproduction
    from cloister.studies.tuning import Tuned, tune

__version__ = "0.1.0"

# Where each public name lives.
_DEFINED_IN = {
    "BudgetExceededError": "errors",
    "UnsupportedMechanismError": "errors",
    "CloisterError": "errors",
    "Corrupted": "errors",
    "Budget": "privacy.budgets",
    "Ledger": "privacy.ledger",
    "calibrate": "privacy.calibration",
    "Cohort": "core",
    "LocalRule": "core",
    "Mechanism": "core",
    "Method": "core",
    "ServerOptimizer": "core",
    "Transform": "core",
    "cyclic": "server.cohorts",
    "full": "server.cohorts",
    "fixed_size": "server.cohorts",
    "poisson": "server.cohorts",
    "Comparison": "studies.compare",
    "compare": "studies.compare",
    "Callback": "runs.callbacks",
    "Record": "runs.callbacks",
    "StopTraining": "runs.callbacks",
    "Plan": "runs.planned",
    "plan": "runs.plan",
    "Run": "runs.result",
    "TrainedModel": "runs.trained_model",
    "load": "runs.load",
    "personalize": "runs.personalization",
    "run": "runs.run",
    "Tuned": "studies.tuning",
    "tune": "studies.tuning",
    "landscape": "studies.landscape",
    "reproduce": "studies.papers.reproduce",
    "Reproduction": "studies.papers.table",
    "report": "studies.html.render",
    "Audit": "auditing",
    "audit": "auditing",
}
_SUBPACKAGES = ("client", "data", "mechanisms", "methods", "models", "server", "theory", "transforms")

__all__ = [
    "Audit",
    "Budget",
    "BudgetExceededError",
    "Callback",
    "CloisterError",
    "Cohort",
    "Comparison",
    "Corrupted",
    "Ledger",
    "LocalRule",
    "Mechanism",
    "Method",
    "Plan",
    "Record",
    "Reproduction",
    "Run",
    "ServerOptimizer",
    "StopTraining",
    "TrainedModel",
    "Transform",
    "Tuned",
    "UnsupportedMechanismError",
    "audit",
    "calibrate",
    "client",
    "compare",
    "cyclic",
    "data",
    "fixed_size",
    "full",
    "landscape",
    "load",
    "mechanisms",
    "methods",
    "models",
    "personalize",
    "plan",
    "poisson",
    "report",
    "reproduce",
    "run",
    "server",
    "theory",
    "trackers",
    "transforms",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "trackers":
        return importlib.import_module("cloister.runs.trackers")
    if name in _SUBPACKAGES:
        return importlib.import_module(f"cloister.{name}")
    if name in _DEFINED_IN:
        return getattr(importlib.import_module(f"cloister.{_DEFINED_IN[name]}"), name)
    raise AttributeError(f"module 'cloister' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
