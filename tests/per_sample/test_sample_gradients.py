"""The gradients of single samples: against a plain reference, in both ways, over clients, and against Opacus."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from cloister.client.dropout import KeyedDropout
from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.client.per_sample.ghost_clipping import GhostClipping
from cloister.client.per_sample.vmap import PerSampleVmap
from cloister.client.preprocessing import images
from cloister.core import Batch
from cloister.models import CATALOGUE
from cloister.random.streams import Streams
from per_sample.cases import (
    BOOKS,
    MODELS,
    PICTURE,
    batch_of,
    clipped_by_hand,
    made,
    near,
    one_by_one,
    plain_grad,
    seeded,
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("grad", [torch.func.grad, plain_grad], ids=["func", "plain"])
def test_samples_have_the_gradients_that_they_have_alone(name, grad):
    module, objective, w, batch = made(name)
    rows = one_by_one(module, objective, w, batch)
    assert isinstance(objective.per_sample.way, GhostClipping if name in BOOKS else PerSampleVmap)
    for clip_norm in (float(rows.norm(dim=1).median()), torch.tensor(0.01), float("inf")):
        total, norms = objective.per_sample.clipped(grad, w, batch, clip_norm, None)
        assert near(total, clipped_by_hand(rows, float(clip_norm)))
        assert near(norms, rows.norm(dim=1))
        assert not total.requires_grad
        assert not norms.requires_grad
    limit = float(rows.abs().mean())
    assert near(objective.per_sample.clamped(grad, w, batch, limit, None), rows.clamp(-limit, limit).sum(0))


@pytest.mark.parametrize("name", MODELS)
def test_where_a_gradient_is_inactive_it_counts_as_zero(name):
    module, objective, w, batch = made(name)
    active = (torch.rand(len(w)) < 0.3).to(w.dtype)
    rows = one_by_one(module, objective, w, batch) * active
    clip_norm, limit = float(rows.norm(dim=1).median()), float(rows.abs().max()) / 2
    for kind in (active, active.bool()):
        total, norms = objective.clipped(w, batch, clip_norm, kind)
        assert near(total, clipped_by_hand(rows, clip_norm))
        assert near(norms, rows.norm(dim=1))
        assert near(objective.clamped(w, batch, limit, kind), rows.clamp(-limit, limit).sum(0))


@pytest.mark.parametrize("name", MODELS)
def test_padding_counts_as_zero(name):
    module, objective, w, batch = made(name)
    mask = torch.tensor([True, False, True, True, False])
    rows = one_by_one(module, objective, w, batch)[mask]
    clip_norm = float(rows.norm(dim=1).median())
    padded = batch_of(batch.inputs, batch.labels, mask)
    total, norms = objective.clipped(w, padded, clip_norm)
    assert near(total, clipped_by_hand(rows, clip_norm))
    assert near(norms[mask], rows.norm(dim=1))
    assert norms[~mask].tolist() == [0, 0]
    assert near(objective.clamped(w, padded, clip_norm / 9), rows.clamp(-clip_norm / 9, clip_norm / 9).sum(0))
    for empty in (
        batch_of(batch.inputs, batch.labels, torch.zeros_like(mask)),
        batch_of(batch.inputs[:0], batch.labels[:0]),
    ):
        total, norms = objective.clipped(w, empty, 1.0)
        assert total.shape == w.shape
        assert not total.any()
        assert norms.tolist() == [0] * len(empty.mask)
        assert not objective.clamped(w, empty, 1.0).any()


def dropping() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Dropout2d(0.4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 3)
    )


@pytest.mark.parametrize("name", [*BOOKS, "dropout"])
def test_both_ways_agree_in_float32(name):
    if name == "dropout":
        module = seeded(dropping).train()
        inputs, labels = torch.randn(6, *PICTURE), torch.arange(6) % 3
        objective = objective_of(module, cross_entropy, inputs[:2], labels[:2], 3)
        w, batch = objective.layout.flatten(dict(module.named_parameters())), batch_of(inputs, labels)
    else:
        _, objective, w, batch = made(name, samples=6, dtype=torch.float32)
    ghost, alone = objective.per_sample.way, PerSampleVmap(objective.per_sample.model)
    assert isinstance(ghost, GhostClipping)
    norms = alone.clipped(torch.func.grad, w, batch, 1.0, None)[1]
    for clip_norm in (float(norms.median()), float("inf")):
        (total, some), (expected, others) = (
            way.clipped(torch.func.grad, w, batch, clip_norm, None) for way in (ghost, alone)
        )
        assert near(total, expected, 1e-5)
        assert near(some, others, 1e-5)
    found, expected = (way.clamped(torch.func.grad, w, batch, 0.01, None) for way in (ghost, alone))
    assert near(found, expected, 1e-5)


def test_samples_are_seen_as_a_batch_and_dropped_by_their_place():
    """Crops, flips and dropout of a sample follow from the batch's key and its place, in both ways."""
    module = seeded(lambda: nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(72, 3))).double().train()
    inputs, labels = torch.randint(256, (4, 2, 6, 6), dtype=torch.uint8), torch.tensor([0, 1, 2, 0])
    preprocessing = images((0.5, 0.5), (0.2, 0.2), pad=2, flip=True)
    objective = objective_of(module, cross_entropy, inputs[:2], labels[:2], 3, preprocessing)
    w = objective.layout.flatten(dict(module.named_parameters()))
    same = batch_of(inputs[:1].expand(4, -1, -1, -1), labels[:1].expand(4))
    found = [
        way.clipped(torch.func.grad, w, same, 0.5, None)
        for way in (objective.per_sample.way, PerSampleVmap(objective.per_sample.model))
    ]
    assert near(found[0][0], found[1][0])
    assert near(found[0][1], found[1][1])
    assert len(set(found[0][1].tolist())) == 4, "the same sample is another in every place"
    mean = objective.gradient(w, same)
    assert near(objective.clipped(w, same, float("inf"))[0] / 4, mean), "and what trains without clipping"


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        pytest.param("papernot", marks=pytest.mark.slow),
        "group_norm",
        pytest.param("wide_convolution", marks=pytest.mark.slow),
        "sequences",
        pytest.param("char_lstm", marks=pytest.mark.slow),
        "own",
    ],
)
@pytest.mark.parametrize("shared", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["shared", "own"])
def test_clients_can_be_mapped_and_traced(name, shared):
    _, objective, w, batch = made(name, samples=8)
    ws = w if shared else torch.stack([w, w + 0.1 * torch.randn_like(w)])
    columns = [column.unflatten(0, (2, 4)) for column in (batch.inputs, batch.labels)]
    mask, keys = torch.tensor([[True] * 4, [True, False, True, False]]), torch.tensor([3, 4])
    clips = torch.tensor([0.5, 2.0])
    active = (torch.rand(len(w)) < 0.5).to(w.dtype)

    def of_one(w, inputs, labels, mask, key, clip_norm):
        one = Batch(inputs, labels, mask, mask.sum(), key, mask.any(), torch.zeros(0))
        return (
            *objective.clipped(w, one, clip_norm),
            objective.clipped(w, one, clip_norm, active)[0],
            objective.clamped(w, one, 0.01),
        )

    arguments = (ws, *columns, mask, keys, clips)
    mapped = torch.func.vmap(of_one, in_dims=(None if shared else 0, 0, 0, 0, 0, 0))
    objective.per_sample._way = None  # decided under the transforms
    traced = make_fx(mapped)(*arguments)
    for together in (mapped(*arguments), traced(*arguments), traced(*arguments)):
        for i in range(2):
            alone = of_one(w if shared else ws[i], *(column[i] for column in arguments[1:]))
            for found, expected in zip(together, alone, strict=True):
                assert near(found[i], expected)


