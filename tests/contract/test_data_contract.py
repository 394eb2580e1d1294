"""What the price of a sample rests on: no sample is computed, placed or split by looking at another.

A neighbor differs in one sample and has every other one in its place, with the same client. (A sample that is removed
leaves its place on the roster: sizes are declared, and splits and partitions go by them.) So for every data set, for
every partition and for everybody's own data: another sample in one place changes that row of the tensors, and nothing
else. Partitions that look at labels say so, and the certificate repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cloister as cl
from cloister.core import Method
from cloister.data import Task, partitioners
from cloister.data.raw import Samples
from cloister.errors import CloisterError
from cloister.privacy.certificate_text import not_covered
from cloister.runs.config import build
from cloister.runs.prepare import Ready
from conftest import prepared
from contract.catalogue import SAMPLES
from contract.data_files import CASES, COUNT, Case, Rows

PARTITIONS = {
    "iid": cl.data.iid(5),
    "dirichlet": cl.data.dirichlet(5, 0.5),
    "dirichlet_by_class": cl.data.dirichlet_by_class(5, 0.5),
    "shards": cl.data.shards(5, 2),
    "natural": cl.data.natural(),
    "overlapping": cl.data.overlapping(5),
}
AT = (0, 9, COUNT - 1)


def test_every_data_set_and_every_partition_is_here():
    assert {case.name for case in CASES.values()} | {"digits"} == set(cl.data.CATALOGUE)
    assert set(PARTITIONS) == set(partitioners.CATALOGUE)


def tensors(task: Task) -> dict[str, Tensor]:
    people = task.population
    found = {"inputs": people.inputs, "labels": people.labels, "starts": people.starts, "sizes": people.sizes}
    found |= {"test inputs": task.test_inputs, "test labels": task.test_labels}
    return (
        found
        if task.public_samples is None
        else found | {"public inputs": task.public_samples[0], "public labels": task.public_samples[1]}
    )


def rows_that_differ(one: Task, other: Task) -> list[tuple[str, int]]:
    """Every row of a training, test or public set that is not the same in both; places and types always are."""
    mine, theirs = tensors(one), tensors(other)
    assert {k: (t.dtype, t.shape) for k, t in mine.items()} == {k: (t.dtype, t.shape) for k, t in theirs.items()}
    for name in ("starts", "sizes"):
        assert torch.equal(mine[name], theirs[name])
    assert (one.classes, one.shape, one.preprocessing.settings) == (
        other.classes,
        other.shape,
        other.preprocessing.settings,
    )
    found = set()
    for name in mine.keys() - {"starts", "sizes"}:
        differ = (mine[name] != theirs[name]).view(len(mine[name]), mine[name][:1].numel()).any(1)
        found |= {(name.split()[0] if " " in name else "training", row) for row in differ.nonzero().flatten().tolist()}
    return sorted(found)


def expect_one_row(one: Task, other: Task) -> int:
    """That row, or as many as there are copies of it; or none, of a sample that is dealt to nobody. How many it was."""
    differ = rows_that_differ(one, other)
    assert len(differ) <= one.copies, differ
    return len(differ)


def variants(case: Case, rows: Rows) -> list[tuple[str, Rows]]:
    """The samples with another one in one place: with other inputs, and with another label."""
    new = case.draw(np.random.default_rng(7), COUNT)
    found = []
    for row in AT:
        old = rows.inputs[row]
        others = [x for x in (new[row], *case.others(old)) if repr(x.tolist()) != repr(old.tolist())]
        found += [("inputs", rows.with_other(row, x)) for x in others]
        found.append(("label", rows.with_other(row, label=int(rows.labels[row] + 1) % case.classes)))
    return found


def dealt(case: Case, partition: partitioners.Partition) -> Task:
    return case.task(partition=partition, public_samples=2)


@pytest.mark.parametrize("name", CASES)
def test_another_sample_changes_its_own_row_alone(name, tmp_path, monkeypatch):
    case = CASES[name]
    rows, held = case.rows(0), case.rows(1, 12)

    def tasks_of(folder: Path, mine: Rows) -> dict[str, Task]:
        case.write(folder, mine, held)
        monkeypatch.setenv("CLOISTER_DATA", str(folder))
        chosen = {p: made for p, made in PARTITIONS.items() if p != "natural" or case.owned}
        return {p: dealt(case, made) for p, made in chosen.items()}

    before, found = tasks_of(tmp_path / "before", rows), []
    for number, (what, changed) in enumerate(variants(case, rows)):
        for partition, task in tasks_of(tmp_path / str(number), changed).items():
            assert task.prepared_by == "sample"
            if what == "label" and task.label_dependent:
                continue  # which is said, see below
            found.append(expect_one_row(before[partition], task))
    assert np.mean(np.sign(found)) > 0.7, "nearly every sample has a row"


def test_another_digit_changes_its_own_row_alone(monkeypatch):
    from sklearn import datasets

    real = datasets.load_digits()
    some = Rows(real.images[:60], real.target[:60], np.zeros(60))

    def tasks_of(rows: Rows) -> dict[str, Task]:
        digits = SimpleNamespace(images=rows.inputs, target=rows.labels)
        monkeypatch.setattr("sklearn.datasets.load_digits", lambda: digits)
        return {p: cl.data.digits(partition=made, public_samples=5) for p, made in PARTITIONS.items() if p != "natural"}

    before = tasks_of(some)
    for row in AT:
        for what, rows in (
            ("inputs", some.with_other(row, 16 - some.inputs[row])),
            ("label", some.with_other(row, label=9)),
        ):
            for partition, task in tasks_of(rows).items():
                if what == "label" and (task.label_dependent or some.labels[row] == 9):
                    continue
                assert expect_one_row(before[partition], task) or partition == "overlapping"


def test_scattering_features_are_of_one_plot(tmp_path, monkeypatch):
    pytest.importorskip("kymatio", reason="needs kymatio: pip install cloister[scattering]")
    case, found = CASES["mnist"], []
    rows, held = case.rows(0), case.rows(1, 12)
    for folder, mine in (("before", rows), ("after", rows.with_other(3, held.inputs[0]))):
        case.write(tmp_path / folder, mine, held)
        monkeypatch.setenv("CLOISTER_DATA", str(tmp_path / folder))
        found.append(cl.data.mnist(PARTITIONS["iid"], features="scatter"))
    assert expect_one_row(*found) == 1


# ---------------------------------------------------------------- partitions that look at labels


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partition_says_whether_it_looks_at_labels(name):
    """True where another label moves other samples, for some sample; false where it never does."""
    labels, owners = np.arange(60) % 3, np.arange(60) % 6
    inputs, partition = np.zeros((60, 1), np.float32), PARTITIONS[name]

    def client_rows(labels: np.ndarray) -> list[list[int]]:
        return [hand.tolist() for hand in partition.assign(Samples(inputs, labels, owners))]

    others = [np.where(np.arange(60) == row, (labels + 1) % 3, labels) for row in range(0, 60, 4)]
    assert any(client_rows(other) != client_rows(labels) for other in others) == partition.label_dependent


# ---------------------------------------------------------------- everybody's own data


def squares(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels[:, None]) ** 2


class Table:
    """What `datasets.Dataset` offers, as far as it is used."""

    def __init__(self, **columns: list) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> list:
        return self.columns[name]


def as_arrays(folder: Path, rows: Rows, **options: Any) -> Task:
    return cl.data.from_arrays(rows.inputs, rows.labels, rows.people, **options)


def as_lists(folder: Path, rows: Rows, **options: Any) -> Task:
    return cl.data.from_arrays(rows.inputs.tolist(), rows.labels.tolist(), rows.people.tolist(), **options)


def as_dataset(folder: Path, rows: Rows, **options: Any) -> Task:
    table = Table(x=rows.inputs.tolist(), label=rows.labels.tolist(), who=rows.people.tolist())
    return cl.data.from_dataset(table, client="who", **options)


def as_npz(folder: Path, rows: Rows, **options: Any) -> Task:
    folder.mkdir()
    for person in np.unique(rows.people):
        own = rows.people == person
        np.savez(folder / f"{person}.npz", inputs=rows.inputs[own], labels=rows.labels[own])
    return cl.data.from_folder(folder, **options)


def as_csv(folder: Path, rows: Rows, **options: Any) -> Task:
    folder.mkdir()
    for person in np.unique(rows.people):
        own = rows.people == person
        table = np.concatenate([rows.inputs[own], rows.labels[own][:, None]], axis=1)
        lines = ["a,b,c,label", *(",".join(f"{value:g}" for value in row) for row in table)]
        (folder / f"{person}.csv").write_text("\n".join(lines))
    return cl.data.from_folder(folder, **options)


def as_parquet(folder: Path, rows: Rows, **options: Any) -> Task:
    pyarrow = pytest.importorskip("pyarrow", reason="needs cloister[parquet]")
    from pyarrow import parquet

    folder.mkdir()
    for person in np.unique(rows.people):
        own = rows.people == person
        columns = {name: rows.inputs[own][:, number] for number, name in enumerate("abc")}
        table = pyarrow.table({**columns, "label": rows.labels[own]})
        parquet.write_table(table, folder / f"{person}.parquet")
    return cl.data.from_folder(folder, **options)


OWN = [as_arrays, as_lists, as_dataset, as_npz, as_csv, as_parquet]


@pytest.mark.parametrize("make", OWN)
def test_another_sample_of_ones_own_changes_its_own_row_alone(make, tmp_path):
    random = np.random.default_rng(0)
    rows = Rows(random.normal(size=(COUNT, 3)), np.arange(COUNT) % 3, np.arange(COUNT) % 4)
    before = make(tmp_path / "before", rows, classes=3, public_samples=2)
    for row in AT:
        for number, other in enumerate((rows.with_other(row, rows.inputs[row] * -1e3), rows.with_other(row, label=2))):
            after = make(tmp_path / f"{row}-{number}", other, classes=3, public_samples=2)
            assert expect_one_row(before, after) == (number == 0 or rows.labels[row] != 2)
            assert not after.classes_inferred


@pytest.mark.parametrize("make", OWN)
def test_one_label_does_not_decide_what_all_labels_are(make, tmp_path):
    """A loss of one's own, and labels that happen to be whole numbers but for one of them."""
    random = np.random.default_rng(0)
    rows = Rows(random.normal(size=(COUNT, 3)), (np.arange(COUNT) % 3).astype(float), np.arange(COUNT) % 4)
    fixed = {"loss": squares, "model": lambda: torch.nn.Linear(3, 1)}
    before = make(tmp_path / "before", rows, **fixed)
    for row in AT:
        after = make(tmp_path / str(row), rows.with_other(row, label=0.5), **fixed)
        assert expect_one_row(before, after) == 1
        assert after.population.labels.is_floating_point()


