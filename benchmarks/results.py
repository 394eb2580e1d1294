"""The pages of results/, from what was run. `python benchmarks/results.py` writes them.

python benchmarks/results.py --best FOLDER...      takes results.json of `cloister compare experiments/best/NAME.toml`
                                                   (each FOLDER is named NAME) over into results/best.json
python benchmarks/results.py --paper FOLDER...     takes reproduce.json of `cloister reproduce NAME` over into
                                                   results/papers/NAME.json, beside the runs that are there
"""

from __future__ import annotations

import argparse
import json
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cloister.privacy.certificate_text import round_up
from cloister.runs.files import write_atomically, write_json
from cloister.studies.papers.cells import cells_of
from cloister.studies.papers.files import find, read
from cloister.studies.papers.order import verdicts
from cloister.studies.papers.outcomes import Outcome, Row
from cloister.studies.papers.scale import scale_of
from cloister.studies.results import read_results
from cloister.studies.statistics import Summary, summary

RESULTS = Path(__file__).parent.parent / "results"
BEST = RESULTS / "best.json"
PAPERS = RESULTS / "papers"

Record = dict[str, Any]


def take_best(folders: Sequence[Path]) -> None:
    """Keep what a recipe came to, in place of what it came to before."""
    known = _best()
    for folder in folders:
        found = read_results(folder)
        (row,) = found["rows"]
        (settings, *_) = (cell["values"] for cell in found["cells"])
        kept = ("metric", "seeds", "scores", "epsilon", "delta", "adjacency", "upload_bytes")
        about = {name: found[name] for name in ("command", "software", "machine", "written", "seconds")}
        values = {key: value for key, value in settings.items() if key not in ("seed", "config")}
        known[folder.name.removesuffix(".json")] = {**{name: row[name] for name in kept}, **about, "settings": values}
    write_json(BEST, dict(sorted(known.items())))


def take_papers(folders: Sequence[Path]) -> None:
    """Keep a reproduction, or a part of one, without the curves, beside what is kept of the same table already."""
    for folder in folders:
        found = json.loads((folder / "reproduce.json").read_text())
        known = _papers().get(found["name"], {"cells": []})["cells"]
        planned = [cell.name for cell in cells_of(read(find(found["name"])), scale_of(found["scale"]), {}, None)]
        found["cells"] = sorted(merged(known, found["cells"]), key=lambda cell: planned.index(cell["cell"]))
        _judge(found)
        seeds = sorted({int(seed) for cell in found["cells"] for seed in cell["runs"]})
        write_json(PAPERS / f"{found['name']}.json", {**found, "seeds": seeds, "of": len(planned)})


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


_PLACEMENT = ("device", "engine", "memory", "precision")


def _setting(cell: Record) -> Record:
    """What a cell's result depends on, but for rounding."""
    return {key: value for key, value in cell["settings"].items() if key not in _PLACEMENT}


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


def _best() -> dict[str, Record]:
    return json.loads(BEST.read_text()) if BEST.exists() else {}


def _papers() -> dict[str, Record]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(PAPERS.glob("*.json"))}


def pages() -> dict[Path, str]:
    """Every page of results/ by its path."""
    papers = {PAPERS / f"{name}.md": paper_page(found) for name, found in _papers().items()}
    return {
        RESULTS / "README.md": index(),
        RESULTS / "best.md": best_page(),
        RESULTS / "what-holds-up.md": claims_page(),
        **papers,
    }


_INDEX = """
What was really run, with settings, seeds, machine, time and the true epsilon in JSON files, and pages that are
generated from them (`python benchmarks/results.py`).
"""
_BEST = """
Mean and standard deviation over seeds, of the model after the last round, on the official test images. Every mechanism
is priced: training, the private mean of the features, and their second moments. The recipes were chosen on held-out
training images (on those of held-out writers for MNIST by its writers); that choice itself was not charged.
`benchmarks/recipe_search.py` chose those that [recipe-search.json](recipe-search.json) has rankings of. Computed on
{machines}; the epsilon is the certified one, of the costlier seed.
"""
_DRIVES = """
What drives it: few parameters on fixed features (a scattering transform, which knows no data), of which the few of
orders 0 and 1 may weigh more than the many of order 2 (`scatter_low_orders`), at fewer places (`scatter_pool`);
digits that are sheared upright, each by itself (`deskew`, which most of these recipes were chosen before); one
private step over all samples a round; a private mean of the features (`center`), which is taken away before they are
scaled to length 1; private second moments (`decorrelate`), by which the few directions in which all samples vary
shrink; clipping far below the usual norm; averaging of iterates. Where whole clients are protected, every update has
the same norm (`clipping = normalize`), and a mean that is smoothed to a low rank (`center_rank`) loses most of its
noise. With `trust = sum` the noise of all clients together is that of one.
"""
_CLAIMS = """
The papers' claims, each as a comparison of rows of the paper's own table, run here at the same true epsilon, seed by
seed and setting by setting. The difference is in points of accuracy, with a 95 % interval. Pairs that share a run, such
as several sparsities beside one baseline, are not independent: their mean counts once. A claim holds where the interval
lies above zero, and does not where it lies below; a single pair tells nothing. What was run is at times less than what
the paper ran, which the last column says: such a verdict is about that setting.
"""


