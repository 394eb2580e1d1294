"""The papers' tables and figures: every file builds without data, its numbers have cells, and claims are kept."""

from __future__ import annotations

import pytest

from cloister.errors import CloisterError
from cloister.runs.choices import PARTS
from cloister.runs.config import parts_of
from cloister.runs.signatures import introspected
from cloister.studies.papers.cells import cells_of
from cloister.studies.papers.files import find, read, shipped
from cloister.studies.papers.reported import label_of
from cloister.studies.papers.scale import scale_of

FILES = {name: read(path) for name, path in shipped().items()}
ALL = {name: cells_of(file, scale_of("full")) for name, file in FILES.items()}
SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "fed_emnist": (1, 28, 28), "emnist": (1, 32, 32)}
SHAPES |= {"cifar10": (3, 32, 32), "cifar100": (3, 32, 32), "digits": (1, 8, 8)}
FEATURES = {1: (81, 7, 7), 3: (243, 8, 8)}


def at(name, **place):
    """The number that a file reports at a place."""
    place = {axis: label_of(value) for axis, value in place.items()}
    quantity = place.pop("quantity", "accuracy")
    (found,) = [one for one in FILES[name].reported if one.at == place and one.quantity == quantity]
    return found


def test_there_is_a_file_for_every_table_and_figure_with_results():
    items = {(file.about["key"], file.about["item"]) for file in FILES.values()}
    expected = {("000", f"Table {n}") for n in (1, 2, 3)} | {("000", f"Figure {n}") for n in (1, 2, 3, 4)}
    expected |= {("001", f"Table {n}") for n in (1, 2, 3, 4)} | {("001", f"Figure {n}") for n in (1, 2, 3, 4, 5)}
    expected |= {("002", "Table 1"), ("002", "Table 2"), ("002", "Figure 1")}
    expected |= {("003", f"Table {n}") for n in (2, 3, 4, 5)} | {("004", f"Figure {n}") for n in (1, 3, 4, 5, 6)}
    assert items == expected
    for file in FILES.values():
        assert file.reported or file.about["absent"], file.name
        assert file.choices
        assert file.about["url"].startswith("https://arxiv.org/abs/")


@pytest.mark.parametrize("scale", ["full", "tiny"])
def test_every_cell_builds_without_data(scale):
    models = {}
    for file in FILES.values():
        cells = ALL[file.name] if scale == "full" else cells_of(file, scale_of(scale))
        assert len({cell.name for cell in cells}) == len(cells), file.name
        apart = {(cell.method, str(sorted(cell.keys.items()))) for cell in cells}
        assert len(apart) == len(cells), f"two cells of a row of {file.name} are one"
        for cell in cells:
            values = cell.experiment(0).values
            assert cell.changed == {} if scale == "full" else cell.keys["data"] == "digits", cell.name
            models[tuple(values.get(key) for key in ("data", "features", "model", "activation"))] = values
    for values in models.values():
        shape = SHAPES[values["data"]]
        shape = FEATURES[shape[0]] if values.get("features") == "scatter" else shape
        if values["model"] != "resnet18":  # its size takes a second; `tests/models` makes it
            parts_of(values, PARTS, introspected().run).make("model", shape=shape, classes=10)


@pytest.mark.parametrize("name", FILES)
def test_reported_numbers_have_cells_and_claims(name):
    file = FILES[name]
    cells = {str(sorted(cell.at.items())): cell for cell in ALL[name] if not cell.replicates}
    for one in file.reported:
        assert one.mean is None or (0 <= one.mean <= 100 or one.quantity == "megabytes"), one
        assert one.sd is None or 0 <= one.sd < 5
        if one.not_run:
            continue
        cell = cells[str(sorted(one.at.items()))]  # KeyError: the file does not run what it reports
        private = cell.keys["method"] != "fedavg"
        assert (one.claimed_epsilon is not None) == private, one
        if isinstance(one.claimed_epsilon, float) and "epsilon" in cell.keys:
            assert cell.keys["epsilon"] <= one.claimed_epsilon, "a run may not cost more than the paper claims"


def test_user_level_papers_are_also_run_as_published():
    for key in ("000", "001"):
        rows = {
            cell.reported_as
            for file in FILES.values()
            if file.about["key"] == key
            for cell in ALL[file.name]
            if cell.replicates and cell.keys.get("mode") == "as_published"
        }
        assert len(rows) >= 2