@pytest.mark.parametrize("make", [as_arrays, as_npz, as_csv, as_dataset])
def test_a_class_that_one_sample_has_shows_and_is_said(make, tmp_path):
    rows = Rows(np.random.default_rng(0).normal(size=(COUNT, 3)), np.arange(COUNT) % 3, np.arange(COUNT) % 4)
    before, after = make(tmp_path / "a", rows), make(tmp_path / "b", rows.with_other(5, label=7))
    assert (before.classes, after.classes) == (3, 8)
    assert before.classes_inferred
    assert after.classes_inferred


def test_one_row_or_one_client_does_not_decide_the_type_of_all(tmp_path):
    y, who = [0, 1, 0, 1], [0, 0, 1, 1]
    with pytest.raises(CloisterError, match="inputs of one type, whole numbers as in the first row, found 'fractions"):
        cl.data.from_arrays([[1, 2], [3, 4], [5.5, 6], [7, 8]], y, who)
    with pytest.raises(CloisterError, match=r"x to be int64 of shape .* found 'float64 of shape .* in row 2"):
        cl.data.from_dataset(Table(x=[1, 2, 2.5, 3], label=y, who=who), client="who")
    np.savez(tmp_path / "a.npz", inputs=np.zeros((3, 1, 2, 2), np.uint8), labels=np.arange(3))
    np.savez(tmp_path / "b.npz", inputs=np.zeros((3, 1, 2, 2)), labels=np.arange(3))
    with pytest.raises(CloisterError, match="every client's inputs to be uint8 like the first one's, found float64"):
        cl.data.from_folder(tmp_path)
    np.savez(tmp_path / "b.npz", inputs=np.zeros((3, 1, 2, 2), np.uint8), labels=np.arange(3.0))
    with pytest.raises(CloisterError, match="every client's labels to be int64 like the first one's, found float64"):
        cl.data.from_folder(tmp_path)
    np.savez(tmp_path / "b.npz", inputs=np.zeros((0, 1, 2, 2)), labels=np.zeros(0))
    task = cl.data.from_folder(tmp_path, test=0.3)
    assert (task.population.inputs.dtype, task.clients) == (torch.uint8, 2), "who has no sample has no type"


