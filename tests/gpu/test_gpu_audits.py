"""Audits of rounds on a GPU: its generators draw the noise, its kernels clip. Planted faults must be found.

Every run is seeded, so an audit passes always or never; on another device or version it may fail without cause with the
probability that is stated: below 1e-3 where the audits of the contract are repeated (their alarms are at 5e-5), below
1e-8 where the generator itself is looked at.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

import cloister as cl
from cloister.privacy.ledger import Ledger
from cloister.random.streams import Streams
from cloister.round import cohort_total, run_round
from conftest import federation, toy_task
from contract import sample_audit
from contract.audit import AUDITS, only_noise, released
from contract.catalogue import AUDITED, AUDITED_STEPS, CLIP, METHODS, PLAIN, cohorts_for, fed_of
from gpu.device import DEVICE, ON_DEVICE, REAL, engine_of

pytestmark = ON_DEVICE

ROUNDS = 100  # of 83 numbers each: a scale that is 5 percent off is more than six deviations away
CAPTURED = ("dp_fedavg", "dp_fedavg distributed", "dp_fedsam", "dp_fedprox", "lus", "blur_lus")
STEPS = {name: method for name, method in AUDITED_STEPS.items() if name in ("pfl", "fed_spa", "dp_fed", "adap_dp_fl")}
Z = 6.0
"""Deviations: an honest normal statistic is beyond them with probability 2e-9."""


class Quieter(Streams):
    """A fault: all Gaussian noise has 0.93 times its scale."""

    def protective_normal(self, like, purpose, *position):
        return 0.93 * super().protective_normal(like, purpose, *position)


def playing(kind, chunk=1000):
    """A round, on an engine of this kind, whatever engine an audit offers."""
    engine = engine_of(kind, chunk)
    return lambda fed, ledger, _, *rest: run_round(fed, ledger, engine, *rest)


def audit(name, play, fed, w):
    """One audit; of noise, over fewer rounds than on a CPU."""
    AUDITS[name](play, fed, w, **({"rounds": ROUNDS} if name == "noise" else {}))


def deviations(draws: torch.Tensor) -> dict[str, float]:
    """How many deviations the moments, the tails and the neighbors of standard normal draws are off."""
    values = draws.double().flatten()
    n, far = len(values), 2 * stats.norm.sf(4.0)
    found = {
        "mean": float(values.mean()) * math.sqrt(n),
        "variance": (float(values.square().mean()) - 1) * math.sqrt(n / 2),
        "skewness": float((values**3).mean()) * math.sqrt(n / 15),
        "kurtosis": (float((values**4).mean()) - 3) * math.sqrt(n / 96),
        "tails": (float((values.abs() > 4).double().mean()) - far) * math.sqrt(n / far),
        "neighbors": float((values[1:] * values[:-1]).mean()) * math.sqrt(n - 1),
    }
    return {name: abs(value) for name, value in found.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_device_draws_normal_numbers(dtype):
    """Fails without cause below 1e-8, were it not seeded."""
    streams, like = Streams(3, run="audit"), torch.empty(2**22, dtype=dtype, device=DEVICE)
    first = streams.protective_normal(like, "noise", 1, -1)
    assert max(deviations(first).values()) < Z
    assert torch.equal(first, streams.protective_normal(like, "noise", 1, -1)), "the same place, the same draws"
    for other in (
        streams.protective_normal(like, "noise", 2, -1),
        streams.protective_normal(like, "noise", 1, 0),
        Streams(3, run="another").protective_normal(like, "noise", 1, -1),
        Streams(4, run="audit").protective_normal(like, "noise", 1, -1),
    ):
        assert abs(float((first * other).double().mean())) * math.sqrt(len(like)) < Z, "draws of their own"
    assert deviations(first * 0.995)["variance"] > 2 * Z, "half a percent less would be seen"


@pytest.mark.parametrize("audited", ["noise", "sensitivity"])
@pytest.mark.parametrize("name", AUDITED)
def test_a_round_keeps_its_promise(name, audited):
    fed, w = fed_of(METHODS[name](), next(iter(cohorts_for(name).values())), device=DEVICE)
    audit(audited, playing("vectorized"), fed, w)


@pytest.mark.parametrize("audited", ["noise", "sensitivity"])
@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_round_keeps_its_promise(name, audited):
    assert name in PLAIN, "read off the model, so that the same graph is replayed in every round"
    audit(audited, playing("graphed"), *fed_of(METHODS[name](), cl.poisson(0.6), device=DEVICE))


@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedavg distributed"])
def test_a_compiled_round_keeps_its_promise(name):
    """All at once, over one layout of clients: whoever has no data is masked, and nothing is compiled again."""
    fed, w = fed_of(METHODS[name](), cl.full(), device=DEVICE)
    play = playing("compiled")
    for audited in ("noise", "sensitivity", "signal"):
        audit(audited, play, fed, w)


def test_noise_keeps_its_scale_in_float32():
    fed, w = fed_of(METHODS["dp_fedavg"](), cl.poisson(0.6), device=DEVICE, dtype=torch.float32)
    audit("noise", playing("graphed"), fed, w)


@pytest.mark.parametrize("name", ["dp_fedavg", "dp_fedavg distributed"])
def test_noise_of_the_wrong_scale_is_found(name):
    fed, w = fed_of(METHODS[name](), cl.full(), device=DEVICE)
    lying = replace(fed, streams=Quieter(fed.streams.seed, run=fed.streams.run))
    with pytest.raises(AssertionError, match=r"0\.9\d\d times its scale"):
        audit("noise", playing("graphed"), lying, w)


@pytest.mark.parametrize("kind", ["vectorized", "graphed"])
def test_a_bound_that_is_not_kept_is_found(kind):
    sound = METHODS["dp_fedavg"]()
    lying = replace(sound.transform, encode=cl.transforms.clip_l2(1.2 * CLIP).encode)
    with pytest.raises(AssertionError, match=r"moves the sum by 1\.20 bounds"):
        audit("sensitivity", playing(kind), *fed_of(replace(sound, transform=lying), cl.full(), device=DEVICE))


@pytest.mark.parametrize("audited", ["noise", "sensitivity"])
@pytest.mark.parametrize("name", AUDITED_STEPS)
def test_private_steps_keep_their_promise(name, audited):
    fed, w = sample_audit.audited(AUDITED_STEPS[name], device=DEVICE)
    sample_audit.AUDITS[audited](playing("loop"), fed, w)


@pytest.mark.parametrize("audited", ["noise", "sensitivity", "batches"])
@pytest.mark.parametrize("name", STEPS)
def test_captured_private_steps_keep_their_promise(name, audited):
    fed, w = sample_audit.audited(STEPS[name], device=DEVICE)
    sample_audit.AUDITS[audited](playing("graphed"), fed, w)


@pytest.mark.parametrize("audited", ["noise", "sensitivity"])
def test_compiled_private_steps_keep_their_promise(audited):
    fed, w = sample_audit.audited(STEPS["dp_fed"], device=DEVICE)
    sample_audit.AUDITS[audited](playing("compiled"), fed, w)


@pytest.mark.parametrize("name", STEPS)
def test_noise_of_the_wrong_scale_in_steps_is_found(name):
    fed, w = sample_audit.audited(STEPS[name], device=DEVICE)
    lying = replace(fed, streams=Quieter(fed.streams.seed, run=fed.streams.run))
    with pytest.raises(AssertionError, match=r"0\.9\d\d times its scale"):
        sample_audit.AUDITS["noise"](playing("graphed"), lying, w)


def test_a_clip_that_is_not_kept_in_steps_is_found():
    fed, w = sample_audit.audited(STEPS["dp_fed"], device=DEVICE)
    larger = cl.methods.dp_fed(**{**CLIPPED, "clip_norm": 1.2 * CLIP}).local
    round = playing("graphed")

    def lying(fed, *rest):
        return round(replace(fed, method=replace(fed.method, local=larger)), *rest)

    with pytest.raises(AssertionError, match=r"a sample moves 1\.20 clips"):
        sample_audit.AUDITS["sensitivity"](lying, fed, w)


CLIPPED = {"clip_norm": CLIP, "lr": 0.5, "batch_size": 4, "noise_multiplier": 1.3, "local_steps": 1}
"""As dp_fed is audited."""


@pytest.mark.parametrize("kind", ["loop", "vectorized", "graphed"])
@pytest.mark.parametrize("precision", ["exact", "tf32", "bf16"])
def test_coarser_products_change_neither_the_bound_nor_the_noise(precision, kind):
    fed, w = fed_of(METHODS["dp_fedavg"](), cl.full(), device=DEVICE, dtype=torch.float32)
    coarse, engine = replace(fed, precision=precision), engine_of(kind)
    for client, size in enumerate(fed.population.counts.tolist()):
        message, _ = cohort_total(coarse, engine, 1, w, torch.tensor([client]))
        norm = float(message.double().norm())
        assert norm <= fed.sensitivity.l2 * (1 + 1e-5)
        assert norm >= fed.sensitivity.l2 * (1 - 1e-5) * (size > 0), "every client sends more than the clip"
    noise = [released(playing(kind), only_noise(one), w) for one in (fed, coarse)]
    assert torch.equal(*noise), "nobody has data, and the noise is what it is"
    sums = [cohort_total(one, engine, 1, w, torch.arange(8))[0] for one in (fed, coarse)]
    apart = float((sums[1] - sums[0]).norm() / sums[0].norm())
    assert apart < {"exact": 1e-6, "tf32": 5e-3, "bf16": 5e-2}[precision]
    assert not REAL or precision != "bf16" or apart > 1e-6, "products were rounded"


def test_secure_noise_reaches_the_device():
    fed, w = federation(METHODS["dp_fedavg"](), cl.full(), device=DEVICE, secure=True)
    ledgers = (Ledger.create(None, "t", {}) for _ in range(2))
    first, second = (run_round(fed, ledger, engine_of("graphed"), 1, w, fed.method.init(w)).w for ledger in ledgers)
    assert first.device.type == DEVICE
    assert (first != second).all()


@pytest.mark.parametrize("kind", ["vectorized", "graphed"])
def test_a_broken_client_counts_as_zero_and_is_counted(kind):
    task = toy_task(sizes=(4, 4, 4, 4))
    task.population.inputs[4:8] = math.inf
    fed, w = fed_of(METHODS["dp_fedavg"](), cl.full(), task=task, device=DEVICE)
    outcome = run_round(fed, Ledger.create(None, "t", {}), engine_of(kind, 3), 1, w, fed.method.init(w))
    assert int(outcome.nonfinite_updates) == 1
    sizes = torch.tensor([4, 0, 4, 4], device=DEVICE)
    gone = replace(fed, population=replace(fed.population, sizes=sizes))
    expected = run_round(gone, Ledger.create(None, "t", {}), engine_of(kind, 3), 1, w, fed.method.init(w))
    torch.testing.assert_close(outcome.w, expected.w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["worst_case", "one_run", "one_shot"])
@pytest.mark.parametrize("name", ["dp_fedavg", "pfl"])
def test_a_method_is_audited_where_it_runs(name, kind):
    """Scores of canaries lie on the device, the coins that decided about them do not."""
    method = {"dp_fedavg": cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1), "pfl": cl.methods.pfl(batch_size=20)}
    found = cl.audit(method[name], epsilon=8.0, rounds=2, clients=2, sizes=200, trials=600, kinds=[kind], device=DEVICE)
    (bound,) = found.bounds
    assert bound.right > bound.guesses / 2, "the canaries are seen"
    assert kind == "one_shot" or 0 <= found.lower <= found.certified
