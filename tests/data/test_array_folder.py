"""Samples that stay on the disk: the same bits as in memory, and nothing is used but what a round needs."""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.client import population as populations
from cloister.data import mapped
from cloister.data.mapped import Mapped
from cloister.engine import Loop, Vectorized
from cloister.errors import CloisterError, Corrupted
from cloister.round import cohort_total
from conftest import federation
from contract.catalogue import METHODS

SIZES = (7, 3, 1, 0, 12, 5, 4, 2, 0, 9)


def arrays(kind="numbers"):
    """Inputs, labels, and how many of them each client has; two have none."""
    random, n = np.random.default_rng(0), sum(SIZES)
    if kind == "pictures":
        return random.integers(0, 256, (n, 3, 8, 8), dtype=np.uint8), np.arange(n) % 3
    return random.standard_normal((n, 6), dtype=np.float32), np.arange(n) % 3


def in_memory(kind="numbers"):
    inputs, labels = arrays(kind)
    owners = np.repeat(np.arange(len(SIZES)), SIZES)
    task = cl.data.from_arrays(inputs, labels, owners, test=(inputs[:5], labels[:5]), classes=3, name="people")
    sizes = torch.tensor(SIZES)  # clients are known by their samples there; those who have none are put back here
    return replace(task, population=replace(task.population, starts=sizes.cumsum(0) - sizes, sizes=sizes))


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path)


def written(tmp_path, kind="numbers"):
    inputs, labels = arrays(kind)
    cuts = np.cumsum(SIZES)[:-1]
    people = zip(np.split(inputs, cuts), np.split(labels, cuts), strict=True)
    cl.data.write_array_folder(tmp_path / "people", people, test=(inputs[:5], labels[:5]))
    return tmp_path / "people"


def unbalanced(path):
    """A header in which a parenthesis is not closed."""
    path.write_bytes(path.read_bytes().replace(b")", b" ", 1))


