"""Normalization that does not mix samples and keeps no statistics."""

from __future__ import annotations

import copy
import math

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def group_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model in which every BatchNorm has become a GroupNorm.

    The number of groups is the greatest common divisor of `groups` and the channels. Scale and shift carry
    over; running statistics are dropped.

    >>> group_norm(nn.BatchNorm2d(48)).num_groups
    16
    """
    model = copy.deepcopy(model)
    return _converted(model, groups) if isinstance(model, _BatchNorm) else _convert_children(model, groups)


def _convert_children(module: nn.Module, groups: int) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm):
            setattr(module, name, _converted(child, groups))
        else:
            _convert_children(child, groups)
    return module


def _converted(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    new = nn.GroupNorm(math.gcd(groups, norm.num_features), norm.num_features, norm.eps, norm.affine)
    if norm.affine:
        new.load_state_dict({"weight": norm.weight, "bias": norm.bias})
        new = new.to(norm.weight)
    return new.train(norm.training)
