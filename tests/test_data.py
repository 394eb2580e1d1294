from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import cloister as cl
from cloister.errors import CloisterError

RANDOM = np.random.default_rng(0)
START = RANDOM.bit_generator.state


@pytest.fixture(autouse=True)
def _own_draws() -> None:
    """Of every test, whichever ran before it in this process."""
    RANDOM.bit_generator.state = START


def arrays(n: int = 40):
    return RANDOM.normal(size=(n, 5)), RANDOM.integers(0, 3, n), RANDOM.integers(0, 6, n)


def test_digits_are_dealt_completely_and_evenly():
    task = cl.data.digits(clients=300)
    assert task.clients == 300
    assert int(task.population.sizes.sum()) + len(task.test_labels) == 1797
    assert task.population.sizes.max() - task.population.sizes.min() <= 1
    assert task.shape == (1, 8, 8)
    assert 0 <= task.population.inputs.min() < task.population.inputs.max() == 1
    assert task.fingerprint() == cl.data.digits(clients=300).fingerprint()
    assert task.fingerprint() != cl.data.digits(clients=299).fingerprint()
    assert task.fingerprint() != cl.data.digits(partition=cl.data.iid(300, split_seed=1)).fingerprint()


def test_arrays_are_sorted_by_client_and_nothing_is_lost():
    x, y, who = arrays()
    names = np.array(["ann", "bob", "cy", "dee", "eve", "fay"])[who]
    task = cl.data.from_arrays(x, y, names, test=(x[:4], y[:4]))
    for number, name in enumerate(sorted(set(names))):
        start, size = int(task.population.starts[number]), int(task.population.sizes[number])
        mine = task.population.inputs[start : start + size]
        assert torch.equal(mine, torch.from_numpy(x[names == name]))
        assert torch.equal(task.population.labels[start : start + size], torch.from_numpy(y[names == name]))


def test_a_fraction_is_held_out_at_random():
    x, y, who = arrays(50)
    task = cl.data.from_arrays(x, y, who, test=0.3)
    assert 10 <= len(task.test_labels) <= 20, "a fraction of every client's, rounded by batch"
    both = torch.cat([task.population.inputs, task.test_inputs])
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, x.tolist()))


def test_tensors_and_empty_clients_are_welcome():
    task = cl.data.from_arrays(
        torch.rand(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), torch.tensor([0, 0, 1, 1, 2, 2]), registered=5
    )
    assert task.clients == 5
    assert task.population.sizes[3:].tolist() == [0, 0]


def test_any_module_and_any_arrays_run_in_one_line_each():
    x, y, who = arrays(60)
    task = cl.data.from_arrays(x, y, who)
    net = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    before = [p.clone() for p in net.parameters()]
    run = cl.run(cl.methods.dp_fedavg(clip_norm=1.0, local_steps=2), task, rounds=2, epsilon=5.0, delta=1e-2, model=net)
    assert run.epsilon <= 5.0
    assert isinstance(run.model, nn.Sequential)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)), (
        "the user's model is left alone"
    )


def test_a_regression_runs_too():
    x = RANDOM.normal(size=(40, 3))
    y = (x @ np.array([1.0, -2.0, 0.5]))[:, None]

    def squares(outputs, labels):
        return (outputs - labels) ** 2

    task = cl.data.from_arrays(x, y.astype(np.float32), np.arange(40) % 8, loss=squares, model=lambda: nn.Linear(3, 1))
    run = cl.run(cl.methods.fedavg(lr=0.1, local_steps=5), task, rounds=10, dtype="float64")
    assert run.accuracy is None
    assert run.history[-1]["loss"] < 0.2 * run.history[0]["loss"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y, c: (x, y - 1, c), "labels from 0 to 1, found -1"),
        (lambda x, y, c: (x, y.astype(float), c), "whole numbers"),
        (lambda x, y, c: (x, y[:-1], c), "as many labels as inputs"),
        (lambda x, y, c: (x, y, c[:-1]), "as many clients as inputs"),
        (
            lambda x, y, c: (np.where(np.arange(len(x))[:, None] == 7, math.nan, x), y, c),
            "finite inputs, found NaN or infinity in row 7",
        ),
        (lambda x, y, c: (x[:0], y[:0], c[:0]), "at least one sample"),
    ],
)
def test_bad_arrays_are_refused(change, message):
    with pytest.raises(CloisterError, match=message):
        cl.data.from_arrays(*change(*arrays()), test=(np.zeros((1, 5)), np.zeros(1, dtype=int)))


