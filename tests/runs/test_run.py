"""Runs in memory and on disk: budgets, resuming, certificates."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file

import cloister as cl
from cloister import engine as engines
from cloister.engine import CHOICES, Loop, arithmetic
from cloister.errors import CloisterError, Corrupted, RepeatedRounds
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import PoissonGaussian
from cloister.runs.folder import RunFolder
from cloister.runs.metrics import Metrics
from conftest import toy_task

TASK = cl.data.digits(clients=40)


def go(**more):
    settings = {
        "method": cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=3.0),
        "task": TASK,
        "rounds": 6,
        "cohort": cl.poisson(0.5),
        "epsilon": 6.0,
        "delta": 1e-3,
        "engine": "vectorized",
        "evaluate_every": 1,
        "progress": False,
        **more,
    }
    return cl.run(settings.pop("method"), settings.pop("task"), **settings)


def vector(run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def test_a_run_learns_and_says_what_it_cost():
    run = go(rounds=25, epsilon=20.0, method=cl.methods.dp_fedavg(clip_norm=1.0, lr=1.0, local_steps=5))
    assert run.accuracy > 0.7
    assert run.accuracy == run.history[-1]["accuracy"]
    noise = run.certificate.noise_multiplier
    assert run.epsilon == pytest.approx(epsilon_of(PoissonGaussian(noise, 0.5), 25, 1e-3), rel=1e-6)
    assert 19.9 < run.epsilon <= 20.0
    assert [line["round"] for line in run.history] == list(range(1, 26))
    spent = [line["epsilon"] for line in run.history]
    assert spent == sorted(spent)
    assert run.stopped is None


def test_runs_are_reproducible_and_seeds_matter():
    assert torch.equal(vector(go()), vector(go()))
    assert not torch.equal(vector(go()), vector(go(seed=1)))


def test_secure_randomness_is_not_reproducible():
    assert not torch.equal(vector(go(secure_rng=True)), vector(go(secure_rng=True)))


PLAIN = {"method": cl.methods.fedavg(lr=0.5, local_steps=2), "epsilon": None, "dtype": "float64"}


def test_auto_chooses_an_engine_without_changing_the_result():
    chosen, given = go(engine="auto", **PLAIN), go(engine="loop", **PLAIN)
    assert chosen.engine in ("loop", "vectorized")
    torch.testing.assert_close(vector(chosen), vector(given), rtol=1e-10, atol=1e-12)


def test_memory_makes_chunks_and_nothing_else(tmp_path):
    small = go(memory=200_000, folder=tmp_path / "a", **PLAIN)
    assert RunFolder.open(tmp_path / "a").load("cpu").engine["chunk"] < 20
    torch.testing.assert_close(vector(small), vector(go(**PLAIN)), rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_what_was_chosen_once_is_chosen_again(tmp_path, monkeypatch):
    """The choice is made by a clock, and noise depends on it: a seed must give the same run on the same machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tried = []
    monkeypatch.setattr(CHOICES, "_in_this_process", {})
    monkeypatch.setattr(engines, "choose", lambda *_: tried.append(1) or engines.Loop())
    first = go(engine="auto")
    monkeypatch.setattr(engines, "choose", lambda *_: tried.append(1) or engines.Vectorized(7))
    for forgetful in ({}, None, {}):  # in this process, and from the file
        if forgetful is not None:
            monkeypatch.setattr(CHOICES, "_in_this_process", forgetful)
        assert torch.equal(vector(go(engine="auto")), vector(first))
    assert len(tried) == 1
    CHOICES.path.write_text("{]")
    monkeypatch.setattr(CHOICES, "_in_this_process", {})
    assert go(engine="auto").engine == "vectorized", "a damaged file is no reason to fail"
    assert go(engine="auto", memory=10**6, rounds=7).engine == "vectorized"
    assert len(tried) == 3


