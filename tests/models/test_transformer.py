"""The transformer: what it computes, what it cannot see, and that every engine trains it alike."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cloister as cl
from cloister.client.dropout import KeyedDropout
from cloister.client.losses import cross_entropy, next_token
from cloister.client.objective import objective_of
from cloister.client.per_sample.vmap import PerSampleVmap
from cloister.core import Layout
from cloister.engine import Loop, Vectorized
from cloister.errors import CloisterError
from cloister.models import char_lstm, char_transformer, split_attention
from cloister.models.attention import Attention
from cloister.round import cohort_total
from conftest import federation
from per_sample.cases import batch_of, clipped_by_hand, near

SMALL = {"width": 8, "heads": 2, "layers": 2}


def torchs_own(model: nn.Module, heads: int) -> nn.TransformerEncoder:
    """torch's encoder with the weights of our blocks."""
    width = model.head.in_features
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
    reference = nn.TransformerEncoder(layer, len(model.blocks), enable_nested_tensor=False).double()
    for theirs, ours in zip(reference.layers, model.blocks, strict=True):
        theirs.self_attn = ours.attention.joined()
        theirs.norm1, theirs.norm2 = ours.attention_norm, ours.dense_norm
        theirs.linear1, theirs.linear2 = ours.dense[0], ours.dense[2]
    return reference


def test_blocks_are_those_of_torch():
    model = char_transformer((6,), 11, every_position=True, **SMALL).double()
    text = torch.randint(11, (5, 6))
    embedded = model.tokens.weight[text] + model.places.weight
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected = model.head(model.norm(torchs_own(model, 2)(embedded, mask=later)))
    torch.testing.assert_close(model(text), expected, rtol=1e-10, atol=1e-12)


def test_the_last_position_alone_is_the_last_of_all():
    every = char_transformer((6,), 11, every_position=True, **SMALL)
    last = char_transformer((6,), 11, **SMALL)
    last.load_state_dict(every.state_dict())
    text = torch.randint(11, (5, 6))
    assert every(text).shape == (5, 6, 11)
    torch.testing.assert_close(last(text), every(text)[:, -1])


def test_no_position_sees_a_later_one():
    model = char_transformer((7,), 11, every_position=True, **SMALL)
    text = torch.randint(10, (1, 7))
    for place in range(7):
        other = text.clone()
        other[0, place] = 10
        changed = (model(text) - model(other))[0].abs().amax(1) > 0
        assert not changed[:place].any()
        assert changed[place:].all(), "and every one from there on does"


@pytest.mark.parametrize("loss", [cross_entropy, next_token], ids=lambda loss: loss.name)
def test_samples_have_the_gradients_that_they_have_alone(loss):
    every = loss is next_token
    model = char_transformer((5,), 7, every_position=every, **SMALL).double()
    text = torch.randint(7, (4, 5))
    labels = torch.randint(7, (4, 5) if every else (4,))
    objective = objective_of(model, loss, text[:2], labels[:2], 7)
    assert isinstance(objective.per_sample.way, PerSampleVmap), "embeddings are no layers that ghost clipping knows"
    rows = []
    for x, y in zip(text, labels, strict=True):
        found = F.cross_entropy(model(x[None]).flatten(0, -2), y.flatten())  # the mean over positions
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(found, list(model.parameters()))]))
    rows = torch.stack(rows)
    w = objective.layout.flatten(dict(model.named_parameters()))
    clip_norm = float(rows.norm(dim=1).median())
    total, norms = objective.clipped(w, batch_of(text, labels), clip_norm)
    assert near(total, clipped_by_hand(rows, clip_norm))
    assert near(norms, rows.norm(dim=1))


def texts(every: bool) -> cl.data.Task:
    x = torch.randint(7, (60, 6))
    labels = x[:, 1:] if every else x[:, -1]
    owners = [i % 5 for i in range(60)]
    return cl.data.from_arrays(x[:, :5], labels, owners, classes=7, loss="next_token" if every else "cross_entropy")


@pytest.mark.parametrize("method", ["dp_fedavg", "pfl"])
def test_engines_agree_dropout_included(method):
    task = texts(every=True)
    model = char_transformer((5,), 7, every_position=True, dropout=0.3, **SMALL)
    training = {"local_steps": 2} if method == "dp_fedavg" else {"batch_size": 4}
    made = cl.methods.CATALOGUE[method](clip_norm=1.0, lr=0.1, noise_multiplier=0.0, **training)
    fed, w = federation(made, task=task, model=model)
    clients = torch.arange(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where vmap has to fall back to a loop
        found = [cohort_total(fed, engine, 1, w, clients)[0] for engine in (Loop(), Vectorized(chunk=3))]
    assert found[0].norm() > 0
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
    still, w = federation(made, task=task, model=char_transformer((5,), 7, every_position=True, **SMALL))
    assert not torch.allclose(cohort_total(still, Loop(), 1, w, clients)[0], found[0]), "dropout does something"


def test_dropout_follows_from_the_key():
    model = char_transformer((5,), 7, dropout=0.5, **SMALL).train()
    text, outputs = torch.randint(7, (3, 5)), []
    for key in (1, 1, 2):
        with KeyedDropout(torch.tensor(key)):
            outputs.append(model(text))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_it_learns_what_follows():
    """The next token is the one of before plus one, so that a model which looks at the past is always right."""
    text = (torch.randint(7, (64, 1)) + torch.arange(7)) % 7
    model = char_transformer((6,), 7, every_position=True, **SMALL)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        next_token(model(text[:, :6]), text[:, 1:]).mean().backward()
        optimizer.step()
    assert (next_token.predict(model(text[:, :6])) == text[:, 1:]).float().mean() > 0.95


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 28, 28), {}, r"shape \(tokens,\)"),
        ((), {}, r"shape \(tokens,\)"),
        ((0,), {}, r"shape \(tokens,\)"),
        ((5,), {"width": 0}, "width"),
        ((5,), {"width": 10, "heads": 4}, "4 heads can share, found 10: choose a multiple"),
        ((5,), {"heads": 0}, "heads"),
        ((5,), {"layers": 1.5}, "layers"),
        ((5,), {"dropout": 1.0}, "dropout"),
        ((5,), {"every_position": "yes"}, "every_position"),
    ],
)
def test_what_does_not_fit_is_refused(shape, options, message):
    with pytest.raises(CloisterError, match=message) as found:
        char_transformer(shape, 10, **options)
    assert len(str(found.value).splitlines()) == 1


