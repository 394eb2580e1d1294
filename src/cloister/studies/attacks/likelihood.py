"""Membership by the likelihood ratio, from shadow models: is this model more like those that saw the sample?

Carlini, Chien, Nasr, Song, Terzis & Tramer, "Membership inference attacks from first principles", S&P 2022 (LiRA,
online). With phi = log(p / (1 - p)), p the probability of a sample's true class,

    score = log N(phi; mean of those that saw it, s_in^2) - log N(phi; mean of the others, s_out^2)

A sample that every model finds easy has a small loss whether it was seen or not; here each is its own measure.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cloister.client.losses import Loss

_MANY = 64
"""With fewer shadows a variance of each sample's own is too rough, and all samples share one (as the paper does)."""
_AT_ONCE = 1000


def confidences(module: nn.Module, loss: Loss, inputs: Tensor, labels: Tensor) -> Tensor:
    """phi of every sample by itself, whose distribution over models is about normal: it falls as the loss rises. The
    module takes inputs as they are stored. Where the loss is no logarithm of a probability, phi is minus the loss."""
    device = next((piece.device for piece in module.parameters()), torch.device("cpu"))
    found = []
    with torch.no_grad():
        for at in range(0, len(labels), _AT_ONCE):
            some = slice(at, at + _AT_ONCE)
            outputs, own = module(inputs[some].to(device)).double(), labels[some].to(device)
            found.append(_log_odds(outputs, own) if _of_classes(loss, outputs, own) else -_each(loss(outputs, own)))
    return torch.cat(found).cpu()


def _of_classes(loss: Loss, outputs: Tensor, labels: Tensor) -> bool:
    return loss.name == "cross_entropy" and outputs.dim() == 2 and labels.dim() == 1


def _log_odds(outputs: Tensor, labels: Tensor) -> Tensor:
    """From the outputs: probabilities near 1 would round to 1, and all that are remembered best to the same."""
    own = torch.nn.functional.one_hot(labels, outputs.shape[1]).bool()
    return outputs[own] - outputs.masked_fill(own, -math.inf).logsumexp(1)


def _each(losses: Tensor) -> Tensor:
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses


def scores(target: Tensor, shadows: Tensor, saw: Tensor) -> Tensor:
    """Of every sample [n], from the confidence of the model [n], of shadows [k, n], and who of these saw it [k, n]."""
    found = []
    for who in (saw, ~saw):
        count = who.sum(0).clamp(min=1)
        mean = torch.where(who, shadows, 0.0).sum(0) / count
        squares = torch.where(who, (shadows - mean) ** 2, 0.0).sum(0)
        if len(shadows) >= _MANY:
            variance = squares / (count - 1).clamp(min=1)
        else:
            variance = squares.sum() / (count - 1).sum().clamp(min=1)
        variance = variance.clamp(min=1e-12)
        found.append(-((target - mean) ** 2) / (2 * variance) - variance.log() / 2 - math.log(2 * math.pi) / 2)
    return found[0] - found[1]
