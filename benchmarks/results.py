"""The pages of results/, from what was run. `python benchmarks/results.py` writes them.

python benchmarks/results.py --best FOLDER...      takes results.json of `cloister compare experiments/best/NAME.toml`
                                                   (each FOLDER is named NAME) over into results/best.json
python benchmarks/results.py --paper FOLDER...     takes reproduce.json of `cloister reproduce NAME` over into
                                                   results/papers/NAME.json, beside the runs that are there
python benchmarks/results.py --own FOLDER...       takes results.json of `cloister compare` (each FOLDER is named as its
                                                   file in experiments/) over into results/comparisons/NAME.json
python benchmarks/results.py --judge               judges the order of tables that are there anew
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import claims
import own_comparisons
import recipe_page
from cloister.privacy.certificate_text import round_up
from cloister.runs.files import read_json, write_atomically, write_json
from cloister.studies.papers.cells import cells_of
from cloister.studies.papers.files import find, read
from cloister.studies.papers.order import ONE_SEED, in_words, verdicts
from cloister.studies.papers.outcomes import Outcome, Row
from cloister.studies.papers.scale import scale_of
from cloister.studies.results import read_results
from cloister.studies.statistics import summary
from paper_tables import PLACEMENT
from result_text import table, words

RESULTS = Path(__file__).parent.parent / "results"
BEST = RESULTS / "best.json"
PAPERS = RESULTS / "papers"
OWN = RESULTS / "comparisons"

Record = dict[str, Any]


def take_best(folders: Sequence[Path]) -> None:
    """Keep what a recipe came to, in place of what it came to before; of other settings, its mean stays on record."""
    known = _best()
    for folder in folders:
        found = read_results(folder)
        (row,) = found["rows"]
        (settings, *_) = (cell["values"] for cell in found["cells"])
        kept = ("metric", "seeds", "scores", "epsilon", "delta", "adjacency", "upload_bytes")
        about = {name: found[name] for name in ("command", "software", "machine", "written", "seconds")}
        values = {key: value for key, value in settings.items() if key not in ("seed", "config")}
        name = folder.name.removesuffix(".json")
        runs = [read_json(folder / cell["folder"] / "description.json") for cell in found["cells"]]
        queries = {query["name"]: max(query["noise_multipliers"]) for query in runs[0]["queries"]}
        training = max(cell["noise_multiplier"] for cell in found["cells"])
        known[name] = {
            **{key: row[key] for key in kept},
            "noise_multipliers": {"training": training, **queries},
            **about,
            "settings": values,
            "tested_before": tested_before(known.get(name), values),
        }
    write_json(BEST, dict(sorted(known.items())))


def tested_before(known: Record | None, settings: Record) -> list[float]:
    """What other settings under this name came to on test samples, in percent, the first one first."""
    if known is None:
        return []
    before, same = known.get("tested_before", []), _computed(known["settings"]) == _computed(settings)
    return before if same else [*before, round(100 * summary(known["scores"]).mean, 2)]


def _computed(settings: Record) -> Record:
    """What a score depends on, but for rounding."""
    return {key: value for key, value in settings.items() if key not in (*PLACEMENT, "tuned")}


def take_papers(folders: Sequence[Path]) -> None:
    """Keep a reproduction, or a part of one, without the curves, beside what is kept of the same table already."""
    for folder in folders:
        found = json.loads((folder / "reproduce.json").read_text())
        known = _papers().get(found["name"], {"cells": []})["cells"]
        planned = [cell.name for cell in cells_of(read(find(found["name"])), scale_of(found["scale"]), {}, None)]
        found["choices"] = read(find(found["name"])).choices
        found["cells"] = sorted(merged(known, found["cells"]), key=lambda cell: planned.index(cell["cell"]))
        _judge(found)
        seeds = sorted({int(seed) for cell in found["cells"] for seed in cell["runs"]})
        write_json(PAPERS / f"{found['name']}.json", {**found, "seeds": seeds, "of": len(planned)})


def take_own(folders: Sequence[Path]) -> None:
    """Keep a comparison of ours, in place of what was kept under its name."""
    OWN.mkdir(exist_ok=True)
    for folder in folders:
        write_json(OWN / f"{folder.name}.json", own_comparisons.taken(folder))
        shutil.copyfile(folder / "compare.png", OWN / f"{folder.name}.png")


def judge_again() -> None:
    """All tables that are kept, by the rules and texts that there are now."""
    for name, found in _papers().items():
        found["choices"] = read(find(name)).choices
        _judge(found)
        write_json(PAPERS / f"{name}.json", found)


def merged(known: Sequence[Record], new: Sequence[Record]) -> list[Record]:
    """Cells that were run, each with its old and new runs; with the new ones alone where its setting has changed."""
    kept = {_place(cell): cell for cell in known}
    for cell in new:
        before = kept.get(_place(cell))
        same = before is not None and _setting(before) == _setting(cell)
        runs = {**(before["runs"] if before is not None and same else {}), **cell["runs"]}
        if runs and (cell["runs"] or same):
            kept[_place(cell)] = {**cell, "runs": dict(sorted(runs.items(), key=lambda run: int(run[0])))}
    return list(kept.values())


def _place(cell: Record) -> tuple[str, str]:
    return cell["cell"], cell["quantity"]


def _setting(cell: Record) -> Record:
    """What a cell's result depends on, but for rounding."""
    return {key: value for key, value in cell["settings"].items() if key not in PLACEMENT}


