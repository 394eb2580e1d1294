"""What a run writes: nothing of protected data, nothing that undoes noise; and all data are in its fingerprint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import cloister as cl
from cloister.client.population import Population
from cloister.data import Task
from cloister.errors import CloisterError, Corrupted
from cloister.runs.folder import RunFolder
from conftest import killed_in_round, prepared, toy_task
from contract.catalogue import METHODS, cohorts_for, pool


def tensors_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Every tensor of a task, wherever it lies, with its place."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, tuple):
        for place, item in enumerate(value):
            yield from tensors_in(item, (*path, place))
    elif is_dataclass(value) and isinstance(value, (Task, Population)):
        for part in fields(value):
            yield from tensors_in(getattr(value, part.name), (*path, part.name))


def put(value: Any, path: tuple[Any, ...], new: Tensor) -> Any:
    if not path:
        return new
    if isinstance(value, tuple):
        return tuple(put(item, path[1:], new) if place == path[0] else item for place, item in enumerate(value))
    return replace(value, **{path[0]: put(getattr(value, path[0]), path[1:], new)})


def everything() -> Task:
    """A task that has all that a task can have, and rows that nobody owns, so that sizes and starts are free."""
    people = cl.data.from_arrays(
        np.random.default_rng(0).normal(size=(60, 6)), np.arange(60) % 3, np.arange(60) // 10, test=0.3, seed=1
    )
    rows = people.population
    spare = Population(
        torch.cat([rows.inputs, rows.inputs[:3]]), torch.cat([rows.labels, rows.labels[:3]]), rows.starts, rows.sizes
    )
    return replace(people, population=spare, public_samples=pool())


PLACES = [path for path, _ in tensors_in(everything())]


def test_all_tensors_of_a_task_are_looked_at():
    names = {".".join(map(str, path)) for path in PLACES}
    assert names == {
        *("population.inputs", "population.labels", "population.starts", "population.sizes"),
        *("test_inputs", "test_labels", "local_test.0", "local_test.1", "public_samples.0", "public_samples.1"),
    }


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("where", [0, -1], ids=["first", "last"])
def test_a_fingerprint_knows_every_number_of_the_data(path, where):
    task = everything()
    before = dict(tensors_in(task))[path]
    other = before.clone()
    number = other.view(-1)[where]
    if path[-1] in ("starts", "sizes"):
        where = -1  # the last client has room behind its samples
        number = other.view(-1)[where]
    other.view(-1)[where] = number + 1 if not before.is_floating_point() else torch.nextafter(number, number + 1)
    assert put(task, path, other).fingerprint() != task.fingerprint()
    assert put(task, path, before.clone()).fingerprint() == task.fingerprint()


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_a_fingerprint_knows_the_order_and_the_shape_of_the_data(path):
    task = everything()
    before = dict(tensors_in(task))[path]
    if path[-1] not in ("starts", "sizes", "inputs", "labels"):
        assert put(task, path, before[:-1]).fingerprint() != task.fingerprint()
    if path[0] != "population" or path[-1] in ("inputs", "labels"):
        turned = before.flip(0)
        assert torch.equal(turned, before) or put(task, path, turned).fingerprint() != task.fingerprint()


def test_inputs_and_labels_do_not_stand_in_for_each_other():
    task = everything()
    swapped = replace(
        task, test_inputs=task.public_samples[0], public_samples=(task.test_inputs, task.public_samples[1])
    )
    assert swapped.fingerprint() != task.fingerprint()
    assert replace(task, public_samples=None).fingerprint() != task.fingerprint()
    assert replace(task, local_test=None).fingerprint() != task.fingerprint()


QUICK = {"engine": "loop", "delta": 1e-2, "progress": False}


@pytest.mark.parametrize("what", ["labels", "inputs", "test_labels", "local_test"])
def test_a_run_is_not_resumed_with_other_data(what, tmp_path, monkeypatch):
    task = everything()
    method = cl.methods.dp_fedavg(clip_norm=0.5, batch_size=4, local_steps=1, noise_multiplier=3.0)
    with killed_in_round(monkeypatch, at=3):
        cl.run(method, task, rounds=4, folder=tmp_path / "r", checkpoint_every=1, **QUICK)
    path = next(path for path in PLACES if what in path)
    changed = dict(tensors_in(task))[path].clone()
    changed[0] = (changed[0] + 1) % 3
    with pytest.raises(Corrupted, match="data"):
        cl.run(method, put(task, path, changed), rounds=4, folder=tmp_path / "r", resume=True, **QUICK)


def described(name: str, task: Task) -> dict[str, Any]:
    method = METHODS[name]()
    has_share = name == "adap_dp_fl decay" or method.first_query is not None  # of an epsilon
    ready = prepared(
        method,
        replace(task, public_samples=pool()),
        cohort=next(iter(cohorts_for(name).values())),
        epsilon=50.0 if has_share else None,
        delta=1e-2,
        dtype="float64",
    )
    return ready.description.to_json()


def others(unit: str) -> list[Task]:
    """Tasks that differ in what is protected: of samples, their values; of clients, how many they have as well."""
    if unit == "sample":
        return [toy_task(seed=1)]
    return [toy_task(sizes=(1, 1, 1, 1, 1, 1, 1, 30)), toy_task(sizes=(9, 3, 1, 0, 12, 5, 4, 2), seed=3)]


@pytest.mark.parametrize("name", METHODS)
def test_a_description_tells_nothing_of_what_is_protected(name):
    """It is published, and so is its hash."""
    expected = described(name, toy_task())
    for task in others(METHODS[name]().unit):
        test = toy_task()
        assert described(name, replace(task, test_inputs=test.test_inputs, test_labels=test.test_labels)) == expected


PUBLISHED = ("description.json", "ledger.jsonl", "model.json", "certificate.json", "certificate.txt")


@pytest.mark.parametrize(
    ("name", "cohort"),
    [
        ("dp_fedavg", cl.poisson(0.6)),
        ("dp_fedavg distributed", cl.fixed_size(5)),
        ("adaptive_clipping", cl.full()),
        ("dp_ftrl", cl.cyclic(3)),
        ("pfl", cl.full()),
    ],
)
def test_the_files_that_are_published_tell_nothing_of_what_is_protected(name, cohort, tmp_path):
    """No line is about who came and what they have (clients), or about what samples are like."""
    method = METHODS[name]()
    found = []
    for number, task in enumerate([toy_task(), *others(method.unit)]):
        folder = tmp_path / str(number)
        cl.run(method, task, rounds=3, cohort=cohort, folder=folder, dtype="float64", **QUICK)
        published = [(folder / name).read_text() for name in PUBLISHED]
        found.append([text if text[0] != "{" else _without_the_model(text) for text in published])
    for other in found[1:]:
        for mine, theirs, what in zip(found[0], other, PUBLISHED, strict=True):
            assert mine == theirs, what


def _without_the_model(text: str) -> str:
    """A certificate vouches for the noisy model, which is as public as it is."""
    try:
        about = json.loads(text)
    except ValueError:  # many lines
        return text
    hashes = about.pop("files", {})
    about.pop("sha256", None)  # of all that is in the file
    assert set(hashes) <= {*PUBLISHED, "model.safetensors"}, "nothing else is so public"
    return json.dumps(about)


def noise_in(folder: Any) -> set[str]:
    """Tensors of the checkpoint that are not the model."""
    return set(load_file(folder / "checkpoint.safetensors")) - {"w"}


@pytest.mark.parametrize("factorization", ["tree", "banded"])
@pytest.mark.parametrize("how", ["finished", "stopped", "stopped at once", "resumed and stopped", "killed at the end"])
def test_a_run_that_has_ended_keeps_no_correlated_noise(how, factorization, tmp_path, monkeypatch):
    """What was added could be subtracted again: whether it came to its end, or its budget did."""
    method = cl.methods.dp_ftrl(
        clip_norm=0.5,
        batch_size=4,
        local_steps=1,
        noise_multiplier=3.0,
        **({"factorization": "tree"} if factorization == "tree" else {}),
    )
    settings = {"cohort": cl.cyclic(2), "folder": tmp_path / "r", **QUICK}
    rounds, cycle = 12, 4
    if how == "finished":
        run = cl.run(method, toy_task(), rounds=rounds, **settings)
        assert run.stopped is None
    elif how == "killed at the end":
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                cl.run(method, toy_task(), rounds=rounds, **settings)
    else:
        one = cl.run(method, toy_task(), rounds=cycle, cohort=cl.cyclic(2), **QUICK).epsilon
        two = cl.run(method, toy_task(), rounds=2 * cycle, cohort=cl.cyclic(2), **QUICK).epsilon
        settings |= {"epsilon": one * 1.01 if how == "stopped at once" else two * 1.01, "checkpoint_every": 3}
        if how == "resumed and stopped":
            with killed_in_round(monkeypatch, at=6):
                cl.run(method, toy_task(), rounds=rounds, **settings)
            assert noise_in(tmp_path / "r"), "while it goes on, it needs what it has added"
            settings["resume"] = True
        run = cl.run(method, toy_task(), rounds=rounds, **settings)
        assert run.stopped is not None
        assert len(run.history) == (cycle if how == "stopped at once" else 2 * cycle)
    assert not noise_in(tmp_path / "r"), "what is left could be subtracted from the model"


def test_what_is_left_of_a_run_is_its_model_and_what_clients_keep(tmp_path):
    """The state of servers and of clients stays; of noise, nothing that a round could be undone with."""
    adam = cl.methods.dp_fedavg(
        clip_norm=0.5, batch_size=4, local_steps=1, noise_multiplier=3.0, server=cl.server.adam()
    )
    cl.run(adam, toy_task(), rounds=2, folder=tmp_path / "r", **QUICK)
    run = cl.run(
        cl.methods.pfl(clip_norm=0.5, noise_multiplier=3.0), toy_task(), rounds=2, folder=tmp_path / "s", **QUICK
    )
    assert not noise_in(tmp_path / "s")
    assert all("noise" not in name and "node" not in name for name in noise_in(tmp_path / "r"))
    with pytest.raises(CloisterError):
        RunFolder.open(tmp_path / "nothing")
    assert run.stopped is None
