"""One record for each kind of event, and what it says where little is known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from cloister.errors import UnsupportedMechanismError
from cloister.privacy.accountant import PrivacyLoss
from cloister.privacy.events import (
    BestOfTrials,
    BinomialSum,
    DiscreteGaussianSum,
    Event,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    NoOp,
    PoissonGaussian,
    ReleasedSizeGaussian,
    Unsupported,
    from_json,
)
from cloister.privacy.pricing import pricing_of
from cloister.privacy.renyi_filter import FilteredLoss

ONE_OF_EACH = [
    Gaussian(1.0),
    PoissonGaussian(1.0, 0.1),
    FixedSizeGaussian(1.0, 5, 50),
    ReleasedSizeGaussian(1.0, 0.1, 50),
    DiscreteGaussianSum(8.0, 64, 30.0, 4096, 0.1),
    BinomialSum(17, 7114, 1.0, 1.0, 21840, 1 / 60, 1e-6),
    BestOfTrials(10.0, None, 8.0, 0.1, 16.0, 0.2, "add or remove one"),
    NoOp(),
    NonPrivate(),
    Unsupported("nobody knows"),
]


def test_every_kind_of_event_has_a_record_and_comes_back_from_its_json():
    assert [type(event) for event in ONE_OF_EACH] == list(Event.kinds.values())
    for event in ONE_OF_EACH:
        assert from_json(pricing_of(event).json) == event
        assert pricing_of(event).words("cohorts")


def test_events_that_are_equal_are_written_alike():
    assert str(pricing_of(Gaussian(1)).json) == str(pricing_of(Gaussian(1.0)).json)


@pytest.mark.parametrize("event", [Gaussian(0.0), FixedSizeGaussian(1e-6, 5, 50), DiscreteGaussianSum(0.0, 1, 1.0, 1)])
def test_next_to_no_noise_costs_infinity_by_every_accountant(event):
    assert np.isinf(pricing_of(event).rdp((2, 8))).all()
    for loss in (PrivacyLoss(), FilteredLoss(8)):
        loss.add(event)
        assert loss.epsilon(1e-5) == math.inf


def test_a_kind_without_a_record_is_refused(monkeypatch):
    monkeypatch.setattr(Event, "kinds", dict(Event.kinds))

    @dataclass(frozen=True)
    class Novel(Event, kind="novel"):
        pass

    for loss in (PrivacyLoss(), FilteredLoss(8)):
        with pytest.raises(UnsupportedMechanismError, match="kind novel has no record"):
            loss.add(Novel())
