"""The recurrence that is written out, against torch's own."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from cloister.core import Layout
from cloister.errors import CloisterError
from cloister.models import char_lstm


def torchs_own(model: nn.Module, layers: int) -> nn.LSTM:
    """nn.LSTM with the weights of our layers."""
    first = model.recurrent[0]
    reference = nn.LSTM(first.from_input.in_features, first.hidden, layers, batch_first=True).double()
    with torch.no_grad():
        for i, layer in enumerate(model.recurrent):
            for theirs, ours in (("ih", layer.from_input), ("hh", layer.from_state)):
                getattr(reference, f"weight_{theirs}_l{i}").copy_(ours.weight)
                getattr(reference, f"bias_{theirs}_l{i}").copy_(ours.bias)
    return reference


@pytest.mark.parametrize("layers", [1, 2])
def test_outputs_and_gradients_are_those_of_torch(layers):
    torch.manual_seed(0)
    model = char_lstm((9,), 11, embedding=4, hidden=6, layers=layers).double()
    reference = torchs_own(model, layers)
    assert sum(p.numel() for p in model.recurrent.parameters()) == sum(p.numel() for p in reference.parameters())
    text = torch.randint(0, 11, (5, 9))
    expected = model.output(reference(model.embedding(text))[0][:, -1])
    torch.testing.assert_close(model(text), expected, rtol=1e-12, atol=1e-12)
    (ours,) = torch.autograd.grad(model(text).square().sum(), [model.embedding.weight])
    (theirs,) = torch.autograd.grad(expected.square().sum(), [model.embedding.weight])
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_initial_weights_have_torchs_range():
    torch.manual_seed(0)
    for parameter in char_lstm((5,), 30, hidden=64).recurrent.parameters():
        assert 0.9 / 8 < parameter.abs().max() <= 1 / 8


def test_a_cohort_is_one_computation_without_the_slow_fallback():
    model = char_lstm((4,), 7, embedding=3, hidden=5, layers=2)
    layout = Layout.of(model)
    stack = layout.flatten(dict(model.named_parameters())).repeat(3, 1)

    def loss(w, text):
        return torch.func.functional_call(model, layout.views(w), (text,)).square().sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where vmap has to fall back to a loop
        torch.func.vmap(torch.func.grad(loss))(stack, torch.randint(0, 7, (3, 2, 4)))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 28, 28), {}, r"shape \(characters,\)"),
        ((), {}, r"shape \(characters,\)"),
        ((5,), {"hidden": 0}, "hidden"),
        ((5,), {"layers": 0}, "layers"),
        ((5,), {"embedding": 1.5}, "embedding"),
    ],
)
def test_what_does_not_fit_is_refused(shape, options, message):
    with pytest.raises(CloisterError, match=message):
        char_lstm(shape, 10, **options)
