"""A trained model for other programs, with what it cost inside the file.

The graph takes stored inputs (preprocessing is in it) and has a batch of any size.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cloister.errors import CloisterError, expect, expect_one_of, expect_package, expect_type
from cloister.privacy.description import plain
from cloister.runs.files import expect_new_file, write_atomically

if TYPE_CHECKING:
    from cloister.runs.trained_model import TrainedModel


def export(model: TrainedModel, path: str | Path, format: str, force: bool = False) -> Path:
    """Write the model in a format; returns the file."""
    expect_one_of("format", format, FORMATS)
    expect_type("path", path, (str, Path), "the path of a file", "name the file to write")
    file, (suffixes, write) = Path(path), FORMATS[format]
    expect_new_file(file, suffixes, force)
    write_atomically(file, write(model))
    return file


def suffix_of(format: str) -> str:
    """How the name of a file of this format ends."""
    expect_one_of("format", format, FORMATS)
    return FORMATS[format][0][0]


def facts_of(model: TrainedModel) -> dict[str, str]:
    """What goes into every file: which certificate the model has, what it promises, and how to use the model."""
    from cloister import __version__

    certificate, about = model.certificate, model.about
    price = certificate.prices[0]
    facts = {
        "cloister_version": __version__,
        "certificate_sha256": model.certificate_sha256,
        "configuration_sha256": certificate.configuration_sha256,
        "epsilon": repr(certificate.epsilon),
        "delta": repr(price.delta),
        "unit": certificate.unit,
        "adjacency": certificate.adjacency,
    }
    for name in ("inputs", "loss", "classes", "class_names", "encoder", "preprocessing", "standardization"):
        facts[name] = json.dumps(plain(getattr(about, name)))
    return facts


def _safetensors(model: TrainedModel) -> bytes:
    """The weights as the run has them; the preprocessing is in the header, and not in the weights."""
    from safetensors.torch import save

    inner = model.module.get_submodule("model")
    tensors = {**dict(inner.named_buffers()), **dict(inner.named_parameters())}
    kept = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    return save(kept, facts_of(model))


def _torchscript(model: TrainedModel) -> bytes:
    """A traced module: `torch.jit.load(file, _extra_files={"certificate.json": "", "cloister.json": ""})`."""
    content = io.BytesIO()
    with _quiet(), _one_sentence("TorchScript"):
        traced = torch.jit.trace(model.module, _example(model, 3), check_trace=False)
        extra = {"certificate.json": model.certificate_file, "cloister.json": json.dumps(facts_of(model)).encode()}
        torch.jit.save(traced, content, _extra_files=extra)
        _expect_any_batch(model, traced)
    return content.getvalue()


def _onnx(model: TrainedModel) -> bytes:
    """A graph whose input is `inputs` and whose output is `outputs`, both with a batch of any size."""
    for package in ("onnx", "onnxscript"):
        expect_package(package, "to write .onnx", "onnx")
    import onnx

    with _quiet(), _one_sentence("ONNX"):
        program = torch.onnx.export(
            model.module,
            (_example(model, 3),),
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        assert program.exported_program is not None
        _expect_any_batch(model, program.exported_program.module())
        graph = program.model_proto
        del graph.metadata_props[:]
        onnx.helper.set_model_props(graph, facts_of(model))
        _without_paths(graph)
        onnx.checker.check_model(graph)
    content: bytes = graph.SerializeToString(deterministic=True)
    return content


def _expect_any_batch(model: TrainedModel, graph: Callable[[Tensor], Any]) -> None:
    """What an exporter took for a constant of all batches shows in batches of other sizes."""
    for rows in (1, 2, 4, 5):
        some = _example(model, rows)
        with torch.no_grad():
            found, wanted = graph(some), model.module(some)
        same = found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)
        remedy = "do not let Python ask for the size of a batch"
        expect(same, "a model whose graph is the same for every batch", f"other outputs for {rows} rows", remedy)


def _without_paths(graph: Any) -> None:
    """Traces of the exporter name files of this machine, and nobody needs them."""
    for node in [*graph.graph.node, *(node for function in graph.functions for node in function.node)]:
        del node.metadata_props[:]
    for value in [*graph.graph.input, *graph.graph.output, *graph.graph.value_info, *graph.graph.initializer]:
        del value.metadata_props[:]


def _example(model: TrainedModel, rows: int) -> Tensor:
    """Inputs that are nobody's, of the right kind: small whole numbers pass for pixels and for tokens."""
    about = model.about.inputs
    random = torch.Generator().manual_seed(0)
    small = torch.randint(0, 2, (rows, *about["shape"]), generator=random)
    return small.to(getattr(torch, about["dtype"]))


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters talk a lot, mostly about themselves."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "torch.export")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def _one_sentence(what: str) -> Iterator[None]:
    try:
        yield
    except CloisterError:
        raise
    except Exception as error:  # an exporter may fail in any way at all
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise CloisterError(
            f"Expected a model that {what} can express, found that it cannot ({reason}): choose another format."
        ) from error


FORMATS: dict[str, tuple[tuple[str, ...], Callable[[TrainedModel], bytes]]] = {
    "onnx": ((".onnx",), _onnx),
    "torchscript": ((".pt", ".ts"), _torchscript),
    "safetensors": ((".safetensors",), _safetensors),
}
