"""The data sets of the papers, and some more, as tasks. Files lie under CLOISTER_DATA; `cloister data` gets them.

Each can set `public_samples` training samples aside as public data before the rest is dealt
(`cloister.data.partition`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from cloister.client.losses import next_token
from cloister.client.preprocessing import Preprocessing, images
from cloister.core.arguments import flat_arguments
from cloister.data.arguments import Augment, Features, Fraction, ImageOptions, Public
from cloister.data.deskew import deskewed
from cloister.data.partition import partition_data
from cloister.data.partitioners import Partition, iid, natural
from cloister.data.raw import RawData, Samples
from cloister.data.scattering import ScatterOptions, normalized, scattered, scattered_with_flips
from cloister.data.sklearn_digits import digits
from cloister.data.storage import data_folder
from cloister.data.task import Task
from cloister.errors import expect, expect_one_of, expect_type
from cloister.models import char_lstm, char_transformer, scatter_linear


@flat_arguments
def mnist(
    partition: Partition | None = None,
    augment: Augment = False,
    features: Features = "pixels",
    public_samples: Public = 0,
    *,
    options: ImageOptions,
    scattering: ScatterOptions,
) -> Task:
    """MNIST: 60,000 and 10,000 digits, 28x28, 10 classes."""
    return _images("mnist", partition or iid(), augment, features, public_samples, options, scattering)


@flat_arguments
def fashion_mnist(
    partition: Partition | None = None,
    augment: Augment = False,
    features: Features = "pixels",
    public_samples: Public = 0,
    *,
    options: ImageOptions,
    scattering: ScatterOptions,
) -> Task:
    """Fashion-MNIST: 60,000 and 10,000 pieces of clothing, 28x28, 10 classes."""
    return _images("fashion_mnist", partition or iid(), augment, features, public_samples, options, scattering)


@flat_arguments
def emnist(
    partition: Partition | None = None,
    split: Annotated[
        Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"], "which of EMNIST's splits"
    ] = "byclass",
    augment: Augment = False,
    side: Annotated[int | None, "frame the images in black to this side"] = None,
    public_samples: Public = 0,
    features: Features = "pixels",
    *,
    options: ImageOptions,
    scattering: ScatterOptions,
) -> Task:
    """EMNIST in one of its splits: letters and digits, 28x28, upright, 62 classes by class.

    With side=32 they are framed in black, as DP-FedSAM's CNN wants them. Its paper speaks of 62 classes and of "20% of
    the dataset, which includes 88,800 training samples and 14,800 validation samples". A fifth of 62 classes
    (fraction = 0.2) has 139,586 and 23,265. The printed sizes are those of the letters as first published, in 26
    classes, which the authors' code reads; here fraction = 0.127233 has them with 62 classes, and with split = letters,
    of which today's files have 124,800 and 20,800, fraction = 0.711538.
    """
    dealt = partition or iid()
    if features == "scatter":
        expect(side is None, "images as they are for scattering features", f"side = {side}", "leave side out")
    return _images("emnist", dealt, augment, features, public_samples, options, scattering, side, split=split)


@flat_arguments
def qmnist(
    partition: Partition | None = None,
    augment: Augment = False,
    features: Features = "pixels",
    public_samples: Public = 0,
    *,
    options: ImageOptions,
    scattering: ScatterOptions,
) -> Task:
    """MNIST with the NIST writer of every digit: 539 natural clients."""
    return _images("qmnist", partition or natural(), augment, features, public_samples, options, scattering)


@flat_arguments
def cifar10(
    partition: Partition | None = None,
    augment: Augment = False,
    features: Features = "pixels",
    public_samples: Public = 0,
    *,
    options: ImageOptions,
    scattering: ScatterOptions,
) -> Task:
    """CIFAR-10: 50,000 and 10,000 photographs, 32x32, 10 classes."""
    return _images("cifar10", partition or iid(), augment, features, public_samples, options, scattering)


@flat_arguments
def cifar100(
    partition: Partition | None = None,
    augment: Augment = False,
    features: Features = "pixels",
    public_samples: Public = 0,
    *,
    options: ImageOptions,
    scattering: ScatterOptions,
) -> Task:
    """CIFAR-100: 50,000 and 10,000 photographs, 32x32, 100 classes."""
    return _images("cifar100", partition or iid(), augment, features, public_samples, options, scattering)


@flat_arguments
def femnist(
    partition: Partition | None = None, augment: Augment = False, public_samples: Public = 0, *, options: ImageOptions
) -> Task:
    """LEAF's FEMNIST: letters and digits by writer, 62 classes."""
    return _images("femnist", partition or natural(), augment, "pixels", public_samples, options)


@flat_arguments
def femnist_digits(
    partition: Partition | None = None, augment: Augment = False, public_samples: Public = 0, *, options: ImageOptions
) -> Task:
    """The digits of 190 of LEAF's writers."""
    return _images("femnist_digits", partition or natural(), augment, "pixels", public_samples, options)


@flat_arguments
def fed_emnist(
    partition: Partition | None = None, augment: Augment = False, public_samples: Public = 0, *, options: ImageOptions
) -> Task:
    """TensorFlow Federated's EMNIST: 3,400 writers, 62 classes."""
    return _images("fed_emnist", partition or natural(), augment, "pixels", public_samples, options)


