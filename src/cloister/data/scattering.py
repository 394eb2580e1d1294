"""Scattering features of image sets: computed once and kept, then compressed, pooled and normalized sample by sample.

What a sample becomes depends on that sample alone, so that nothing here costs anything.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from cloister.data.raw import Array, RawData, Samples
from cloister.errors import expect, expect_count, expect_one_of, expect_positive, expect_type
from cloister.models import scatter
from cloister.models.scattering import ANGLES, PATHS, SCALES

Compression = Literal["none", "sqrt", "log"]
_ROWS = 1024


@dataclass(frozen=True)
class ScatterOptions:
    """What happens to scattering features before they are used."""

    scatter_compression: Annotated[
        Compression, "scattering features are compressed: not at all (none), by their root (sqrt) or log(1 + 100 x)"
    ] = "none"
    scatter_pool: Annotated[int | None, "average scattering features over places, to so many by so many"] = None
    scatter_groups: Annotated[
        int | None, "normalize a sample's scattering features in so many groups of channels, and to length 1 as a whole"
    ] = None
    scatter_flips: Annotated[bool, "true: average the features of an image and of its mirror image"] = False
    scatter_low_orders: Annotated[
        float, "weight of the scattering coefficients of orders 0 and 1, where those of order 2 have weight 1"
    ] = 1.0
    given_as_keywords: ClassVar[bool] = True

    def __post_init__(self) -> None:
        expect_one_of("scatter_compression", self.scatter_compression, get_args(Compression))
        expect_type("scatter_flips", self.scatter_flips, bool, "True or False", "True suits photographs")
        expect_positive("scatter_low_orders", self.scatter_low_orders, "1 leaves features as they are, 3 suits images")
        for name in ("scatter_pool", "scatter_groups"):
            if getattr(self, name) is not None:
                expect_count(name, getattr(self, name), "leave it out to have features as they are")

    def expect_unused(self, features: str) -> None:
        """Refuse options of features that there are none of."""
        for name, usual in vars(ScatterOptions()).items():
            given = getattr(self, name)
            expect(given == usual, f"features = scatter beside {name}", features, f"set it, or leave {name} out")

    @property
    def unchanged(self) -> bool:
        """Whether features stay as the transform gives them (or their mean over flips)."""
        return replace(self, scatter_flips=False) == ScatterOptions()


def scattered(raw: RawData) -> RawData:
    """Scattering features (ScatterNet) of pictures in [0, 1], 81 for every channel; a few minutes, once."""
    return _of_images(raw, flips=False)


def scattered_with_flips(raw: RawData) -> RawData:
    """The mean of the features of a picture and of its mirror image."""
    return _of_images(raw, flips=True)


def _of_images(raw: RawData, flips: bool) -> RawData:
    from rich.console import Console
    from rich.progress import track

    # On a GPU where there is one: hours of a core are minutes there, and features differ by rounding alone.
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def features(part: Samples) -> Samples:
        rows = range(0, len(part), _ROWS)
        watched = track(rows, "scattering features", console=Console(stderr=True), disable=not sys.stderr.isatty())
        found = []
        for at in watched:
            images = torch.from_numpy(np.asarray(part.inputs[at : at + _ROWS], dtype=np.float32) / 255).to(device)
            one = scatter(images)
            found.append((one + scatter(images.flip(3))) / 2 if flips else one)
        return Samples(np.concatenate(found), part.labels, part.owners)

    return replace(raw, train=features(raw.train), test=features(raw.test), mean=(), std=())


def normalized(raw: RawData, options: ScatterOptions) -> RawData:
    """Features [n, channels, h, w] after `options`, in the same layout."""
    if options.unchanged:
        return raw
    channels = raw.train.inputs.shape[1]
    groups = options.scatter_groups
    if groups is not None:
        remedy = "9 or 27 suit the 81 channels of a gray image and the 243 of a color one"
        expect(channels % groups == 0, f"a divisor of {channels} for scatter_groups", groups, remedy)

    def changed(part: Samples) -> Samples:
        pieces = [normalized_features(part.inputs[at : at + _ROWS], options) for at in range(0, len(part), _ROWS)]
        return Samples(np.concatenate(pieces) if pieces else part.inputs, part.labels, part.owners)

    return replace(raw, train=changed(raw.train), test=changed(raw.test))


def normalized_features(features: Array, options: ScatterOptions) -> Array:
    """Some samples' features [n, channels, h, w], pooled, compressed, normalized."""
    return normalized_tensor(torch.from_numpy(np.array(features, dtype=np.float32)), options).numpy()


def normalized_tensor(found: Tensor, options: ScatterOptions) -> Tensor:
    """The same where the features lie, on whatever device."""
    if options.scatter_pool is not None:
        found = torch.nn.functional.adaptive_avg_pool2d(found, options.scatter_pool)
    found = _compressed(found.clamp(min=0), options.scatter_compression)
    if options.scatter_groups is not None:
        grouped = found.reshape(len(found), options.scatter_groups, -1)
        grouped = (grouped - grouped.mean(2, keepdim=True)) / (grouped.std(2, keepdim=True) + 1e-5)
        length = grouped.flatten(1).norm(dim=1).clamp(min=1e-9)
        found = (grouped / length[:, None, None]).view(found.shape)
    if options.scatter_low_orders != 1:
        found = found * _order_weights(found.shape[1], options.scatter_low_orders).to(found)
    return found


def _order_weights(channels: int, low: float) -> Tensor:
    """A weight for every channel [channels, 1, 1]: `low` for the mean and the first order, 1 for the second.

    There are four times as many coefficients of the second order, and less of the signal in them: under noise that is
    the same for all parameters, a model learns more from the others when these are larger.
    """
    weights = torch.ones(channels // PATHS, PATHS)
    weights[:, : 1 + SCALES * ANGLES] = low  # kymatio's order: the mean, the first order, the second
    return weights.view(-1, 1, 1)


def _compressed(features: Tensor, how: Compression) -> Tensor:
    if how == "sqrt":
        return features.sqrt()
    return torch.log1p(100 * features) if how == "log" else features
