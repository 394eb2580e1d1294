"""The data sets as tasks: on the real files where CLOISTER_DATA has them, on tiny ones otherwise."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.data.formats import FORMATS
from cloister.data.raw import RawData, Samples
from cloister.data.registry import ENTRIES
from cloister.data.scattering import ScatterOptions, normalized_features, scattered
from cloister.errors import CloisterError
from cloister.models import scatter
from tiny_mnist import write_tiny_mnist


def here(*files: str) -> bool:
    root = os.environ.get("CLOISTER_DATA")
    return root is not None and all((Path(root) / file).exists() for file in files)


def needs(*files: str):
    return pytest.mark.skipif(not here(*files), reason=f"needs {', '.join(files)} under CLOISTER_DATA")


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch) -> Path:
    write_tiny_mnist(tmp_path)
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))
    return tmp_path


def test_every_set_can_be_read_listed_and_configured():
    assert set(cl.data.CATALOGUE) == set(ENTRIES) == set(FORMATS) | {"digits"}
    for make in cl.data.CATALOGUE.values():
        assert "partition" in inspect.signature(make).parameters
    assert set(cl.data.DEFAULTS) <= set(cl.data.CATALOGUE)


def test_pictures_stay_bytes_until_the_step(tiny_mnist):
    task = cl.data.mnist(cl.data.iid(6))
    assert task.population.inputs.dtype == torch.uint8
    assert task.shape == (1, 28, 28)
    run = cl.run(
        cl.methods.dp_fedavg(clip_norm=1.0, local_steps=2, noise_multiplier=1.0),
        task,
        rounds=2,
        delta=1e-2,
        model=lambda: cl.models.papernot_mnist_cnn(task.shape, 10),
        progress=False,
    )
    assert run.history[-1]["mean_client_accuracy"] is not None


def test_augmented_pictures_train_too(tiny_mnist):
    task = cl.data.mnist(cl.data.iid(6), augment=True)
    assert task.preprocessing.settings["pad"] == 4
    assert not task.preprocessing.settings["flip"], "digits are not symmetric"
    cl.run(cl.methods.fedavg(local_steps=1), task, rounds=1, progress=False)


def test_flips_and_gray_images_as_in_dp_fedsam_are_options_of_augmented_images(tiny_mnist):
    plain = cl.data.mnist(cl.data.iid(6), augment=True).preprocessing.settings
    both = cl.data.mnist(cl.data.iid(6), augment=True, flips="both", grayscale=0.1).preprocessing.settings
    assert both == {**plain, "flip": True, "flip_vertically": True, "grayscale": 0.1}
    vertical = cl.data.mnist(cl.data.iid(6), augment=True, flips="vertical").preprocessing.settings
    assert vertical == {**plain, "flip_vertically": True}
    assert cl.data.mnist(cl.data.iid(6), augment=True, flips="none").preprocessing.settings == plain
    for name, value in (("flips", "both"), ("grayscale", 0.1)):
        for more in ({}, {"features": "scatter"}):
            with pytest.raises(CloisterError, match=f"Expected augment = true beside {name}, found False: set it, or"):
                cl.data.mnist(**{name: value}, **more)
    with pytest.raises(CloisterError, match="flips to be one of"):
        cl.data.mnist(augment=True, flips="diagonal")
    with pytest.raises(CloisterError, match="grayscale"):
        cl.data.mnist(augment=True, grayscale=2.0)
    task = cl.data.mnist(cl.data.iid(6), augment=True, flips="both", fraction=0.5)
    assert (int(task.population.sizes.sum()), len(task.test_labels)) == (30, 10)
    runs = [
        cl.run(cl.methods.fedavg(local_steps=2), task, rounds=2, progress=False, engine=engine, seed=4)
        for engine in ("loop", "vectorized", "loop")
    ]
    weights = [torch.nn.utils.parameters_to_vector(run.model.parameters()) for run in runs]
    torch.testing.assert_close(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2]), "the same seed, the same flips"


@pytest.mark.slow
@needs("EMNIST/raw/emnist-byclass-train-labels-idx1-ubyte.gz")
def test_emnist_in_62_classes_has_the_sizes_that_are_documented():
    """Where the files are the official ones; of others (a part of them, say), the same share."""
    whole = cl.data.emnist(cl.data.iid(500))
    sizes = len(whole.population.labels), len(whole.test_labels)
    for fraction, official in ((0.2, (139_586, 23_265)), (0.127233, (88_800, 14_800))):
        task = cl.data.emnist(cl.data.iid(500), fraction=fraction)
        share = tuple(int(n * fraction + 0.5) for n in sizes)
        found = len(task.population.labels), len(task.test_labels)
        assert found == (official if sizes == (697_932, 116_323) else share)
        assert task.classes == 62


def test_scattering_features_are_computed_once_and_kept(tiny_mnist, monkeypatch):
    task = cl.data.mnist(cl.data.iid(6), features="scatter")
    assert task.shape == (81, 7, 7)
    assert sum(p.numel() for p in task.model().parameters()) == 39_700
    monkeypatch.setattr("cloister.data.scattering.scatter", lambda images: pytest.fail("computed twice"))
    again = cl.data.mnist(cl.data.iid(6), features="scatter")
    assert torch.equal(task.population.inputs, again.population.inputs)
    with pytest.raises(CloisterError, match="augment"):
        cl.data.mnist(features="scatter", augment=True)


def test_scattering_keeps_owners_and_labels():
    part = Samples(np.zeros((3, 1, 28, 28), np.uint8), np.arange(3), np.array(["a", "b", "a"]))
    made = scattered(RawData(part, part, 10))
    assert made.train.inputs.shape == (3, 81, 7, 7)
    assert made.test.owners.tolist() == ["a", "b", "a"]


def test_a_missing_set_names_the_command_that_gets_it(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))
    with pytest.raises(CloisterError, match="cloister data get cifar10"):
        cl.data.cifar10()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs("MNIST/raw", "qmnist")
def test_qmnist_has_539_writers():
    task = cl.data.qmnist()
    assert task.clients == 539
    assert (int(task.population.sizes.min()), int(task.population.sizes.max())) == (19, 131)
    assert len(task.local_test[0]) > 0, "test writers are others, so test sets are drawn"


@pytest.mark.slow
@needs("cifar-10-batches-py")
@pytest.mark.parametrize("make", [cl.data.dirichlet, cl.data.dirichlet_by_class, cl.data.iid])
def test_cifar10_is_dealt_to_a_thousand_clients(make):
    task = cl.data.cifar10(make(1000))
    assert (task.clients, task.shape, int(task.population.sizes.sum())) == (1000, (3, 32, 32), 50_000)
    assert torch.bincount(task.population.labels).tolist() == [5000] * 10


@pytest.mark.slow
@needs("MNIST/raw")
def test_adap_dp_fl_gets_its_shards():
    task = cl.data.mnist(cl.data.shards(10, 4))
    assert task.population.sizes.tolist() == [6000] * 10
    labels = [set(task.population.labels[s : s + 6000].tolist()) for s in task.population.starts.tolist()]
    assert max(map(len, labels)) <= 8


@pytest.mark.slow
@needs("tinyshakespeare.txt.gz", "uci_har_30subjects.npz.xz", "heart_disease")
@pytest.mark.parametrize(("name", "clients"), [("shakespeare", 256), ("har", 30), ("heart", 4)])
def test_natural_sets_train(name, clients):
    task = cl.data.CATALOGUE[name]()
    assert task.clients == clients
    run = cl.run(cl.methods.fedavg(lr=0.1, local_steps=1), task, rounds=1, cohort=cl.fixed_size(3), progress=False)
    assert run.accuracy is not None


@pytest.mark.slow
@needs("heart_disease/processed.va.data")
def test_heart_disease_from_raw_files_with_a_schema_is_as_good_as_the_built_in_reader():
    """The same hospitals, epsilon and seeds; the means of five runs differ by less than two points."""
    root = Path(os.environ["CLOISTER_DATA"]) / "heart_disease"
    schema = Path(__file__).parent.parent.parent / "experiments" / "heart-schema.toml"
    own, built_in = cl.data.from_folder(root, schema=schema), cl.data.heart()
    assert (own.client_names, own.prepared_by) == (("cleveland", "hungarian", "switzerland", "va"), "sample")
    assert torch.equal(own.test_labels, built_in.test_labels), "the same patients are held out"
    means = []
    for task in (own, built_in):
        method = cl.methods.pfl(clip_norm=1.0, lr=0.5, batch_size=32)
        runs = [cl.run(method, task, rounds=20, epsilon=2.0, delta=1e-3, seed=seed) for seed in range(5)]
        means.append(sum(run.accuracy for run in runs) / len(runs))
    assert abs(means[0] - means[1]) < 0.02, means
    assert min(means) > 0.75


def test_low_orders_of_scattering_features_have_their_weight():
    """By what a constant image has: a mean, and nothing of orders 1 and 2; and by the norms of an edge's orders."""
    options = ScatterOptions(scatter_low_orders=3.0)
    edge = np.zeros((1, 2, 28, 28), np.float32)
    edge[:, :, :, 14:] = 1
    plain = scatter(edge).clip(min=0)  # rounding leaves some below zero, which are cut
    weighed = normalized_features(plain, options)
    for color in range(2):  # 81 channels for each: the mean, 16 of order 1, 64 of order 2
        first, last = 81 * color, 81 * (color + 1)
        assert np.allclose(weighed[:, first : first + 17], 3 * plain[:, first : first + 17])
        assert np.array_equal(weighed[:, first + 17 : last], plain[:, first + 17 : last])
    constant = scatter(np.ones((1, 1, 28, 28), np.float32))
    inside = constant[:, :, 2:5, 2:5]  # away from the borders
    assert inside[:, 0].min() > 0.9
    assert np.abs(inside[:, 1:]).max() < 1e-3
    assert not options.unchanged
    with pytest.raises(CloisterError, match="scatter_low_orders"):
        ScatterOptions(scatter_low_orders=0.0)
