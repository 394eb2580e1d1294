"""results/: pages say what their files say, and recipes cost no more than they promise."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECIPES = sorted(path.stem for path in (ROOT / "experiments" / "best").glob("*.toml"))
BEST = json.loads((ROOT / "results" / "best.json").read_text())


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import results

    return results


def test_pages_say_what_their_files_say(results):
    """`python benchmarks/results.py` brings them together again."""
    for path, text in results.pages().items():
        assert path.read_text() == text, f"{path.name} is not what its files say"
    assert set((ROOT / "results").rglob("*.md")) == set(results.pages())


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_was_run_as_it_stands_within_its_epsilon(name):
    recipe = tomllib.loads((ROOT / "experiments" / "best" / f"{name}.toml").read_text())
    found = BEST[name]
    tuned = recipe.pop("tuned")  # words for the certificate: what is computed does not depend on them
    assert "lr" in tuned
    assert set(tuned) <= set(recipe)
    assert {key: found["settings"][key] for key in recipe} == recipe
    assert found["epsilon"] <= recipe["epsilon"]
    assert found["delta"] == recipe["delta"]
    assert len(set(found["seeds"])) >= 2


def test_a_part_of_a_table_joins_what_is_kept_of_it(results):
    def cell(name, lr, **runs):
        return {"cell": name, "quantity": "accuracy", "settings": {"lr": lr, "device": "cpu"}, "runs": runs}

    known = [cell("a", 0.1, **{"0": 1}), cell("b", 0.1, **{"0": 2}), cell("c", 0.1, **{"0": 3})]
    new = [
        cell("a", 0.1, **{"1": 4}),
        cell("b", 0.3, **{"1": 5}),
        cell("c", 0.3),
        cell("d", 0.1),
        cell("e", 0.1, **{"0": 6}),
    ]
    new[0]["settings"]["device"] = "cuda"  # rounds otherwise, and is the same setting
    found = {one["cell"]: one["runs"] for one in results.merged(known, new)}
    assert found == {"a": {"0": 1, "1": 4}, "b": {"1": 5}, "c": {"0": 3}, "e": {"0": 6}}


def test_a_claim_is_judged_by_pairs_of_the_same_seed_and_setting(results):
    def cell(method, split, scores):
        runs = {str(seed): {"scores": {"final": score}} for seed, score in enumerate(scores)}
        about = {"cell": f"{method} {split}", "changed": {"rounds": {"paper": 300, "here": 100}}}
        return {
            "method": method, "axes": {"split": split}, "runs": runs, "metric": "final", "quantity": "accuracy", **about
        }  # fmt: skip

    claim = {"above": {"method": "a"}, "below": {"method": "b"}}
    up = [cell("a", "x", [71.0, 72.0, 71.5]), cell("b", "x", [70.0, 70.9, 70.6]), cell("b", "y", [99.0] * 3)]
    assert results.verdict(claim, {"cells": up})[0] == "yes"
    assert results.verdict({"above": claim["below"], "below": claim["above"]}, {"cells": up})[0] == "no"
    assert results.verdict(claim, {"cells": [*up[:1], cell("b", "x", [70.0, 74.0, 71.0])]})[0] == "cannot tell"
    assert results.verdict(claim, {"cells": up[:1]})[0] == "not run"
    assert results.verdict(claim, None)[0] == "not run"
    assert results.verdict(claim, {"cells": up})[-1] == "rounds 300 -> 100", "a verdict is about what was run"


def test_pairs_that_share_a_run_count_once(results):
    """Five sparsities beside one run of the baseline are no five comparisons."""
    one, other = ("baseline", "0"), ("baseline", "1")
    pairs = [(("a", "0"), one, 1.0), (("b", "0"), one, 3.0), (("a", "1"), other, 5.0), (("c", "0"), ("d", "0"), 7.0)]
    assert sorted(results.independent(pairs)) == [2.0, 5.0, 7.0]
    chained = [(("a", "0"), ("b", "0"), 1.0), (("c", "0"), ("d", "0"), 2.0), (("a", "0"), ("d", "0"), 6.0)]
    assert results.independent(chained) == [3.0], "what hangs together by a later pair, too"