# ---------------------------------------------------------------- the false certificate


def heart_files(root: Path, blank: bool = False) -> None:
    """The four hospitals; the cholesterol of a patient who is trained on may be blanked, where others lack theirs."""
    case = CASES["heart"]
    rows = case.rows(0, 160)
    if blank:
        rows = rows.with_other(4, np.where(np.arange(13) == 4, np.nan, rows.inputs[4]))
    case.write(root, rows, rows)


def test_a_value_that_is_blanked_changes_one_training_row_of_a_run_for_samples(tmp_path, monkeypatch):
    """Gaps were filled with the hospital's median: a patient's value was in every row of the hospital that had one."""
    found = []
    for folder, blank in (("before", False), ("after", True)):
        heart_files(tmp_path / folder, blank)
        monkeypatch.setenv("CLOISTER_DATA", str(tmp_path / folder))
        found.append(cl.data.heart())
    assert found[0].prepared_by == "sample"
    assert expect_one_row(*found) == 1


@pytest.fixture
def hospitals(tmp_path, monkeypatch) -> Path:
    heart_files(tmp_path)
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))
    return tmp_path


def test_medians_of_clients_are_refused_where_samples_are_protected(hospitals):
    task, folder = cl.data.heart(impute="client_median"), hospitals / "run"
    for name in SAMPLES.keys() & cl.methods.CATALOGUE.keys():
        with pytest.raises(CloisterError, match="every sample was prepared by itself"):
            cl.run(SAMPLES[name](), task, rounds=1, delta=1e-5, folder=folder, progress=False)
    assert not folder.exists(), "before anything is charged or written"
    run = cl.run(SAMPLES["pfl"](), cl.data.heart(), rounds=1, delta=1e-5, folder=folder, progress=False)
    assert run.certificate.unit == "sample"


