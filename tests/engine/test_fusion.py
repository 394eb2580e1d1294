"""What is done to a traced step before it is compiled leaves what it computes as it is."""

from __future__ import annotations

import shutil
import sys
from types import ModuleType

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import cloister as cl
from cloister.client.batches import Drawn, shapes_of
from cloister.engine import Loop
from cloister.engine.chunking import ChunkProgram
from cloister.engine.compilation import Compiled
from cloister.engine.cuda import linear_updates
from cloister.engine.fusion import constants_as_inputs, fused, once, pieces_first
from cloister.round import cohort_total
from conftest import federation, plan_of, toy_task

CLIENTS, BATCH, INTO, OUT = 3, 5, 200, 130


@pytest.fixture
def descents(monkeypatch):
    """The kernel for linear layers, by hand, and the shapes it is called with."""
    monkeypatch.setattr(linear_updates, "_LARGE", 2**14)
    seen = []

    def descend(w, left, right, live, rate, precision):
        seen.append((tuple(left.shape), tuple(right.shape)))
        step = rate * (left @ right).flatten(1)
        w[:, : step.shape[1]] -= step if live is None else step * live.view(-1, 1)

    module = ModuleType("update_kernels")
    module.descend, module.multiplied = descend, lambda dtype: "exact"
    monkeypatch.setitem(sys.modules, "cloister.engine.cuda.update_kernels", module)
    monkeypatch.setattr(linear_updates, "find_spec", lambda name: True)
    return seen


def step(inputs, live, w, optimizer="plain"):
    """A step of gradient descent on two layers and their biases, all in one vector, as engines trace it."""

    def loss(w, inputs):
        first, bias, second = w.split([OUT * INTO, OUT, 7 * OUT])
        hidden = torch.tanh(inputs @ first.view(OUT, INTO).T + bias)
        return ((hidden @ second.view(7, OUT).T) ** 2).mean()

    def one(inputs, live, w):
        g = torch.func.grad(loss)(w, inputs)
        g = torch.add(g, w, alpha=0.1) if optimizer == "decay" else g
        return torch.where(live, torch.sub(w, g, alpha=0.5), w)

    new = torch.func.vmap(one)(inputs, live, w)
    return (torch.cat([new, torch.zeros(len(w), 2)], 1),)


def example():
    size = OUT * INTO + OUT + 7 * OUT
    rows = torch.randn(CLIENTS, size + 2)
    return torch.randn(CLIENTS, BATCH, INTO), torch.tensor([True, False, True]), rows[:, :size]


def traced(function, arguments):
    return make_fx(lambda *given: function(*given))(*arguments)


def test_large_linear_layers_are_updated_in_place(descents):
    arguments = example()
    graph = traced(step, arguments)
    pieces_first(graph)
    complete = linear_updates.in_place(graph)
    (expected,) = step(*arguments)
    before = arguments[2].clone()
    (found,) = complete(graph)(*arguments)
    assert found.data_ptr() == arguments[2].data_ptr()
    torch.testing.assert_close(found, expected[:, :-2])
    assert torch.equal(found[1], before[1]), "a client that does not take the step"
    assert descents == [((CLIENTS, OUT, BATCH), (CLIENTS, BATCH, INTO))], "the small layer is not worth it"
    assert all(node.target is not torch.ops.aten.cat.default or len(node.args[0]) == 2 for node in graph.graph.nodes)


@pytest.mark.parametrize("optimizer", ["decay"])
def test_other_steps_are_left_as_they_are(descents, optimizer):
    arguments = example()

    def other(*arguments):
        return step(*arguments, optimizer=optimizer)

    graph = traced(other, arguments)
    pieces_first(graph)
    complete = linear_updates.in_place(graph)
    torch.testing.assert_close(complete(graph)(*arguments)[0], other(*arguments)[0])
    assert not descents


def test_a_matrix_that_is_turned_round_is_not_taken_for_itself(descents):
    def square(a, b, w):
        return (torch.sub(w, (a @ b).transpose(1, 2).reshape(len(w), -1), alpha=0.5),)

    arguments = torch.randn(2, 160, 4), torch.randn(2, 4, 160), torch.randn(2, 160 * 160)
    graph = make_fx(lambda *given: (torch.cat([*square(*given), torch.zeros(2, 1)], 1),))(*arguments)
    pieces_first(graph)
    complete = linear_updates.in_place(graph)
    expected = square(*arguments)[0]
    torch.testing.assert_close(complete(graph)(*arguments)[0][:, : 160 * 160], expected)


def test_numbers_of_another_precision_are_left_to_torch(descents):
    arguments = [a.double() if a.is_floating_point() else a for a in example()]
    graph = traced(step, arguments)
    pieces_first(graph)
    complete = linear_updates.in_place(graph)
    torch.testing.assert_close(complete(graph)(*arguments)[0], step(*arguments)[0])
    assert not descents