def test_labels_beyond_the_classes_are_refused():
    x, y, who = arrays()
    with pytest.raises(CloisterError, match="labels from 0 to 1, found 2"):
        cl.data.from_arrays(x, y, who, classes=2)


@pytest.mark.parametrize(("clients", "message"), [(0, "clients"), (2000, "at most 1438 parts"), (2.5, "clients")])
def test_impossible_digits_are_refused(clients, message):
    with pytest.raises(CloisterError, match=message):
        cl.data.digits(clients=clients)


def test_too_few_registered_is_refused():
    x, y, who = arrays()
    with pytest.raises(CloisterError, match="belong to 6 clients"):
        cl.data.from_arrays(x, y, who, registered=3)


def test_the_cnn_needs_images():
    with pytest.raises(CloisterError, match="choose the model logistic or mlp"):
        cl.models.cnn((5,), 3)


def test_what_is_held_out_of_one_clients_data_does_not_depend_on_another():
    x, y, who = arrays(80)
    whole = cl.data.from_arrays(x, y, who, classes=3)
    gone = cl.data.from_arrays(x[who != 5], y[who != 5], who[who != 5], classes=3, registered=6)
    for client in range(5):
        rows = [
            task.population.inputs[task.population.starts[client] :][: task.population.sizes[client]]
            for task in (whole, gone)
        ]
        assert torch.equal(*rows)


def test_clients_do_not_share_rows():
    from cloister.client.population import Population

    for starts, sizes in [([0, 2], [3, 1]), ([0, 3], [3, 5]), ([-1, 2], [1, 1]), ([0, 2], [2, -1])]:
        with pytest.raises(CloisterError, match="rows of their own"):
            Population(torch.zeros(4, 1), torch.zeros(4).long(), torch.tensor(starts), torch.tensor(sizes))


def test_splits_go_by_the_owners_name_whoever_else_is_there():
    x, y, who = arrays(90)
    names = np.array(["b", "c", "d"])[who % 3]
    without = cl.data.from_arrays(x, y, names, classes=3)
    more = cl.data.from_arrays(
        np.concatenate([x, x[:9]]), np.concatenate([y, y[:9]]), np.concatenate([names, ["a"] * 9]), classes=3
    )
    for client in range(3):
        client_rows = [
            task.population.inputs[task.population.starts[at] :][: task.population.sizes[at]]
            for task, at in ((without, client), (more, client + 1))
        ]
        assert torch.equal(*client_rows)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint16])
def test_labels_of_any_whole_type(dtype):
    x, y, who = arrays(40)
    run = cl.run(
        cl.methods.fedavg(local_steps=1), cl.data.from_arrays(x, y.astype(dtype), who), rounds=1, progress=False
    )
    assert run.accuracy is not None
    assert run.history[-1]["mean_client_accuracy"] is not None, "what is held out of a client's data tests that client"