@pytest.mark.parametrize("other", ["loop", "two workers", "chunks", "threads", "processor"])
def test_runs_that_round_differently_do_not_share_their_noise(monkeypatch, other):
    """One and two workers differ by 2e-8: under the same noise, their difference is what was rounded."""
    loud = {
        "method": cl.methods.dp_fedavg(clip_norm=0.1, lr=0.1, local_steps=1, noise_multiplier=50.0),
        "epsilon": None,
    }
    first = vector(go(**loud, rounds=1, engine="vectorized"))
    assert torch.equal(first, vector(go(**loud, rounds=1, engine="vectorized")))
    more = {"engine": "loop"} if other == "loop" else {"engine": "vectorized"}
    if other == "two workers":
        more = {"engine": "loop"}
        first = vector(go(**loud, rounds=1, engine="loop"))
        monkeypatch.setattr(engines, "build", lambda *_: Loop(workers=2))
    if other == "chunks":
        more["memory"] = 200_000
    if other in ("threads", "processor"):
        monkeypatch.setattr(engines, "arithmetic", elsewhere(**{other: 7}))
    assert (vector(go(**loud, rounds=1, **more)) - first).norm() > 0.5 * first.norm()


def elsewhere(**change):
    """`engine.arithmetic` of another machine."""
    real = arithmetic
    return lambda device: {**real(device), **change}


def test_a_run_halts_at_its_budget():
    noise = 3.0
    affordable = 4
    budget = epsilon_of(PoissonGaussian(noise, 0.5), affordable, 1e-3) + 1e-6
    run = go(
        method=cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=noise),
        rounds=10,
        epsilon=budget,
    )
    assert len(run.history) == affordable
    assert run.epsilon <= budget
    assert "after round 5" in run.stopped
    assert run.certificate.rounds_charged == affordable


def test_the_folder_holds_all_there_is(tmp_path):
    run = go(folder=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "description.json",
        "ledger.jsonl",
        "metrics.jsonl",
        "checkpoint.safetensors",
        "model.safetensors",
        "model.json",
        "certificate.json",
        "certificate.txt",
        "clients.json",
    }
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(torch.cat([saved[n].flatten() for n, _ in run.model.named_parameters()]), vector(run))
    folder = RunFolder.open(tmp_path / "run")
    assert folder.metrics() == json.loads(json.dumps(run.history))
    assert folder.certificate() == run.certificate
    assert json.loads((tmp_path / "run" / "certificate.json").read_text())["unit"] == "client"


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    go()
    assert list(tmp_path.iterdir()) == []


class Killed(BaseException):
    pass


def kill_at(monkeypatch, place: str, call: int) -> None:
    """Make the n-th call of a function raise, as if the process had died there."""
    module, name = place.rsplit(".", 1)
    import importlib

    classes = {"RunFolder": RunFolder, "Metrics": Metrics}
    owner = classes.get(module.rpartition(".")[2]) or importlib.import_module(module)
    original, calls = getattr(owner, name), [0]

    def dying(*args, **kwargs):
        calls[0] += 1
        if calls[0] == call:
            raise Killed
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, dying)


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("cloister.round.run_round._with_server_noise", 1),
        ("cloister.round.run_round._with_server_noise", 4),
        ("cloister.runs.training.run_round", 6),
        ("cloister.runs.metrics.Metrics.append", 3),
        ("cloister.runs.folder.RunFolder.save", 2),
        ("cloister.runs.folder.RunFolder.save", 4),
        ("cloister.runs.folder.RunFolder.finish", 1),
        ("cloister.runs.certificate_file.certify", 1),
    ],
)
@pytest.mark.parametrize(
    "server", [pytest.param(None, id="sgd", marks=pytest.mark.slow), pytest.param(cl.server.adam(), id="adam")]
)
def test_an_interrupted_run_ends_as_if_it_had_not_been(tmp_path, monkeypatch, place, call, server):
    method = cl.methods.dp_fedavg(
        clip_norm=0.5, lr=0.5, local_steps=2, lr_decay=0.9, server=server, noise_multiplier=3.0
    )
    whole = go(method=method, folder=tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_at(patch, place, call)
        with pytest.raises(Killed):
            go(method=method, folder=tmp_path / "broken", checkpoint_every=2)
    charged = len(RunFolder.open(tmp_path / "broken").ledger().entries)
    resumed = go(method=method, folder=tmp_path / "broken", checkpoint_every=2, resume=True)
    assert torch.equal(vector(whole), vector(resumed))
    assert resumed.epsilon == pytest.approx(whole.epsilon, rel=1e-9)
    ledger = RunFolder.open(tmp_path / "broken").ledger()
    assert [entry.round for entry in ledger.entries] == list(range(1, 7)), "a repeated round is the same release"
    assert charged <= len(ledger.entries)
    without_time = [{k: v for k, v in line.items() if k != "seconds"} for line in resumed.history]
    expected = [{k: v for k, v in line.items() if k != "seconds"} for line in whole.history]
    assert [line["round"] for line in without_time] == [line["round"] for line in expected]
    assert [line["accuracy"] for line in without_time] == [line["accuracy"] for line in expected]


def test_a_resumed_secure_run_pays_again_for_what_it_repeats(tmp_path, monkeypatch):
    noise = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=3.0)
    with monkeypatch.context() as patch:
        kill_at(patch, "cloister.runs.training.run_round", 6)
        with pytest.raises(Killed):
            go(method=noise, epsilon=None, folder=tmp_path / "r", secure_rng=True, checkpoint_every=2)
    assert len(RunFolder.open(tmp_path / "r").ledger().entries) == 5
    with pytest.warns(RepeatedRounds, match="round 5, .* secure randomness"):
        go(method=noise, epsilon=None, folder=tmp_path / "r", secure_rng=True, checkpoint_every=2, resume=True)
    entries = RunFolder.open(tmp_path / "r").ledger().entries
    assert [entry.round for entry in entries] == [1, 2, 3, 4, 5, 5, 6]


