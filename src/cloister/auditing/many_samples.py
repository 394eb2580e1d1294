"""One run in which one client has many canary samples, each with a gradient of its own direction (a Dirac canary)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cloister.auditing.canary_samples import Lanes, Player
from cloister.auditing.worst_case import FAR, Terms, audited

if TYPE_CHECKING:
    from cloister.auditing.audits import Progress


def play_samples(terms: Terms, inside: Tensor, seed: int, progress: Progress) -> Tensor:
    """A run of a client with as many canaries as `inside` has; how far its messages point to each of them.

    A canary's input is one coordinate, and so is its gradient in every output of either tensor: they are orthogonal.
    """
    count = len(inside)
    size = max(count, terms.sizes[0])
    ready = audited(replace(terms, sizes=(size, *terms.sizes[1:])), seed, width=count)
    fed, w = ready.fed, ready.w
    inputs = torch.zeros(size, count)
    inputs[torch.arange(count), torch.arange(count)] = FAR * inside.float()
    lanes = Lanes.of(fed, torch.zeros(1, dtype=torch.bool), False)
    people = lanes.fed.population
    mine = people.inputs.clone()
    mine[:size] = inputs.to(mine)
    lanes = replace(lanes, fed=replace(lanes.fed, population=replace(people, inputs=mine)))
    done = [0]

    def tick() -> None:
        done[0] += 1
        progress("one run", done[0], ready.rounds)

    scores = torch.zeros(count, dtype=torch.float64, device=w.device)
    for message in Player(ready.rounds, tick).messages(lanes, w, noise=True):
        # A descent: against the gradient, which is +1 for one output and -1 for the other, in both tensors.
        first, second = message[0, : len(w)].view(2, 2, count)
        scores += (first[1] - first[0]) + (second[1] - second[0])
    return scores
