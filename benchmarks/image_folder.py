"""Reading a folder of images, ours beside torchvision's, in one run:

    python benchmarks/image_folder.py [--images 50000] [--workers 2] [--repeats 3] [--colored]

Ours is the whole of `cloister.data.from_image_folder`: listing, decoding, splitting into clients and test samples.
Theirs is `torchvision.datasets.ImageFolder` read through a DataLoader with as many workers, in batches of 256 that are
collated to uint8 tensors. They take turns, and the median of each counts.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

import cloister as cl

CLIENTS, CLASSES = 50, 10


def make(root: Path, images: int, side: int, channels: int) -> None:
    """PNG files of smooth shapes with some noise, which take about as long to decode as real ones."""
    random = np.random.default_rng(0)
    grid = np.linspace(-1, 1, side)
    for number in range(images):
        client, label = number % CLIENTS, number // CLIENTS % CLASSES
        folder = root / f"client{client:02d}" / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        x, y = random.uniform(-0.5, 0.5, (2, channels))
        shape = np.exp(-4 * ((grid[:, None, None] - x) ** 2 + (grid[None, :, None] - y) ** 2)) * 230
        pixels = (shape + random.uniform(0, 20, (side, side, channels))).astype(np.uint8)
        Image.fromarray(pixels.squeeze(2) if channels == 1 else pixels).save(folder / f"{number:06d}.png")


def image_folder() -> Any:
    """torchvision's class; also where its compiled parts, which it does not need, do not fit this torch."""
    try:
        from torchvision.datasets import ImageFolder
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        spec = importlib.util.find_spec("torchvision")
        assert spec is not None
        bare = types.ModuleType("torchvision")
        bare.__path__ = list(spec.submodule_search_locations or [])
        vars(bare)["extension"] = types.SimpleNamespace(_has_ops=lambda: False)
        sys.modules["torchvision"] = bare
        from torchvision.datasets.folder import ImageFolder
    return ImageFolder


class ToBytes:
    """A picture as a uint8 tensor, channels first."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def __call__(self, image: Image.Image) -> torch.Tensor:
        pixels = np.array(image if image.mode == self.mode else image.convert(self.mode))
        return torch.from_numpy(pixels).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)


class Loader:
    """Opens a picture; torchvision's own converts to colors, and to gray again would be work that nobody needs."""

    def __call__(self, path: str) -> Image.Image:
        with open(path, "rb") as file:
            image = Image.open(file)
            image.load()
            return image


def theirs(root: Path, mode: str, workers: int) -> torch.Tensor:
    """All images through a DataLoader."""
    data = image_folder()(root, transform=ToBytes(mode), loader=Loader())
    loader: Any = torch.utils.data.DataLoader(data, batch_size=256, num_workers=workers)
    return torch.cat([inputs for inputs, _ in loader])


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--images", type=int, default=50_000)
    words.add_argument("--workers", type=int, default=2)
    words.add_argument("--repeats", type=int, default=3)
    words.add_argument("--colored", action="store_true", help="32x32 RGB in place of 28x28 gray")
    asked = words.parse_args()
    channels: Literal[1, 3] = 3 if asked.colored else 1
    side, mode = (32, "RGB") if asked.colored else (28, "L")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        make(root, asked.images, side, channels)

        def ours() -> cl.data.Task:
            return cl.data.from_image_folder(str(root), size=side, channels=channels, workers=asked.workers)

        task, pixels = ours(), theirs(root, mode, asked.workers)  # once unmeasured: files are in memory after that
        total = int(task.population.inputs.long().sum() + task.test_inputs.long().sum())
        assert total == int(pixels.long().sum()), "both have read the same images"
        mine, other = [], []
        for _ in range(asked.repeats):
            mine.append(seconds(ours))
            other.append(seconds(lambda: theirs(root, mode, asked.workers)))
    one, two = statistics.median(mine), statistics.median(other)
    print(f"{asked.images:,} PNG images of {side}x{side} {mode}, {asked.workers} workers, {os.cpu_count()} cores")
    print(f"cloister.data.from_image_folder: {one:.2f} s ({', '.join(f'{t:.2f}' for t in mine)})")
    print(f"torchvision ImageFolder + DataLoader: {two:.2f} s ({', '.join(f'{t:.2f}' for t in other)})")
    print(f"ratio: {two / one:.2f}")


if __name__ == "__main__":
    main()
