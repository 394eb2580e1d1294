"""Weights from a file, frozen parts and adapters: what a run makes of them, and what it refuses in one sentence."""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import cloister as cl
from cloister.errors import CloisterError, Corrupted
from cloister.models import Adaptation
from cloister.privacy.description import RunDescription
from cloister.runs.folder import RunFolder
from conftest import killed_in_round, prepared, toy_task

METHOD = {"clip_norm": 0.5, "lr": 0.5, "local_steps": 2, "noise_multiplier": 1.0}


def net(classes: int = 3, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(OrderedDict(body=nn.Linear(6, 5), act=nn.Tanh(), head=nn.Linear(5, classes)))


@pytest.fixture
def stored(tmp_path):
    """Weights of another initialization, as a file."""
    path = tmp_path / "public.safetensors"
    save_file(net(seed=7).state_dict(), path)
    return path


def ready(**more):
    return prepared(cl.methods.dp_fedavg(**METHOD), toy_task(), model=net(), **more)


def test_weights_are_what_a_run_starts_from(stored):
    made = ready(weights=str(stored))
    assert torch.equal(made.w, torch.cat([p.flatten() for p in net(seed=7).parameters()]))
    about = made.description.model
    assert (about.weights.file, about.weights.sha256) == (
        "public.safetensors",
        hashlib.sha256(stored.read_bytes()).hexdigest(),
    )
    assert about.adaptation == {"weights": "public.safetensors"}, "and not where it lies"


def test_skipped_parameters_stay_as_they_are(stored):
    made = ready(weights=stored, weights_skip="head")
    own, other = dict(net().named_parameters()), dict(net(seed=7).named_parameters())
    found = made.fed.objective.layout.views(made.w)
    assert torch.equal(found["body.weight"], other["body.weight"])
    assert torch.equal(found["head.weight"], own["head.weight"])


def test_a_head_of_other_classes_can_be_left_out(tmp_path):
    save_file(net(classes=9).state_dict(), tmp_path / "nine.safetensors")
    with pytest.raises(CloisterError, match=r"'head.weight' of shape \(3, 5\).*found \(9, 5\).*weights_skip = head"):
        ready(weights=tmp_path / "nine.safetensors")
    made = ready(weights=tmp_path / "nine.safetensors", weights_skip=["head"], lora_rank=2)
    names = set(made.description.model.shapes)
    assert names == {"body.lora_A.weight", "body.lora_B.weight", "head.weight", "head.bias"}, "a new head is trained"


def test_frozen_parameters_are_no_part_of_the_message():
    made = ready(freeze=["body"])
    about = made.description.model
    assert (about.parameters, about.frozen) == (5 * 3 + 3, 6 * 5 + 5)
    assert made.description.upload_bytes == 4 * (5 * 3 + 3)
    assert list(about.shapes) == ["head.weight", "head.bias"]
    assert set(ready(freeze=["*.bias"]).description.model.shapes) == {"body.weight", "head.weight"}


def test_identity_covers_what_is_not_trained(stored):
    """The same keys on other frozen numbers are another run, with other noise."""
    other = net(seed=7)
    runs = [
        ready(freeze=["body"]),
        ready(freeze=["body"], weights=stored),
        prepared(cl.methods.dp_fedavg(**METHOD), toy_task(), model=other, freeze=["body"]),
        ready(freeze=["head"]),
        ready(lora_rank=2),
        ready(lora_rank=2, lora_alpha=2.0001),
    ]
    hashes = {made.description.configuration_hash for made in runs}
    assert len(hashes) == len(runs)
    assert ready(freeze=["body"]).description.configuration_hash in hashes
    constants = [made.description.model.constants_sha256 for made in runs]
    assert constants[0] != constants[1]
    assert constants[1] == constants[2]
    assert ready().description.model.constants_sha256 is None
    assert len({made.fed.streams.run for made in runs}) == len(runs), "and none shares its noise"


def test_buffers_are_constants_too():
    model = net()
    model.register_buffer("mean", torch.zeros(6))
    others = net()
    others.register_buffer("mean", torch.ones(6))
    found = [prepared(cl.methods.dp_fedavg(**METHOD), toy_task(), model=one).description for one in (model, others)]
    assert found[0].model.constants_sha256 != found[1].model.constants_sha256
    assert found[0].model.frozen == 0


def test_descriptions_are_read_back(stored):
    for more in ({}, {"weights": stored, "lora_rank": 1, "lora_alpha": 3.0, "lora_targets": ["head"]}):
        description = ready(**more).description
        assert RunDescription.from_json(json.loads(json.dumps(description.to_json()))) == description


def test_the_certificate_says_that_weights_count_as_public(stored):
    run = cl.run(
        cl.methods.dp_fedavg(**METHOD),
        toy_task(),
        model=net(),
        rounds=1,
        delta=1e-3,
        weights=str(stored),
        engine="loop",
    )
    digest = hashlib.sha256(stored.read_bytes()).hexdigest()
    gap = (
        f"the weights it started from (public.safetensors, sha256 {digest}) count as public: if they were trained on "
        "these clients' data, that is not covered"
    )
    assert gap in run.certificate.not_covered
    plain = cl.run(cl.methods.dp_fedavg(**METHOD), toy_task(), model=net(), rounds=1, delta=1e-3, engine="loop")
    assert not any("weights it started from" in gap for gap in plain.certificate.not_covered)


def test_a_run_with_adapters_is_resumed_to_the_same_bits_and_not_with_other_weights(stored, tmp_path, monkeypatch):
    def start(folder, **more):
        method = cl.methods.dp_fedavg(**METHOD)
        adapted = {"weights": str(stored), "lora_rank": 2, "engine": "loop", "checkpoint_every": 1}
        return cl.run(
            method, toy_task(), model=net(), rounds=3, delta=1e-3, folder=tmp_path / folder, **adapted, **more
        )

    whole = start("whole")
    trained = set(RunFolder.open(tmp_path / "whole").description().model.shapes)
    assert trained < set(load_file(tmp_path / "whole" / "model.safetensors")), "with what was frozen beside it"
    with killed_in_round(monkeypatch, at=3):
        start("torn")
    content = stored.read_bytes()
    save_file(net(seed=8).state_dict(), stored)
    with pytest.raises(Corrupted, match="found that model changed"):
        start("torn", resume=True)
    stored.write_bytes(content)
    again = start("torn", resume=True)
    for mine, theirs in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_adapters_follow_from_the_runs_seed():
    first, again, other = (ready(lora_rank=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.w, again.w)
    assert not torch.equal(first.w, other.w)


def test_tied_parameters_are_stored_once_frozen_once_and_sent_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.head(self.second(self.first(x).tanh()))

    model = Tied()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "second.weight"}
    save_file(state, tmp_path / "tied.safetensors")
    method = cl.methods.dp_fedavg(**METHOD)
    made = prepared(method, toy_task(), model=Tied, weights=tmp_path / "tied.safetensors")
    assert torch.equal(made.module.second.weight, model.first.weight)
    assert made.description.model.parameters == 36 + 6 + 6 + 18 + 3
    frozen = prepared(method, toy_task(), model=Tied, freeze=["second.weight"])
    assert "first.weight" not in frozen.description.model.shapes
    assert frozen.description.model.frozen == 36


def test_batch_norm_is_converted_where_that_is_asked_for(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with torch.no_grad():
        model[1].weight.uniform_(1, 2)
    save_file(model.state_dict(), tmp_path / "norm.safetensors")
    with pytest.raises(CloisterError, match="batch_norm = group_norm"):
        prepared(cl.methods.dp_fedavg(**METHOD), toy_task(), model=model)
    fresh = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    made = prepared(
        cl.methods.dp_fedavg(**METHOD),
        toy_task(),
        model=fresh,
        weights=tmp_path / "norm.safetensors",
        batch_norm="group_norm",
    )
    assert isinstance(made.module[1], nn.GroupNorm)
    assert torch.equal(made.module[1].weight, model[1].weight)


def test_weights_of_a_run_can_start_the_next(tmp_path):
    first = cl.run(
        cl.methods.fedavg(local_steps=2), toy_task(), model=net(), rounds=2, folder=tmp_path / "run", engine="loop"
    )
    made = ready(weights=tmp_path / "run" / "model.safetensors")
    assert torch.equal(made.w, torch.cat([p.detach().flatten() for p in first.model.parameters()]))


BAD_FILES = {
    "empty": b"",
    "text": b"these are no weights",
    "pickle": b"PK\x03\x04archive/data.pkl",
    "long header": (2**60).to_bytes(8, "little") + b"{}",
    "no json": (4).to_bytes(8, "little") + b"nope",
    "cut": None,
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_files_that_are_no_weights_are_refused(kind, stored, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(stored.read_bytes()[:-9] if BAD_FILES[kind] is None else BAD_FILES[kind])
    with pytest.raises(CloisterError, match=r"weights as a \.safetensors file, found something else in .*save_file"):
        ready(weights=path)


def _file(tmp_path, change):
    state = change(dict(net().state_dict()))
    save_file(state, tmp_path / "changed.safetensors")
    return tmp_path / "changed.safetensors"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {k: v for k, v in s.items() if k != "head.bias"}, "'head.bias' of the model in .*, found none"),
        (lambda s: {"body.weight": s["body.weight"]}, "'body.bias' and 2 more of the model"),
        (
            lambda s: {k.replace("head", "heads"): v for k, v in s.items()},
            """'head.weight' and 1 more .*perhaps you mean "heads.weight""",
        ),
        (lambda s: {**s, "extra": torch.ones(1)}, "parameters of the model alone, found 'extra': leave it out with"),
        (lambda s: {**s, "head.bias": torch.ones(4)}, r"'head.bias' of shape \(3,\) .*found \(4,\)"),
        (lambda s: {**s, "head.bias": torch.ones(3).long()}, "'head.bias' as torch.float32, found torch.int64"),
        (lambda s: {**s, "head.bias": torch.full((3,), math.nan)}, "finite weights, found NaN or infinity in"),
    ],
)
def test_weights_of_another_model_are_refused(change, message, tmp_path):
    with pytest.raises(CloisterError, match=message) as found:
        ready(weights=_file(tmp_path, change))
    assert len(str(found.value).splitlines()) == 1


def test_halves_are_converted(tmp_path):
    made = ready(weights=_file(tmp_path, lambda s: {name: tensor.half() for name, tensor in s.items()}))
    assert made.w.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": 3}, "weights to be the path of a file, found 3"),
        ({"weights": "absent.safetensors"}, "weights in a file, found 'absent.safetensors' .No such file"),
        ({"weights": "."}, "weights in a file, found '.' .Is a directory"),
        ({"weights": "a\0b"}, "weights in a file"),
        ({"weights_skip": ["head"]}, "weights beside weights_skip"),
        ({"freeze": ["heat"]}, "freeze to name parameters, found 'heat'"),
        ({"freeze": ["heads.weight"]}, 'perhaps you mean "head.weight"'),
        ({"freeze": ["weight"]}, r'perhaps you mean "\*.weight"'),
        ({"freeze": ["*"]}, "freeze to leave parameters to train, found none"),
        ({"freeze": ["body", "head"]}, "freeze to leave parameters to train"),
        ({"freeze": 3}, "freeze to be a list of names or patterns, found 3"),
        ({"freeze": [""]}, "freeze to be a list"),
        ({"freeze": ["body"], "lora_rank": 2}, "freeze or lora_rank, found 'both'"),
        ({"lora_alpha": 2.0}, "lora_rank beside lora_alpha"),
        ({"lora_targets": ["head"]}, "lora_rank beside lora_targets"),
        ({"lora_train": ["head"]}, "lora_rank beside lora_train"),
        ({"lora_rank": 0}, "lora_rank to be a whole number of at least 1"),
        ({"lora_rank": True}, "lora_rank to be a whole number"),
        ({"lora_rank": 6}, "lora_rank to be at most 5"),
        ({"lora_rank": 2, "lora_alpha": -1.0}, "lora_alpha > 0"),
        ({"lora_rank": 2, "lora_targets": ["tail"]}, "lora_targets to name linear layers, found 'tail'"),
        ({"lora_rank": 2, "lora_targets": ["act"]}, "'act', a Tanh"),
        ({"lora_rank": 2, "lora_train": ["tail"]}, "lora_train to name parameters"),
        ({"batch_norm": "keep"}, "batch_norm to be one of refuse, group_norm"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(CloisterError, match=message) as found:
        ready(**options)
    assert len(str(found.value).splitlines()) == 1


def test_skips_that_match_nothing_are_refused(stored):
    with pytest.raises(CloisterError, match="weights_skip to name parameters of the model or the file, found 'tail'"):
        ready(weights=stored, weights_skip=["tail"])


def test_it_can_be_used_without_a_run(stored):
    adapted = Adaptation(weights=str(stored), lora_rank=2, lora_targets=["head"]).apply(net())
    x = torch.randn(4, 6)
    torch.testing.assert_close(adapted(x), net(seed=7)(x))
    assert Adaptation().apply(model := net()) is model
    assert Adaptation().to_json() == {}


DIGITS = ["clients=20", "rounds=1", "clip_norm=1", "noise_multiplier=1", "local_steps=1", "delta=1e-3", "engine=loop"]


def test_the_command_line_takes_lists_of_words(command, tmp_path):
    words = ["run", *DIGITS, "sampling_rate=0.5", "model=mlp", "hidden=8", "--folder", tmp_path / "run"]
    done = command(*words, "lora_rank=2", "lora_targets=1", "lora_train=3.weight,3.bias")
    assert done.returncode == 0, done.stderr
    shapes = RunFolder.open(tmp_path / "run").description().model.shapes
    assert set(shapes) == {"1.lora_A.weight", "1.lora_B.weight", "3.weight", "3.bias"}
    config = (tmp_path / "run" / "config.toml").read_text()
    assert 'lora_targets = ["1"]' in config
    assert 'lora_train = ["3.weight", "3.bias"]' in config
    done = command("run", tmp_path / "run" / "config.toml", "--folder", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(tmp_path / "again").description() == RunFolder.open(tmp_path / "run").description()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["weights=absent.safetensors"], "weights in a file"),
        (["weights=[1]"], "one value for weights"),
        (["freeze=tail"], "freeze to name parameters, found 'tail'"),
        (["freeze=true"], "freeze to be a list of words, found True"),
        (["freeze=[1.5]"], "freeze to be a word, found 1.5"),
        (["freeze=1,"], "freeze to be a list of names"),
        (["lora_rank=0"], "lora_rank"),
        (["lora_rank=two"], "lora_rank to be a whole number"),
        (["lora_rank=999"], "lora_rank to be at most 10"),
        (["lora_rank=2", "lora_targets=9"], "lora_targets to name linear layers"),
        (["batch_norm=maybe"], "batch_norm to be one of refuse, group_norm"),
    ],
)
def test_on_the_command_line_it_is_status_2_and_one_line(words, message, command, tmp_path):
    done = command("run", *DIGITS, "sampling_rate=0.5", *words, "--folder", tmp_path / "run")
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "run").exists()
