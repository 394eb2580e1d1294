"""The queue of cells from many tables: what is asked for once runs once, and nothing that came out is lost."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from cloister.studies.papers.outcomes import Outcome

ROOT = Path(__file__).parent.parent


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import paper_tables

    return paper_tables


def outcome(accuracy):
    scores = {"final": accuracy, "best": accuracy, "best_mean_client": None}
    measured = {"train_accuracy": None, "accuracy_gap": None, "megabytes": 1.0}
    return Outcome(scores, measured, 2.93, 1e-5, 2.93, 1e-5, None, 0.96, 20, 20, "add or remove one", 1.0, [], {})


def test_rows_come_in_the_order_asked_for_and_once(tables):
    rows = ["PFL*2.93*SN+Lin*(20, 1)", "PFL*2.93*SN+Lin*"]
    asked = {"keys": {"device": "cpu"}, "cells": [{"name": "pfl-table2-mnist", "rows": rows, "seeds": [3]}] * 2}
    found = tables.items_of(asked)
    assert len(found) == len({item.place for item in found}) == 6
    assert found[0].cell.endswith("split (20, 1)")
    assert all(item.seed == 3 and item.keys == {"device": "cpu"} for item in found)


def test_what_has_ended_survives_a_process_that_was_killed(tables, tmp_path):
    (item,) = tables.items_of({"cells": [{"name": "pfl-table2-mnist", "rows": ["PFL*2.93*SN+Lin*(1, 20)"]}]})
    path = tmp_path / "outcomes.jsonl"
    whole = json.dumps({"item": asdict(item), "outcome": asdict(outcome(97.5))})
    path.write_text(whole + "\n" + whole[: len(whole) // 2])
    ((there, found),) = tables.known(path)
    assert (there, found) == (item, outcome(97.5))
    tables.write([path], tmp_path / "tables")
    (cell,) = [
        cell
        for cell in json.loads((tmp_path / "tables" / item.table / "reproduce.json").read_text())["cells"]
        if cell["quantity"] == "accuracy"
    ]
    assert cell["cell"] == item.cell
    assert cell["here"]["mean"] == 97.5
    assert cell["paper"]["mean"] == 97.52


def test_what_is_missing_is_a_queue_of_what_was_not_run(tables, tmp_path, monkeypatch):
    """Asked for by names as they are, so that no row brings others with it."""
    name = "fed-spa-table1-mnist"
    everything = [item.cell for item in tables.items_of({"cells": [{"name": name}]})]
    there = {"cells": [{"cell": cell, "runs": {"0": {}}} for cell in everything if cell != "DP-Fed"]}
    there["cells"][0]["runs"]["1"] = {}
    (tmp_path / f"{name}.json").write_text(json.dumps(there))
    monkeypatch.setattr(tables, "PAPERS", tmp_path)
    assert [item.cell for item in tables.items_of(tomllib.loads(tables.missing([])))] == ["DP-Fed"]
    assert [item.cell for item in tables.items_of(tomllib.loads(tables.missing([name])))] == ["DP-Fed"]
    with_both = [(item.cell, item.seed) for item in tables.items_of(tomllib.loads(tables.missing([name], [0, 1])))]
    assert with_both == [("DP-Fed", 0), *((cell, 1) for cell in everything if cell != there["cells"][0]["cell"])]
    (tmp_path / f"{name}.json").unlink()
    assert [item.cell for item in tables.items_of(tomllib.loads(tables.missing([name])))] == everything


def test_a_run_that_another_table_has_need_not_be_run_again(tables, tmp_path, monkeypatch):
    """Ten clients and one local epoch in each of 20 rounds stand in Tables 4 and 5; other settings are other runs."""
    (item,) = tables.items_of({"cells": [{"name": "pfl-table4-cifar10", "rows": ["PFL*7.53*CNN+TS*(1, 20)"]}]})
    (cell,) = tables.plan_of(item.table, {}, None, item.cell).cells
    run = {key: value for key, value in asdict(outcome(41.16)).items() if key != "lines"}
    settings = {**cell.keys, "device": "cuda", "engine": "graphed"}
    monkeypatch.setattr(tables, "PAPERS", tmp_path)

    def kept(**other):
        there = {"cells": [{"cell": item.cell, "settings": {**settings, **other}, "runs": {"3": run}}]}
        (tmp_path / f"{item.table}.json").write_text(json.dumps(there))
        return list(tables.same(["pfl-table4-cifar10", "pfl-table5"], [2, 3]))

    ((same, found),) = kept()
    assert (same.table, same.cell, same.seed) == ("pfl-table5", "PFL CIFAR-10, clients 10, model CNN+TS", 3)
    assert found == outcome(41.16)
    assert kept(lr=0.1) == []
