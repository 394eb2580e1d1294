"""A page for each model of the catalogue, with its layers and numbers of parameters, and one that lists them."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from torch import nn

from cloister.errors import CloisterError
from cloister.models import CATALOGUE
from cloister.runs import catalogue
from site_pages.markdown import docstring, fenced, table

INPUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "digits": ((1, 8, 8), 10),
    "MNIST, Fashion-MNIST": ((1, 28, 28), 10),
    "EMNIST by class": ((1, 28, 28), 62),
    "EMNIST by class, framed (`side=32`)": ((1, 32, 32), 62),
    "CIFAR-10": ((3, 32, 32), 10),
    "CIFAR-100": ((3, 32, 32), 100),
    "MNIST, scattering features": ((81, 7, 7), 10),
    "CIFAR-10, scattering features": ((243, 8, 8), 10),
    "Shakespeare": ((80,), 80),
}
"""What the data sets' samples are, and how many classes they have."""
_CHARACTERS = ((80,), 80)


def pages(root: Path) -> dict[str, str]:
    """All of them."""
    found = {f"models/{name}.md": _page(name) for name in CATALOGUE}
    return {"models/index.md": _index(), **found}


def _made(name: str, shape: tuple[int, ...], classes: int) -> nn.Module | None:
    """The model without memory for its parameters, or nothing where it does not take such samples."""
    if name.startswith("char_") != (len(shape) == 1):
        return None
    if ("scatter" in name) and shape[0] not in (81, 243):
        return None
    if "scatter" not in name and name != "linear_probe" and shape[0] in (81, 243):
        return None
    try:
        with torch.device("meta"):
            return CATALOGUE[name](shape, classes)
    except CloisterError:
        return None


def _counts(name: str) -> list[tuple[str, tuple[int, ...], int, int]]:
    found = []
    for data, (shape, classes) in INPUTS.items():
        model = _made(name, shape, classes)
        if model is not None:
            found.append((data, shape, classes, sum(one.numel() for one in model.parameters())))
    return found


def _page(name: str) -> str:
    counts = _counts(name)
    _, shape, classes, _ = _usual(name, counts)
    model = _made(name, shape, classes)
    keys = catalogue.stored().choices["model"][name].keys
    rows = [(f"`{key.name}`", f"`{key.shown_default}`" if key.shown_default else "none", key.help) for key in keys]
    numbers = [(data, "x".join(map(str, shape)), classes, f"{count:,}") for data, shape, classes, count in counts]
    parts = [
        f"---\ntitle: {name}\n---\n",
        f"# {name}\n",
        docstring(inspect.getdoc(CATALOGUE[name]) or ""),
        "## Parameters\n",
        table(("samples of", "shape", "classes", "parameters"), numbers),
        f"## Layers\n\nFor samples of {'x'.join(map(str, shape))} and {classes} classes:\n",
        fenced(str(model)),
        "## An example\n",
        fenced(
            f"import cloister as cl\n\nmodel = cl.models.{name}({shape}, {classes})\n"
            "print(sum(parameter.numel() for parameter in model.parameters()))\n",
            "python",
        ),
        f'In a run: `model = "{name}"` in its file, or `cloister run model={name} ...`; shape and classes come from '
        "the data. In Python: `cl.run(method, task, model=model, ...)`.\n",
        *(["## Keys\n", table(("key", "default", "meaning"), rows)] if rows else []),
    ]
    return "\n".join(parts)


def _usual(name: str, counts: list[tuple[str, tuple[int, ...], int, int]]) -> tuple[str, tuple[int, ...], int, int]:
    """The samples whose number of parameters its text gives, as published; else the first."""
    text = inspect.getdoc(CATALOGUE[name]) or ""
    return next((row for row in counts if f"{row[3]:,}" in text), counts[0])


def _index() -> str:
    rows = []
    for name, function in CATALOGUE.items():
        _, shape, classes, count = _usual(name, _counts(name))
        text = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
        rows.append((f"[`{name}`]({name}.md)", text, f"{count:,}", f"{'x'.join(map(str, shape))}, {classes} classes"))
    return "\n".join(
        [
            "---\ntitle: Models\n---\n",
            "# Models\n",
            "By name, with the parameter counts that were published where there are some. Any torch module is a model, "
            "too: `cl.run(method, task, model=module, ...)`; what makes one fit for private training (no BatchNorm, "
            "frozen parts, LoRA) is in [`cl.models`](../reference/api/models.md).\n",
            table(("name", "what it is", "parameters", "for"), rows),
        ]
    )