NOISY = {"method": cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=3.0), "epsilon": None}
ELSEWHERE = {"threads": 7}, {"processor": "abacus"}, {"instructions": "NONE"}, {"probe": "other bits"}


@pytest.mark.parametrize("change", ELSEWHERE, ids=str)
def test_a_run_resumed_where_sums_are_rounded_differently_pays_again_and_says_so(tmp_path, monkeypatch, change):
    settings = {**NOISY, "folder": tmp_path / "r", "checkpoint_every": 2}
    with monkeypatch.context() as patch:
        kill_at(patch, "cloister.runs.training.run_round", 6)
        with pytest.raises(Killed):
            go(**settings)
    whole = go(**NOISY)
    monkeypatch.setattr(engines, "arithmetic", elsewhere(**change))
    with pytest.warns(RepeatedRounds, match="repeat round 5"):
        resumed = go(**settings, resume=True)
    entries = RunFolder.open(tmp_path / "r").ledger().entries
    assert [entry.round for entry in entries] == [1, 2, 3, 4, 5, 5, 6]
    assert not torch.allclose(vector(resumed), vector(whole))


def test_another_number_of_ranks_counts_as_elsewhere():
    alone, two = engines.Loop(), engines.Sharded(engines.Loop(), engines.Ranks(0, 2))
    machine = [{"gpu": None}]
    before = {**engines.describe(two), "machines": machine, "renewed": False}
    assert engines.same_bits(before, two, machine)
    assert not engines.same_bits(before, alone, machine)
    assert not engines.same_bits(before, two, [*machine, *machine])
    assert not engines.same_bits({**before, "renewed": True}, two, machine)


def test_a_run_that_is_moved_between_rounds_pays_nothing_twice(tmp_path, monkeypatch, recwarn):
    """No charged round is computed again, so nothing is released twice; from then on, its machine is the new one."""
    settings = {**NOISY, "folder": tmp_path / "r", "rounds": 8, "checkpoint_every": 2}
    with monkeypatch.context() as patch:
        kill_at(patch, "cloister.runs.training.run_round", 5)  # rounds 1 to 4 charged, checkpoint 4
        with pytest.raises(Killed):
            go(**settings)
    with monkeypatch.context() as patch:
        patch.setattr(engines, "arithmetic", elsewhere(threads=7))
        kill_at(patch, "cloister.runs.training.run_round", 2)  # round 5 charged over there
        with pytest.raises(Killed):
            go(**settings, resume=True)
    assert not recwarn.list
    with pytest.warns(RepeatedRounds, match="repeat round 5"):
        go(**settings, resume=True)  # back home, where round 5 would have other bits under the same noise
    entries = RunFolder.open(tmp_path / "r").ledger().entries
    assert [entry.round for entry in entries] == [1, 2, 3, 4, 5, 5, 6, 7, 8]