def har(partition: Partition | None = None, public_samples: Public = 0, fraction: Fraction = 1.0) -> Task:
    """UCI HAR: what 30 people were doing while their telephones measured nine signals; 6 classes."""
    task = partition_data(_read("har"), partition or natural(), "har", public_samples=public_samples, fraction=fraction)
    return replace(task, sample_notes=(_HALVES,))


_HALVES = (
    "overlapping windows: a sample of this data set shares half of its measurements with the next, so that a single "
    "measurement lies in two samples and is protected as two of them together are"
)


def heart(
    partition: Partition | None = None,
    impute: Annotated[
        Literal["public", "client_median"],
        "what a missing value becomes: public (a constant), or client_median (for methods that protect clients)",
    ] = "public",
    public_samples: Public = 0,
    fraction: Fraction = 1.0,
) -> Task:
    """UCI heart disease: 13 findings on the patients of four hospitals; ill or not.

    A missing value becomes a public constant, or the median of the hospital's own patients, which is for the natural
    partition and for methods that protect whole clients.
    """
    raw = _read("heart", impute=impute)
    return partition_data(raw, partition or natural(), "heart", public_samples=public_samples, fraction=fraction)


def shakespeare(
    partition: Partition | None = None,
    length: Annotated[int, "characters that the next one is guessed from"] = 80,
    targets: Annotated[
        Literal["next", "every"], "next: guess what follows a window; every: what follows each of its characters"
    ] = "next",
    public_samples: Public = 0,
    fraction: Fraction = 1.0,
) -> Task:
    """Shakespeare by role: the next character after `length` others, or after each of them (the loss next_token)."""
    expect_one_of("targets", targets, ("next", "every"))
    dealt = partition or natural()
    if targets == "next":
        raw = _read("shakespeare", length=length)
        model = partial(char_lstm, (length,), raw.classes)
        return partition_data(raw, dealt, "shakespeare", model=model, public_samples=public_samples, fraction=fraction)
    raw = _read("shakespeare", every_target, length=length)
    model = partial(char_transformer, (length,), raw.classes, every_position=True)
    task = partition_data(raw, dealt, "shakespeare", model=model, public_samples=public_samples, fraction=fraction)
    return replace(task, loss=next_token)


def every_target(raw: RawData) -> RawData:
    """Windows whose labels [n, length] are the character after each position; the last is the label of before."""

    def shifted(part: Samples) -> Samples:
        following = np.concatenate([part.inputs[:, 1:], part.labels[:, None]], axis=1)
        return Samples(part.inputs, following, part.owners)

    return replace(raw, train=shifted(raw.train), test=shifted(raw.test))


CATALOGUE: dict[str, Callable[..., Task]] = {
    "digits": digits,
    "mnist": mnist,
    "fashion_mnist": fashion_mnist,
    "emnist": emnist,
    "qmnist": qmnist,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "femnist": femnist,
    "femnist_digits": femnist_digits,
    "fed_emnist": fed_emnist,
    "har": har,
    "heart": heart,
    "shakespeare": shakespeare,
}


def _read(name: str, *derive: Callable[[RawData], RawData], **options: Any) -> RawData:
    from cloister.data.cache import cached

    return cached(name, data_folder(), *derive, **options)


def _images(
    name: str,
    partition: Partition,
    augment: bool,
    features: Features,
    public_samples: int,
    options: ImageOptions,
    scattering: ScatterOptions | None = None,
    side: int | None = None,
    **of_format: Any,
) -> Task:
    scattering = scattering or ScatterOptions()
    expect_type("deskew", options.deskew, bool, "True or False", "True suits digits and letters")
    upright = [deskewed] if options.deskew else []
    if features == "scatter":
        expect(not augment, "pixels where augment is true", features, "scattering features are computed once")
        derived = scattered_with_flips if scattering.scatter_flips else scattered
        raw = normalized(_read(name, *upright, derived, **of_format), scattering)
        model = partial(scatter_linear, raw.train.inputs.shape[1:], raw.classes)
        _expect_augmented(augment, options)
        return partition_data(raw, partition, name, None, model, public_samples, options.fraction)
    scattering.expect_unused(features)
    raw = _read(name, *upright, **of_format)
    preprocessing = _preprocessing(raw, augment, options, side)
    return partition_data(raw, partition, name, preprocessing, None, public_samples, options.fraction)


def _preprocessing(raw: RawData, augment: bool, options: ImageOptions, size: int | None = None) -> Preprocessing:
    """Normalized; augmented by a crop from a frame of four and by flips (of photographs alone, unless others are asked
    for), and made gray as often as asked."""
    _expect_augmented(augment, options)
    photographs = len(raw.mean) == 3
    frame = -(-((size or 0) - raw.train.inputs.shape[-1]) // 2)
    pad = max(4 if augment else 0, frame)
    flips = ("horizontal" if photographs else "none") if options.flips == "usual" else options.flips
    return images(
        raw.mean,
        raw.std,
        pad=pad,
        size=size,
        crop=augment,
        flip=augment and flips in ("horizontal", "both"),
        flip_vertically=augment and flips in ("vertical", "both"),
        grayscale=options.grayscale,
    )


def _expect_augmented(augment: bool, options: ImageOptions) -> None:
    """Refuse flips and gray images where nothing is augmented."""
    expect_one_of("flips", options.flips, ("usual", "none", "horizontal", "vertical", "both"))
    asked = {"flips": options.flips != "usual", "grayscale": options.grayscale != 0}
    for name in [name for name, wanted in asked.items() if wanted]:
        expect(augment is True, f"augment = true beside {name}", augment, f"set it, or leave {name} out")
