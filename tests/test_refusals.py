"""What has no price, or another one, is refused: noise that does not fit the cohort, the clients or the messages."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import cloister as cl
from cloister.core import Cohort, Method
from cloister.errors import CloisterError, UnsupportedMechanismError
from cloister.mechanisms.correlated import banded, tree
from cloister.privacy.events import DiscreteGaussianSum
from conftest import federation, toy_task
from contract.catalogue import METHODS, fed_of

CLIENTS = 8  # of the toy task
PLAIN = cl.methods.dp_fedavg(clip_norm=0.5, batch_size=4, local_steps=1, noise_multiplier=1.0)


def correlated(name: str, over: int) -> Method:
    return replace(PLAIN, mechanism=tree(1.0, over) if name == "tree" else banded(1.0, over))


COHORTS: dict[str, Cohort] = {
    "poisson": cl.poisson(0.2),
    "poisson 1": cl.poisson(1.0),
    "fixed_size": cl.fixed_size(2),
    "full": cl.full(),
    "cyclic 2": cl.cyclic(2),
    "cyclic 3": cl.cyclic(3),
    "cyclic 5": cl.cyclic(5),
    "cyclic 8": cl.cyclic(8),
}


@pytest.mark.parametrize("over", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["tree", "banded"])
@pytest.mark.parametrize("kind", COHORTS)
def test_correlated_noise_is_for_clients_that_come_as_seldom_as_it_takes(kind, name, over):
    """Once in `over` rounds at most, for certain: in cycles that are as long; whatever has no cycle is refused."""
    cohort = COHORTS[kind]
    cycle = math.ceil(CLIENTS / cohort.settings["clients_per_round"]) if cohort.name == "cyclic" else 1
    if over <= cycle:
        fed, _ = federation(correlated(name, over), cohort)
        assert fed.event == cohort.event(1.0, CLIENTS)
        return
    for refused in (
        lambda: federation(correlated(name, over), cohort),
        lambda: cl.run(correlated(name, over), toy_task(), rounds=1, delta=1e-3, cohort=cohort, engine="loop"),
    ):
        with pytest.raises(CloisterError, match="correlated"):
            refused()


@pytest.mark.parametrize("kind", ["poisson", "fixed_size", "full"])
@pytest.mark.parametrize("name", ["dp_ftrl", "dp_ftrl tree"])
def test_the_method_refuses_them_too(kind, name):
    with pytest.raises(CloisterError, match="take turns"):
        fed_of(METHODS[name](), COHORTS[kind])


@pytest.mark.parametrize("mode", [{"trust": "sum"}, {"mode": "as_published"}], ids=str)
@pytest.mark.parametrize("copies", [2, 3, 50])
def test_samples_of_several_clients_do_not_hide_in_one_sum(copies, mode):
    method = cl.methods.cpsgd(batch_size=2, noise_multiplier=20.0, **mode)
    fed, _ = federation(method)
    assert fed.method.mechanism.settings["trust"] == "sum"
    with pytest.raises(CloisterError, match="trust = message"):
        replace(fed, copies=copies)
    with pytest.raises(CloisterError, match="trust = message"):
        cl.run(method, replace(toy_task(sizes=(4,) * 8), copies=copies), rounds=1, delta=1e-3, engine="loop")
    alone, _ = federation(cl.methods.cpsgd(batch_size=2, noise_multiplier=20.0, trust="message"))
    charges = replace(alone, copies=copies).charges([0])["sample of client 0"]
    assert charges.count == copies * alone.charges([0])["sample of client 0"].count, "each of them pays for it"


def test_overlapping_clients_are_known_by_their_partition():
    task = cl.data.digits(partition=cl.data.overlapping(4))
    assert task.copies > 1
    with pytest.raises(CloisterError, match=r"trust = message|no sample in common"):
        cl.run(
            cl.methods.cpsgd(batch_size=2, trust="sum", noise_multiplier=20.0),
            task,
            rounds=1,
            delta=1e-4,
            engine="loop",
        )


@pytest.mark.parametrize("name", ["ddgauss", "ddgauss central", "cpsgd", "cpsgd bits"])
def test_whole_noise_is_for_messages_of_the_norm_that_it_was_priced_for(name):
    """Also one that is a little longer, and after the noise was replaced by that of a smaller clip."""
    fed, _ = fed_of(METHODS[name](), cl.full() if name.startswith("cpsgd") else cl.poisson(0.6))
    sensitivity, mechanism = fed.sensitivity.l2, fed.method.mechanism
    assert sensitivity <= mechanism.most_l2(fed.sensitivity) < math.inf
    for longer in (1 + 1e-3, 2.0, math.inf):
        shorter = replace(
            fed.method, mechanism=replace(mechanism, most_l2=lambda sensitivity, most=sensitivity / longer: most)
        )
        with pytest.raises(CloisterError, match="norm at most"):
            replace(fed, method=shorter)
    longer = replace(
        fed.method.transform, sensitivity=lambda before, layout: replace(fed.sensitivity, l2=2 * sensitivity)
    )
    with pytest.raises(CloisterError, match="norm at most"):
        replace(fed, method=replace(fed.method, transform=longer))
    with pytest.raises(CloisterError, match="whole"):
        replace(fed, method=replace(fed.method, transform=cl.transforms.clip_l2(0.05)))
    with pytest.raises(CloisterError):
        replace(fed, method=replace(fed.method, transform=cl.transforms.identity()))


@pytest.mark.parametrize("outputs", [3, 9, 18, 19, 37])
@pytest.mark.parametrize("name", ["ddgauss", "ddgauss central", "cpsgd", "cpsgd bits"])
def test_every_number_of_a_message_is_priced(name, outputs):
    """Padding included; for models just below, at and above a power of two."""
    task = toy_task()
    cohort = cl.full()
    fed, w = fed_of(METHODS[name](), cohort, task=task, model=nn.Linear(6, outputs))
    broadcast = fed.broadcast(1, w, fed.method.init(w).transform)
    event = fed.event if not name.startswith("cpsgd") else fed.charges([0])["sample of client 0"].event
    message = fed.blank(w, broadcast)
    assert not message.is_floating_point()
    assert event.dimension == message.numel() == fed.sensitivity.length >= len(w)
    if isinstance(event, DiscreteGaussianSum):
        assert event.l2 >= fed.sensitivity.l2
        assert event.shares * event.scale**2 <= (event.noise_multiplier * event.l2) ** 2 * (1 + 1e-12)


@pytest.mark.parametrize("cohort", [cl.fixed_size(5)], ids=["fixed_size"])
@pytest.mark.parametrize("name", ["ddgauss", "ddgauss central"])
def test_discrete_noise_has_no_price_over_cohorts_of_a_fixed_size(name, cohort):
    with pytest.raises((UnsupportedMechanismError, CloisterError), match="priced for Poisson"):
        cl.run(METHODS[name](), toy_task(), rounds=1, delta=1e-3, cohort=cohort, engine="loop")


@pytest.mark.parametrize("members", [[0, 0], [1, 0], [0, 8], [-1, 3], [2, 2, 5]], ids=str)
def test_a_cohort_names_clients_that_there_are_and_each_once(members):
    from cloister.engine import Loop
    from cloister.privacy.ledger import Ledger
    from cloister.round import run_round

    odd = replace(cl.poisson(0.5), sample=lambda streams, round, population: torch.tensor(members))
    fed, w = federation(PLAIN, odd)
    with pytest.raises(CloisterError, match="rising order"):
        run_round(fed, Ledger.create(None, "test", {}), Loop(), 1, w, fed.method.init(w))
