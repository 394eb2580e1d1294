"""Noise that is rounded to a grid, on a GPU: the bits are the host's, sums and steps are the device's.

Every run is seeded, so an audit passes always or never; on another device or version it may fail without cause with
the probability that the audits state: below 1e-3 all together.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cloister as cl
from cloister.round import cohort_total
from conftest import federation, toy_task
from contract import sample_audit
from contract.audit import only_noise, released
from contract.catalogue import AUDITED_STEPS, METHODS, cohorts_for, fed_of
from gpu.device import DEVICE, ON_DEVICE, REAL, engine_of
from gpu.test_gpu_audits import audit, playing

pytestmark = ON_DEVICE

METHOD = cl.methods.dp_fedavg(clip_norm=0.7, lr=0.5, local_steps=2, noise_multiplier=1.3)


@pytest.mark.parametrize("kind", ["vectorized", "graphed"])
@pytest.mark.parametrize("audited", ["noise", "sensitivity"])
@pytest.mark.parametrize("name", ["dp_fedavg", "fed_smp_top_k", "dp_fedsam"])
def test_a_round_on_a_grid_keeps_its_promise(name, audited, kind):
    fed, w = fed_of(METHODS[name](), next(iter(cohorts_for(name).values())), device=DEVICE)
    fed = replace(fed, rounded=True)
    assert fed.grid is not None
    audit(audited, playing(kind), fed, w)


@pytest.mark.parametrize("kind", ["loop", "vectorized", "graphed"])
@pytest.mark.parametrize("audited", ["noise", "sensitivity"])
@pytest.mark.parametrize("name", ["pfl", "dp_fed", "adap_dp_fl"])
def test_private_steps_on_a_grid_keep_their_promise(name, audited, kind):
    fed, w = sample_audit.audited(AUDITED_STEPS[name], device=DEVICE)
    fed = replace(fed, rounded=True)
    sample_audit.AUDITS[audited](playing(kind), fed, w)


def test_the_noise_is_that_of_the_host_to_the_bit():
    """A run that moves between devices keeps the noise that was paid for; another run has other noise."""

    def drawn(device: str, **changed: str) -> torch.Tensor:
        fed = replace(fed_of(METHOD, cl.full(), device=device)[0], rounded=True)
        streams = replace(fed.streams, **changed)
        like = torch.zeros(200_001, dtype=torch.float64, device=device)
        assert fed.grid is not None
        return fed.method.mechanism.draw(1.3, streams, like, fed.sensitivity, 1, -1, 1).cpu() / fed.grid

    noise = drawn("cpu")
    assert torch.equal(drawn(DEVICE), noise)
    assert torch.equal(noise, noise.round())
    assert float((drawn(DEVICE, run="another") == noise).double().mean()) < 1e-3


@pytest.mark.parametrize("kind", ["loop", "vectorized", "graphed"])
def test_sums_are_on_the_grid_and_within_the_bound(kind):
    """What every client sends, and what all send together, in whole points: float64 on the device is exact. A client
    that is computed beside others is so to float32's rounding, which may take it to the next point but one."""
    fed, w = federation(METHOD, cl.full(), task=toy_task(), device=DEVICE, dtype=torch.float32)
    fed, engine = replace(fed, rounded=True), engine_of(kind, 3)
    clients = torch.arange(fed.population.clients)
    each = [cohort_total(fed, engine, 1, w, clients[at : at + 1])[0].clone() for at in range(len(clients))]
    whole, _ = cohort_total(fed, engine, 1, w, clients)
    for message in [*each, whole]:
        points = message / fed.grid
        assert torch.equal(points, points.round())
    assert all(float(message.norm()) <= fed.sensitivity.l2 for message in each)
    apart = float(((torch.stack(each).sum(0) - whole) / fed.grid).abs().max())
    assert apart <= (0 if kind == "loop" and not REAL else 100), "0.7 is some ten million points"


@pytest.mark.parametrize("kind", ["vectorized", "graphed"])
def test_a_release_without_data_is_the_same_on_both(kind):
    """To what float64 loses where the step of the model is turned back into the sum."""
    totals = []
    for device, engine in ((DEVICE, kind), ("cpu", "vectorized")):
        fed, w = fed_of(METHOD, cl.full(), device=device)
        totals.append(released(playing(engine), only_noise(replace(fed, rounded=True)), w))
    assert torch.allclose(*totals, rtol=0, atol=1e-12)