def _words(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


def _percent(values: Sequence[float]) -> str:
    about = summary([100 * value for value in values])
    return f"{about.mean:.2f}" if about.sd is None else f"{about.mean:.2f} ± {about.sd:.2f}"


def index() -> str:
    """What there is, and how it was made."""
    run = [f"- [{found['item']} of {name}](papers/{name}.md): {found['title']}" for name, found in _papers().items()]
    text = [
        "# Results",
        "",
        _words(_INDEX),
        "",
        "- [best.md](best.md): the accuracy that recipes of `experiments/best/` reach at a true epsilon",
        "- [what-holds-up.md](what-holds-up.md): the papers' claims one by one",
        *run,
    ]
    return "\n".join(text) + "\n"


def best_page() -> str:
    """Recipes beside what papers report."""
    beside, best = tomllib.loads((RESULTS / "beside.toml").read_text()), _best()
    rows = []
    for setting in beside.values():
        for epsilon, one in setting.items():
            if epsilon in ("says", "paper"):
                continue
            for name in one["recipes"]:
                if name in best:
                    paper = f"{one['accuracy']:.2f}" if "accuracy" in one else ""
                    rows.append([setting["says"], *_best_row(name, best[name]), paper, setting.get("paper", "")])
    head = ["setting", "epsilon", "delta", "who is trusted", "accuracy, %", "seeds", "recipe", "paper, %", "whose"]
    machines = sorted({str(one["machine"]["gpu"] or one["machine"]["processor"]) for one in best.values()})
    text = [
        "# The accuracy that is reachable at a true epsilon",
        "",
        _words(_BEST.format(machines=", ".join(machines))),
        "",
        *_table(head, rows),
        "",
        _words(_DRIVES),
        "",
        "What it costs: a run of a minute or less on a GPU. Settings, seeds and machine: [best.json](best.json).",
    ]
    return "\n".join(text) + "\n"


def _best_row(name: str, found: Record) -> list[str]:
    settings = found["settings"]
    who = "server" if settings["method"] == "dp_fedavg" else "nobody"
    trusted = "secure sum" if settings.get("trust") == "sum" else who
    seeds = ", ".join(map(str, found["seeds"]))
    link = f"[{name}](../experiments/best/{name}.toml)"
    return [round_up(found["epsilon"]), f"{found['delta']:g}", trusted, _percent(found["scores"]), seeds, link]


def paper_page(found: Record) -> str:
    """A table of a paper, as far as it was run."""
    axes = list(dict.fromkeys(axis for cell in found["cells"] for axis in cell["axes"]))
    rows = [_cell_row(cell, axes) for cell in found["cells"] if cell["quantity"] == "accuracy"]
    head = ["row", *axes, "paper, %", "here, %", "seeds", "claimed epsilon", "true epsilon", "order holds"]
    kept = [place for place in range(len(head)) if place < 1 or any(row[place] for row in rows)]
    runs = [run for cell in found["cells"] for run in cell["runs"].values()]
    machines = sorted({str(run["machine"]["gpu"] or run["machine"]["processor"]) for run in runs})
    changed = {key: one for cell in found["cells"] for key, one in cell["changed"].items()}
    run = len({cell["cell"] for cell in found["cells"]})
    text = [
        f"# {found['item']}: {found['title']}",
        "",
        f"{found['citation']}. <{found['url']}>",
        "",
        f"Scale: {found['scale']}. {run} of {found['of']} rows were run, on {', '.join(machines)}.",
        "",
        *_table([head[place] for place in kept], [[row[place] for place in kept] for row in rows]),
        "",
        *(f"- Not as in the paper: {_change(key, one)}" for key, one in changed.items()),
        *(f"- In the paper: {note}" for note in found.get("notes", [])),
        "",
        "Choices, where the paper is silent or wrong:",
        "",
        *(f"- {one['about']}: {one['chosen']}. Why: {one['why']}." for one in found["choices"]),
    ]
    return "\n".join(text) + "\n"


def _cell_row(cell: Record, axes: Sequence[str]) -> list[str]:
    paper, here = cell["paper"] or {}, cell["here"]
    claimed = paper.get("claimed_epsilon")
    true = "infinity" if cell["true_epsilon"] is None else round_up(cell["true_epsilon"])
    mean = "" if here is None else f"{here['mean']:.2f}" + ("" if here["sd"] is None else f" ± {here['sd']:.2f}")
    at = [str(cell["axes"].get(axis, "")) for axis in axes]
    order = cell["order_holds"].split(":")[0]
    seeds = ", ".join(cell["runs"])
    claim = "" if claimed is None else f"{claimed}"
    return [cell["method"], *at, str(paper.get("printed", "")), mean, seeds, claim, true, order]


def claims_page() -> str:
    """The papers' claims one by one, by cells that were run at the same true epsilon."""
    claims, papers = tomllib.loads((RESULTS / "claims.toml").read_text())["claim"], _papers()
    rows = [[one["paper"], one["says"], *verdict(one, papers.get(one["file"]))] for one in claims]
    text = [
        "# What holds up",
        "",
        _words(_CLAIMS),
        "",
        *_table(["paper", "claim", "does it hold?", "difference", "comparisons", "not as in the paper"], rows),
        "",
        "Prices that the papers state and what their settings cost are in [docs/theory.md](../docs/theory.md).",
    ]
    return "\n".join(text) + "\n"


Run = tuple[str, str]
"""A cell and a seed."""


def verdict(claim: Record, found: Record | None) -> list[str]:
    """Whether it holds, by how much, by how many comparisons, and what was run otherwise than in the paper."""
    pairs = [] if found is None else list(_gaps(claim, found["cells"]))
    if not pairs:
        return ["not run", "", "", ""]
    assert found is not None
    gaps = independent(pairs)
    about: Summary = summary(gaps)
    up = f"{sum(gap > 0 for gap in gaps)} of {len(gaps)} up"
    of = "" if len(pairs) == len(gaps) else f" ({len(pairs)} pairs)"
    otherwise = _otherwise(found["cells"], {cell for above, below, _ in pairs for cell, _ in (above, below)})
    if about.low is None or about.high is None:
        return ["cannot tell", f"{about.mean:+.2f}", up + of, otherwise]
    word = "yes" if about.low > 0 else "no" if about.high < 0 else "cannot tell"
    return [word, f"{about.mean:+.2f} ({about.low:+.2f} to {about.high:+.2f})", up + of, otherwise]


def independent(pairs: Sequence[tuple[Run, Run, float]]) -> list[float]:
    """The mean difference of all pairs that hang together by runs they share."""
    groups: list[tuple[set[Run], list[float]]] = []
    for above, below, gap in pairs:
        mine = [group for group in groups if group[0] & {above, below}]
        groups = [group for group in groups if not group[0] & {above, below}]
        groups.append(({above, below}.union(*(runs for runs, _ in mine)), [*(g for _, own in mine for g in own), gap]))
    return [sum(gaps) / len(gaps) for _, gaps in groups]


def _otherwise(cells: Sequence[Record], named: set[str]) -> str:
    """What was changed in some of these cells: `rounds 300 -> 100`."""
    changed = {key: one for cell in cells if cell["cell"] in named for key, one in cell["changed"].items()}
    return "; ".join(_change(key, one) for key, one in changed.items() if key in _TOLD)


def _change(key: str, values: Record) -> str:
    """A key that has another value here, or one where the paper's setting has none."""
    paper, here = values["paper"], values["here"]
    return f"{key} {here}" if paper is None else f"{key} {paper} -> {'none' if here is None else here}"


_TOLD = ("data", "split", "model", "rounds", "local_epochs", "clients")
"""Of keys that were changed, those that a reader of a verdict must know; all of them are on the tables' pages."""


def _gaps(claim: Record, cells: Sequence[Record]) -> Iterator[tuple[Run, Run, float]]:
    """Differences of runs whose seeds and other axes are the same."""
    named = {key for side in ("above", "below") for key in claim[side]}
    for one in _matching(cells, claim["above"]):
        for other in _matching(cells, claim["below"]):
            here, there = ({k: v for k, v in cell["axes"].items() if k not in named} for cell in (one, other))
            if any(here[axis] != there[axis] for axis in here.keys() & there.keys()):
                continue
            for seed in one["runs"].keys() & other["runs"].keys():
                scores = [cell["runs"][seed]["scores"][cell["metric"]] for cell in (one, other)]
                if None not in scores:
                    yield (one["cell"], seed), (other["cell"], seed), scores[0] - scores[1]


def _matching(cells: Sequence[Record], wanted: Mapping[str, str]) -> list[Record]:
    def fits(cell: Record) -> bool:
        at = {"method": cell["method"], **{axis: str(value) for axis, value in cell["axes"].items()}}
        return cell["quantity"] == "accuracy" and all(at.get(key) == value for key, value in wanted.items())

    return [cell for cell in cells if fits(cell)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--best", nargs="*", type=Path, default=[])
    parser.add_argument("--paper", nargs="*", type=Path, default=[])
    asked = parser.parse_args()
    if asked.best:
        take_best(asked.best)
    if asked.paper:
        take_papers(asked.paper)
    for path, text in pages().items():
        write_atomically(path, text.encode())


if __name__ == "__main__":
    main()
