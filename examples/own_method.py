"""A method of your own, composed from parts of the package and one new part, without changing the package.

Clients follow normalized gradients and send a random tenth of their coordinates; the server has momentum. The noise
follows from the bound that the transform leaves, so nothing about privacy has to be written here.

    python examples/own_method.py

Its arguments are also keys of the command line (the module is found in the current folder):

    cd examples
    cloister methods own_method:masked_normalized
    cloister run method=own_method:masked_normalized clip_norm=0.5 sampling_rate=0.5 rounds=30 epsilon=4 delta=1e-3
"""

from __future__ import annotations

from typing import Annotated

import torch

import cloister as cl
from cloister.client.gradients import Gradient
from cloister.core import Batch, Objective


def normalized() -> Gradient:
    """The gradient at length 1. A pure function of tensors, so every engine can run it."""

    def of(objective: Objective, w: torch.Tensor, start: torch.Tensor, batch: Batch) -> torch.Tensor:
        gradient = objective.gradient(w, batch)
        return gradient / (torch.linalg.vector_norm(gradient) + 1e-6)

    return Gradient("normalized", {}, of)


def masked_normalized(
    clip_norm: Annotated[float, "L2 norm to which what a client sends is clipped"],
    keep_fraction: Annotated[float, "fraction of the coordinates that is sent"] = 0.1,
    lr: Annotated[float, "local learning rate"] = 0.2,
    local_steps: Annotated[int, "local steps in a round"] = 5,
    noise_multiplier: Annotated[float | None, "left out, it is calibrated to epsilon"] = None,
) -> cl.Method:
    """Guarantee: the noisy sum of every round is private for a client and all its data."""
    return cl.Method(
        name="masked_normalized",
        local=cl.client.sgd(lr=lr, local_steps=local_steps, gradient=normalized()),
        transform=cl.transforms.chain(cl.transforms.random_mask(keep_fraction), cl.transforms.clip_l2(clip_norm)),
        mechanism=cl.mechanisms.gaussian(noise_multiplier),
        server=cl.server.sgd(momentum=0.5),
    )


if __name__ == "__main__":
    method, task = masked_normalized(clip_norm=0.5), cl.data.digits(clients=300)
    run = cl.run(method, task, rounds=30, cohort=cl.poisson(0.5), epsilon=4.0, delta=1e-3, seed=0)
    print(f"{method.name}: accuracy {run.accuracy:.3f} at epsilon {run.epsilon:.3f}")
