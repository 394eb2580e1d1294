"""Low-rank adapters: W x + b + (alpha / rank) B A x, by hand; what is trained, sent, clipped and merged."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import cloister as cl
from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.client.per_sample.ghost_clipping import GhostClipping
from cloister.core import Layout
from cloister.engine import Loop, Vectorized
from cloister.errors import CloisterError
from cloister.models import char_transformer, lora, merge_lora
from cloister.round import cohort_total
from conftest import federation, prepared, toy_task
from per_sample.cases import batch_of, clipped_by_hand, near, one_by_one


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def moved(model: nn.Module) -> nn.Module:
    """With adapters that do something."""
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter.add_(torch.randn_like(parameter))
    return model


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5, bias=False), nn.Tanh(), nn.Linear(5, 3))


class Encoder(nn.Module):
    """nn.MultiheadAttention inside torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.floats(0.1, 20), st.booleans())
@settings(max_examples=30)
def test_a_layer_gives_what_it_gives_by_hand(inputs, outputs, rank, alpha, biased):
    layer = nn.Linear(inputs, outputs, bias=biased).double()
    if rank > min(inputs, outputs):
        with pytest.raises(CloisterError, match=f"lora_rank to be at most {min(inputs, outputs)}"):
            lora(layer, rank, alpha)
        return
    model, x = moved(lora(layer, rank, alpha)), torch.randn(4, inputs).double()
    a, b = model.lora_A.weight, model.lora_B.weight
    assert a.shape == (rank, inputs)
    assert b.shape == (outputs, rank)
    for row, found in zip(x, model(x), strict=True):
        expected = layer.weight @ row + (alpha / rank) * (b @ (a @ row))
        expected = expected + layer.bias if biased else expected
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(merge_lora(model)(x), model(x))
    assert type(merge_lora(model)) is nn.Linear


def test_at_the_start_it_is_the_model_of_before_and_a_copy():
    for make, x in ((mlp, torch.randn(4, 6)), (Encoder, torch.randn(4, 5, 4))):
        model = make()
        before = copy.deepcopy(model.state_dict())
        adapted = lora(model, 2)
        torch.testing.assert_close(adapted(x), model(x))
        moved(adapted)
        assert not torch.allclose(adapted(x), model(x))
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert all(p.requires_grad for p in model.parameters())


def test_adapters_are_random_and_follow_from_torchs_seed():
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        model = mlp()
        torch.manual_seed(seed)
        found.append(lora(model, 2)[0].lora_A.weight)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert found[0].abs().min() > 0


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["0.lora_A.weight", "0.lora_B.weight", "2.lora_A.weight", "2.lora_B.weight", "4.lora_A.weight"]),
        ({"targets": "0"}, ["0.lora_A.weight", "0.lora_B.weight"]),
        ({"targets": ["[02]"]}, ["0.lora_A.weight", "0.lora_B.weight", "2.lora_A.weight", "2.lora_B.weight"]),
        ({"targets": "0", "train": "4"}, ["0.lora_A.weight", "0.lora_B.weight", "4.weight", "4.bias"]),
        ({"train": ["*.bias"], "targets": "2"}, ["0.bias", "2.lora_A.weight", "2.lora_B.weight", "4.bias"]),
    ],
)
def test_what_is_trained(options, names):
    assert list(trained(lora(mlp(), 2, **options)))[: len(names)] == names
    if options:
        assert len(trained(lora(mlp(), 2, **options))) == len(names)


def test_a_layer_below_the_rank_is_trained_itself_which_takes_fewer_numbers():
    model = lora(mlp(), 5)
    assert set(trained(model)) == {f"{i}.lora_{side}.weight" for i in (0, 2) for side in "AB"} | {"4.weight"}
    assert model[4].weight.numel() < 5 * (5 + 3)