def test_dropout_of_a_sample_alone_continues_the_draws_of_its_batch():
    x = torch.ones(5, 3, 4)
    key = torch.tensor(Streams(0).key("model", 1))
    for drop in (F.dropout, F.dropout1d):
        with KeyedDropout(key):
            whole = drop(x, 0.5)
        for slot in range(5):
            with KeyedDropout(key, torch.tensor(slot)):
                assert torch.equal(drop(x[:1], 0.5), whole[slot : slot + 1])


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize(
    ("name", "shape", "samples"),
    [("papernot_mnist_cnn", (1, 28, 28), 16), ("mlp", (64,), 10), ("scatter_linear", (81, 7, 7), 16)],
)
def test_opacus_computes_the_same(name, shape, samples):
    """One step of DP-SGD without noise, on the same batch, by its DPOptimizer."""
    pytest.importorskip("opacus")
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    module = seeded(CATALOGUE[name], shape, 10).train()
    inputs, labels = torch.randn(samples, *shape), torch.randint(10, (samples,))
    objective = objective_of(module, cross_entropy, inputs[:2], labels[:2], 10)
    assert isinstance(objective.per_sample.way, GhostClipping)
    w = objective.layout.flatten(dict(module.named_parameters()))
    batch = batch_of(inputs, labels)
    norms = objective.clipped(w, batch, 1.0)[1]
    for clip_norm in (0.1, float(norms.median()), 100.0):
        theirs = GradSampleModule(CATALOGUE[name](shape, 10))
        objective.layout.load(theirs._module, w)
        optimizer = DPOptimizer(
            torch.optim.SGD(theirs.parameters(), lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=clip_norm,
            expected_batch_size=samples,
        )
        F.cross_entropy(theirs(inputs), labels).backward()
        optimizer.step()
        stepped = objective.layout.flatten(dict(theirs._module.named_parameters()))
        ours = objective.clipped(w, batch, clip_norm)[0] / samples
        assert near(ours, torch.cat([p.grad.flatten() for p in theirs.parameters()]), 1e-5)
        assert near(w - ours, stepped, 1e-5)
