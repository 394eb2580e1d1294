"""What a user passes by mistake from Python: one sentence, before anything is written."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import cloister as cl
from cloister.engine import Vectorized
from cloister.errors import CloisterError, Note, shown
from conftest import toy_task

TASK = toy_task()
FLAWLESS = {"rounds": 1, "epsilon": 4.0, "delta": 1e-3, "engine": "loop", "model": nn.Linear(6, 3)}


def method(**change):
    return cl.methods.dp_fedavg(**{"clip_norm": 1.0, "local_steps": 1, **change})


def refused(call) -> str:
    with pytest.raises(CloisterError) as found:
        call()
    message = str(found.value)
    assert message.startswith("Expected ")
    assert len(message.splitlines()) == 1
    assert len(message) < 500
    return message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "dp_fedavg"}, "method to be a Method such as"),
        ({"method": cl.methods.dp_fedavg}, "found the function dp_fedavg: call it"),
        ({"method": None}, "found None"),
        ({"method": cl.Method}, "found the class Method: call it"),
        ({"task": "digits"}, "task to be a Task such as cloister.data.digits()"),
        ({"task": cl.data.digits}, "found the function digits: call it"),
        ({"task": (torch.zeros(3), torch.zeros(3))}, "task to be a Task"),
        ({"cohort": 0.5}, "cohort to be a Cohort such as cloister.poisson(0.5)"),
        ({"cohort": cl.poisson}, "found the function poisson: call it"),
        ({"cohort": "full"}, "cohort to be a Cohort"),
        ({"model": "logistic"}, "model to be a torch module"),
        ({"model": nn.Linear}, "found the class Linear: call it with its arguments"),
        ({"model": 3}, "model to be a torch module"),
        ({"model": lambda: "module"}, "what model() makes to be a torch module"),
        ({"rounds": "3"}, "rounds to be a whole number"),
        ({"rounds": 2.0}, "rounds to be a whole number"),
        ({"rounds": 10**40}, "rounds to be at most 1,000,000,000, found about 10^40"),
        ({"epsilon": "2"}, "epsilon to be a number, or a list of one for each client, found '2'"),
        ({"epsilon": torch.tensor(2.0)}, "epsilon to be a number"),
        ({"epsilon": [2.0, "2"]}, "epsilon to be a number"),
        ({"epsilon": True}, "epsilon to be a number"),
        ({"epsilon": -1.0}, "epsilon > 0"),
        ({"epsilon": 1e9}, "epsilon <= 300"),
        ({"epsilon": 10**400}, "epsilon between"),
        ({"delta": "1e-3"}, "0 < delta < 1"),
        ({"memory": "1GB"}, "memory to be a whole number"),
        ({"memory": -1}, "memory to be a whole number of at least 1"),
        ({"memory": 0}, "memory to be a whole number of at least 1"),
        ({"folder": 3}, "folder to be the path of a folder, found 3"),
        ({"folder": "a\0b"}, "a folder whose name the system takes"),
        ({"resume": "yes"}, "resume to be True or False"),
        ({"progress": "no"}, "progress to be True, False or None"),
        ({"config": 3}, "config to be the text"),
        ({"seed": "0"}, "seed to be a whole number"),
        ({"seed": 2**64}, "seed to be at most"),
        ({"engine": ["loop"]}, "engine to be one of"),
        ({"secure_rng": "yes"}, "secure_rng to be True or False"),
        ({"dtype": torch.float32}, "dtype to be one of float32, float64"),
        ({"device": torch.device("cpu")}, "device to be the name of a device"),
        ({"device": 3}, "device to be the name of a device"),
        ({"precision": 3}, "precision"),
        ({"evaluate_every": 0.5}, "evaluate_every to be a whole number"),
        ({"checkpoint_every": None}, "checkpoint_every to be a whole number"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_of_a_run_is_refused(change, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = {"method": method(), "task": TASK, **FLAWLESS, "folder": tmp_path / "run", **change}
    assert message in refused(lambda: cl.run(**arguments))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: method(server="adam"), "server to be a ServerOptimizer such as cloister.server.sgd()"),
        (lambda: method(server=cl.server.adam), "found the function adam: call it"),
        (lambda: method(lr="fast"), "lr > 0"),
        (lambda: method(lr=10**40), "lr between 1e-18 and 1e+18"),
        (lambda: method(lr=10**400), "lr between 1e-18 and 1e+18, found about 10^400"),
        (lambda: method(lr=1e-300), "lr between 1e-18 and 1e+18"),
        (lambda: method(momentum="0.5"), "0 <= momentum < 1"),
        (lambda: method(momentum=math.nan), "0 <= momentum < 1"),
        (lambda: method(weight_decay=10**40), "weight_decay <= 1e+18"),
        (lambda: method(lr_decay=None), "0 < lr_decay <= 1"),
        (lambda: method(clip_norm=None), "clip_norm > 0"),
        (lambda: method(clip_norm=[1.0]), "clip_norm > 0"),
        (lambda: method(batch_size=10**40), "batch_size to be at most"),
        (lambda: method(batch_size=2.5), "batch_size to be a whole number"),
        (lambda: method(local_steps=2**63), "local_steps to be at most"),
        (lambda: method(local_steps=0), "local_steps to be a whole number of at least 1"),
        (lambda: method(local_steps=None, local_epochs=2**64), "local_epochs to be at most"),
        (lambda: method(local_steps=None, local_epochs=False), "local_epochs to be a whole number"),
        (lambda: method(noise=["central"]), "noise to be one of central, distributed"),
        (lambda: method(mode=["sound"]), "mode to be one of"),
        (lambda: method(noise_multiplier="1"), "noise_multiplier >= 0"),
        (lambda: method(noise_multiplier=1e-300), "noise_multiplier to be 0 or between 0.001 and 1e+06"),
        (lambda: method(noise_multiplier=1e308), "noise_multiplier <= 1e+18"),
        (lambda: cl.methods.adap_dp_fl(server="adam"), "server to be a ServerOptimizer"),
        (lambda: cl.methods.adap_dp_fl(floor="low"), "floor > 0"),
        (lambda: cl.methods.fed_spa(keep_fraction="some", local_steps=1), "0 < keep_fraction <= 1"),
        (lambda: cl.methods.lus(1.0, sparsity="most", local_steps=1), "0 <= sparsity < 1"),
        (lambda: cl.methods.ae_dpfl(queries="all", local_steps=1), "queries to be a whole number"),
        (lambda: cl.poisson("half"), "0 < sampling_rate <= 1"),
        (lambda: cl.poisson(10**400), "0 < sampling_rate <= 1, found about 10^400"),
        (lambda: cl.fixed_size(2.5), "clients_per_round to be a whole number"),
        (lambda: cl.cyclic(10**40), "clients_per_round to be at most"),
        (lambda: cl.server.adam(lr="slow"), "server_lr > 0"),
        (lambda: cl.client.dp_sgd(1.0, cl.client.adam(0.1), 4, 1), "threshold to be a Threshold such as"),
        (lambda: cl.client.dp_sgd(cl.client.fixed(1.0), "adam", 4, 1), "optimizer to be an Optimizer such as"),
        (lambda: cl.client.sgd(lr=0.1, local_steps=1, gradient="sam"), "gradient to be a Gradient such as"),
        (
            lambda: cl.Method("mine", cl.client.sgd, cl.transforms.identity(), cl.mechanisms.none(), cl.server.sgd()),
            "local to be a LocalRule such as cloister.client.sgd(lr=0.1, local_steps=5), found the function sgd: "
            "call it",
        ),
    ],
)
def test_a_wrong_argument_of_a_part_is_refused(make, message):
    assert message in refused(make)


def test_more_local_work_than_memory_holds_is_refused_before_a_folder_is_made(tmp_path):
    for keys in ({"local_steps": 10**9}, {"local_steps": None, "local_epochs": 10**9}):
        message = refused(lambda keys=keys: cl.run(method(**keys), TASK, **FLAWLESS, folder=tmp_path / "run"))
        assert "samples a client and round" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [method, cl.methods.pfl])
def test_a_batch_larger_than_any_client_is_all_its_samples(make):
    keys = {**FLAWLESS, "epsilon": None}
    large, fitting = (cl.run(make(batch_size=b, noise_multiplier=3.0), TASK, **keys).model for b in (10**9, 12))
    assert len(large.weight) == len(fitting.weight)
    assert torch.isfinite(large.weight).all()


def test_what_was_found_is_shown_on_one_short_line():
    assert shown(torch.zeros(200, 200)).count("\n") == 0
    assert len(shown("x" * 10_000)) < 150
    assert shown(-(10**5000)) == "about -10^5000"
    assert shown([10**5000]) == "a list"
    assert shown(SimpleNamespace(a=1)) == "namespace(a=1)"


def test_weights_and_outputs_that_are_not_finite_are_called_that():
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight[0, 0] = math.nan
    assert "weights are finite numbers, found NaN" in refused(
        lambda: cl.run(method(), TASK, **{**FLAWLESS, "model": model})
    )

    class Root(nn.Linear):
        def forward(self, x):
            return super().forward(x) + (-x.abs().sum() - 1).sqrt()

    message = refused(lambda: cl.run(method(), TASK, **{**FLAWLESS, "model": Root(6, 3)}))
    assert "makes finite numbers of the data, found nan" in message


class Branching(nn.Linear):
    """Only what goes client by client can ask a tensor what it is."""

    def forward(self, x):
        return super().forward(x * 2 if float(x.detach().sum()) > 1e9 else x)


def test_auto_falls_back_to_the_loop_and_says_so(tmp_path):
    asked = {**FLAWLESS, "model": Branching(6, 3), "engine": "auto"}
    with pytest.warns(Note, match="vectorized engine is left out, because it cannot train this model"):
        run = cl.run(method(), TASK, **asked)
    assert run.engine == "loop"
    message = refused(lambda: cl.run(method(), TASK, **{**asked, "engine": "vectorized"}, folder=tmp_path / "run"))
    assert "the vectorized engine can train" in message
    assert list(tmp_path.iterdir()) == []


class Unlearnable(nn.Linear):
    """No engine can take its gradient."""

    def forward(self, x):
        if torch.is_grad_enabled():
            raise RuntimeError("there is\nno gradient")
        return super().forward(x)


@pytest.mark.parametrize("engine", ["auto", "loop", "vectorized"])
def test_what_no_engine_can_train_is_refused_in_words(engine):
    message = refused(lambda: cl.run(method(), TASK, **{**FLAWLESS, "model": Unlearnable(6, 3), "engine": engine}))
    assert "a model that can be trained client by client, found that it fails (there is" in message


def test_an_engine_that_lacks_memory_is_no_reason_for_a_note(monkeypatch, recwarn):
    def greedy(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Vectorized, "total", greedy)
    assert cl.run(method(), TASK, **{**FLAWLESS, "engine": "auto"}).engine == "loop"
    assert not [one for one in recwarn if issubclass(one.category, Note)]
