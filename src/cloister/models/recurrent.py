"""A character model: which one comes next?"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor, nn

from cloister.errors import CloisterError, expect_count
from cloister.models.shapes import Shape


def char_lstm(
    shape: Shape,
    classes: int,
    embedding: Annotated[int, "how many numbers stand for a character"] = 8,
    hidden: Annotated[int, "width of the hidden layer"] = 128,
    layers: Annotated[int, "recurrent layers, one above the other"] = 1,
) -> nn.Module:
    """An LSTM over characters (int64, 0 to classes - 1) that predicts the next: `classes` is the alphabet's size.

    With embedding 8, hidden 256 and layers 2 it has the sizes of LEAF's network for Shakespeare (Caldas et al., "LEAF:
    a benchmark for federated settings", 2018).
    """
    if len(shape) != 1:
        raise CloisterError(
            f"Expected inputs of shape (characters,) for the char_lstm, whole numbers from 0 to {classes - 1}, found "
            f"{tuple(shape)}: give every sample as one row of characters."
        )
    expect_count("embedding", embedding, "how many numbers stand for a character")
    expect_count("hidden", hidden, "the width of the hidden layer")
    expect_count("layers", layers, "how many LSTMs stand one above the other")
    return CharacterModel(classes, embedding, hidden, layers)


class CharacterModel(nn.Module):
    """Embedding, LSTM layers, and a linear layer on the last state."""

    def __init__(self, alphabet: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, embedding)
        self.recurrent = nn.Sequential(*(Lstm(embedding if i == 0 else hidden, hidden) for i in range(layers)))
        self.output = nn.Linear(hidden, alphabet)

    def forward(self, characters: Tensor) -> Tensor:
        """Characters [b, T] to logits of the next one [b, alphabet]."""
        states: Tensor = self.recurrent(self.embedding(characters))
        logits: Tensor = self.output(states[:, -1])
        return logits


class Lstm(nn.Module):
    """One layer, [b, T, in] -> [b, T, hidden]: the numbers of `nn.LSTM(batch_first=True)` with the same weights.

    `nn.LSTM` itself calls a fused kernel that has no batching rule: under `torch.func.vmap` it warns and then walks
    through the clients one at a time. Written out, a cohort is one batched computation on every device.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        # Gates in torch's order (input, forget, candidate, output), so that weights can be exchanged with nn.LSTM.
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The state after every step."""
        state = memory = x.new_zeros(x.shape[0], self.hidden)
        states = []
        for drive in self.from_input(x).unbind(1):
            enter, forget, candidate, leave = (drive + self.from_state(state)).chunk(4, dim=1)
            memory = forget.sigmoid() * memory + enter.sigmoid() * candidate.tanh()
            state = leave.sigmoid() * memory.tanh()
            states.append(state)
        return torch.stack(states, dim=1)
