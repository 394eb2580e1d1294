"""Arguments that several data sets or partitions share, each with its help."""

from __future__ import annotations

from typing import Annotated, Literal

Augment = Annotated[bool, "true: crop at random and, for photographs, flip"]
Features = Annotated[Literal["pixels", "scatter"], "pixels, or scatter for scattering features (ScatterNet)"]
Public = Annotated[int, "training samples set aside as public data, for methods that need some"]
Clients = Annotated[int, "number of clients"]
Evenness = Annotated[float, "evenness of the Dirichlet partition: small is uneven"]
SplitSeed = Annotated[int, "seed of the partition"]

IS_PATH = object()
"""Beside an argument: its words are a path, which a run's config keeps as an absolute one."""