def _judge(found: Record) -> None:
    """Means, prices and the order, by all runs that there are now."""
    file = read(find(found["name"]))
    cells = {cell.name: cell for cell in cells_of(file, scale_of(found["scale"]), {}, None)}
    reported = {(one.quantity, json.dumps(one.at, sort_keys=True)): one for one in file.reported}
    rows = []
    for cell in found["cells"]:
        outcomes = {int(seed): Outcome(**run, lines=[]) for seed, run in cell["runs"].items()}
        paper = cell["paper"] and reported[cell["quantity"], json.dumps(cell["paper"]["at"], sort_keys=True)]
        rows.append(Row(cells[cell["cell"]], outcomes, paper, cell["quantity"], cell["metric"]))
    for cell, row, verdict in zip(found["cells"], rows, verdicts(rows, file.order), strict=True):
        ours = row.ours()
        cell |= {
            "here": None if ours is None else asdict(ours),
            "true_epsilon": row.epsilon,
            "order_holds": verdict,
        }
    found["order"] = in_words(rows, file.order)


def _best() -> dict[str, Record]:
    return json.loads(BEST.read_text()) if BEST.exists() else {}


def _papers() -> dict[str, Record]:
    return claims.read_papers(PAPERS)


def tables() -> dict[str, Record]:
    """What claims are judged by: the papers' tables, and comparisons of our own in their layout."""
    own = {name: own_comparisons.as_table(found) for name, found in own_comparisons.read(OWN).items()}
    return {**_papers(), **own}


def pages() -> dict[Path, str]:
    """Every page of results/ by its path."""
    papers = {PAPERS / f"{name}.md": paper_page(found) for name, found in _papers().items()}
    own = {
        OWN / f"{name}.md": own_comparisons.page(name, *_OWN[name], found)
        for name, found in own_comparisons.read(OWN).items()
    }
    return {
        RESULTS / "README.md": index(),
        RESULTS / "best.md": recipe_page.page(RESULTS / "beside.toml", _best()),
        RESULTS / "what-holds-up.md": claims_page(),
        **papers,
        **own,
    }


_INDEX = """
What was really run, with settings, seeds, machine, time and the true epsilon in JSON files, and pages that are
generated from them (`python benchmarks/results.py`).
"""
_OWN = {
    "mnist-methods-cnn": ("User-level methods at equal epsilon, on MNIST by its writers", "dp_fedavg"),
    "mnist-samples-cnn": ("Sample-level methods at equal epsilon, on MNIST in label shards", "dp_fl"),
}
"""Titles of comparisons of ours, and the row that others stand beside."""


def index() -> str:
    """What there is, and how it was made."""
    run = [f"- [{found['item']} of {name}](papers/{name}.md): {found['title']}" for name, found in _papers().items()]
    text = [
        "# Results",
        "",
        words(_INDEX),
        "",
        "- [best.md](best.md): the accuracy that recipes of `experiments/best/` reach at a true epsilon",
        "- [what-holds-up.md](what-holds-up.md): the papers' claims one by one",
        *(f"- [{name}](comparisons/{name}.md): {_OWN[name][0]}" for name in own_comparisons.read(OWN)),
        *run,
    ]
    return "\n".join(text) + "\n"


