from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.client import batches
from cloister.client.batches import Work, local_steps, rounded_up, shape_of, shuffled
from cloister.client.population import Population
from cloister.core import Batching
from cloister.errors import UnsupportedMechanismError
from cloister.privacy.accountant import PrivacyLoss
from cloister.privacy.events import Unsupported
from cloister.random.streams import fold


def population(sizes: list[int]) -> Population:
    counts = torch.tensor(sizes)
    total = max(int(counts.sum()), 1)
    return Population(
        torch.arange(total).float()[:, None], torch.zeros(total).long(), counts.cumsum(0) - counts, counts
    )


class Batches(NamedTuple):
    """Rows of samples, and which are real."""

    samples: torch.Tensor
    mask: torch.Tensor


def planned(sizes: list[int], batching: Batching, clients: list[int] | None = None):
    chosen = torch.tensor(list(range(len(sizes))) if clients is None else clients)
    people = population(sizes)
    return Batches(
        *shuffled(people, batching, shape_of(people.counts[chosen], batching), chosen, fold(torch.tensor(9), chosen))
    )


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 23), min_size=1, max_size=6),
    batch=st.integers(1, 9),
    epochs=st.integers(1, 3),
)
def test_an_epoch_sees_every_sample_of_a_client_once_and_nobody_elses(sizes, batch, epochs):
    made = planned(sizes, Batching(batch, local_epochs=epochs))
    start = 0
    for client, size in enumerate(sizes):
        seen = made.samples[client][made.mask[client]].tolist()
        assert sorted(seen) == sorted(list(range(start, start + size)) * epochs)
        steps = made.mask[client].any(1)
        assert int(steps.sum()) == epochs * -(-size // batch)
        if size:
            assert set(made.samples[client].flatten().tolist()) <= set(range(start, start + size)), (
                "padding is the client's own"
            )
        start += size


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 23), min_size=1, max_size=6), batch=st.integers(1, 9), steps=st.integers(1, 12))
def test_steps_are_as_many_as_asked_for_and_nearly_balanced(sizes, batch, steps):
    made = planned(sizes, Batching(batch, local_steps=steps))
    for client, size in enumerate(sizes):
        own = made.mask[client].sum(1)
        assert int((own > 0).sum()) == (steps if size else 0)
        if size:
            counts = torch.bincount(made.samples[client][made.mask[client]] - sum(sizes[:client]), minlength=size)
            assert counts.max() - counts.min() <= 1, "a shuffled pass is finished before the next begins"


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 15), min_size=2, max_size=6), data=st.data())
def test_a_clients_batches_do_not_depend_on_the_company(sizes, data):
    client = data.draw(st.integers(0, len(sizes) - 1))
    batching = Batching(4, local_steps=5)
    alone, among = planned(sizes, batching, [client]), planned(sizes, batching)
    rows = among.samples[client][among.mask[client]].tolist()
    assert alone.samples[0][alone.mask[0]].tolist() == rows


def test_passes_and_clients_are_shuffled_differently():
    made = planned([20, 20], Batching(20, local_steps=3))
    orders = [made.samples[c, s].tolist() for c in range(2) for s in range(3)]
    relative = [tuple(i % 20 for i in order) for order in orders]
    assert len(set(relative)) == 6


@pytest.mark.parametrize("batching", [Batching(4, local_steps=3), Batching(4, local_epochs=2)])
def test_raggedness_is_known(batching):
    def ragged(sizes, batching):
        return shape_of(torch.tensor(sizes), batching).ragged

    assert not ragged([8, 8], batching)
    assert ragged([8, 0], batching)
    assert ragged([8, 3], Batching(4, local_epochs=1))
    assert not ragged([8, 3], Batching(4, local_steps=5))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    batching=st.builds(Batching, st.integers(1, 9), local_steps=st.integers(1, 7))
    | st.builds(Batching, st.integers(1, 9), local_epochs=st.integers(1, 3)),
)
def test_padding_to_one_of_few_shapes_changes_no_batch(sizes, batching):
    people, everybody = population(sizes), torch.arange(len(sizes))
    exact, padded = shape_of(people.counts, batching), shape_of(people.counts, batching, rounded_up)
    assert exact.most <= padded.most
    assert exact.steps <= padded.steps <= max(1.25 * exact.steps, exact.steps)
    keys = fold(torch.tensor(9), everybody)
    one, other = (Batches(*shuffled(people, batching, shape, everybody, keys)) for shape in (exact, padded))
    for client in range(len(sizes)):
        assert one.samples[client][one.mask[client]].tolist() == other.samples[client][other.mask[client]].tolist()
        steps, there = (int(made.mask[client].any(1).sum()) for made in (one, other))
        assert steps == there
        assert padded.ragged or steps == padded.steps


def test_nobody_has_data():
    made = planned([0, 0], Batching(4, local_steps=3))
    assert not made.mask.any()


@pytest.mark.parametrize("together", [True, False])
def test_every_step_has_its_own_samples_in_memory_that_steps_share(together):
    """Two phases, steps of several widths (one of them empty), many clients at once and one alone."""
    people, random = population([40, 40, 40]), torch.Generator().manual_seed(0)
    phases = []
    for steps, width in ((4, 7), (3, 9)):
        samples = torch.randint(120, (3, steps, width), generator=random)
        mask, each = torch.ones_like(samples, dtype=torch.bool), torch.zeros(3, steps, dtype=torch.int64)
        phases.append(batches.Batches(samples, mask, each, each, each == 0))
    key, share = torch.zeros(3, dtype=torch.int64), torch.empty(3, 0)
    if not together:
        phases, key, share = [batches.Batches(*(column[1] for column in phase)) for phase in phases], key[1], share[1]
    widths = [(3, 7, 0, 5), None]
    seen = [
        (phase, batch.inputs.clone())
        for phase, batch in local_steps(people, Work((*phases,), key, share, {}, key), widths, None)
    ]
    expected = [
        (phase, people.inputs[made.samples[..., step, : (widths[phase] or [9] * 3)[step]]])
        for phase, made in enumerate(phases)
        for step in range(made.samples.shape[-2])
    ]
    assert [phase for phase, _ in seen] == [phase for phase, _ in expected] == [0] * 4 + [1] * 3
    assert all(torch.equal(inputs, rows) for (_, inputs), (_, rows) in zip(seen, expected, strict=True))


def test_shuffled_passes_have_no_price():
    """Only secret batches that are drawn anew have one, whoever asks."""
    event = Batching(4, local_epochs=1).event(1.0, 40)
    assert isinstance(event, Unsupported)
    with pytest.raises(UnsupportedMechanismError, match="shuffled passes"):
        PrivacyLoss().add(event)
