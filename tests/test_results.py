"""results/: pages say what their files say, and recipes cost no more than they promise."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path

import pytest

from cloister.studies import statistics

ROOT = Path(__file__).parent.parent
RECIPES = sorted(path.stem for path in (ROOT / "experiments" / "best").glob("*.toml"))
GIVEN = {
    "data", "partition", "clients", "per_client", "alpha", "method", "trust", "cohort", "clients_per_round",
    "epsilon", "delta", "allow_large_delta", "evaluate_every",
}  # fmt: skip
"""Keys that the setting has, or that no result depends on."""
BEST = json.loads((ROOT / "results" / "best.json").read_text())


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import results

    return results


@pytest.fixture
def claims(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import claims

    return claims


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
    assert set(recipe) - set(tuned) <= GIVEN, "what was chosen by results is named, so that certificates leave it out"
    assert {key: found["settings"][key] for key in recipe} == recipe
    assert found["epsilon"] <= recipe["epsilon"]
    assert found["delta"] == recipe["delta"]
    assert len(set(found["seeds"])) >= 2


def test_a_part_of_a_table_joins_what_is_kept_of_it(results):
    def kept(name, lr, **runs):
        return {"cell": name, "quantity": "accuracy", "settings": {"lr": lr, "device": "cpu"}, "runs": runs}

    known = [kept("a", 0.1, **{"0": 1}), kept("b", 0.1, **{"0": 2}), kept("c", 0.1, **{"0": 3})]
    new = [
        kept("a", 0.1, **{"1": 4}),
        kept("b", 0.3, **{"1": 5}),
        kept("c", 0.3),
        kept("d", 0.1),
        kept("e", 0.1, **{"0": 6}),
    ]
    new[0]["settings"]["device"] = "cuda"  # rounds otherwise, and is the same setting
    found = {one["cell"]: one["runs"] for one in results.merged(known, new)}
    assert found == {"a": {"0": 1, "1": 4}, "b": {"1": 5}, "c": {"0": 3}, "e": {"0": 6}}


def cell(method, split, scores, epsilon=2.0, **axes):
    runs = {str(seed): {"scores": {"final": score}} for seed, score in enumerate(scores) if score is not None}
    return {
        "cell": f"{method} {split} {axes}", "method": method, "axes": {"split": split, **axes}, "runs": runs,
        "metric": "final", "quantity": "accuracy", "true_epsilon": epsilon,
        "changed": {"rounds": {"paper": 300, "here": 100}},
    }  # fmt: skip


CLAIM = {"above": {"method": "a"}, "below": {"method": "b"}}


def word(claims, cells, claim=CLAIM):
    return claims.judged(claim, {"cells": cells}).word


def test_a_claim_is_judged_by_pairs_of_the_same_seed_and_setting(claims):
    up = [cell("a", "x", [71.0, 72.0, 71.5]), cell("b", "x", [70.0, 70.9, 70.6]), cell("b", "y", [99.0] * 3)]
    assert word(claims, up) == "yes"
    assert word(claims, up, {"above": CLAIM["below"], "below": CLAIM["above"]}) == "no"
    assert word(claims, [*up[:1], cell("b", "x", [70.0, 74.0, 71.0])]) == "cannot tell"
    assert word(claims, up[:1]) == "not run"
    assert claims.judged(CLAIM, None).word == "not run"
    found = claims.judged({**CLAIM, "otherwise": "other clients"}, {"cells": up})
    assert found.otherwise == "other clients; rounds 300 -> 100", "a verdict is about what was run"
    assert found.settings == "1 of 1 up"
    assert found.seeds == "0, 1, 2"


def test_settings_are_no_repetitions_of_each_other(claims):
    """All runs of a seed draw from the same streams: twenty settings with one seed tell no more than one."""
    many = [cell(method, str(number), [score]) for number in range(20) for method, score in (("a", 71), ("b", 70))]
    found = claims.judged(CLAIM, {"cells": many})
    assert found.word == "cannot tell: one seed"
    assert (found.difference, found.settings) == ("+1.00", "20 of 20 up")
    # Two seeds that differ by as much in all settings: by settings it would be far above zero, by seeds it is not.
    twice = [
        cell(method, str(number), scores)
        for number in range(20)
        for method, scores in (("a", [70.1, 72.0]), ("b", [70.0, 70.0]))
    ]
    assert word(claims, twice) == "cannot tell"
    # Settings that differ, in the same way with every seed.
    spread = [
        cell(method, str(number), scores)
        for number in range(20)
        for method, scores in (("a", [70.0 + number, 70.1 + number]), ("b", [69.0, 69.0]))
    ]
    assert word(claims, spread) == "yes"


def test_only_settings_with_the_same_seeds_make_an_interval(claims):
    cells = [
        cell("a", "x", [71.0, 71.1]),
        cell("b", "x", [70.0, 70.0]),
        cell("a", "y", [40.0]),
        cell("b", "y", [80.0]),
    ]
    found = claims.judged(CLAIM, {"cells": cells})
    assert found.word == "yes"
    assert found.difference.startswith("+1.05 ")
    assert found.settings == "1 of 2 up, 1 with these seeds (x)", "whose the number is"
    assert found.seeds == "0, 1"


def test_cells_may_be_compared_with_several(claims):
    claim = {"above": {"method": "a"}, "below": {"method": ["b", "c"]}}
    cells = [cell("a", "x", [71.0]), cell("b", "x", [70.0]), cell("c", "x", [72.0]), cell("d", "x", [0.0])]
    assert claims.judged(claim, {"cells": cells}).settings == "1 of 2 up"


def test_beside_a_difference_is_that_of_the_papers_numbers(claims):
    cells = [cell("a", "x", [71.0, 71.1]), cell("b", "x", [70.0, 70.0]), cell("a", "y", [1.0]), cell("b", "y", [2.0])]
    for one, printed in zip(cells, (60.5, 58.0, 99.0, 1.0), strict=True):
        one["paper"] = {"mean": printed}
    assert claims.judged(CLAIM, {"cells": cells}).printed == "+2.50", "over the settings whose our difference is"
    assert claims.judged(CLAIM, {"cells": cells[2:]}).printed == "+98.00"
    cells[0]["paper"] = None
    assert claims.judged(CLAIM, {"cells": cells}).printed == ""


def test_claims_are_told_by_paper_with_notes_below(claims, tmp_path):
    entries = [
        ("P", "one", "other clients"),
        ("P", "two", claims.ABOVE),
        ("Q", "three", None),
        ("P", "four", "fewer rounds"),
    ]
    lines = [
        f'[[claim]]\npaper = "{paper}"\nsays = "{says}"\nfile = "t"\nabove = {{ method = "a" }}\n'
        'below = { method = "b" }\n' + (f'otherwise = "{note}"\n' if note else "")
        for paper, says, note in entries
    ]
    (tmp_path / "claims.toml").write_text("".join(lines))
    cells = [cell("a", "x", [71.0]), cell("b", "x", [70.0])]
    for one in cells:
        one["changed"] = {}
    text = claims.sections(tmp_path / "claims.toml", {"t": {"cells": cells}})
    notes = {line.split(" | ")[0]: line.split(" | ")[-1] for line in text if line.startswith("| ")}
    assert [notes[f"| {says}"] for says in ("one", "two", "three", "four")] == ["1 |", "1 |", " |", "2 |"]
    assert text.index("## Q") > text.index("2. fewer rounds")
    assert text.count("1. other clients") == 1


def test_epsilons_that_differ_are_told(claims):
    cells = [cell("a", "x", [71.0], 17.96), cell("b", "x", [70.0], 7.73), cell("a", "y", [1.0]), cell("b", "y", [2.0])]
    assert claims.judged(CLAIM, {"cells": cells}).epsilon == "17.960 against 7.730, 2.000"
    open_one = [cell("a", "x", [71.0], None), cell("b", "x", [70.0], 2.0)]
    assert claims.judged(CLAIM, {"cells": open_one}).epsilon == "infinity against 2.000"


def test_every_claim_names_cells_that_exist(results, claims):
    """A label that is misspelled would read "not run" for ever."""
    papers = results.tables()
    for claim in tomllib.loads((ROOT / "results" / "claims.toml").read_text())["claim"]:
        assert claims.judged(claim, papers[claim["file"]]).word != "not run", claim["says"]


def test_what_a_recipe_came_to_before_stays_on_record(results):
    before = {"settings": {"lr": 1.0, "device": "cuda"}, "scores": [0.97, 0.98], "tested_before": [95.0]}
    assert results.tested_before(None, {"lr": 1.0}) == []
    assert results.tested_before(before, {"lr": 1.0, "device": "cpu", "tuned": ["lr"]}) == [95.0]
    assert results.tested_before(before, {"lr": 2.0, "device": "cuda"}) == [95.0, 97.5]


def test_a_number_of_one_seed_is_called_so(results):
    one = cell("a", "x", [71.0])
    one |= {"paper": None, "here": None, "order_holds": "no: b, c (one seed)"}
    one["runs"] = {"0": {"strict_epsilon": 3.0, "strict_delta": 1e-5, "delta": 0.002}}
    assert results._cell_row(one, ["split"])[-4:] == ["2.000", "0.002", "3.000", "no (one seed)"]
    assert results._cell_row({**one, "order_holds": "open: b"}, [])[-1] == "open"


@pytest.fixture
def own(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import own_comparisons

    return own_comparisons


def row(label, scores, target=2.0, **settings):
    return {
        "label": label, "swept": {"epsilon": target}, "target": target, "metric": "accuracy", "epsilon": target,
        "seeds": list(range(len(scores))), "scores": scores, "delta": 1e-4, "adjacency": "add or remove one client: x",
        "upload_bytes": 1000, "settings": {"data": "qmnist", "rounds": 60, **settings},
    }  # fmt: skip


def compared(rows, verdicts):
    order = [{"name": name, "verdict": verdict} for name, verdict in verdicts.items()]
    return {
        "command": "cloister compare x.toml", "machine": {"gpu": None, "processor": "a CPU"}, "seconds": 120.0,
        "rows": rows, "ranking": [{"title": "at epsilon 2", "order": order}],
    }  # fmt: skip


def test_a_comparison_of_ours_says_how_far_each_method_is_from_the_baseline(own):
    rows = [row("dp_fedavg", [0.90, 0.91, 0.92]), row("blur", [0.91, 0.93, 0.93], blur_lambda=0.4)]
    text = own.page(
        "methods", "Methods", "dp_fedavg", compared(rows, {"blur": "best", "dp_fedavg": "not distinguishable"})
    )
    # By hand: differences 1, 2, 1, mean 4/3, standard deviation 1/sqrt(3), t of two degrees of freedom 4.30265.
    half = 4.30265 * (1 / 3**0.5) / 3**0.5
    assert f"| `blur` | 92.33 ± 1.15 | 0, 1, 2 | +1.33 ({4 / 3 - half:+.2f} to {4 / 3 + half:+.2f}) | best |" in text
    assert "| `dp_fedavg` | 91.00 ± 1.00 | 0, 1, 2 |  | not distinguishable | 2.000 | 1.0 |" in text
    assert text.index("| `blur`") < text.index("| `dp_fedavg`"), "the highest mean is first"
    assert "- `blur`: blur_lambda = 0.4" in text
    assert "- all: data = qmnist, rounds = 60" in text


def test_claims_are_judged_by_a_comparison_of_ours_as_by_a_table(own, claims):
    rows = [row("dp_fedavg", [0.90, 0.91, 0.92]), row("blur", [0.92, 0.931, 0.939]), row("lus", [0.91, None, 0.91])]
    found = own.as_table(compared(rows, {}))
    verdict = claims.judged({"above": {"method": "blur"}, "below": {"method": "dp_fedavg"}}, found)
    assert (verdict.word, verdict.seeds, verdict.epsilon) == ("yes", "0, 1, 2", "2.000")
    assert verdict.difference.startswith("+2.00 ")
    lost = claims.judged({"above": {"method": "lus"}, "below": {"method": "dp_fedavg"}}, found)
    assert lost.seeds == "0, 2", "a run without a score is left out, with its partner"


COMPARISONS = sorted(path.stem for path in (ROOT / "results" / "comparisons").glob("*.json"))


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_of_ours_was_run_as_its_file_stands_within_its_epsilon(name):
    file = tomllib.loads((ROOT / "experiments" / f"{name}.toml").read_text())
    found = json.loads((ROOT / "results" / "comparisons" / f"{name}.json").read_text())
    assert {row["label"] for row in found["rows"]} == set(file["methods"])
    for row in found["rows"]:
        keys = {"method": row["label"], **file["shared"], **file["methods"][row["label"]]}
        asked = {key: value for key, value in keys.items() if key not in ("tuned", "engine")}
        assert {key: row["settings"][key] for key in asked} == asked
        assert row["target"] in file["epsilons"]
        assert row["epsilon"] <= row["target"]
        assert row["delta"] == file["shared"]["delta"]
        assert len(set(row["seeds"])) >= 5
        assert None not in row["scores"]


def test_no_method_could_be_told_from_the_others():
    """As README.md and docs/methods.md say."""
    assert "mnist-methods-cnn" in COMPARISONS
    found = json.loads((ROOT / "results" / "comparisons" / "mnist-methods-cnn.json").read_text())
    scores = {row["label"]: dict(zip(row["seeds"], row["scores"], strict=True)) for row in found["rows"]}
    assert len(scores) == 9
    found_p = [statistics.paired(scores, *pair).p for pair in itertools.combinations(scores, 2)]
    assert min(statistics.holm(found_p)) > 0.05, "of any pair, and not of those with the best alone"
