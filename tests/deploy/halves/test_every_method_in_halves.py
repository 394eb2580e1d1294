"""Every method of the catalogue in two halves, against the same run simulated in one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

import cloister as cl
from cloister.deploy.halves.steps import Step
from contract.catalogue import ENTRIES
from deploy.halves.federations import SIZES, Toy, data_of, simulated, terms_of

ROUNDS = 3
SERVERS = {
    "dp_fedavg adam": {"server": "adam"},
    "dp_fedavg schedule": {
        "server": "sgd",
        "server_lr_schedule": "step",
        "server_lr_final": 0.5,
        "server_lr_rounds": 2,
    },
}
COHORTS: dict[str, dict[str, Any]] = {
    "poisson": {"cohort": "poisson", "sampling_rate": 0.6},
    "fixed_size": {"cohort": "fixed_size", "clients_per_round": 3},
    "cyclic": {"cohort": "cyclic", "clients_per_round": 2},
    "full": {"cohort": "full"},
}
NEEDS_PUBLIC = ("fed_smp_top_k", "ae_dpfl", "adap_dp_fl")
REFUSED: dict[str, str] = {}
"""Entries that a federation refuses, with a word of why."""


@cache
def public_samples() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = data_of(99, 20)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def values_of(name: str, kind: str) -> dict[str, Any]:
    settings = {key: value for key, value in ENTRIES[name].settings.items() if key != "server"}
    given = {key: value for key, value in settings.items() if value is not None}
    private = ENTRIES[name].make is not cl.methods.fedavg
    target = {"delta": 1e-3, "allow_large_delta": True} if private else {}
    if ("bound" in settings and settings["bound"] == "median") or name.startswith("adap_dp_fl"):
        target["epsilon"] = 300.0
    return {
        "method": name.split()[0],
        "model": "mlp",
        "hidden": 5,
        "rounds": ROUNDS,
        **given,
        **SERVERS.get(name, {}),
        **COHORTS[kind],
        **target,
    }


def kind_of(name: str) -> str:
    """The cohort that a method is tried over: its own, or all where nodes share the noise."""
    method = ENTRIES[name].make(**ENTRIES[name].settings)
    if method.mechanism.place == "distributed" and not method.local_only:
        return "full"
    kinds = ENTRIES[name].cohorts
    return kinds[0] if kinds else cl.methods.REGISTRY[name.split()[0]].defaults.get("cohort", "poisson")


def terms_for(name: str) -> tuple[Any, Any]:
    public = public_samples() if name.split()[0] in NEEDS_PUBLIC else None
    given = {} if public is None else {"public": {"sha256": "0" * 64}}
    method = ENTRIES[name].make(**ENTRIES[name].settings)
    sizes = {"sizes": list(SIZES)} if method.unit == "sample" else {}
    return terms_of({**values_of(name, kind_of(name)), **given}, **sizes), public


def test_every_method_is_tried_or_refused():
    ours = {name for name in cl.methods.REGISTRY if ":" not in name}
    assert ours <= {name.split()[0] for name in ENTRIES}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if " " in name else ()) for name in ENTRIES if name not in REFUSED],
)
def test_two_halves_give_the_model_of_the_simulation(name):
    terms, public = terms_for(name)
    toy = Toy(terms, public=public)
    assert {node.side.fed.event for node in toy.nodes} == {toy.server.side.fed.event}
    found, wanted = toy.play(), simulated(terms, public)
    assert not torch.equal(wanted, toy.server.side.placed.w)
    if toy.server.side.fed.method.mechanism.integer:
        assert torch.equal(found, wanted), "sums of whole numbers are the same to the bit, and so is what follows"
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
    assert toy.server.next_step() is None
    assert Step(ROUNDS) == toy.server.steps[-1]
