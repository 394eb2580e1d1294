from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloister as cl
from cloister.privacy.certificate_text import round_up
from conftest import toy_task


def run(method=None, **more):
    settings = {"rounds": 3, "cohort": cl.poisson(0.5), "delta": 1e-2, "progress": False, **more}
    return cl.run(
        method or cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1, noise_multiplier=4.0), toy_task(), **settings
    )


def test_it_says_what_was_executed_and_what_was_priced():
    certificate = run().certificate
    assert certificate.private
    assert "add or remove one client" in certificate.adjacency
    assert "probability 0.5" in certificate.sampling_executed[0]
    assert certificate.sampling_accounted == ["3 x Poisson cohorts, rate 0.5, noise multiplier 4"]
    assert (certificate.sensitivity, certificate.noise_multiplier, certificate.denominator) == (0.5, 4.0, 4.0)
    assert certificate.rounds_planned == certificate.rounds_charged == certificate.releases_charged == 3
    assert [price.delta for price in certificate.prices] == [1e-2, 1e-5]
    for price in certificate.prices:
        assert 0 < price.epsilon_pld < price.epsilon_rdp
    assert certificate.prices[0].epsilon_pld < certificate.prices[1].epsilon_pld
    assert len(certificate.configuration_sha256) == len(certificate.ledger_hash) == 64
    assert certificate.versions["dp-accounting"]


def test_fixed_cohorts_speak_of_replacement():
    certificate = run(cohort=cl.fixed_size(4)).certificate
    assert "replace one client" in certificate.adjacency
    assert "exactly 4 of 8" in certificate.sampling_accounted[0]
    assert "twice the clip" in certificate.sampling_accounted[0]


def test_what_is_not_covered_is_said():
    gaps = " ".join(run(delta=0.2, allow_large_delta=True).certificate.not_covered)
    for word in ("hyper-parameter search", "metrics", "floating-point", "seed", "publishes one random client's data"):
        assert word in gaps
    secure = " ".join(run(secure_rng=True).certificate.not_covered)
    assert "whoever knows the seed" not in secure


def test_trust_depends_on_who_adds_the_noise():
    distributed = cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1, noise_multiplier=4.0, noise="distributed")
    assert "secure aggregation" in run(distributed).certificate.trusted
    assert "the server" in run().certificate.trusted


def test_without_privacy_it_promises_nothing():
    certificate = run(cl.methods.fedavg(local_steps=1), delta=None).certificate
    assert not certificate.private
    assert certificate.epsilon == math.inf
    assert "without noise: no guarantee" in certificate.sampling_accounted[0]
    assert certificate.not_covered == ["everything: this run has no privacy guarantee"]
    assert "infinity" in str(certificate)


def test_json_is_strict_and_text_is_complete():
    for certificate in (run().certificate, run(cl.methods.fedavg(local_steps=1), delta=None).certificate):
        again = json.loads(json.dumps(certificate.to_json(), allow_nan=False))
        assert again["unit"] == "client"
        text = str(certificate)
        for row in ("protected unit", "adjacency", "must be trusted", "sampling accounted", "sensitivity", "versions"):
            assert f" {row}: " in text
        assert " not covered: " in text
        assert " randomness: seeded: a simulation" in text


@given(st.floats(0, 1000), st.integers(1, 4))
def test_rounding_never_claims_more_privacy(epsilon, digits):
    shown = float(round_up(epsilon, digits))
    assert shown >= epsilon - 1e-9
    assert shown <= epsilon + 10**-digits + 1e-9


@pytest.mark.parametrize("value", [None, math.inf])
def test_infinity_is_a_word(value):
    assert round_up(value) == "infinity"
