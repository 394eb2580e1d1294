"""Runs of a whole federation through the loops, equal to the simulation."""

from __future__ import annotations

import pytest
import torch

import cloister as cl
from contract.catalogue import ENTRIES
from deploy.halves.federations import FEDAVG, NAMES, PFL, SIZES, simulated
from deploy.halves.test_every_method_in_halves import NEEDS_PUBLIC, kind_of, public_samples, values_of
from deploy.loops import Threads, loop_terms
from deploy.over_https import HttpsNetwork

MASKED = {**values_of("ddgauss", "full"), "rounds": 2}


@pytest.mark.parametrize("values", [PFL, FEDAVG, MASKED], ids=["sample level", "user level", "masked"])
def test_a_federation_ends_with_the_model_of_the_simulation(values, tmp_path):
    terms = loop_terms(values)
    threads = Threads(terms, tmp_path).start()
    threads.end()
    torch.testing.assert_close(threads.model(), simulated(terms), rtol=1e-6, atol=1e-7)
    assert threads.server().state == "finished"
    assert threads.server().certificate["steps_not_released"] == []
    assert {threads.node(name).state for name in NAMES} == {"finished"}
    loaded = cl.load(tmp_path / "server" / "model")
    assert loaded is not None


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["memory", "https"])
@pytest.mark.parametrize("name", ENTRIES)
def test_every_method_over_every_transport(name, transport, tmp_path):
    public = public_samples() if name.split()[0] in NEEDS_PUBLIC else None
    values = values_of(name, kind_of(name)) | ({} if public is None else {"public": {"sha256": "0" * 64}})
    unit = ENTRIES[name].make(**ENTRIES[name].settings).unit
    terms = loop_terms(values, **({"sizes": list(SIZES)} if unit == "sample" else {}))
    network = HttpsNetwork(terms.register, tmp_path / "tls") if transport == "https" else None
    threads = Threads(terms, tmp_path, network, public=public).start()
    threads.end()
    if network is not None:
        network.close()
    torch.testing.assert_close(threads.model(), simulated(terms, public), rtol=1e-6, atol=1e-7)
    assert threads.server().certificate["steps_not_released"] == []


@pytest.mark.slow
def test_a_run_that_validation_ends_is_certified_for_all_that_was_planned(tmp_path):
    stops = {"validation": "private", "patience": 1, "min_delta": 1e6, "rounds": 6}
    terms = loop_terms({**PFL, "epsilon": 8.0, **stops}, sizes=list(SIZES))
    threads = Threads(terms, tmp_path).start()
    threads.end()
    certificate = threads.server().certificate
    assert "had not improved" in threads.server().reason
    assert sum(link["link"] == "opened" for link in certificate["links"]) < 12
    assert {threads.node(name).certificate["run"]["epsilon"] for name in NAMES} == {8.0}
