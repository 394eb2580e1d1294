"""Whole federations over Flower: three nodes with TLS and node keys, in the clear and under masks."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower has an environment with it")

from cloister.deploy.halves import ServerHalf
from cloister.deploy.operation.flower_programs import flower_network
from cloister.deploy.transport.flower.node import FlowerNode
from cloister.deploy.transport.flower.server import FlowerServer
from deploy import loops
from deploy.halves.federations import NAMES, PFL
from deploy.loops import SECRETS, Threads, loop_terms

pytestmark = pytest.mark.slow

THREE = NAMES[:3]
DDGAUSS = {
    "method": "ddgauss",
    "clip_norm": 0.5,
    "lr": 0.5,
    "batch_size": 4,
    "local_steps": 2,
    "epsilon": 4.0,
    "delta": 1e-3,
    "cohort": "full",
    "allow_large_delta": True,
}


class _Flower:
    def __init__(self, programs, register):
        self.programs, self.register, self.open = programs, register, []

    def server(self):
        self.open.append(FlowerServer(self.programs.link, self.register, SECRETS["server"]))
        return self.open[-1]

    def node(self, name):
        self.open.append(FlowerNode(self.programs.at(name), name, SECRETS[name], self.register.server))
        return self.open[-1]

    def close(self):
        for one in self.open:
            one.close()


@pytest.mark.parametrize("values", [PFL, DDGAUSS], ids=["plain", "masked"])
def test_a_federation_over_flower_ends_as_one_in_memory(values, tmp_path, monkeypatch):
    monkeypatch.setattr(loops, "WITHIN", 400.0)
    terms = loop_terms(values, nodes={name: SECRETS[name].public.text for name in THREE}, deadline=120.0)
    memory = Threads(terms, tmp_path / "memory").start(*THREE)
    memory.end()
    (tmp_path / "flower").mkdir()
    with flower_network(tmp_path / "flower", THREE) as programs:
        flower = _Flower(programs, terms.register)
        try:
            threads = Threads(terms, tmp_path / "run", flower).start(*THREE)
            threads.end()
        finally:
            flower.close()
    assert torch.equal(threads.model(), memory.model())
    assert threads.server().state == "finished"
    assert {threads.node(name).state for name in THREE} == {"finished"}
    half = ServerHalf.of(terms, threads.server().run)
    first = half.next_step()
    assert first is not None
    assert (half.masked(first) is not None) == (values is DDGAUSS)
