"""What the planner asks for: the ranges of its sliders, and where they begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SIGNAL = (
    "how far the clients can move the model, over how far the noise does, at best. The signal is the norm of the "
    "sum of all updates, if each has the norm of the clip and all point the same way; the noise is the expected "
    "norm of what is added to all parameters. Over a run signals add up, and independent noises by their squares. "
    "Where samples are protected, gradients stand in place of updates. No training does better: below 1, noise "
    "moves the model further than the clients do."
)


@dataclass(frozen=True)
class Slider:
    """A key of a plan. Sliders go in equal ratios, from the least to the most; any other value can be typed."""

    name: str
    words: str
    least: float
    most: float
    start: float
    whole: bool = False
    only: str = ""
    """The method that has it, where the other does not."""


SLIDERS = (
    Slider("clients", "clients in the federation", 2, 1e6, 300, whole=True),
    Slider("sizes", "samples of each client", 10, 1e5, 300, whole=True, only="pfl"),
    Slider("batch_size", "batch size", 1, 1e4, 32, whole=True, only="pfl"),
    Slider("sampling_rate", "sampling rate", 0.001, 1, 0.5),
    Slider("rounds", "rounds", 1, 1e4, 60, whole=True),
    Slider("epsilon", "epsilon", 0.1, 20, 2),
    Slider("delta", "delta", 1e-10, 0.01, 1e-3),
    Slider("parameters", "parameters of the model", 10, 1e8, 650, whole=True),
)

HINTS = {
    "sampling_rate": "the share of clients that takes part in a round, each drawn by itself (Poisson)",
    "delta": "well below 1 / clients",
    "parameters": "noise is added to each; epsilon does not depend on it",
}

VALUES: dict[str, Any] = {"sliders": SLIDERS, "hints": HINTS, "signal": SIGNAL}
