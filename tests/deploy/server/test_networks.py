"""Networks that lose, repeat, delay, reorder and change messages: the federation ends with the same model."""

from __future__ import annotations

import pytest
import torch

from cloister.deploy.node import NodeLedger
from cloister.deploy.transport.memory import Faults, MemoryNetwork
from deploy.halves.federations import NAMES, PFL, simulated
from deploy.halves.test_every_method_in_halves import values_of
from deploy.loops import Threads, loop_terms

MASKED = {**values_of("ddgauss", "full"), "rounds": 2}


@pytest.mark.parametrize(
    "values", [{**PFL, "rounds": 3}, pytest.param(MASKED, marks=pytest.mark.slow)], ids=["plain", "masked"]
)
@pytest.mark.parametrize(
    "faults",
    [
        {"repeat": 0.5, "reorder": 0.5, "delay": 0.02},
        pytest.param({"lose": 0.15, "change": 0.15, "repeat": 0.3, "reorder": 0.3}, marks=pytest.mark.slow),
    ],
    ids=["repeats", "loses"],
)
def test_a_bad_network_changes_nothing(values, faults, tmp_path):
    terms = loop_terms(values, deadline=10.0)
    network = MemoryNetwork(terms.register, Faults(seed=1, **faults))
    threads = Threads(terms, tmp_path, network).start()
    threads.end("server")
    threads.stop.set()  # a node whose last receipt was lost waits for a while
    threads.end()
    certificate = threads.server().certificate
    assert certificate["steps_not_released"] == []
    torch.testing.assert_close(threads.model(), simulated(terms), rtol=1e-6, atol=1e-7)
    for name in NAMES:
        ledger = NodeLedger.open(tmp_path / name / "ledger.jsonl", writable=False)
        assert sorted(ledger.accounts()["sample"].rounds) == list(range(1, values["rounds"] + 1))
        assert len(ledger._ledger.entries) == values["rounds"] * (2 if values is MASKED else 1)
