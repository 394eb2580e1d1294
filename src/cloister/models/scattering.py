"""Scattering features of images: fixed wavelets, so nothing is learned from anybody's data."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloister.errors import CloisterError, expect, expect_count

Array = np.ndarray[Any, np.dtype[Any]]
SCALES, ANGLES = 2, 8
PATHS = 1 + SCALES * ANGLES + ANGLES**2
"""Features per channel and place: the mean, 2 scales x 8 angles, and 8 angles of 8 angles. Together 81."""


def scatter(images: Array | Tensor, batch_size: int = 256) -> Array:
    """Images [n, c, h, w] (uint8 or floats) to features [n, 81 c, h/4, w/4] (float32) for the `scatter_` models.

    Oyallon & Mallat, "Deep roto-translation scattering for object classification", CVPR 2015, with two scales and
    eight angles, by kymatio (`pip install 'cloister[scattering]'`). A sample's features depend on that sample alone.
    Numbers are taken as they are: twice the image gives twice the features, so bytes give features 255 times those of
    images in [0, 1]. A tensor is transformed on the device where it lies, `batch_size` images at a time.
    """
    expect_count("batch_size", batch_size, "how many images are transformed at a time")
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1] < 1 or min(shape[2:]) < 2**SCALES:
        raise CloisterError(
            f"Expected images of shape (n, channels, height, width) of at least 4x4, found {shape}: put the channels "
            "before height and width, also where there is only one."
        )
    floats = images.is_floating_point() if isinstance(images, Tensor) else np.issubdtype(images.dtype, np.floating)
    expect(floats or str(images.dtype).endswith("uint8"), "images as uint8 or floats", images.dtype, "convert them")
    count, channels, height, width = shape
    features = np.empty((count, PATHS * channels, height // 2**SCALES, width // 2**SCALES), dtype=np.float32)
    if not count:
        return features
    device = images.device if isinstance(images, Tensor) else torch.device("cpu")
    transform = _transform(height, width).to(device)

    def compute(start: int) -> None:
        with torch.no_grad():  # which is a thread's own
            some = transform(_floats(images[start : start + batch_size]))  # [b, c, 81, h/4, w/4]
            features[start : start + batch_size] = some.flatten(1, 2).cpu().numpy()

    # Batches side by side, each on one thread: threads that share the many small steps of a batch wait for one another,
    # and on a machine that has other work as well that takes twenty times as long.
    workers = torch.get_num_threads() if device.type == "cpu" else 1
    starts = range(0, count, batch_size)
    if min(workers, len(starts)) == 1:
        for start in starts:
            compute(start)
    else:
        with ThreadPoolExecutor(workers, "scatter", torch.set_num_threads, (1,)) as pool:
            list(pool.map(compute, starts))
    return features


def _floats(images: Array | Tensor) -> Tensor:
    if isinstance(images, Tensor):
        return images.to(torch.float32).contiguous()
    # A copy, because torch warns of arrays that it may not write to, such as files mapped into memory.
    return torch.from_numpy(np.array(images, dtype=np.float32, order="C"))


def _transform(height: int, width: int) -> nn.Module:
    """kymatio's transform, by the one door that is open.

    `kymatio.torch` also loads the transform of volumes, which imports `scipy.special.sph_harm`; scipy 1.17 removed
    that name (kymatio issue 1068), so on a current scipy the documented import fails. The transform of images never
    needs it, and its own module can be loaded alone.
    """
    try:
        kymatio = importlib.import_module("kymatio.scattering2d.frontend.torch_frontend")
    except ImportError as error:
        raise CloisterError(
            f"Expected the optional package kymatio for scattering features, found that it cannot be imported "
            f"({error}): run pip install 'cloister[scattering]'."
        ) from error
    transform: nn.Module = kymatio.ScatteringTorch2D(J=SCALES, shape=(height, width), L=ANGLES)
    return transform
