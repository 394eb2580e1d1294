"""Arguments that several data sets or partitions share, each with its help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

Augment = Annotated[bool, "true: crop at random and, for photographs, flip"]
Flips = Annotated[
    Literal["usual", "none", "horizontal", "vertical", "both"],
    "how augmented images are flipped, each way with probability 1/2 (usual: photographs horizontally, others not)",
]
Grayscale = Annotated[float, "probability with which an augmented color image is made gray (0.1 in DP-FedSAM's code)"]
Deskew = Annotated[
    bool, "true: shear every image of strokes (digits, letters) upright, by moments of its own ink; gray images only"
]
Fraction = Annotated[float, "share of the training and of the test samples that is used, drawn by the partition's seed"]
Features = Annotated[Literal["pixels", "scatter"], "pixels, or scatter for scattering features (ScatterNet)"]
Public = Annotated[int, "training samples set aside as public data, for methods that need some"]
Clients = Annotated[int, "number of clients"]
Evenness = Annotated[float, "evenness of the Dirichlet partition: small is uneven"]
SplitSeed = Annotated[int, "seed of the partition"]

IS_PATH = object()
"""Beside an argument: its words are a path, which a run's config keeps as an absolute one."""


@dataclass(frozen=True)
class ImageOptions:
    """How images are prepared, and augmented beside a crop, and how many of them are used: of every set of images."""

    flips: Flips = "usual"
    grayscale: Grayscale = 0.0
    deskew: Deskew = False
    fraction: Fraction = 1.0
    given_as_keywords: ClassVar[bool] = True
