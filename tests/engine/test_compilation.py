"""What is traced or fused computes what it was made from."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import cloister as cl
from cloister.client.batches import Drawn, shapes_of
from cloister.engine import Loop, Vectorized, vectorized
from cloister.engine.chunking import ChunkProgram, places_for
from cloister.engine.compilation import Compiled, traced
from cloister.engine.fusion import fused, pieces_first
from cloister.round import cohort_total
from conftest import federation, plan_of, toy_model, toy_task
from contract.catalogue import METHODS, cohorts_for, fed_of

# Local rules and messages of several kinds; tracing takes seconds, so that the others are for `make test-all`.
KINDS = ("dp_fedavg", "dp_fedsam", "ddgauss", "pfl")


@pytest.mark.parametrize(
    ("name", "patience"),
    [
        *(pytest.param(name, 0, marks=[] if name in KINDS else [pytest.mark.slow]) for name in METHODS),
        ("dp_fedavg", 2),
        pytest.param("lus", 2, marks=pytest.mark.slow),
    ],
)
def test_traced_steps_agree_with_the_loop(name, patience, monkeypatch):
    monkeypatch.setattr(vectorized, "PATIENCE", patience)
    task = toy_task()
    cohort = next(iter(cohorts_for(name).values()))
    fed, w = fed_of(METHODS[name](), cohort, task=task, model=toy_model(task, dropout=True))
    engine = Vectorized(chunk=3 if patience else 8)
    for number, cohort in enumerate(([0, 2, 5, 7], [1, 3, 4, 6]) * (1 + patience), start=1):
        expected, _ = cohort_total(fed, Loop(), number, w, torch.tensor(cohort))
        found, _ = cohort_total(fed, engine, number, w, torch.tensor(cohort))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_an_engine_notices_another_method_and_model(monkeypatch):
    monkeypatch.setattr(vectorized, "PATIENCE", 0)
    engine, everybody = Vectorized(chunk=100), torch.arange(8)
    for lr in (0.1, 0.3):
        for seed in (0, 1):
            task = toy_task()
            fed, w = federation(cl.methods.fedavg(lr=lr, local_steps=2), task=task, model=toy_model(task, seed=seed))
            expected, _ = cohort_total(fed, Loop(), 1, w, everybody)
            torch.testing.assert_close(cohort_total(fed, engine, 1, w, everybody)[0], expected, rtol=1e-9, atol=1e-12)


def test_other_data_of_the_same_federation_are_seen(monkeypatch):
    monkeypatch.setattr(vectorized, "PATIENCE", 0)
    fed, w = federation(cl.methods.fedavg(lr=0.1, local_steps=2))
    engine, everybody = Vectorized(chunk=100), torch.arange(8)
    first, _ = cohort_total(fed, engine, 1, w, everybody)
    other = replace(fed, population=replace(fed.population, inputs=fed.population.inputs * 2))
    second, _ = cohort_total(other, engine, 1, w, everybody)
    expected, _ = cohort_total(other, Loop(), 1, w, everybody)
    torch.testing.assert_close(second, expected, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(first, second)


def test_a_client_that_fills_a_place_is_not_counted():
    fed, w = federation(
        cl.methods.dp_fedavg(clip_norm=0.5, lr=0.3, local_steps=2, noise_multiplier=0.0), cl.poisson(0.9)
    )
    cohort = torch.tensor([0, 1, 2, 4, 5, 6, 7, 0, 1][:7])
    sizes = [places_for(fed, count, chunk=1000) for count in range(1, 200)]
    assert all(count <= places <= 1.25 * count for count, places in enumerate(sizes, start=1))
    assert len(set(sizes)) < 70
    chunk, shapes = (
        plan_of(fed, 1, w, cohort).chunk(cohort, places=10),
        shapes_of(fed.population.counts[cohort], fed.method.local),
    )
    assert chunk.counted.tolist() == [True] * 7 + [False] * 3
    program = ChunkProgram(fed, True, lambda step: step)
    (found, nonfinite_updates), _ = program.total(fed.population, chunk, shapes, Drawn([], None))
    torch.testing.assert_close(found, cohort_total(fed, Loop(), 1, w, cohort)[0], rtol=1e-9, atol=1e-12)
    assert nonfinite_updates == 0


def test_a_shape_is_compiled_once():
    made = []

    def how(graph, arguments):
        made.append(graph)
        return traced(graph, arguments)

    double = Compiled(lambda x: (2 * x,), how, patience=2)
    for length in (3, 4, 3, 4, 3, 3, 3, 4, 4, 4):
        assert torch.equal(double(torch.arange(length))[0], 2 * torch.arange(length))
    assert len(made) == 2


def test_pieces_of_a_concatenation_come_first():
    def descend(w, start, real, a, b):
        joined = torch.cat([a, b], 1)
        stepped = torch.sub(w, joined, alpha=0.5) + start
        return (torch.cat([torch.where(real[:, None], stepped, w), torch.zeros(3, 2)], 1),)

    example = (
        torch.randn(3, 7),
        torch.randn(7),
        torch.tensor([True, False, True]),
        torch.randn(3, 4),
        torch.randn(3, 3),
    )
    graph = make_fx(descend)(*example)
    pieces_first(graph)
    joins = [node for node in graph.graph.nodes if node.target is torch.ops.aten.cat.default]
    assert [len(node.args[0]) for node in joins] == [3]
    torch.testing.assert_close(graph(*example), descend(*example))


@pytest.mark.slow  # a minute of compiling, where it was not done before; the graphs that are compiled are tested above
@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a compiler")
def test_fused_kernels_agree_with_the_loop():
    task = toy_task()
    method = cl.methods.dp_fedavg(clip_norm=0.1, lr=0.3, local_epochs=2, batch_size=4, noise_multiplier=0.0)
    fed, w = federation(method, task=task, model=toy_model(task, dropout=True))
    cohort = torch.arange(task.clients)
    chunk, shapes = plan_of(fed, 1, w, cohort).chunk(cohort), shapes_of(fed.population.counts[cohort], fed.method.local)
    program = ChunkProgram(fed, True, lambda step: Compiled(step, fused, 0))
    (found, _), _ = program.total(fed.population, chunk, shapes, Drawn([], None))
    torch.testing.assert_close(found, cohort_total(fed, Loop(), 1, w, cohort)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("patience", [0, 2])
def test_clients_without_data_among_themselves(patience, monkeypatch):
    monkeypatch.setattr(vectorized, "PATIENCE", patience)
    task = toy_task(sizes=(0, 0, 0, 5, 3, 4, 0, 0, 0))
    fed, w = federation(cl.methods.fedavg(lr=0.1, local_epochs=1, batch_size=4), task=task)
    engine = Vectorized(chunk=3)
    for number in (1, 2, 3):
        expected, _ = cohort_total(fed, Loop(), number, w, torch.arange(9))
        torch.testing.assert_close(cohort_total(fed, engine, number, w, torch.arange(9))[0], expected)


def test_another_layout_of_the_same_shape_is_compiled_anew():
    made = []

    def how(graph, arguments):
        made.append([argument.stride() for argument in arguments])
        return traced(graph, arguments)

    double = Compiled(lambda x: (2 * x,), how, patience=0)
    for x in (torch.ones(3, 4), torch.ones(4, 3).T, torch.ones(4).expand(3, 4), torch.ones(3, 4)):
        assert torch.equal(double(x)[0], 2 * x)
    assert len(made) == 3
