"""A small transformer over characters: which one comes next?"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from cloister.errors import CloisterError, expect, expect_count, expect_share, expect_type
from cloister.models.attention import Attention
from cloister.models.shapes import Shape


def char_transformer(
    shape: Shape,
    classes: int,
    width: Annotated[int, "how many numbers stand for a position"] = 64,
    heads: Annotated[int, "attention heads, which share the width"] = 4,
    layers: Annotated[int, "blocks, one above the other"] = 2,
    dropout: Annotated[float, "probability of dropout; 0 for none"] = 0.0,
    every_position: Annotated[
        bool, "true: guess after every position (loss next_token); false: after the last alone (cross_entropy)"
    ] = False,
) -> nn.Module:
    """A causal transformer over tokens (int64, 0 to classes - 1) that predicts the next; `shape` is (context length,).

    Blocks of attention and two dense layers with GELU, LayerNorm before each (as in GPT-2).
    """
    if len(shape) != 1 or shape[0] < 1:
        raise CloisterError(
            f"Expected inputs of shape (tokens,) for the char_transformer, whole numbers from 0 to {classes - 1}, "
            f"found {tuple(shape)}: give every sample as one row of tokens."
        )
    expect_count("width", width, "how many numbers stand for a position", most=10**5)
    expect_count("heads", heads, "how many attention heads share the width", most=10**4)
    expect_count("layers", layers, "how many blocks stand one above the other", most=10**4)
    expect_share("dropout", dropout, "0 switches it off", zero=True)
    expect(width % heads == 0, f"a width that {heads} heads can share", width, "choose a multiple of heads")
    expect_type("every_position", every_position, bool, "True or False", "give one of them")
    return TokenModel(shape[0], classes, width, heads, layers, dropout, every_position)


class TokenModel(nn.Module):
    """Embeddings of tokens and places, blocks, and a linear layer on the last position, or on all."""

    def __init__(
        self, length: int, vocabulary: int, width: int, heads: int, layers: int, dropout: float, every_position: bool
    ) -> None:
        super().__init__()
        self.every_position = every_position
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)  # as in GPT-2: torch's own would drown what the blocks add

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [b, T] to logits of the next one, [b, T, vocabulary] or [b, vocabulary]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        later = places > places[:, None]
        x = self.dropout(self.tokens(tokens) + self.places(places))
        for block in self.blocks:
            x = block(x, later)
        logits: Tensor = self.head(self.norm(x if self.every_position else x[:, -1]))
        return logits


class Block(nn.Module):
    """Attention to what came before, and two dense layers, each added to what it was given."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads, dropout)
        self.dense_norm = nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        """[b, T, width] -> [b, T, width]; no position sees those that are `later`."""
        seen = self.attention_norm(x)
        attended, _ = self.attention(seen, seen, seen, attn_mask=later, need_weights=False)
        x = x + self.dropout(attended)
        added: Tensor = self.dropout(self.dense(self.dense_norm(x)))
        return x + added