def paper_page(found: Record) -> str:
    """A table of a paper, as far as it was run."""
    axes = list(dict.fromkeys(axis for cell in found["cells"] for axis in cell["axes"]))
    rows = [_cell_row(cell, axes) for cell in found["cells"] if cell["quantity"] == "accuracy"]
    head = ["row", *axes, "paper, %", "here, %", "seeds", "claimed epsilon", "true epsilon", "at delta", "at 1e-5"]
    head += ["order holds"]
    kept = [place for place in range(len(head)) if place < 1 or any(row[place] for row in rows)]
    runs = [run for cell in found["cells"] for run in cell["runs"].values()]
    machines = sorted({str(run["machine"]["gpu"] or run["machine"]["processor"]) for run in runs})
    changed = {key: one for cell in found["cells"] for key, one in cell["changed"].items()}
    run = len({cell["cell"] for cell in found["cells"]})
    coarse = sorted({cell["cell"] for cell in found["cells"] if cell["settings"].get("precision", "exact") != "exact"})
    published = any(cell["as_published"] for cell in found["cells"])
    text = [
        f"# {found['item']}: {found['title']}",
        "",
        f"{found['citation']}. <{found['url']}>",
        "",
        f"Scale: {found['scale']}. {run} of {found['of']} rows were run, on {', '.join(machines)}.",
        "",
        *table([head[place] for place in kept], [[row[place] for place in kept] for row in rows]),
        "",
        f"- {found['order']} {_ORDER}",
        *([f"- {len(coarse)} of the rows were computed with products in tf32."] if coarse else []),
        *(f"- Not as in the paper: {claims.change(key, one)}" for key, one in changed.items()),
        *(f"- In the paper: {note}" for note in found.get("notes", [])),
        "",
        "Choices, where the paper is silent or wrong:",
        "",
        *(f"- {one['about']}: {one['chosen']}. Why: {one['why']}." for one in _choices(found, published)),
    ]
    return "\n".join(text) + "\n"


_ORDER = (
    '"Order holds": by paired tests over seeds, at 95 % for all pairs of the table together (Holm), "open" where these '
    "cannot tell; of one seed by the number alone. A seed gives other noise on another machine or engine: the same row "
    "of another table may have another number."
)


def _choices(found: Record, published: bool) -> list[Record]:
    """Those that are about rows that were run."""
    return [one for one in found["choices"] if published or "as published" not in one["about"]]


def _cell_row(cell: Record, axes: Sequence[str]) -> list[str]:
    paper, here = cell["paper"] or {}, cell["here"]
    claimed = paper.get("claimed_epsilon")
    true = "infinity" if cell["true_epsilon"] is None else round_up(cell["true_epsilon"])
    mean = "" if here is None else f"{here['mean']:.2f}" + ("" if here["sd"] is None else f" ± {here['sd']:.2f}")
    at = [str(cell["axes"].get(axis, "")) for axis in axes]
    order = cell["order_holds"].split(":")[0].removesuffix(ONE_SEED)
    order += ONE_SEED if cell["order_holds"].endswith(ONE_SEED) else ""
    runs = list(cell["runs"].values())
    strict = [run["strict_epsilon"] for run in runs]
    delta = "" if cell["true_epsilon"] is None else f"{runs[0]['delta']:.2g}"
    stricter = (
        round_up(max(strict)) if None not in strict and runs[0]["strict_delta"] == 1e-5 != runs[0]["delta"] else ""
    )
    seeds = ", ".join(cell["runs"])
    claim = "" if claimed is None else f"{claimed}"
    return [cell["method"], *at, str(paper.get("printed", "")), mean, seeds, claim, true, delta, stricter, order]


def claims_page() -> str:
    """The papers' claims one by one."""
    text = [
        "# What holds up",
        "",
        words(claims.TEXT),
        *claims.sections(RESULTS / "claims.toml", tables()),
        "",
        "Prices that the papers state and what their settings cost are in [docs/theory.md](../docs/theory.md).",
    ]
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--best", nargs="*", type=Path, default=[])
    parser.add_argument("--paper", nargs="*", type=Path, default=[])
    parser.add_argument("--own", nargs="*", type=Path, default=[])
    parser.add_argument("--judge", action="store_true", help="judge the order of tables that are kept anew")
    asked = parser.parse_args()
    if asked.judge:
        judge_again()
    if asked.best:
        take_best(asked.best)
    if asked.paper:
        take_papers(asked.paper)
    if asked.own:
        take_own(asked.own)
    for path, text in pages().items():
        write_atomically(path, text.encode())


if __name__ == "__main__":
    main()