def test_models_that_answer_at_other_positions_than_the_labels_are_refused():
    text, every, last = torch.randint(7, (4, 5)), torch.randint(7, (4, 5)), torch.randint(7, (4,))
    with pytest.raises(CloisterError, match=r"outputs of shape \(4, 7\) for labels of shape \(4, 5\)"):
        objective_of(char_lstm((5,), 7), next_token, text, every, 7)
    with pytest.raises(CloisterError, match=r"outputs of shape \(4, 5, 7\) for labels of shape \(4,\)"):
        objective_of(char_transformer((5,), 7, every_position=True, **SMALL), cross_entropy, text, last, 7)


def mask_of(kind: str, heads: int) -> dict[str, torch.Tensor]:
    """Masks as nn.MultiheadAttention takes them, of 4 samples, 3 queries and 5 keys."""
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[1, 3:] = True
    forbidden = torch.rand(3, 5) < 0.3
    forbidden[:, 0] = False
    return {
        "none": {},
        "forbidden": {"attn_mask": forbidden},
        "added": {"attn_mask": torch.randn(3, 5, dtype=torch.float64)},
        "per_head": {"attn_mask": torch.randn(4 * heads, 3, 5, dtype=torch.float64)},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": forbidden, "key_padding_mask": padding},
    }[kind]


@pytest.mark.parametrize("kind", ["none", "forbidden", "added", "per_head", "padding", "both"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 3, "vdim": 5}, {"batch_first": True}], ids=str)
def test_split_attention_is_that_of_torch(kind, options):
    theirs = nn.MultiheadAttention(6, 2, **options).double()
    ours = split_attention(theirs)
    query, key, value = torch.randn(4, 3, 6), torch.randn(4, 5, ours.key.in_features), torch.randn(4, 5, 5)
    value = value if ours.value.in_features == 5 else torch.randn(4, 5, 6)
    given = [one.double() if ours.batch_first else one.double().transpose(0, 1) for one in (query, key, value)]
    for more in ({}, {"average_attn_weights": False}, {"need_weights": False}):
        expected, found = (one(*given, **mask_of_fixed(kind), **more) for one in (theirs, ours))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    back = ours.joined()
    assert {name: p.shape for name, p in back.named_parameters()} == {n: p.shape for n, p in theirs.named_parameters()}
    assert all(torch.equal(p, q) for p, q in zip(back.parameters(), theirs.parameters(), strict=True))


def mask_of_fixed(kind: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return mask_of(kind, heads=2)


def test_split_attention_takes_samples_without_a_batch():
    theirs = nn.MultiheadAttention(6, 3).double()
    x = torch.randn(4, 6).double()
    torch.testing.assert_close(split_attention(theirs)(x, x, x), theirs(x, x, x))


def test_a_model_of_torch_with_split_attention_is_the_same_model():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2).double()
    before = copy.deepcopy(theirs.state_dict())
    ours, x = split_attention(theirs), torch.randn(3, 5, 8).double()
    assert sum(isinstance(part, Attention) for part in ours.modules()) == 2
    for one in (theirs, ours):
        one.eval()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-12)
    assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.state_dict().items()), "it is a copy"


def test_attention_with_dropout_can_be_trained_once_it_is_split():
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
            self.encoder, self.head = nn.TransformerEncoder(layer, 1), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.encoder(x).mean(1))

    x, y = torch.randn(4, 5, 4), torch.randint(3, (4,))
    with pytest.raises(CloisterError, match="split_attention"):
        objective_of(Encoder(), cross_entropy, x, y, 3)
    model = split_attention(Encoder())
    objective_of(model, cross_entropy, x, y, 3)
    layout = Layout.of(model)
    stack = layout.flatten(dict(model.named_parameters())).repeat(3, 1)

    def loss(w, x):
        with KeyedDropout(torch.tensor(0)):
            return torch.func.functional_call(model, layout.views(w), (x,)).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.func.vmap(torch.func.grad(loss))(stack, torch.randn(3, 2, 5, 4))


def test_attention_that_has_no_counterpart_is_refused():
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        with pytest.raises(CloisterError, match="add_bias_kv and add_zero_attn"):
            split_attention(nn.Sequential(nn.MultiheadAttention(4, 2, **options)))