def test_after_new_noise_nothing_that_was_charged_is_repeated_for_free(tmp_path, monkeypatch):
    """A second crash, on the machine that drew the noise anew, must not bring the first noise back unpaid."""
    settings = {**NOISY, "folder": tmp_path / "r", "rounds": 8, "checkpoint_every": 2}
    with monkeypatch.context() as patch:
        kill_at(patch, "cloister.runs.training.run_round", 4)  # rounds 1 to 3 charged, checkpoint 2
        with pytest.raises(Killed):
            go(**settings)
    monkeypatch.setattr(engines, "arithmetic", elsewhere(threads=7))
    with monkeypatch.context() as patch:
        kill_at(patch, "cloister.runs.training.run_round", 4)  # rounds 3 to 5 charged anew, checkpoint 4
        with pytest.raises(Killed), pytest.warns(RepeatedRounds):
            go(**settings, resume=True)
    with pytest.warns(RepeatedRounds):
        go(**settings, resume=True)
    entries = RunFolder.open(tmp_path / "r").ledger().entries
    assert [entry.round for entry in entries] == [1, 2, 3, 3, 4, 5, 5, 6, 7, 8]


def test_resuming_with_anything_changed_is_refused(tmp_path):
    go(folder=tmp_path / "r")
    changes = {
        "seed": {"seed": 1},
        "rounds": {"rounds": 7},
        "cohort": {"cohort": cl.poisson(0.4)},
        "method": {"method": cl.methods.dp_fedavg(clip_norm=0.6, lr=0.5, local_steps=2, noise_multiplier=3.0)},
        "data": {"task": cl.data.digits(partition=cl.data.iid(40, split_seed=3))},
        "model": {"model": lambda: cl.models.mlp(TASK.shape, 10)},
        "dtype": {"dtype": "float64"},
        "secure_rng": {"secure_rng": True},
        "budget": {"epsilon": 7.0},
    }
    for what, change in changes.items():
        with pytest.raises(Corrupted, match=what):
            go(folder=tmp_path / "r", resume=True, **change)


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(CloisterError, match="exists"):
        go(folder=tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_a_folder_that_cannot_be_laid_out_leaves_nothing(tmp_path, monkeypatch):
    kill_at(monkeypatch, "cloister.runs.folder.RunFolder.save", 1)
    with pytest.raises(Killed):
        go(folder=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["ledger.jsonl", "checkpoint.safetensors", "description.json"])
@pytest.mark.parametrize("position", [0.02, 0.5, 0.98])
def test_a_damaged_file_is_noticed(tmp_path, name, position):
    go(folder=tmp_path / "r")
    path = tmp_path / "r" / name
    data = bytearray(path.read_bytes())
    where = int(position * len(data))
    data[where] = data[where] ^ 4
    path.write_bytes(bytes(data))
    with pytest.raises(CloisterError):
        go(folder=tmp_path / "r", resume=True)


def test_a_ledger_cut_short_is_noticed(tmp_path):
    go(folder=tmp_path / "r")
    path = tmp_path / "r" / "ledger.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:4]) + b"\n")
    with pytest.raises(Corrupted, match="lines were removed"):
        go(folder=tmp_path / "r", resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 0}, "rounds"),
        ({"epsilon": -1.0}, "epsilon > 0"),
        (
            {"epsilon": None, "method": cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1)},
            "epsilon and delta, or a noise_mult",
        ),
        ({"delta": None}, "delta"),
        ({"delta": 2.0}, "0 < delta < 1"),
        ({"engine": "warp"}, "engine"),
        ({"dtype": "float8"}, "dtype"),
        ({"device": "abacus"}, "device"),
        ({"secure_rng": "dice"}, "secure_rng"),
        ({"seed": -1}, "seed"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"cohort": cl.fixed_size(41)}, "at most 40 clients|population"),
        (
            {"cohort": cl.fixed_size(41), "method": cl.methods.fedavg(local_steps=1), "epsilon": None},
            "at most 40 clients",
        ),
        ({"method": cl.methods.fedavg(local_steps=1)}, "private method"),
        (
            {"method": cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1, noise_multiplier=0.1), "epsilon": 0.5},
            "pays for one round",
        ),
        ({"resume": True}, "folder to resume"),
        (
            {"epsilon": 1e-7, "delta": 1e-9, "method": cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1)},
            "some noise can reach",
        ),
    ],
)
def test_bad_requests_are_refused_before_anything_is_written(tmp_path, monkeypatch, change, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CloisterError, match=message):
        go(**{"folder": None if change.get("resume") else tmp_path / "r", **change})
    assert list(tmp_path.iterdir()) == []


