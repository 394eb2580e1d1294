"""Weights from a file: every name and shape is compared with the model's, and nothing is loaded by half."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from cloister.errors import CloisterError, nearest, shown
from cloister.models.names import chosen


@dataclass(frozen=True)
class Weights:
    """What a .safetensors file holds, its name, and the hash of its bytes."""

    file: str
    sha256: str
    tensors: Mapping[str, Tensor]


def read_weights(path: str | Path) -> Weights:
    """The weights of a file; what is none is refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CloisterError(
            f"Expected weights in a file, found {shown(str(path))} ({reason}): check the name."
        ) from None
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
        raise CloisterError(
            f"Expected weights as a .safetensors file, found something else in {path}: write one with "
            "safetensors.torch.save_file(model.state_dict(), path)."
        ) from None
    return Weights(Path(path).name, hashlib.sha256(data).hexdigest(), tensors)


def load_weights(module: nn.Module, weights: Weights, skip: tuple[str, ...] = ()) -> None:
    """Put the weights into the module, in the module's own types; `skip` are patterns of names to leave as they are."""
    own = {name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, Tensor)}
    given = weights.tensors
    skipped = set(chosen("weights_skip", skip, sorted({*own, *given}), "parameters of the model or the file"))
    places = {name: t for name, t in own.items() if name not in skipped and not _is_tied(name, own, given)}
    found = {name: tensor for name, tensor in given.items() if name not in skipped}
    _expect_all(places, found, own, given, weights.file)
    for name in (one for one in own if one in found):
        _expect_fits(name, found[name], own[name], weights.file)
    with torch.no_grad():
        for name, tensor in found.items():
            own[name].copy_(tensor)


def _is_tied(name: str, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> bool:
    """Whether a file that has each tensor once has this one under another name."""
    if name in given:
        return False
    same = own[name]
    return any(other in given and own[other].data_ptr() == same.data_ptr() != 0 for other in own if other != name)


def _expect_all(
    places: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    given: Mapping[str, Tensor],
    file: str,
) -> None:
    """Every parameter is in the file, and nothing else is."""
    missing = [name for name in places if name not in given]
    strange = [name for name in found if name not in own]
    if missing:
        rest = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        leave = f"leave it out with weights_skip = {missing[0]}"
        raise CloisterError(
            f"Expected {missing[0]!r}{rest} of the model in {file}, found none: {nearest(missing[0], strange, leave)}, "
            "or give the model that the weights are of."
        )
    if strange:
        rest = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        leave = f"leave it out with weights_skip = {strange[0]}"
        raise CloisterError(
            f"Expected {file} to have parameters of the model alone, found {strange[0]!r}{rest}: "
            f"{leave}, or give the model that the weights are of."
        )


def _expect_fits(name: str, tensor: Tensor, place: Tensor, file: str) -> None:
    if tensor.shape != place.shape:
        raise CloisterError(
            f"Expected {name!r} of shape {tuple(place.shape)} as in the model, found {tuple(tensor.shape)} in {file}: "
            f"leave it as it is with weights_skip = {name.rpartition('.')[0] or name}, or give the model that the "
            "weights are of."
        )
    if tensor.is_floating_point() != place.is_floating_point() or tensor.is_complex() != place.is_complex():
        raise CloisterError(
            f"Expected {name!r} as {place.dtype}, found {tensor.dtype} in {file}: convert it, or leave it out with "
            f"weights_skip = {name}."
        )
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise CloisterError(
            f"Expected finite weights, found NaN or infinity in {name!r} of {file}: load other weights."
        )
