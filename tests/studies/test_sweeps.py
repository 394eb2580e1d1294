"""Lists of values become cells: which keys are swept, in which order, under which names, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from cloister.errors import CloisterError
from cloister.runs.config import Parts
from cloister.studies.cells import folder_name
from cloister.studies.planning import planned

KEYS = {
    "data": "digits",
    "clients": 20,
    "clip_norm": 1.0,
    "local_steps": 1,
    "sampling_rate": 0.5,
    "rounds": 1,
    "delta": 1e-2,
}
RUN = {**KEYS, "method": "dp_fedavg", "epsilon": 2.0}


def names(*arguments, **more) -> list[str]:
    return [cell.folder for cell in planned(*arguments, **more)]


def test_cells_are_the_product_of_all_lists_and_the_seed_changes_fastest():
    cells = planned({**RUN, "seed": [0, 1]}, ["lr=[0.3,1]"])
    assert [cell.swept for cell in cells] == [{"lr": lr, "seed": seed} for lr in (0.3, 1.0) for seed in (0, 1)]
    assert cells[0].folder == "dp_fedavg-lr-0.3-seed-0"
    assert [cell.experiment.values["lr"] for cell in cells] == [0.3, 0.3, 1.0, 1.0]
    assert {(cell.epsilon, cell.experiment.values["epsilon"]) for cell in cells} == {(2.0, 2.0)}
    assert [cell.seed for cell in cells] == [0, 1, 0, 1]
    assert len({cell.row for cell in cells}) == 2
    assert names({**RUN, "lr": [0.3, 1]}, ["seed=[0,1]"]) == [cell.folder for cell in cells], "whatever the order"


def test_ranges_tuples_and_arrays_are_lists_in_python():
    lists = names({**RUN, "seed": [0, 1, 2]}, {"lr": [0.1, 0.25]})
    assert names({**RUN, "seed": range(3)}, {"lr": (0.1, 0.25)}) == lists
    assert names({**RUN, "seed": np.arange(3)}, {"lr": list(np.array([0.1, 0.25]))}) == lists


def test_a_list_of_one_list_is_that_list_and_no_name():
    (cell,) = planned({**RUN, "seed": [0], "record": [["norms", "clipping"]]})
    assert cell.folder == "dp_fedavg-seed-0"
    assert cell.experiment.values["record"] == ["norms", "clipping"]


def test_lists_on_top_under_shared_in_a_table_and_on_the_command_line():
    file = {
        "epsilons": [8, 2],
        "seed": [0, 1],
        "shared": {**KEYS, "lr": [0.3, 1.0]},
        "methods": {"fedavg": {}, "dp_fedsam": {"rho": [0.05, 0.5], "lr": 0.1}},
    }
    cells = planned(file)
    assert [cell.folder for cell in cells][:4] == [f"fedavg-lr-{lr}-seed-{seed}" for lr in (0.3, 1) for seed in (0, 1)]
    assert len(cells) == 4 + 2 * 2 * 2
    assert cells[4].swept == {"epsilon": 8.0, "rho": 0.05, "seed": 0}
    assert {cell.experiment.values["lr"] for cell in cells[4:]} == {0.1}
    assert len(planned(file, {"seed": 3, "lr": 0.1})) == 1 + 4
    assert len(planned(file, {"epsilons": [1.0], "seed": 3, "lr": [0.1, 0.2, 0.3]})) == 3 + 6
    del file["epsilons"]
    cells = planned(file, {"noise_multiplier": [1.0, 2.0], "seed": 0})
    assert [cell.swept.get("noise_multiplier") for cell in cells] == [None, None, 1.0, 1.0, 2.0, 2.0]


def test_a_key_whose_value_may_be_a_list_is_swept_by_a_list_of_lists():
    keys = {**KEYS, "method": "pfl", "batch_size": 20, "clients": 3, "rounds": 2, "cohort": "full"}
    keys = {key: value for key, value in keys.items() if key not in ("local_steps", "sampling_rate")}
    (one,) = planned(keys, {"epsilon": [1.0, 2.0, 3.0], "metrics": ["accuracy", "f1"]})
    assert (one.experiment.values["epsilon"], one.swept) == ([1.0, 2.0, 3.0], {})
    assert one.epsilon is None
    cells = planned(keys, {"epsilon": [[1.0, 2.0, 3.0], [8.0]], "local_epochs": [[1, 2], [2]]})
    assert [(cell.swept["epsilon"], cell.swept["local_epochs"]) for cell in cells] == [
        (epsilon, epochs) for epsilon in ([1.0, 2.0, 3.0], 8.0) for epochs in ([1, 2], 2)
    ]
    assert [cell.epsilon for cell in cells] == [None, None, 8.0, 8.0]
    assert cells[0].folder == "pfl-epsilon-1_2_3-local_epochs-1_2"
    cells = planned(keys, ["epsilon=2", "metrics=[[accuracy],[f1, auroc]]"])
    assert [cell.experiment.values["metrics"] for cell in cells] == [["accuracy"], ["f1", "auroc"]]


def test_a_run_is_a_comparison_over_methods_models_and_budgets():
    for word in ("epsilons=[8,2]", "epsilon=[8,2]"):  # clients that are protected as a whole share one epsilon
        assert names({**RUN}, [word]) == ["dp_fedavg-epsilon-8", "dp_fedavg-epsilon-2"]
    found = planned(RUN, ["method=[fedavg,dp_fedavg]", "model=[mlp,logistic]"])
    assert [cell.folder for cell in found] == [
        *("fedavg-model-mlp", "fedavg-model-logistic", "dp_fedavg-model-mlp", "dp_fedavg-model-logistic"),
    ]
    assert [cell.epsilon for cell in found] == [None, None, 2.0, 2.0]


def test_keys_that_only_some_choices_have_are_left_out_of_the_others():
    found = planned(RUN, ["partition=[iid,dirichlet]", "alpha=[0.1,1.0]"])
    assert [cell.swept for cell in found] == [
        {"partition": "iid"},
        {"alpha": 0.1, "partition": "dirichlet"},
        {"alpha": 1.0, "partition": "dirichlet"},
    ]


def test_data_are_read_once_for_all_cells(monkeypatch):
    made = []
    usual = Parts.task
    monkeypatch.setattr(Parts, "task", lambda self: (made.append(self.resolved["clients"]), usual(self))[1])
    planned(RUN, ["seed=[0,1,2]", "clients=[20,30]"])
    assert made == [20, 30]


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"lr": [0.1, "fast"]}, "Expected lr to be a number, found 'fast'"),
        ({"lr": [0.1, -1.0]}, "lr > 0"),
        ({"lr": []}, "at least one value for lr"),
        ({"model": []}, "at least one value for model"),
        ({"lr": [[0.1]]}, r"Expected one value for lr, found \[0.1\]"),
        ({"lrr": [0.1]}, "Expected a known key, found 'lrr'"),
        ({"model": ["mlp", "mpl"]}, "found 'mpl'"),
        ({"seed": [1, 1]}, r"different values for seed, found \[1, 1\]"),
        ({"epsilon": [2.0, 8.0], "epsilons": [2.0]}, "Expected epsilon or epsilons, found both"),
        (["lr=0.1,0.3"], r"several values in brackets, found '0.1,0.3': write \[0.1,0.3\]"),
        (["seed=[0..2]"], r"several values in brackets, found '\[0..2\]': write \[0,1,2\]"),
        (["seed=[0 1 2]"], r"write \[0,1,2\]"),
        (["lr=[0.1,0.3"], r"write \[0.1,0.3\]"),
    ],
)
def test_everything_is_refused_before_the_first_run(over, message):
    with pytest.raises(CloisterError, match=message):
        planned(RUN, over)


def test_one_run_takes_one_value(command):
    for word in ("lr=[0.03,0.1]", 'model=["mlp","logistic"]'):
        done = command("run", "rounds=1", "clip_norm=1.0", word)
        assert done.returncode == 2
        assert done.stderr.strip().endswith("or run all of them by `cloister compare`.")


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.1, 0.1000000001), ("a/b", "a_b"), ("a:b", "a/b"), ("x" * 50, "x" * 51), ([1], [[1]])],
)
def test_names_of_folders_are_safe_and_tell_values_apart(one, other):
    found = [folder_name("a label", {"key": value, "seed": 0}) for value in (one, other)]
    assert found[0] != found[1]
    for name in found:
        assert name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        assert len(name) < 140