def test_bytes_are_pictures():
    pictures = RANDOM.integers(0, 256, (30, 3, 6, 10), dtype=np.uint8)
    task = cl.data.from_arrays(pictures, np.arange(30) % 3, np.arange(30) % 5)
    assert task.population.inputs.dtype == torch.uint8
    assert task.preprocessing.name == "images"
    cl.run(cl.methods.fedavg(local_steps=1), task, rounds=1, progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.array(["a", "b"] * 20)}, "labels to be numbers"),
        ({"clients": np.zeros((40, 2), int)}, "whole numbers or of names"),
        ({"clients": [None] * 40}, "whole numbers or of names"),
        ({"test": (np.zeros((2, 9)), np.zeros(2, int))}, r"test inputs of shape \(5,\)"),
        ({"test": [1, 2, 3]}, "test to be"),
    ],
)
def test_more_bad_arrays_are_refused(change, message):
    x, y, who = arrays()
    with pytest.raises(CloisterError, match=message):
        cl.data.from_arrays(**{"inputs": x, "labels": y, "clients": who, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": np.arange(40) * 2**35}, "labels below 10000 where classes are not declared, found 1340029796352"),
        ({"labels": np.arange(40) + 10**7}, "labels below 10000 .* found 10000039: number the classes from 0, or give"),
        ({"labels": np.zeros(40, int)}, "labels of two classes at least, found 'class 0 only': every model"),
        ({"labels": np.ones(40, int)}, "labels of two classes at least, found 'class 1 only'"),
        ({"labels": np.ones(40, int), "classes": 5}, "labels of two classes at least"),
        ({"classes": 1}, "classes to be a whole number of at least 2, found 1"),
        ({"classes": 2.5}, "classes to be a whole number of at least 2, found 2.5"),
        ({"classes": 10**40}, "classes to be at most 1,000,000,000"),
        ({"classes": 0}, "classes to be a whole number"),
        ({"classes": "3"}, "classes to be a whole number"),
        ({"classes": True}, "classes to be a whole number"),
        (
            {"inputs": [[1.0, 2.0], [3.0]] * 20},
            "inputs as an array, found something else .*: give rows of equal length",
        ),
        ({"labels": [[0], [1, 2]] * 20}, "labels as an array"),
        ({"clients": [[0], [1, 2]] * 20}, "clients as an array"),
        ({"inputs": np.array([{}] * 40)}, r"inputs to be numbers, found dtype\('O'\): give an array of numbers"),
        ({"inputs": np.array([1.5, None] * 20)}, "inputs to be numbers"),
        ({"inputs": None}, "inputs to be numbers"),
        ({"inputs": 3.0}, "inputs to be an array, found 'a single number'"),
        ({"inputs": np.zeros((40, 2), complex)}, "inputs to be numbers"),
        ({"inputs": torch.zeros(40, 2, dtype=torch.complex64)}, "inputs to be real numbers"),
        ({"inputs": np.full((40, 2), np.longdouble("1e400"))}, "finite inputs"),
        ({"inputs": np.full((40, 2), 2**63, np.uint64)}, "inputs below 2.63, found 9223372036854775808"),
        ({"test": None}, "test_fraction to be a fraction"),
        ({"test": "0.2"}, "test_fraction to be a fraction"),
        ({"test": True}, "test_fraction to be a fraction"),
        ({"test": math.nan}, "test_fraction to be a fraction"),
        ({"seed": "one"}, "seed to be a whole number"),
        ({"seed": -1}, "seed to be a whole number"),
        ({"registered": 6.5}, "registered to be a whole number"),
        ({"model": 3}, "model to make a torch module"),
        ({"loss": "squares"}, "loss to be one of"),
        ({"preprocessing": "images"}, "preprocessing to be a Preprocessing"),
        ({"name": 3}, "name to be a word"),
    ],
)
def test_wrong_types_and_senseless_labels_are_one_sentence(change, message):
    x, y, who = arrays()
    with pytest.raises(CloisterError, match=message) as caught:
        cl.data.from_arrays(**{"inputs": x, "labels": y, "clients": who, **change})
    assert str(caught.value).startswith("Expected ")
    assert "\n" not in str(caught.value)


def test_many_classes_are_welcome_where_they_are_declared():
    x, _, who = arrays()
    task = cl.data.from_arrays(x, np.arange(40) * 1000, who, classes=10**7)
    assert (task.classes, task.classes_inferred) == (10**7, False)
    assert cl.data.from_arrays(x, np.arange(40) % 3, who, classes=np.int64(4)).classes == 4
    large = cl.data.from_arrays(x, np.arange(40), who, model=lambda: torch.nn.Linear(x.shape[1], 2**47))
    with pytest.raises(CloisterError, match="a model that fits into memory"):
        cl.run(cl.methods.fedavg(local_steps=1), large, rounds=1, progress=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.astype(np.longdouble),
        lambda x: x.astype(">f8"),
        lambda x: x[::-1][::-1],
        lambda x: np.asfortranarray(x),
        lambda x: x.tolist(),
        lambda x: torch.from_numpy(x),
    ],
)
def test_arrays_of_any_make_are_the_same_numbers(change):
    x, y, who = arrays()
    names = np.array([f"w{number}" for number in who], dtype=object)  # as pandas has them
    task = cl.data.from_arrays(change(x), y.astype(">i4"), names, seed=np.int64(0))
    assert torch.equal(task.population.inputs, cl.data.from_arrays(x, y, names.astype(str)).population.inputs)


def test_one_class_is_refused_however_a_task_is_made():
    task = cl.data.from_arrays(*arrays())
    with pytest.raises(CloisterError, match="two classes at least, found 1"):
        cl.data.Task("one", task.population, task.test_inputs, task.test_labels, 1, task.model)
    part = cl.data.Samples(np.zeros((6, 2), np.float32), np.ones(6, np.int64))
    with pytest.raises(CloisterError, match="labels of two classes at least, found 'class 1 only'"):
        cl.data.partition_data(cl.data.RawData(part, part, 3), cl.data.iid(2), "toy")
