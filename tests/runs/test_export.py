"""Exported models compute what the trained one computes, and carry what it cost."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import cloister as cl
from cloister.client.preprocessing import images
from cloister.errors import CloisterError
from trained import BYTES, CLASSES, KINDS, OWNERS, TABLE, load, task_of, train

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place, made = tmp_path_factory.mktemp("runs"), {}

    def of(kind: str):
        if kind not in made:
            task = task_of(kind)
            train(place / kind, task, rounds=1)
            made[kind] = (place / kind, task)
        return made[kind]

    return of


def by_onnx(file, inputs: torch.Tensor) -> np.ndarray:
    """What the graph computes, by ONNX's own reference implementation."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.load(file)).run(None, {"inputs": inputs.numpy()})[0]


def facts_in(file, format: str) -> dict[str, str]:
    if format == "onnx":
        return {one.key: one.value for one in onnx.load(file).metadata_props}
    if format == "safetensors":
        with safe_open(file, "pt") as opened:
            return opened.metadata()
    extra = {"cloister.json": "", "certificate.json": ""}
    torch.jit.load(file, _extra_files=extra)
    facts = json.loads(extra["cloister.json"])
    certificate = extra["certificate.json"]
    content = certificate if isinstance(certificate, bytes) else certificate.encode()
    assert hashlib.sha256(content).hexdigest() == facts["certificate_sha256"]
    return facts


QUICK = ("images", "next_token")


@pytest.mark.parametrize("kind", [*QUICK, *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k not in QUICK)])
def test_onnx_computes_the_same_for_batches_of_any_size(runs, kind, tmp_path):
    folder, task = runs(kind)
    model = load(folder)
    file = model.export(tmp_path / "m.onnx", format="onnx")
    for rows in (1, 2, len(task.test_inputs)):
        some = task.test_inputs[:rows]
        some = some.float() if some.is_floating_point() else some
        assert np.allclose(by_onnx(file, some), model.outputs(some).numpy(), atol=1e-5), rows


@pytest.mark.parametrize("kind", KINDS)
def test_torchscript_computes_the_same_for_batches_of_any_size(runs, kind, tmp_path):
    folder, task = runs(kind)
    model = load(folder)
    module = torch.jit.load(model.export(str(tmp_path / "m.pt"), format="torchscript"))
    for rows in (1, 2, len(task.test_inputs)):
        some = task.test_inputs[:rows]
        assert torch.allclose(module(some), model.outputs(some), atol=1e-5)


@pytest.mark.slow
def test_images_are_normalized_and_cut_inside_the_graph(tmp_path):
    preprocessing = images((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), pad=2, size=8)
    model = partial(cl.models.cnn, (3, 8, 8), 3, width=2)
    task = cl.data.from_arrays(BYTES, CLASSES, OWNERS, classes=3, preprocessing=preprocessing, model=model)
    train(tmp_path / "r", task, rounds=1)
    trained = cl.load(tmp_path / "r")
    some = torch.from_numpy(BYTES[:4])
    assert some.dtype == torch.uint8
    wanted = trained.outputs(some)
    with torch.no_grad():
        inner = trained.module.get_submodule("model")(preprocessing.test(some, torch.float32))
    assert torch.equal(wanted, inner)
    assert np.allclose(by_onnx(trained.export(tmp_path / "m.onnx"), some), wanted.numpy(), atol=1e-5)
    module = torch.jit.load(trained.export(tmp_path / "m.pt", format="torchscript"))
    assert torch.allclose(module(some), wanted, atol=1e-5)


FORMATS = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors"}


