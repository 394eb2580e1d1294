"""The model of a federation as files that `cloister predict` and `cloister.load` read: with a certificate beside it.

The certificate is the library's own, of what the server released. It says what it cannot know: where samples are
protected, accounts are the nodes', and what is promised is the budget of the terms, which every node enforces by its
own ledger. In test mode it calls nothing private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from cloister.deploy.halves.prepared import Prepared
from cloister.deploy.halves.progress import Progress
from cloister.privacy.certificate import Certificate, certify
from cloister.privacy.description import RunDescription
from cloister.privacy.ledger import Ledger
from cloister.privacy.promised import Price
from cloister.privacy.unit import ProtectedUnit
from cloister.runs.description import describe_model, describe_run
from cloister.runs.folder import RunFolder
from cloister.runs.metric_catalogue import watched
from cloister.runs.model_file import ModelFile
from cloister.runs.queries import described

FILES = ("model.safetensors", "model.json", "certificate.txt", "certificate.json")
TEST = "TEST MODE: everything random was seeded, so that nothing here is private"
NODES = (
    "what each node has spent: its own ledger and its own certificate say that; the epsilon above is what the terms "
    "let every node spend, and every node refuses more"
)


def write_model(side: Prepared, progress: Progress, folder: Path, ledger: Ledger | None) -> tuple[Path, ...]:
    """Write model.safetensors, model.json, certificate.json and certificate.txt; the files, in this order."""
    description = description_of(side)
    ledger = ledger or Ledger.create(None, description.configuration_hash, {})
    certificate = _certificate(side, description, ledger, progress.stopped is not None)
    folder.mkdir(parents=True, exist_ok=True)
    about = _about(side, description.configuration_hash)
    RunFolder(folder).finish(certificate, tensors_of(side, progress.result), about.to_bytes())
    return tuple(folder / name for name in FILES)


def tensors_of(side: Prepared, w: Tensor) -> dict[str, Tensor]:
    """All that the model with these parameters consists of, by name."""
    module, trained = side.placed.module, side.fed.objective.layout.views(w)
    return {**dict(module.named_buffers()), **dict(module.named_parameters()), **trained}


def description_of(side: Prepared) -> RunDescription:
    """The run as plain values; its hash is written into the model's files."""
    request, fed, placed = side.request, side.fed, side.placed
    if fed.unit is ProtectedUnit.SAMPLE:  # a claim is about the largest client, whose size nobody here knows
        fed = replace(fed, method=replace(fed.method, claims=None))
    model = describe_model(request, fed, placed.w, placed.module, placed.weights)
    return describe_run(request, fed, placed.w, side.budgets, model, side.selection, described(side.queries, request))


def _certificate(side: Prepared, description: RunDescription, ledger: Ledger, early: bool) -> Certificate:
    found = certify(description, ledger, ended_early=early and side.fed.unit is ProtectedUnit.CLIENT)
    notes: list[str] = list(found.not_covered)
    if side.fed.unit is ProtectedUnit.SAMPLE and side.fed.method.mechanism.noise_multiplier:
        target, delta = side.request.epsilon, side.request.delta
        most = max(target) if isinstance(target, Sequence) else target
        prices = [Price(price.delta, most if price.delta == delta else None, None) for price in found.prices]
        found, notes = replace(found, prices=prices, private=most is not None), [*notes, NODES]
    if side.terms.test_mode:
        found, notes = replace(found, private=False), [TEST, *notes]
    return replace(found, not_covered=notes)


def _about(side: Prepared, configuration: str) -> ModelFile:
    request = side.request
    names = [metric.name for metric in watched(request.task, None, None).metrics]
    made: Any = request.model
    about = ModelFile.of(request.task, made, request.adaptation, names, request.options.dtype, configuration)
    learned = side.standardization
    return about if learned is None else replace(about, standardization=learned.to_json())