def vector(run):
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.mark.parametrize("engine", ["loop", pytest.param("vectorized", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param("numbers", "lus batch", marks=pytest.mark.slow),
        ("numbers", "pfl"),
        pytest.param("numbers", "fed_spa as_published", marks=pytest.mark.slow),
        ("pictures", "dp_fedavg epochs"),
    ],
)
def test_a_run_comes_to_the_same_bits_as_in_memory(kind, name, engine, tmp_path, monkeypatch):
    """In chunks of three clients, some steps of which are read at a time."""
    monkeypatch.setattr("cloister.engine.chunk_size", lambda *_: 3)
    monkeypatch.setattr(populations, "STAGED_BYTES", 3 * 2 * 4 * (192 if kind == "pictures" else 24))
    monkeypatch.setattr(mapped, "GAP_BYTES", 30)
    stored = cl.data.from_path(written(tmp_path, kind), classes=3)
    assert stored.fingerprint() == in_memory(kind).fingerprint()
    found, expected = (
        cl.run(METHODS[name](), task, rounds=3, cohort=cl.poisson(0.7), delta=1e-3, engine=engine, progress=False)
        for task in (stored, in_memory(kind))
    )
    assert torch.equal(vector(found), vector(expected))
    assert found.accuracy == expected.accuracy


def test_a_run_in_double_precision_computes_the_same(folder):
    found, expected = (
        cl.run(METHODS["fedavg"](), task, rounds=3, cohort=cl.full(), dtype="float64", progress=False)
        for task in (cl.data.from_path(folder, classes=3), in_memory())
    )
    assert found.model[1].weight.dtype == torch.float64
    torch.testing.assert_close(vector(found), vector(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "engine",
    [Loop(), Loop(workers=2, processes=True), Vectorized(chunk=2)],
    ids=["loop", "processes", "vectorized"],
)
@pytest.mark.parametrize("name", ["fedavg epochs", "dp_fed"])
def test_of_other_clients_nothing_is_used(name, engine, folder):
    """Neither through the map, whose numbers are all NaN here, nor from the files, where others' rows are."""
    cohort = torch.tensor([2, 4, 9])
    fed, w = federation(METHODS[name](), task=in_memory(), dtype=torch.float32)
    expected, _ = cohort_total(fed, engine, 1, w, cohort)
    people = cl.data.from_path(folder, classes=3).population
    others = np.repeat(~np.isin(np.arange(len(SIZES)), cohort), SIZES)
    np.load(folder / "inputs.npy", mmap_mode="r+")[others] = np.nan
    people = replace(people, inputs=torch.full_like(people.inputs, torch.nan), labels=people.labels.clone().fill_(99))
    found, nonfinite = cohort_total(replace(fed, population=people), engine, 1, w, cohort)
    assert torch.equal(found, expected)
    assert int(nonfinite) == 0


def test_a_round_reads_no_more_than_its_clients_have(tmp_path, monkeypatch):
    clients, samples, row = 500, 4, 16 * 1024
    random = np.random.default_rng(0)
    people = ((random.integers(0, 9, (samples, row), dtype=np.uint8), np.arange(samples)) for _ in range(clients))
    cl.data.write_array_folder(tmp_path / "people", people)
    task = cl.data.from_path(tmp_path / "people", preprocessing=_scaled())
    fed, w = federation(cl.methods.fedavg(lr=0.1, local_epochs=2, batch_size=2), task=task, model=task.model())
    read, real = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *a: read.append(real(*a)) or read[-1])
    cohort_total(fed, Vectorized(chunk=4), 1, w, torch.arange(0, clients, 50))
    pixels = 10 * samples * row
    assert pixels <= sum(read) < 1.01 * pixels + 10 * 2**14, "each sample once, for both passes, and some labels"


def _scaled():
    def see(inputs, dtype):
        return inputs.to(dtype) / 255

    return cl.client.preprocessing.Preprocessing("scaled", {}, lambda inputs, key, dtype: see(inputs, dtype), see)


@pytest.mark.parametrize("gap", [0, 30, 1000])
def test_rows_are_those_of_the_array(gap, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "GAP_BYTES", gap)
    random = np.random.default_rng(gap)
    array = random.standard_normal((300, 2, 3))
    np.save(tmp_path / "a.npy", array)
    found = copy.copy(Mapped.of(tmp_path / "a.npy"))  # as another process has it
    for count in (0, 1, 2, 17, 150, 300):
        rows = np.sort(random.permutation(300)[:count])
        assert np.array_equal(found.rows(torch.from_numpy(rows)).numpy(), array[rows])
    assert np.array_equal(torch.cat([block for _, block in found.blocks()]).numpy(), array)


def test_a_file_that_is_cut_short_while_it_is_used_is_noticed(folder):
    found = Mapped.of(folder / "inputs.npy")
    os.truncate(folder / "inputs.npy", 500)
    with pytest.raises(Corrupted, match="cut short"):
        found.rows(torch.tensor([1, 40]))


def test_what_changed_on_the_disk_is_noticed_when_a_run_is_resumed(folder, tmp_path, monkeypatch):
    settings = {"rounds": 4, "cohort": cl.full(), "delta": 1e-3, "progress": False, "folder": tmp_path / "run"}
    first = cl.run(METHODS["dp_fedavg"](), cl.data.from_path(folder, classes=3), **settings)
    again = cl.run(METHODS["dp_fedavg"](), cl.data.from_path(folder, classes=3), resume=True, **settings)
    assert torch.equal(vector(first), vector(again))
    np.load(folder / "inputs.npy", mmap_mode="r+")[40, 2] += 1
    with pytest.raises(Corrupted, match="the task's data changed"):
        cl.run(METHODS["dp_fedavg"](), cl.data.from_path(folder, classes=3), resume=True, **settings)


def test_the_command_line_takes_the_folder(folder, command):
    words = ["method=dp_fedavg", "clip_norm=1", "noise_multiplier=1", "local_steps=1", "cohort=full", "rounds=2"]
    done = command("run", f"data={folder}", "classes=3", "delta=1e-3", *words, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    shown = command("data", "show", folder, "classes=3", cwd=folder.parent).stdout
    assert "smallest 0, median 4, largest 12 samples" in shown


def test_classes_are_inferred_where_they_are_not_declared(folder):
    task = cl.data.from_path(folder)
    assert (task.classes, task.classes_inferred, task.clients) == (3, True, 10)
    assert not cl.data.from_path(folder, classes=5).classes_inferred


def saved(name, make):
    def spoil(folder):
        array = np.load(folder / name)
        np.save(folder / name, make(array))

    return spoil


def with_value(row, value):
    def make(array):
        array[row] = value
        return array

    return make


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (saved("inputs.npy", with_value((40, 3), np.nan)), "inputs.npy, found NaN or infinity in row 40"),
        (saved("inputs.npy", with_value((41, 3), -np.inf)), "inputs.npy, found NaN or infinity in row 41"),
        (saved("labels.npy", with_value(39, 3)), "labels from 0 to 2, found 3 in row 39"),
        (saved("labels.npy", with_value(38, -1)), "labels from 0 to 2, found -1 in row 38"),
        (
            lambda folder: [saved(f"{part}labels.npy", np.zeros_like)(folder) for part in ("", "test-")],
            "two classes at least",
        ),
        (saved("labels.npy", lambda a: a.astype(np.int32)), "labels.npy to be uint8, int64"),
        (saved("labels.npy", lambda a: a.astype(np.uint8)), "labels.npy to be torch.int64 for the loss cross_entropy"),
        (saved("labels.npy", lambda a: a[1:]), "43 rows in .*labels.npy, as sizes.npy says, found 42"),
        (saved("inputs.npy", np.asfortranarray), "C order"),
        (saved("inputs.npy", lambda a: a.astype(">f4")), "float64, found '>f4'"),
        (saved("inputs.npy", lambda a: a.astype(np.complex64)), "found '<c8'"),
        (saved("sizes.npy", lambda a: a + 1), "53 rows in .*inputs.npy"),
        (saved("sizes.npy", lambda a: a - 1), "not negative"),
        (saved("sizes.npy", lambda a: a.astype(float)), "found 'float64 of shape"),
        (lambda folder: (folder / "labels.npy").unlink(), "labels.npy in .*, found 'no such file'"),
        (lambda folder: (folder / "test-labels.npy").unlink(), "or neither, found 'one'"),
        (lambda folder: (folder / "sizes.npy").write_bytes(b"no"), "readable .npy file, found .*sizes.npy damaged"),
        (lambda folder: unbalanced(folder / "labels.npy"), "a .npy file, found .*labels.npy, which is none"),
        (lambda folder: np.savez((folder / "sizes.npy").open("wb"), a=1), "one array in .*sizes.npy, found 'several'"),
        (lambda folder: np.save(folder / "test-labels.npy", np.array([{}]), allow_pickle=True), "test-labels.*damaged"),
        (lambda folder: (folder / "labels.npy").write_bytes(b"not an array"), "Expected a .npy file"),
        (lambda folder: os.truncate(folder / "inputs.npy", 900), "bytes of numbers in"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(folder, spoil, words, monkeypatch):
    monkeypatch.setattr(mapped, "BLOCK_BYTES", 100)  # so that there are several
    spoil(folder)
    with pytest.raises(CloisterError, match=words) as refused:
        cl.data.from_path(folder, classes=3)
    assert str(refused.value).count("\n") == 0


@pytest.mark.parametrize(
    ("people", "words"),
    [
        ([], "at least one client"),
        ([(np.zeros((2, 3)), [0, 1]), (np.zeros((2, 4)), [0, 1])], "one type and shape"),
        ([(np.zeros((2, 3)), [0, 1]), (np.zeros((2, 3), dtype=np.float32), [0, 1])], "one type and shape"),
        ([(np.zeros((2, 3)), [0, 1, 2])], "as many labels as inputs of client 0"),
        ([(np.zeros((2, 3)), [0, 1]), (np.full((2, 3), np.nan), [0, 1])], "finite inputs of client 1"),
    ],
)
def test_what_cannot_be_written_leaves_nothing_behind(people, words, tmp_path):
    with pytest.raises(CloisterError, match=words):
        cl.data.write_array_folder(tmp_path / "people", people)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(folder):
    with pytest.raises(CloisterError, match="a new folder"):
        cl.data.write_array_folder(folder, [(np.zeros((2, 3)), [0, 1])])


def test_numbers_can_be_labels(tmp_path):
    people = ((np.ones((3, 2), dtype=np.float32) * i, np.arange(3.0) * i) for i in range(4))
    cl.data.write_array_folder(tmp_path / "people", people)
    task = cl.data.from_path(tmp_path / "people", loss="mse")
    assert (task.population.labels.dtype, task.classes, len(task.test_labels)) == (torch.float32, None, 0)
    found = cl.run(METHODS["dp_fedavg"](), task, rounds=2, cohort=cl.full(), delta=1e-3, progress=False)
    assert torch.isfinite(vector(found)).all()


def test_test_inputs_of_another_type_are_refused(folder):
    """A model would see other numbers than in training, or fail after a round was charged."""
    np.save(folder / "test-inputs.npy", np.load(folder / "test-inputs.npy").astype(np.uint8))
    with pytest.raises(cl.CloisterError, match="test inputs of float32, as in training, found 'uint8'"):
        cl.data.from_path(folder, classes=3)