@pytest.mark.parametrize("format", FORMATS)
def test_what_it_cost_is_inside(runs, format, tmp_path):
    folder, _ = runs("named")
    model = cl.load(folder)
    facts = facts_in(model.export(tmp_path / f"m{FORMATS[format]}", format=format), format)
    certificate = json.loads((folder / "certificate.json").read_text())
    assert facts["certificate_sha256"] == hashlib.sha256((folder / "certificate.json").read_bytes()).hexdigest()
    assert facts["configuration_sha256"] == certificate["configuration_sha256"]
    assert float(facts["epsilon"]) == certificate["prices"][0]["epsilon_pld"]
    assert float(facts["delta"]) == certificate["prices"][0]["delta"] == 1e-3
    assert facts["unit"] == "client"
    assert json.loads(facts["class_names"]) == ["none", "some", "all"]
    assert json.loads(facts["encoder"]) is None


def tensors_in(file, format: str) -> dict[str, np.ndarray]:
    if format == "onnx":
        return {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(file).graph.initializer}
    if format == "safetensors":
        return {name: tensor.numpy() for name, tensor in load_file(file).items()}
    return {name: tensor.numpy() for name, tensor in torch.jit.load(file).state_dict().items()}


@pytest.mark.parametrize("format", FORMATS)
def test_exported_again_it_is_the_same(runs, format, tmp_path):
    folder, _ = runs("named")
    one, other = (
        tensors_in(cl.load(folder).export(tmp_path / f"{n}{FORMATS[format]}", format=format), format) for n in "ab"
    )
    assert one.keys() == other.keys()
    assert one
    assert all((one[name] == other[name]).all() for name in one)
    weights = load_file(folder / "model.safetensors")
    for name, tensor in weights.items():
        kept = next(value for key, value in one.items() if key.removeprefix("model.") == name)
        assert (kept == tensor.numpy()).all() or (kept == tensor.numpy().T).all()


def test_nothing_of_this_machine_is_in_the_graph(runs, tmp_path):
    content = cl.load(runs("named")[0]).export(tmp_path / "m.onnx").read_bytes()
    assert b"site-packages" not in content
    assert str(tmp_path).encode() not in content


class Branching(nn.Module):
    """Asks its inputs, which no graph can."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) * (2.0 if len(x) % 2 else 1.0)


def test_what_cannot_be_exported_is_one_sentence(tmp_path):
    task = task_of("named")
    train(tmp_path / "r", task, rounds=1, model=Branching())
    model = cl.load(tmp_path / "r", model=Branching())
    for format in ("torchscript", "onnx"):
        with pytest.raises(CloisterError, match=r"^Expected a model (whose graph|that ONNX can)"):
            model.export(tmp_path / f"m{FORMATS[format]}", format=format)
        assert not (tmp_path / f"m{FORMATS[format]}").exists()


def test_a_missing_package_is_one_sentence(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(CloisterError, match=r"pip install 'cloister\[onnx\]'"):
        cl.load(runs("named")[0]).export(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--format", "pickle"], "format to be one of"),
        (["--format", ""], "format to be one of"),
        (["-o", "m.pt"], "ends with .onnx"),
        (["-o", "there.onnx"], "found that there.onnx exists"),
        (["-o", "nowhere/m.onnx"], "make nowhere first"),
        (["-o", "folder.onnx"], "this is a folder"),
        (["--format", "safetensors", "-o", "m.bin"], "ends with .safetensors"),
        (["--model", "lab.nets:wide"], "the model logistic of this run"),
    ],
)
def test_wrong_words_are_one_sentence_and_status_2(runs, command, tmp_path, words, why):
    folder, _ = runs("named")
    (tmp_path / "there.onnx").write_text("mine")
    (tmp_path / "folder.onnx").mkdir()
    done = command("export", folder, *words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: Expected ")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / "there.onnx").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"there.onnx", "folder.onnx"}


def test_the_command_names_the_file_by_the_run(runs, command, tmp_path):
    folder, _ = runs("named")
    done = command("export", folder, "--format", "torchscript", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "named.pt").is_file()
    assert "certificate" in done.stdout
    assert command("export", folder, "--format", "torchscript").returncode == 2
    again = command("export", folder, "--format", "torchscript", "--force")
    assert again.returncode == 0
    assert torch.jit.load(tmp_path / "named.pt")(torch.from_numpy(TABLE)).shape == (len(TABLE), 3)
