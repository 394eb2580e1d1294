from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from cloister import methods
from cloister.errors import CloisterError
from cloister.runs.config import build
from cloister.runs.config_file import load
from cloister.runs.signatures import introspected
from cloister.studies.planning import planned

GOOD = {
    "clip_norm": 1.0,
    "local_steps": 2,
    "sampling_rate": 0.5,
    "rounds": 3,
    "epsilon": 4.0,
    "delta": 1e-3,
    "clients": 40,
}
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ALL = sorted(path for path in EXPERIMENTS.glob("*.toml") if not path.name.endswith("-schema.toml"))
COMPARED = [path for path in ALL if re.search("-(methods|samples)", path.stem)]
SHIPPED = [path for path in ALL if path not in COMPARED]
PRIVATE_ALONE = {"mnist-methods-cnn", "mnist-samples-cnn"}
"""Comparisons of private methods with one another, without one that protects nobody."""


def test_every_key_has_a_help_text_beside_it():
    without = [f"{key.owner}: {key.name}" for key in introspected().all_keys() if not 5 < len(key.help) < 120]
    assert not without, "write Annotated[type, what it means]"


def test_defaults_are_filled_in_and_survive_a_round_trip():
    experiment = build(GOOD)
    again = tomllib.loads(experiment.toml)
    assert again == experiment.values
    assert build(again).values == experiment.values
    assert again["method"] == "dp_fedavg"
    assert again["server_lr"] == 1.0
    assert "noise_multiplier" not in again, "what is to be calibrated stays open"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_every_shipped_config_loads_and_names_its_command(path):
    assert path.read_text().startswith(f"# cloister run experiments/{path.name}")
    objective = ""
    try:
        build(load(path))
    except CloisterError as error:
        objective = str(error)
    assert not objective or "cloister data get" in objective, "all keys are right; only the data may be missing"


@pytest.mark.parametrize("path", COMPARED, ids=lambda p: p.name)
def test_every_shipped_comparison_loads_and_compares_what_is_alike(path):
    """All of them protect the same unit, and are compared with what protects nobody, but for those named above."""
    assert path.read_text().startswith(f"# cloister compare experiments/{path.name}")
    file = tomllib.loads(path.read_text())
    tables, epsilons = file["methods"], file["epsilons"]
    units = {methods.REGISTRY[own.get("method", name)].unit for name, own in tables.items()}
    noiseless = path.stem not in PRIVATE_ALONE
    assert units == {"sample" if "-samples" in path.stem else "client"} | ({"nobody"} if noiseless else set())
    objective = ""
    try:
        assert len(planned(path, [])) == len(epsilons) * len(tables) - noiseless  # all but fedavg at every epsilon
    except CloisterError as error:
        objective = str(error)
    assert not objective or "cloister data get" in objective


def test_there_are_shipped_configs():
    assert SHIPPED
    assert COMPARED


def test_the_command_line_overrides_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("clip_norm = 1.0\nlocal_steps = 2\n")
    values = load(path, ["clip_norm=0.5", "method=dp_fedavg", "delta=1/500", 'device="cpu"'])
    assert values == {"clip_norm": 0.5, "local_steps": 2, "method": "dp_fedavg", "delta": "1/500", "device": "cpu"}
    assert build({**GOOD, "delta": "1/500"}).values["delta"] == 1 / 500


def test_parts_take_their_keys():
    values = {
        **GOOD,
        "server": "adam",
        "server_lr": 0.02,
        "model": "mlp",
        "hidden": 7,
        "cohort": "fixed_size",
        "clients_per_round": 5,
    }
    del values["sampling_rate"]
    keywords = build(values).start
    assert keywords.args[0].server.settings["lr"] == 0.02
    assert keywords.keywords["cohort"].settings == {"clients_per_round": 5}
    assert keywords.keywords["model"]()[1].out_features == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip_nrm": 1.0}, 'perhaps you mean "clip_norm"'),
        ({"zzzz": 1}, "known are"),
        ({"hidden": 5}, "belongs to model mlp"),
        ({"clients_per_round": 5}, "belongs to cohort fixed_size and cyclic: remove it, or choose one of these"),
        ({"method": "dp_fedavgg"}, 'perhaps you mean "dp_fedavg"'),
        ({"data": "cats"}, "data to be one of digits"),
        ({"partition": "alphabetical"}, "partition to be one of iid"),
        ({"alpha": 0.5}, "belongs to partition dirichlet"),
        ({"clip_norm": -1.0}, "clip_norm > 0"),
        ({"clip_norm": "big"}, "clip_norm to be a number, found 'big'"),
        ({"rounds": 2.5}, "rounds to be a whole number"),
        ({"rounds": True}, "rounds to be a whole number"),
        ({"sampling_rate": 1.5}, "0 < sampling_rate <= 1"),
        ({"noise": "loud"}, "noise to be one of central, distributed"),
        ({"model": 3}, "model to be one of"),
        ({"local_epochs": 2}, "either local_steps or local_epochs"),
    ],
)
def test_bad_keys_are_refused(change, message):
    with pytest.raises(CloisterError, match=message):
        build({**GOOD, **change})


@pytest.mark.parametrize("missing", ["clip_norm", "sampling_rate", "rounds"])
def test_required_keys_are_asked_for(missing):
    with pytest.raises(CloisterError, match=f"value for {missing}"):
        build({key: value for key, value in GOOD.items() if key != missing})


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(CloisterError, match="readable config file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("clip = = 3")
    with pytest.raises(CloisterError, match="valid TOML"):
        load(tmp_path / "bad.toml")
    with pytest.raises(CloisterError, match="key=value"):
        load(None, ["clip_norm"])


def test_no_method_hides_a_key():
    """A method's arguments are its keys; positional-only or variadic ones could not be configured."""
    allowed = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    for name, make in methods.CATALOGUE.items():
        parameters = inspect.signature(make).parameters
        assert {p.kind for p in parameters.values()} <= allowed
        assert {key.name for key in introspected().all_keys() if key.owner == f"method {name}"} == parameters.keys() - {
            "server"
        }


RATES = ["lr_decay", "lr_schedule", "lr_warmup", "lr_final", "lr_rounds"]


def test_local_training_has_the_same_keys_and_help_in_every_method():
    fields = {key.name: key.help for key in introspected().all_keys() if key.owner == "method fedavg"}
    steps = ["lr", "batch_size", "local_steps", "local_epochs", "momentum", "weight_decay", *RATES]
    assert list(fields) == [*steps, "client_weights"]
    for name in methods.CATALOGUE:
        if name not in ("pfl", "adap_dp_fl", "dp_fl"):  # their epochs and steps are others
            mine = {key.name: key.help for key in introspected().all_keys() if key.owner == f"method {name}"}
            assert mine == {**mine, **{key: text for key, text in fields.items() if key in mine}}