def test_a_cohort_without_a_price_is_refused_before_anything_is_written(tmp_path):
    from dataclasses import replace

    from cloister.privacy.events import Unsupported

    alphabetical = replace(
        cl.fixed_size(5), event=lambda noise, clients: Unsupported("clients take turns in a public order")
    )
    for method in (
        cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1),
        cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1, noise_multiplier=2.0),
    ):
        with pytest.raises(cl.UnsupportedMechanismError, match="public order"):
            go(method=method, cohort=alphabetical, folder=tmp_path / "r")
    with pytest.raises(cl.UnsupportedMechanismError, match="public order"):
        go(method=method, cohort=alphabetical, folder=tmp_path / "r", epsilon=None)
    assert not (tmp_path / "r").exists()


def test_a_population_of_empty_clients_runs():
    run = go(task=toy_task(sizes=(0, 0, 3)), rounds=2, delta=1e-2)
    assert math.isfinite(run.epsilon)


def test_the_users_random_state_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    go(rounds=2)
    assert torch.equal(before, torch.get_rng_state())


def test_the_certificate_speaks_of_the_runs_own_delta_first():
    run = go(delta=1e-7, epsilon=9.0)
    assert run.epsilon == pytest.approx(epsilon_of(PoissonGaussian(3.0, 0.5), 6, 1e-7), rel=1e-6)
    assert [price.delta for price in run.certificate.prices] == [1e-7, 1e-5]


def test_a_shortened_ledger_certifies_nothing(tmp_path):
    go(folder=tmp_path / "r")
    path = tmp_path / "r" / "ledger.jsonl"
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:3]) + b"\n")
    with pytest.raises(Corrupted, match="lines were removed"):
        RunFolder.open(tmp_path / "r").certificate()


def test_a_resumed_run_notices_that_it_would_compute_something_else(tmp_path, monkeypatch):
    from dataclasses import replace

    from cloister.client import sgd

    def uphill(objective, w, start, batch):
        return -objective.gradient(w, batch)

    from cloister.client.gradients import Gradient

    with monkeypatch.context() as patch:
        kill_at(patch, "cloister.runs.training.run_round", 2)
        with pytest.raises(Killed):
            go(folder=tmp_path / "r")
    method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=3.0)
    other_loss = replace(TASK, loss=lambda outputs, labels: TASK.loss(2 * outputs, labels))
    for change in (
        {"method": replace(method, local=sgd(lr=0.5, local_steps=2, gradient=Gradient("plain", {}, uphill)))},
        {"task": other_loss},
        {"model": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Tanh(), torch.nn.Linear(64, 10))},
    ):
        with pytest.raises(Corrupted, match="model"):
            go(folder=tmp_path / "r", resume=True, **change)
    go(folder=tmp_path / "r", resume=True)


def test_two_runs_with_one_seed_do_not_share_their_noise():
    """With shared noise the difference of two releases would show the signal without any noise at all."""
    nothing = toy_task(sizes=(0, 0, 0, 0, 1))

    def noise(lr: float) -> torch.Tensor:
        method = cl.methods.dp_fedavg(clip_norm=1.0, lr=lr, local_steps=1, noise_multiplier=50.0)
        run = go(method=method, task=nothing, rounds=1, cohort=cl.full(), epsilon=None, delta=1e-2)
        return vector(run)

    assert (noise(0.1) - noise(0.1)).norm() == 0
    assert (noise(0.1) - noise(0.2)).norm() > 10


def test_what_is_published_does_not_depend_on_anybodys_data():
    """The certificate's hashes are functions of the settings; the data's fingerprint stays in the checkpoint."""
    first = go(task=cl.data.digits(clients=40))
    second = go(task=cl.data.digits(partition=cl.data.iid(40, split_seed=5)))
    assert first.certificate.configuration_sha256 == second.certificate.configuration_sha256
    assert first.certificate.ledger_hash == second.certificate.ledger_hash


def test_a_cohort_that_names_a_client_twice_is_refused():
    from dataclasses import replace

    crowd = replace(cl.full(), sample=lambda streams, round, population: torch.zeros(40, dtype=torch.int64))
    with pytest.raises(CloisterError, match="each once"):
        go(cohort=crowd, epsilon=None)
