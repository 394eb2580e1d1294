"""A model after training: from the folder of a run, or from the files of it that are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cloister.errors import CloisterError, Corrupted, expect, expect_type, nearest
from cloister.privacy.certificate import Certificate
from cloister.privacy.description import RunDescription
from cloister.privacy.ledger import Ledger
from cloister.runs.certificate_file import read_certificate
from cloister.runs.files import read_bytes, read_json
from cloister.runs.folder import RunFolder, is_publication
from cloister.runs.model_file import ModelFile
from cloister.runs.model_json import expect_hashes
from cloister.runs.request import DTYPES
from cloister.runs.stored_inputs import WithPreprocessing
from cloister.runs.tensor_file import read_tensors
from cloister.runs.trained_model import TrainedModel
from cloister.runs.verification import expect_follows

PUBLISHED = ("model.json", "model.safetensors", "certificate.json")
LEDGER = ("description.json", "ledger.jsonl")
"""Published as well, so that the certificate can be computed again."""


def load(folder: str | Path, model: Any = None, *, loss: Any = None, preprocessing: Any = None) -> TrainedModel:
    """The model of a run that has ended, once its files were found to agree.

    `folder` is that of the run, or one with what is published of it: model.json, model.safetensors, certificate.json.

    What no file can hold is given again: `model`, the module (or a function that makes one) where it was built in
    Python, or the words `package.module:function`, where that is how it was made; `loss` and `preprocessing`, where
    they were somebody's own.
    """
    expect_type("folder", folder, (str, Path), "the path of a folder", "name the folder of a run")
    path = Path(folder)
    expect("\0" not in str(path) and path.is_dir(), "the folder of a run", str(path), "check the name")
    if (path / "description.json").exists() and not is_publication(path):
        certificate, scores = _of_a_run(path)
    elif (path / "model.json").exists():
        certificate, scores = _of_published_files(path), None
    else:
        raise CloisterError(
            f"Expected the folder of a run, or one with {', '.join(PUBLISHED)}, found none of them in {path}: check "
            "the name."
        )
    about = ModelFile.from_bytes(read_bytes(path / "model.json"), path)
    if about.configuration_sha256 != certificate.configuration_sha256:
        raise Corrupted(f"Expected the model.json of the certificate in {path}, found another run's: restore it.")
    _expect_known(about, path)
    module = _with_weights(_made(about, model), read_bytes(path / "model.safetensors"), about, path)
    return TrainedModel(
        module=WithPreprocessing(module, about.preprocessing_of(preprocessing), DTYPES[about.dtype]).eval(),
        about=about,
        certificate=certificate,
        certificate_file=read_bytes(path / "certificate.json"),
        loss=about.loss_of(loss),
        encoder=about.encoder_of(),
        scores=scores,
        name=path.resolve().name,
    )


def _of_a_run(path: Path) -> tuple[Certificate, dict[str, Any] | None]:
    folder = RunFolder.open(path)
    found = folder.verified()
    if found.certificate is None:
        how = f"`cloister resume {path}`"
        if not (path / "config.toml").is_file():
            how = f"cloister.run(..., folder={str(path)!r}, resume=True)"
        raise CloisterError(f"Expected a run that has ended, found that {path} has not: continue it with {how}.")
    return found.certificate, found.at.scores


def _of_published_files(path: Path) -> Certificate:
    """The certificate as it was published, computed again where its ledger was published with it; taken as it is where
    it was not. (`cloister verify` says what follows from what, and looks at signatures.)"""
    stored = read_certificate(read_bytes(path / "certificate.json"), path)
    more = [name for name in ("certificate.txt", *LEDGER) if (path / name).exists()]
    expect_hashes(stored.files, {name: read_bytes(path / name) for name in (*PUBLISHED[:2], *more)}, path)
    if stored.circumstances is not None and set(LEDGER) <= set(more):
        description = RunDescription.from_json(read_json(path / "description.json"))
        ledger = Ledger.open(path / "ledger.jsonl", writable=False)
        expect_follows(stored, stored.circumstances.certify(description, ledger), path)
    return stored.certificate


def _expect_known(about: ModelFile, path: Path) -> None:
    """A type that this version does not know is refused."""
    expect(about.dtype in DTYPES, f"a model of dtype {' or '.join(DTYPES)}", about.dtype, "restore model.json")


def _made(about: ModelFile, given: Any) -> nn.Module:
    try:
        return about.make(given)
    except CloisterError:
        raise
    except Exception as error:  # whatever a function of somebody else's may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CloisterError(
            f"Expected a model that can be made again ({about.model['name']}), found an error ({reason}): give the "
            "module, or the function that made it."
        ) from error


def _with_weights(module: nn.Module, content: bytes, about: ModelFile, path: Path) -> nn.Module:
    """The module with the run's weights in all its places; none may be missing, or left over, or of another shape."""
    tensors = {name: stored.tensor() for name, stored in read_tensors(content)[0].items()}
    expect(bool(tensors), f"a readable model.safetensors in {path}", "a damaged one", "restore it")
    module = module.to("cpu", DTYPES[about.dtype])
    places: dict[str, Tensor] = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    for name in sorted(places.keys() ^ tensors.keys()):
        missing = name in places
        what = f"{'no weights' if missing else 'weights'} for {name}{'' if missing else ', which it has not'}"
        hint = nearest(name, tensors if missing else places, "give the module that was trained")
        raise CloisterError(f"Expected the module that was trained in {path}, found {what}: {hint}.")
    for name, place in places.items():
        found = tensors[name]
        fits = found.shape == place.shape and found.dtype == place.dtype
        one, other = (f"{_words(tensor)}" for tensor in (place, found))
        expect(fits, f"{name} of {other}, as it was trained in {path}", one, "give the module that was trained")
        with torch.no_grad():
            place.copy_(found)
    return module.requires_grad_(False).eval()


def _words(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
