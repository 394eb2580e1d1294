"""The model of a federation as files, which the library loads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import cloister as cl
from cloister.privacy.ledger import Ledger
from deploy.halves.federations import FEDAVG, PFL, Toy, data_of, terms_of


def played(values: dict[str, Any], **federation: Any) -> tuple[Toy, Ledger]:
    toy, ledger = Toy(terms_of(values, **federation)), Ledger.create(None, "test", {})
    while (step := toy.server.next_step()) is not None:
        ledger.charge_each(toy.server.charges(step), round=step.round, what=step.what, repeatable=False)
        toy.step()
    return toy, ledger


@pytest.mark.parametrize(
    "values",
    [
        {**FEDAVG, "noise_multiplier": 2.0},
        {**PFL, "epsilon": 30.0},
        {**PFL, "epsilon": 30.0, "standardize": 0.1},
        {"method": "fed_spa", "mode": "as_published", **{key: PFL[key] for key in ("clip_norm", "lr", "batch_size")}}
        | {"noise_multiplier": 1.3, "delta": 1e-3, "local_epochs": 1, "cohort": "full"},
    ],
    ids=["clients", "samples", "statistics", "as published"],
)
def test_the_model_is_loaded_and_predicts(values, tmp_path):
    sizes = {"sizes": [7, 3, 12, 5]} if "standardize" in values else {}
    toy, ledger = played({**values, "allow_large_delta": True}, test_mode=False, **sizes)
    toy.server.model_files(tmp_path / "model", ledger)
    model = cl.load(tmp_path / "model")
    inputs = torch.from_numpy(data_of(0, 7)[0])
    side = toy.server.side
    wanted = side.fed.objective.outputs(toy.server.progress.result, inputs)
    with torch.no_grad():
        torch.testing.assert_close(model.module(inputs), wanted)
    certificate = model.certificate
    assert certificate.unit == toy.server.unit
    if values["method"] == "dp_fedavg":
        assert certificate.private
        assert certificate.epsilon == pytest.approx(ledger.epsilon("client", 1e-3), rel=1e-3)
    elif "epsilon" in values:
        assert certificate.epsilon == 30.0
        assert any("its own ledger" in gap for gap in certificate.not_covered)
    else:
        assert math.isinf(certificate.epsilon)


def test_nothing_is_called_private_in_test_mode(tmp_path):
    toy, ledger = played(FEDAVG)
    toy.server.model_files(tmp_path / "model", ledger)
    certificate = cl.load(tmp_path / "model").certificate
    assert not certificate.private
    assert certificate.not_covered[0].startswith("TEST MODE")