def two_states(inputs, live, w, other, kept):
    """A step that keeps a second state: what the first was, or where it would go."""
    (new,) = step(inputs, live, w)
    if kept == "previous":
        return w * 0.9, w
    if kept == "itself":
        return new, w
    ahead = torch.where(live[:, None], torch.sub(w, new[:, :-2] - w, alpha=-1.0), other)
    return torch.cat([0.9 * w, torch.zeros(len(w), 2)], 1), torch.cat([ahead, torch.zeros(len(w), 2)], 1)


@pytest.mark.parametrize("kept", ["previous", "itself", "ahead"])
def test_a_second_state_is_not_taken_for_the_first(descents, kept):
    inputs, live, w = example()
    arguments = inputs, live, w, torch.randn_like(w)

    def function(*given):
        return two_states(*given, kept)

    expected = [result.clone() for result in function(*arguments)]
    graph = traced(function, arguments)
    pieces_first(graph)
    complete = linear_updates.in_place(graph)
    for one, other in zip(complete(graph)(*arguments), expected, strict=True):
        torch.testing.assert_close(one[:, : w.shape[1]], other[:, : w.shape[1]])


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_step_in_place_never_moves_the_rounds_model(descents, chunk):
    """One client's state must not be the round's model itself, whatever its size."""
    descents.clear()
    task = toy_task(sizes=(6, 4), features=160)
    net = torch.nn.Sequential(torch.nn.Linear(160, 160, bias=False), torch.nn.ReLU(), torch.nn.Linear(160, 3))
    method = cl.methods.dp_fedavg(clip_norm=9.0, lr=0.1, local_steps=3, batch_size=2, noise_multiplier=0.0)
    fed, w = federation(method, task=task, model=net, dtype=torch.float32)
    cohort, before = torch.arange(chunk), w.clone()
    shapes = shapes_of(fed.population.counts[cohort], fed.method.local)

    def how(graph, arguments):
        pieces_first(graph)
        complete = linear_updates.in_place(graph)
        constants = constants_as_inputs(graph)
        return complete(lambda *given: graph(*given, *constants))

    program = ChunkProgram(fed, False, lambda function: Compiled(function, how, 0), shared_start=False)
    (found, _), _ = program.total(fed.population, plan_of(fed, 1, w, cohort).chunk(cohort), shapes, Drawn([], None))
    assert descents
    assert torch.equal(w, before)
    torch.testing.assert_close(found, cohort_total(fed, Loop(), 1, w, cohort)[0], rtol=1e-4, atol=1e-6)


def test_constants_become_inputs_and_nothing_else_keeps_them():
    frozen, buffer = torch.randn(4), torch.randn(4)
    graph = make_fx(lambda x: (x * frozen + buffer + frozen,))(torch.randn(4))
    constants = constants_as_inputs(graph)
    assert len(constants) == 2
    assert not list(graph.named_buffers())
    x = torch.randn(4)
    torch.testing.assert_close(graph(x, *constants)[0], x * frozen + buffer + frozen)


def sine_and(constant):
    return lambda x: (torch.sin(x) + constant, x.sum(0))


@pytest.mark.slow  # Inductor compiles for half a minute
@pytest.mark.skipif(not shutil.which("g++"), reason="Inductor needs a compiler")
def test_a_program_is_kept_and_serves_other_constants(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    x = torch.randn(3, 9)[:, :7]
    for _ in range(2):
        function = sine_and(torch.randn(7))
        found = Compiled(function, fused, 0)(x)
        for one, other in zip(found, function(x), strict=True):
            torch.testing.assert_close(one, other)
    kept = list((tmp_path / "cloister" / "programs").iterdir())
    assert len(kept) == 1
    kept[0].write_bytes(kept[0].read_bytes()[:100])  # cut short: it is made anew
    torch.testing.assert_close(Compiled(function, fused, 0)(x)[0], function(x)[0])


def calls(graph):
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_what_is_computed_twice_is_computed_once():
    def twice(x, y):
        return (x.sin() * y).sum() + (x.sin() * y).mean(), x.sin() + 1, x.sin() + 1.0

    x, y = torch.randn(2, 7)
    graph = make_fx(twice)(x, y)
    before = graph(x, y)
    once(graph)
    assert calls(graph).count("aten.sin.default") == 1
    assert calls(graph).count("aten.mul.Tensor") == 1
    after = graph(x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert after[1].data_ptr() != after[2].data_ptr(), "results are tensors of their own"


def test_what_is_drawn_twice_stays_drawn_twice():
    graph = make_fx(lambda x: torch.rand_like(x) - torch.rand_like(x))(torch.zeros(1000))
    once(graph)
    assert calls(graph).count("aten.rand_like.default") == 2


def test_what_changes_in_between_is_computed_again():
    def changed(x):
        y = x.clone()
        part = y[:2]
        first = part.sum() * 1.0
        y.add_(1)
        return first, part.sum() * 2.0

    x = torch.arange(3.0)
    graph = make_fx(changed)(x)
    once(graph)
    assert [float(found) for found in graph(x)] == [1.0, 6.0]