def test_numbers_are_the_papers():
    assert at("blur-table1", model="CNN", epsilon=2, method="Ours").printed == "74.48 ± 0.52"
    assert at("blur-table1", model="ResNet-18", epsilon=8, method="AE-DPFL").mean == 81.33
    assert at("blur-table2", model="CNN", alpha=0.1, method="DP-FedAvg").sd == 1.04
    assert at("blur-table3", method="BLUR and LUS", sparsity=0.7).mean == 80.32
    assert at("dp-fedsam-table1-emnist", method="DP-FedSAM-topk", setting="IID").mean == 87.70
    assert at("dp-fedsam-table1-cifar10", method="DP-FedSAM-topk", setting="Dirichlet 0.6").mean == 57.00
    assert at("dp-fedsam-table1-cifar100", method="DP-FedAvg", setting="Dirichlet 0.6").printed == "15.92 ± 0.39"
    train = at("dp-fedsam-table1-emnist", method="DP-FedSAM", setting="Dirichlet 0.3", quantity="train_accuracy")
    assert train.mean == 96.28
    assert at("dp-fedsam-table2", data="CIFAR-100", method="DP-FedSAM", epsilon=8).printed == "18.20 ± 1.34"
    assert at("dp-fedsam-table3", data="CIFAR-10", method="DP-FedSAM-topk", keep_fraction=0.2).mean == 56.12
    assert at("fed-spa-table1-mnist", method="Fed-SPA", keep_fraction=0.4).mean == 94.84
    assert at("fed-spa-table2-cifar10", method="cpSGD", keep_fraction=0.4).claimed_epsilon == 258
    assert at("fed-spa-table2-cifar10", method="cpSGD", keep_fraction=0.1).printed == "diverge"
    assert at("pfl-table2-mnist", method="PFL", epsilon=1.2, split="(2, 10)", model="SN+Lin").mean == 96.86
    assert at("pfl-table4-cifar10", method="PFL", epsilon=7.53, split="(10, 2)", model="SN+Lin").mean == 55.27
    assert at("pfl-table4-cifar10", method="FedAvg", split="(20, 1)", model="SN+CNN").mean == 25.33
    assert at("pfl-table5", method="PFL CIFAR-10", clients=1, model="CNN+TS").mean == 57.31
    assert at("adap-dp-fl-figure5", method="Adap DP-FL", data="Fashion-MNIST").mean == 79.56


def test_the_settings_are_the_papers():
    (blur,) = cells_of(FILES["blur-table1"], scale_of("full"), rows="Ours, epsilon 2, model CNN")
    expected = {"data": "fed_emnist", "rounds": 1000, "sampling_rate": 0.04, "batch_size": 64, "local_steps": 30}
    expected |= {"lr": 0.03, "clip_norm": 0.03, "blur_lambda": 0.4, "sparsity": 0.7, "epsilon": 2.0}
    assert expected.items() <= blur.keys.items()
    (sam,) = cells_of(FILES["dp-fedsam-table1-emnist"], scale_of("full"), rows="DP-FedSAM, setting Dirichlet 0.6")
    expected = {"clients": 500, "sampling_rate": 0.1, "noise_multiplier": 0.95, "clip_norm": 0.2, "rounds": 200}
    assert (expected | {"local_epochs": 30, "rho": 0.5, "momentum": 0.5, "alpha": 0.6}).items() <= sam.keys.items()
    (pfl,) = cells_of(
        FILES["pfl-table3-fashion"], scale_of("full"), rows="PFL, epsilon 2.7, model SN+Lin, split (4, 5)"
    )
    expected = {"clients": 10, "partition": "iid", "local_epochs": 4, "rounds": 5, "lr": 0.3, "batch_size": 64}
    assert expected.items() <= pfl.keys.items()


def test_scales():
    file = FILES["dp-fedsam-table1-emnist"]
    (full,), (here,), (part,) = (
        cells_of(file, scale_of(scale), rows="DP-FedSAM, setting IID") for scale in ("full", "1", "0.1")
    )
    assert full.changed == {}
    assert here.changed == {
        "split": ("letters", "byclass"),
        "fraction": (0.7115384615384616, 1.0),
        "local_epochs": (30, 5),
    }
    assert {key: part.keys[key] for key in ("rounds", "clients", "fraction", "local_epochs", "evaluate_every")} == {
        "rounds": 20, "clients": 50, "fraction": 0.1, "local_epochs": 1, "evaluate_every": 1,
    }  # fmt: skip
    assert part.changed["rounds"] == (200, 20)
    for wrong in ("0", "1.5", "huge"):
        with pytest.raises(CloisterError, match="Expected a scale"):
            scale_of(wrong)


def test_overrides_and_rows():
    file = FILES["blur-table1"]
    cells = cells_of(file, scale_of("here"), {"rounds": 400, "clip_norm": 0.1}, rows="*model CNN")
    votes = next(cell for cell in cells if cell.method == "AE-DPFL")
    others = [cell for cell in cells if cell.method != "AE-DPFL"]
    assert {cell.keys["rounds"] for cell in others} == {400}
    assert all(cell.changed["rounds"] == (1000, 400) for cell in others)
    assert votes.keys["rounds"] == 1, "one round is the method"
    assert "clip_norm" not in votes.keys, "votes are not clipped"
    with pytest.raises(CloisterError, match="rows are DP-FedAvg"):
        cells_of(file, scale_of("full"), rows="FedProx")
    with pytest.raises(CloisterError, match="keys that some run"):
        cells_of(file, scale_of("full"), {"rho": 0.1})
    with pytest.raises(CloisterError, match="perhaps you mean"):
        find("blur-table9")
