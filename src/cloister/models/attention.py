"""Attention whose projections are layers of their own, so that they can be adapted, frozen and mapped over clients."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from cloister.errors import CloisterError
from cloister.models.replacing import replaced


class Attention(nn.Module):
    """What `nn.MultiheadAttention` computes, with query, key, value and output as `nn.Linear` layers.

    `nn.MultiheadAttention` keeps its projections in one tensor that no layer owns, and on some paths draws dropout
    where nobody can key it. Written out, a cohort is one batched computation and dropout is `nn.Dropout`.
    """

    # What nn.TransformerEncoder asks before it takes a path of its own that would go past these layers.
    in_proj_bias = None
    _qkv_same_embed_dim = False
    was_torchs = False

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        key_width: int | None = None,
        value_width: int | None = None,
        batch_first: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.batch_first = heads, batch_first
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(key_width or width, width, bias)
        self.value = nn.Linear(value_width or width, width, bias)
        self.output = nn.Linear(width, width, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The attended values and, if asked for, the weights: arguments and results of `nn.MultiheadAttention`."""
        single = query.dim() == 2
        if single:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        q, k, v = self._split(self.query(query)), self._split(self.key(key)), self._split(self.value(value))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if attn_mask is not None:
            stacked = attn_mask.view(-1, self.num_heads, *attn_mask.shape[1:]) if attn_mask.dim() == 3 else attn_mask
            scores = _masked(scores, stacked)
        if key_padding_mask is not None:
            scores = _masked(scores, key_padding_mask[:, None, None, :])
        weights = self.dropout(scores.softmax(-1))
        found: Tensor = self.output((weights @ v).transpose(1, 2).flatten(2))
        shown = (weights.mean(1) if average_attn_weights else weights) if need_weights else None
        if single:
            return found[0], None if shown is None else shown[0]
        return (found if self.batch_first else found.transpose(0, 1)), shown

    def _split(self, x: Tensor) -> Tensor:
        """[b, T, width] -> [b, heads, T, width / heads]."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    @classmethod
    def of(cls, theirs: nn.MultiheadAttention) -> Attention:
        """The same attention with the same weights."""
        if theirs.bias_k is not None or theirs.add_zero_attn:
            raise CloisterError(
                "Expected an nn.MultiheadAttention without add_bias_kv and add_zero_attn, found one with them: leave "
                "them out."
            )
        biased, width = theirs.in_proj_bias is not None, theirs.embed_dim
        ours = cls(width, theirs.num_heads, theirs.dropout, biased, theirs.kdim, theirs.vdim, theirs.batch_first)
        ours = ours.to(theirs.out_proj.weight).train(theirs.training)
        if theirs.in_proj_weight is not None:
            weights = theirs.in_proj_weight.chunk(3)
        else:
            weights = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        with torch.no_grad():
            for layer, weight in zip((ours.query, ours.key, ours.value), weights, strict=True):
                layer.weight.copy_(weight)
            if biased:
                for layer, bias in zip((ours.query, ours.key, ours.value), theirs.in_proj_bias.chunk(3), strict=True):
                    layer.bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())
        ours.was_torchs = True
        return ours

    def joined(self) -> nn.MultiheadAttention:
        """The inverse of `of`, for whoever wants the names of before."""
        biased, width = self.query.bias is not None, self.query.in_features
        theirs = nn.MultiheadAttention(
            width,
            self.num_heads,
            self.dropout.p,
            biased,
            kdim=self.key.in_features,
            vdim=self.value.in_features,
            batch_first=self.batch_first,
        )
        theirs = theirs.to(self.output.weight).train(self.training)
        layers = (self.query, self.key, self.value)
        with torch.no_grad():
            if theirs.in_proj_weight is not None:
                theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
            else:
                for letter, layer in zip("qkv", layers, strict=True):
                    getattr(theirs, f"{letter}_proj_weight").copy_(layer.weight)
            if biased:
                theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
        theirs.out_proj.load_state_dict(self.output.state_dict())
        return theirs


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """As torch has it: True is left out, and numbers are added."""
    return scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def split_attention(model: nn.Module) -> nn.Module:
    """A copy of the model in which every nn.MultiheadAttention has become an `Attention` with the same weights.

    >>> type(split_attention(nn.MultiheadAttention(4, 2))).__name__
    'Attention'
    """

    def split(part: nn.Module) -> nn.Module | None:
        return Attention.of(part) if isinstance(part, nn.MultiheadAttention) else None

    return replaced(copy.deepcopy(model), split)