def test_layers_that_stand_in_several_places_have_one_adapter():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.again, self.table = self.first, nn.Embedding(5, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.table.weight  # tied, as in language models

        def forward(self, x):
            return self.head(self.again(self.first(self.table(x))).mean(1))

    model, x = moved(lora(Twice(), 2)), torch.randint(5, (3, 2))
    assert model.first is model.again
    assert set(trained(model)) == {f"{name}.lora_{side}.weight" for name in ("first", "head") for side in "AB"}
    merged = merge_lora(model)
    torch.testing.assert_close(merged(x), model(x))
    assert merged.first is merged.again
    assert torch.equal(merged.table.weight, model.table.weight), "a merged head does not change the embedding"


@pytest.mark.parametrize("targets", [None, "*.query", "encoder.layers.1.self_attn", ["*.output", "head"]])
def test_torchs_attention_is_adapted_and_merged_back(targets):
    model, x = Encoder().double(), torch.randn(3, 5, 4).double()
    adapted = moved(lora(model, 1, targets=targets))
    assert any("self_attn" in name for name in trained(adapted))
    for parameter in adapted.parameters():
        parameter.grad = None
    adapted(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in trained(adapted).values())
    merged = merge_lora(adapted)
    assert {n: p.shape for n, p in merged.named_parameters()} == {n: p.shape for n, p in model.named_parameters()}
    torch.testing.assert_close(merged(x), adapted(x), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(merged.eval()(x), adapted.eval()(x), rtol=1e-9, atol=1e-11)
    assert all(p.requires_grad for p in merged.parameters())


def test_samples_have_the_gradients_that_they_have_alone_by_ghost_clipping():
    model = moved(lora(mlp(), 2, alpha=3.0)).double()
    batch = batch_of(torch.randn(5, 6).double(), torch.randint(3, (5,)))
    objective = objective_of(model, cross_entropy, batch.inputs[:2], batch.labels[:2], 3)
    assert isinstance(objective.per_sample.way, GhostClipping)
    w = objective.layout.flatten(dict(model.named_parameters()))
    rows = one_by_one(model, objective, w, batch)
    assert rows.shape[1] == sum(p.numel() for p in trained(model).values())
    clip_norm = float(rows.norm(dim=1).median())
    assert near(objective.clipped(w, batch, clip_norm)[0], clipped_by_hand(rows, clip_norm))


def test_an_adapted_transformer_is_ghost_clipped_too():
    model = moved(lora(char_transformer((5,), 7, width=8, heads=2, layers=1), 2)).double()
    text, labels = torch.randint(7, (4, 5)), torch.randint(7, (4,))
    objective = objective_of(model, cross_entropy, text[:2], labels[:2], 7)
    assert isinstance(objective.per_sample.way, GhostClipping)
    rows = []
    for x, y in zip(text, labels, strict=True):
        found = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(trained(model).values()))
        rows.append(torch.cat([g.flatten() for g in found]))
    w = objective.layout.flatten(dict(model.named_parameters()))
    assert near(objective.clipped(w, batch_of(text, labels), 0.01)[0], clipped_by_hand(torch.stack(rows), 0.01))


def test_engines_agree():
    task = cl.data.from_arrays(torch.randn(40, 5, 4), torch.randint(3, (40,)), [i % 4 for i in range(40)], classes=3)
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.5, local_steps=3, noise_multiplier=0.0)
    fed, w = federation(method, task=task, model=moved(lora(Encoder(), 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [cohort_total(fed, engine, 1, w, torch.arange(4))[0] for engine in (Loop(), Vectorized(chunk=3))]
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_only_adapters_are_sent_clipped_and_noised():
    task, model = toy_task(), mlp()
    method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=1.0)
    ready = prepared(method, task, model=model, lora_rank=2)
    numbers = 2 * (6 + 8) + 2 * (8 + 5) + 2 * (5 + 3)
    about = ready.description.model
    assert (about.parameters, len(ready.w)) == (numbers, numbers)
    assert about.frozen == sum(p.numel() for p in model.parameters())
    assert ready.description.upload_bytes == 4 * numbers
    assert set(about.shapes) == {f"{i}.lora_{side}.weight" for i in (0, 2, 4) for side in "AB"}
    message, _ = cohort_total(ready.fed, Loop(), 1, ready.w, torch.tensor([0]))
    assert message.shape == (numbers,)
    assert message.norm() <= 0.5 * (1 + 1e-6)


def test_a_run_changes_adapters_alone():
    task, model = toy_task(), mlp()
    method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=1.0)
    run = cl.run(method, task, model=model, rounds=3, delta=1e-3, lora_rank=2, lora_targets=["0"], engine="loop")
    assert Layout.of(run.model).size == 2 * (6 + 8)
    assert run.model[0].lora_B.weight.abs().max() > 0
    for name, tensor in model.state_dict().items():
        own, _, rest = name.partition(".")
        assert torch.equal(run.model.state_dict()[f"0.layer.{rest}" if own == "0" else name], tensor)
    inputs = task.test_inputs.float()
    torch.testing.assert_close(merge_lora(run.model)(inputs), run.model(inputs))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (mlp, {"rank": 0}, "lora_rank to be a whole number of at least 1"),
        (mlp, {"rank": 2.0}, "lora_rank to be a whole number"),
        (mlp, {"rank": 7}, "lora_rank to be at most 6, the rank of the largest layer, found 7"),
        (mlp, {"rank": 4, "targets": "4"}, "lora_rank to be at most 3"),
        (mlp, {"rank": 2, "alpha": 0}, "lora_alpha > 0"),
        (mlp, {"rank": 2, "alpha": "large"}, "lora_alpha > 0"),
        (mlp, {"rank": 2, "targets": "5"}, "lora_targets to name linear layers, found '5': known are 0, 2, 4"),
        (mlp, {"rank": 2, "targets": "1"}, "name linear layers, found '1', a Tanh: train such a layer in full"),
        (mlp, {"rank": 2, "targets": 3}, "lora_targets to be a list of names or patterns, found 3"),
        (mlp, {"rank": 2, "targets": ["0", ""]}, "lora_targets to be a list of names or patterns"),
        (mlp, {"rank": 2, "train": "head"}, "lora_train to name parameters, found 'head'"),
        (mlp, {"rank": 2, "train": "*"}, "a linear layer to adapt, found 'Sequential'"),
        (Encoder, {"rank": 2, "targets": "query"}, r'perhaps you mean "\*\.query"'),
        (lambda: nn.Conv2d(1, 2, 3), {"rank": 1}, "a linear layer to adapt, found 'Conv2d'"),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(2, 2)), {"rank": 1, "targets": "0"}, "'0', a Conv2d"),
        (lambda: lora(mlp(), 2), {"rank": 2}, "a model without adapters.*merge_lora"),
    ],
)
def test_what_does_not_fit_is_refused(make, options, message):
    with pytest.raises(CloisterError, match=message) as found:
        lora(make(), **options)
    assert len(str(found.value).splitlines()) == 1