def test_medians_of_clients_are_for_clients_that_are_hospitals(hospitals):
    for _ in range(2):  # decoded, and from the cache
        assert cl.data.heart(impute="client_median").prepared_by == "client"
    assert not torch.equal(cl.data.heart(impute="client_median").population.inputs, cl.data.heart().population.inputs)
    method = cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1, noise_multiplier=2.0)
    run = cl.run(method, cl.data.heart(impute="client_median"), rounds=1, delta=1e-5, progress=False)
    assert run.certificate.unit == "client"
    for make in (cl.data.iid(4), cl.data.dirichlet(4), cl.data.overlapping(4)):
        with pytest.raises(CloisterError, match=r"the natural partition .* use impute = public"):
            cl.data.heart(make, impute="client_median")


def test_the_command_that_was_certified_wrongly(hospitals):
    """data=heart method=pfl, by the keys alone: it runs, and its data has nothing of one patient in another's row."""
    keys = {
        "data": "heart",
        "method": "pfl",
        "clip_norm": 1.0,
        "lr": 0.1,
        "local_epochs": 1,
        "rounds": 2,
        "delta": 1e-5,
    }
    assert build({**keys, "epsilon": 2.0}).start(progress=False).epsilon <= 2.0
    with pytest.raises(CloisterError, match="every sample was prepared by itself"):
        build({**keys, "epsilon": 2.0, "impute": "client_median"}).start(progress=False)


# ---------------------------------------------------------------- what the certificate says


def gaps_of(task: Task, make: Callable[[], Method]) -> str:
    return " ".join(not_covered(prepare_for(make(), task).description, 1e-5, private=True))


def prepare_for(method: Method, task: Task) -> Ready:
    return prepared(method, task, rounds=1, delta=1e-5)


def clients_protected() -> Method:
    return cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1, noise_multiplier=2.0)


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "dirichlet_by_class", "shards"])
def test_certificates_say_that_labels_decided_who_holds_what(partition):
    task = cl.data.digits(partition=PARTITIONS[partition])
    for make, kept in (
        (SAMPLES["pfl"], "differ in one sample, every other sample in its place"),
        (clients_protected, "differ in one client, every other client with the samples it has"),
    ):
        gaps = gaps_of(task, make)
        assert ("labels decided which client holds which sample" in gaps) == PARTITIONS[partition].label_dependent
        assert (kept in gaps) == PARTITIONS[partition].label_dependent


def test_certificates_say_where_classes_come_from():
    x, y, who = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3, np.arange(60) % 5
    for make, unit in ((SAMPLES["pfl"], "sample"), (clients_protected, "client")):
        assert f"a label which only one {unit} has" in gaps_of(cl.data.from_arrays(x, y, who), make)
        assert "largest label" not in gaps_of(cl.data.from_arrays(x, y, who, classes=3), make)


def test_certificates_say_what_windows_share(tmp_path, monkeypatch):
    CASES["har"].write(tmp_path, CASES["har"].rows(0), CASES["har"].rows(1))
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))
    assert "lies in two samples" in gaps_of(cl.data.har(), SAMPLES["pfl"])
    assert "lies in two samples" not in gaps_of(cl.data.har(), clients_protected)


def test_descriptions_say_it_without_private_numbers():
    """Of clients, neither sizes nor labels: the flags are the same whatever the clients hold."""
    found = []
    for seed in (0, 1):
        random = np.random.default_rng(seed)
        x, y, who = random.normal(size=(60, 4)), random.integers(0, 3, 60), np.arange(60) % 5
        task = cl.data.from_arrays(x, y, np.where(random.random(60) < 0.2, 0, who), classes=3)
        found.append(prepare_for(clients_protected(), task).description.task)
    assert found[0] == found[1]
