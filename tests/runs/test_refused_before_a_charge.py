"""What would end in a false price, or after something was charged, is refused before the ledger has a line."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cloister as cl
from cloister import mechanisms, transforms
from cloister.core import Method, Transform
from cloister.errors import CloisterError
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.runs.folder import RunFolder
from cloister.runs.report.plan import plan_summary
from cloister.transforms.hadamard import padded
from conftest import federation, flat_state, toy_task

LOUD = cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1, noise_multiplier=4.0)
SAMPLES = cl.methods.pfl(clip_norm=0.5, batch_size=8, noise_multiplier=4.0)


def go(method: Method, task: cl.data.Task | None = None, **more) -> cl.Run:
    asked = {"rounds": 2, "delta": 1e-3, "engine": "loop", "progress": False, **more}
    return cl.run(method, toy_task() if task is None else task, **asked)


# ---- delta ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "units", "what"), [(LOUD, 8, "clients"), (SAMPLES, 12, "samples of a client")])
@pytest.mark.parametrize("much", [1.0, 5.0])
def test_a_delta_that_promises_nothing_is_refused_unless_somebody_insists(method, units, what, much, tmp_path):
    """Protected are 8 clients, or the 12 samples of the largest; at 1/units, publishing one whole would do."""
    with pytest.raises(CloisterError, match=f"delta < 1/{units}, as there are {units} {what}"):
        go(method, delta=much / units, folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    go(method, delta=0.99 / units, rounds=1)
    insisted = go(method, delta=much / units, rounds=1, allow_large_delta=True).certificate
    assert any("is not below" in gap for gap in insisted.not_covered)


def test_in_a_secure_sum_delta_is_seen_beside_the_samples_of_all_clients():
    """A sum is about all of them, so that one of all is what a mechanism could publish whole."""
    task, delta = toy_task((12, 10, 10)), 1 / 20
    summed = cl.methods.pfl(clip_norm=0.5, batch_size=8, noise_multiplier=4.0, trust="sum")
    for method, words in ((SAMPLES, False), (summed, True)):
        certificate = go(method, task, delta=delta, rounds=1, cohort=cl.full()).certificate
        assert any("is not below 1/32" in gap for gap in certificate.not_covered) is words
        planned = dict(plan_summary(cl.plan(method, cohort=cl.full(), task=task, rounds=1, delta=delta)))["delta"]
        assert planned.startswith("weak") is words


def test_without_noise_there_is_no_delta_to_refuse():
    go(cl.methods.fedavg(local_steps=1), delta=0.9, rounds=1)


def test_a_plan_says_that_such_a_delta_is_weak():
    method = cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1, noise_multiplier=5.0)
    weak = cl.plan(method, cohort=cl.poisson(0.5), clients=300, rounds=1, delta=0.9)
    assert dict(plan_summary(weak))["delta"].startswith("weak")


# ---- votes under replacement ------------------------------------------------------------------------------------


def voting(z: float | None, queries: int = 20) -> Method:
    return cl.methods.ae_dpfl(queries=queries, local_steps=1, student_epochs=1, noise_multiplier=z)


def with_pool(task: cl.data.Task) -> cl.data.Task:
    return replace(task, public_samples=(task.test_inputs, task.test_labels))


def test_a_client_that_is_replaced_moves_one_vote_from_one_class_to_another():
    """Every pair of messages is at most sqrt(2Q) apart, some are, and that is what is priced."""
    task = with_pool(toy_task())
    public_samples = task.test_inputs.double(), task.test_labels
    fed, w, *_ = federation(voting(3.0), cl.fixed_size(3), task=task, public_samples=public_samples)
    assert fed.sensitivity.replaced == pytest.approx(math.sqrt(40))
    random = torch.Generator().manual_seed(0)
    sent = [
        fed.method.transform.encode(scale * torch.randn(w.shape, generator=random).to(w), fed.context(w, {}))
        for scale in (0.0, 1.0, 3.0, 10.0, 30.0)
    ]
    apart = [float((one - other).norm()) for one in sent for other in sent]
    assert 0.5 * math.sqrt(40) < max(apart) <= math.sqrt(40)
    # Noise of 3 sqrt(Q) over a move of sqrt(2Q): 3 sqrt(2) as a multiple of half the move.
    assert isinstance(fed.event, FixedSizeGaussian)
    assert fed.event.noise_multiplier == pytest.approx(3 * math.sqrt(2))
    full = replace(fed, cohort=cl.full())
    assert full.event == Gaussian(3.0)
    assert replace(fed, cohort=cl.poisson(0.5)).event == PoissonGaussian(3.0, 0.5)


def test_votes_of_everybody_under_replacement_cost_one_gaussian_of_that_move():
    """A fixed cohort of all clients: one Gaussian release of shift sqrt(2Q) / (z sqrt(Q)) = sqrt(2)/z."""
    run = go(voting(2.0), with_pool(toy_task()), cohort=cl.fixed_size(8), rounds=1)
    assert run.epsilon == pytest.approx(epsilon_of(Gaussian(2 / math.sqrt(2)), 1, 1e-3), rel=2e-3)


# ---- messages that are not what they are declared to be ----------------------------------------------------------


def gridded(length: int, *before: Transform, z: float = 6.0, scale: float = 1000.0) -> Method:
    """Discrete noise on a grid, by hand."""
    l2 = 0.5 * scale + math.sqrt(length)
    whole = transforms.chain(*before, transforms.clip_l2(0.5), transforms.quantize(scale, l2, 24))
    noise = mechanisms.discrete_gaussian(z, z * l2 / math.sqrt(8), 8, l2, "distributed")
    return replace(LOUD, transform=whole, mechanism=noise)


SIZE = 6 * 3 + 3  # of the toy task's own model, which is logistic


def test_a_transform_that_sends_more_than_it_says_is_found_out():
    more = Transform(
        "more", {}, lambda update, context: torch.cat([update, update]), lambda known, layout: replace(known, l2=1.0)
    )
    with pytest.raises(CloisterError, match="as the transform more says"):
        go(replace(LOUD, transform=more))


# ---- chains -----------------------------------------------------------------------------------------------------


def test_a_mask_a_clip_and_a_grid_train_together():
    kept = math.floor(0.5 * SIZE)
    run = go(gridded(padded(kept), transforms.random_mask(0.5)), toy_task(), epsilon=8.0)
    assert len(run.history) == 2
    assert 0 < run.epsilon <= 8.0


def test_two_adaptive_clips_train_and_their_states_survive_a_checkpoint(tmp_path):
    both = transforms.chain(
        transforms.adaptive_clip(0.1, 0.5, 0.2, 0.5),
        transforms.clip_l2(1.0),
        transforms.adaptive_clip(2.0, 0.5, 0.2, 0.5),
    )
    go(replace(LOUD, transform=both), folder=tmp_path / "r", checkpoint_every=1)
    state = RunFolder.open(tmp_path / "r").load("cpu").state
    clips = [float(value) for name, value in sorted(flat_state(state).items()) if name.endswith("clip_norm")]
    assert len(clips) == 2
    assert clips[0] < 0.3 < clips[1]


def test_correlated_noise_is_as_long_as_messages_are():
    """Three masks of a cycle: noise is subtracted from message to message, and no longer than one."""
    masked = transforms.chain(transforms.random_mask(0.5), transforms.clip_l2(0.5))
    for noise in (mechanisms.banded(4.0, 3), mechanisms.tree(4.0, 4)):
        run = go(replace(LOUD, transform=masked, mechanism=noise), cohort=cl.cyclic(2), rounds=5)
        assert len(run.history) == 5


@pytest.mark.parametrize("place", ["central", "distributed"])
def test_what_follows_the_noise_is_refused_where_the_sum_is_priced(place):
    """The largest coordinates of noisy messages, summed, are no function of the noisy sum."""
    chosen = transforms.chain(transforms.clip_l2(0.5), transforms.top_k_after_noise(0.5))
    method = replace(LOUD, transform=chosen, mechanism=mechanisms.gaussian(4.0, place))
    with pytest.raises(CloisterError, match="noise to be the last thing"):
        go(method)
    go(replace(method, local_only=True), rounds=1)


PARTS = {
    "identity": lambda: transforms.identity(),
    "clip_norm": lambda: transforms.clip_l2(0.5),
    "small clip": lambda: transforms.clip_l2(0.01),
    "each": lambda: transforms.clip_each_tensor(0.5),
    "adaptive": lambda: transforms.adaptive_clip(0.5, 0.5, 0.2, 0.3),
    "mask": lambda: transforms.random_mask(0.4),
    "active": lambda: transforms.active_part(0.5),
    "top": lambda: transforms.top_k_of_sum(0.5),
    "after": lambda: transforms.top_k_after_noise(0.5),
    "public_samples": lambda: transforms.public_mask(0.5, 0.1, 1, 4),
    "grid": lambda: transforms.quantize(1000.0, 510.0, 24),
    "levels": lambda: transforms.quantize_to_levels(1.0, 17),
    "votes": lambda: transforms.votes(3),
}
NOISES = {
    "gaussian": lambda: mechanisms.gaussian(6.0),
    "distributed": lambda: mechanisms.gaussian(6.0, "distributed"),
    "banded": lambda: mechanisms.banded(6.0, 2),
    "discrete": lambda: mechanisms.discrete_gaussian(6.0, 1100.0, 8, 510.0, "distributed"),
    "few": lambda: mechanisms.discrete_gaussian(6.0, 1100.0, 3, 510.0, "distributed"),
}
COHORTS = [cl.full(), cl.poisson(0.5), cl.fixed_size(3), cl.cyclic(2)]


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    names=st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4),
    end=st.sampled_from(["", "clip_norm", "grid"]),
    noise=st.sampled_from(sorted(NOISES)),
    cohort=st.sampled_from(COHORTS),
)
def test_a_chain_trains_within_its_budget_or_is_refused_before_anything_is_charged(
    names, end, noise, cohort, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("chains") / "r"
    ends = {"": [], "clip_norm": ["clip_norm"], "grid": ["clip_norm", "grid"]}[end]
    try:
        whole = transforms.chain(*(PARTS[name]() for name in [*names, *ends]))
        method = replace(LOUD, transform=whole, mechanism=NOISES[noise]())
        run = go(method, with_pool(toy_task()), cohort=cohort, epsilon=9.0, folder=folder)
    except CloisterError:
        assert not folder.exists()
        return
    assert len(run.history) == 2 or run.stopped
    assert 0 < run.epsilon <= 9.0 * (1 + 1e-6)
