"""A task from folders of images, client/class/image.png."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from cloister.data.task import Task, from_arrays
from cloister.data.user.decoding import ImageForm, decode
from cloister.data.user.image_encoder import ImageEncoder
from cloister.data.user.image_files import images_of_clients
from cloister.errors import expect, expect_type


def from_image_folder(
    path: Annotated[str, "a folder with client/class/image.png"],
    size: Annotated[int | list[int], "the side of every image in pixels, or its height and width"] = 28,
    channels: Annotated[Literal[1, 3], "1: gray, 3: colored"] = 1,
    classes: Annotated[
        list[str] | None, "the classes; by default whatever folders there are, which tells of them"
    ] = None,
    resize: Annotated[bool, "true: images of other sizes are resized; false: they are refused"] = False,
    test_fraction: Annotated[float, "of every client's images, held out for testing"] = 0.2,
    public_samples: Annotated[int, "so many images at least, of whole clients, are set aside as public"] = 0,
    split_seed: Annotated[int, "seed by which images are held out and set aside"] = 0,
    workers: Annotated[int | None, "processes that decode images (by default one for each core)"] = None,
    **options: Any,
) -> Task:
    """A task whose clients are the folders in `path`, each with a folder of images for every class.

    Nothing is taken from the images but their pixels: size and channels are declared, and images are scaled by
    constants. Classes should be declared, too: otherwise they are the folders that clients happen to have, and the
    certificate says so. A client without images takes part without samples. Hidden files are left out; whatever else
    is no image, is damaged, or lies elsewhere is refused by name. `options` go to `from_arrays` (model, name, ...).
    """
    expect_type("path", path, (str, Path), "the path of a folder", "name the folder of the clients' folders")
    root = Path(path)
    expect("\0" not in str(root) and root.is_dir(), "a folder of images", str(path), "check the name")
    form, names = _form(size, channels, resize), _declared(classes)
    found = images_of_clients(root, names)
    known = found.classes if names is None else names
    expect(len(known) >= 2, "two classes at least", known, "make a folder for every class of a client")
    number = {name: at for at, name in enumerate(known)}
    task = from_arrays(
        decode(found.files, form, workers),
        np.array([number[name] for name in found.labels]),
        np.array(found.owners, dtype=str),
        **{
            "name": root.resolve().name,
            "test": test_fraction,
            "registered": found.clients,
            "class_names": known,
            "seed": split_seed,
            "public_samples": public_samples,
            "encoder": ImageEncoder(form, tuple(known), workers),
            **options,
        },
    )
    return replace(task, classes_inferred=names is None)


def _form(size: Any, channels: Any, resize: Any) -> ImageForm:
    """One size for all; a config file has lists of numbers, which are whole here."""
    sides = list(size) if isinstance(size, (list, tuple)) else [size, size]
    remedy = "give the side of a square, or height and width"
    expect(len(sides) == 2, "size to be one number, or two", size, remedy)
    whole = [int(side) if isinstance(side, float) and side.is_integer() else side for side in sides]
    return ImageForm(whole[0], whole[1], channels, resize)


def _declared(classes: Sequence[str] | None) -> list[str] | None:
    """The names of classes in the order that gives them their numbers."""
    if classes is None:
        return None
    words = isinstance(classes, (list, tuple)) and all(isinstance(name, str) and name for name in classes)
    expect(words, "classes to be a list of names", classes, "name the folders of classes")
    names = list(classes)
    expect(len(set(names)) == len(names), "every class once", names, "remove what is there twice")
    return names
