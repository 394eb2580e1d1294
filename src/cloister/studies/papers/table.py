"""The table of a reproduction: the paper's numbers, ours, the epsilon that is claimed and the true one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cloister.privacy.certificate_text import round_up
from cloister.runs.recorded import MARK, NOT_PRIVATE
from cloister.studies.papers import order
from cloister.studies.papers.files import METRICS, PaperFile
from cloister.studies.papers.outcomes import Row
from cloister.studies.papers.scale import Scale

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

EXACT = ("train_accuracy", "accuracy_gap")
"""Quantities that are computed exactly from clients' training samples."""

HEAD = ("paper", "here", "last round", "claimed epsilon", "true epsilon", "at delta", "order holds")
"""What is said of every row, after its name and the values of its axes; `here` is by the paper's own metric."""

_SAYS_NOTHING = ("small", "tiny")
"""Scales at which data and models are not the paper's."""

SHORT = {
    "last round": "last",
    "claimed epsilon": "claimed",
    "true epsilon": "true",
    "at delta": "delta",
    "order holds": "order",
}
"""Heads at a terminal, which is narrow."""


@dataclass(frozen=True, repr=False)
class Reproduction:
    """All cells of a table or figure at a scale, as far as they were run."""

    file: PaperFile
    scale: Scale
    seeds: Sequence[int]
    rows: list[Row]

    def __repr__(self) -> str:
        cells = [row for row in self.rows if _plain(row)]
        done = sum(bool(row.outcomes) for row in cells)
        return f"<Reproduction: {self.file.name}, scale {self.scale.name}, {done} of {len(cells)} cells run>"

    def lines(self) -> list[dict[str, str]]:
        """The rows as text: their names, the values of their axes, and HEAD."""
        verdicts = order.verdicts(self.rows, self.file.order)
        axes = list(dict.fromkeys(axis for row in self.rows for axis in row.cell.axes))
        named = [{"row": _name(row), **{axis: row.cell.axes.get(axis, "") for axis in axes}} for row in self.rows]
        return [{**name, **_line(row, verdict)} for name, row, verdict in zip(named, self.rows, verdicts, strict=True)]

    def notes(self) -> list[str]:
        """What has to be said below the table."""
        seeds = ", ".join(map(str, self.seeds))
        text = [f"Scale: {self.scale.name}. Seeds: {seeds}. Here: {METRICS[self.file.metric]}, in percent."]
        if self.scale.name in _SAYS_NOTHING:
            text.append(
                "At this scale the table shows that every cell runs. Its numbers, its order and its epsilons are of "
                "other settings, and neither confirm nor contradict the paper."
            )
        text += ["Epsilon: as the paper claims it, and the true one of the runs here, at delta, in the worst seed."]
        text += [order.in_words(self.rows, self.file.order)]
        if any(verdict.endswith(order.ONE_SEED) for verdict in order.verdicts(self.rows, self.file.order)):
            text.append("Of some cells there is one seed: their order is by these numbers alone.")
        if any(row.quantity in EXACT for row in self.rows):
            text.append(NOT_PRIVATE)
        if self.file.about.get("absent"):
            text.append(f"No numbers of the paper: {self.file.about['absent']}.")
        text += [f"In the paper: {one}" for one in self.file.about.get("notes", [])]
        return [*text, *changes_text(row.cell.changed for row in self.rows)]

    def terminal(self) -> Table:
        """For people at a terminal."""
        from cloister.runs.report.style import new_table

        lines = [line for row, line in zip(self.rows, self.lines(), strict=True) if line["here"] or _plain(row)]
        heads = [head for head in lines[0] if any(line[head] for line in lines)]
        table = new_table(*(SHORT.get(head, head) for head in heads))
        for head, column in zip(heads, table.columns, strict=True):
            column.no_wrap = True
            column.justify = "left" if head in ("row", "order holds") else "right"
        for line in lines:
            brief = {**line, "order holds": line["order holds"].partition(":")[0].removesuffix(order.ONE_SEED)}
            table.add_row(*(brief[head] for head in heads))
        return table

    def markdown(self) -> str:
        """The table with all that belongs to it."""
        about, lines = self.file.about, self.lines()
        rows = [[text.replace("|", "\\|") for text in line.values()] for line in lines]
        text = [f"# {about['item']}: {about['title']}", "", f"{about['citation']}. <{about.get('url', '')}>", ""]
        text += [f"| {' | '.join(row)} |" for row in [list(lines[0]), ["---"] * len(lines[0]), *rows]]
        text += ["", *(f"- {one}" for one in self.notes()), "", "Choices, where the paper is silent or wrong:", ""]
        text += [f"- {one['about']}: {one['chosen']}. Why: {one['why']}." for one in self.file.choices]
        return "\n".join(text) + "\n"

    def csv(self) -> str:
        """Numbers, a line for each cell and quantity."""
        rows = self._flat()
        heads = list(dict.fromkeys(key for row in rows for key in row))
        out = io.StringIO()
        writer = csv.DictWriter(out, heads, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue()

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a data frame."""
        import pandas

        return pandas.DataFrame(self._flat())

    def _flat(self) -> list[dict[str, Any]]:
        return [flat_record(one) for one in self.records()]

    def curves(self) -> str:
        """Accuracy by round and epsilon, of every evaluated round: what most figures draw."""
        axes = list(dict.fromkeys(axis for row in self.rows for axis in row.cell.axes))
        heads = ["method", *axes, "seed", "round", "spent_epsilon", "accuracy", "mean_client_accuracy", "loss"]
        out = io.StringIO()
        writer = csv.DictWriter(out, heads, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            for seed, outcome in row.outcomes.items() if row.quantity == "accuracy" else ():
                about = {"method": row.cell.method, **row.cell.axes, "seed": seed}
                writer.writerows({**line, "spent_epsilon": line["epsilon"], **about} for line in outcome.lines)
        return out.getvalue()

    def json(self) -> str:
        """Everything: the paper's numbers, ours seed by seed, settings, and what differs from the paper's."""
        from cloister import __version__

        about = {"name": self.file.name, **self.file.about, "scale": self.scale.name, "seeds": list(self.seeds)}
        found = {**about, "cloister": __version__, "choices": self.file.choices, "cells": self.records()}
        return json.dumps({**found, "order": order.in_words(self.rows, self.file.order)}, indent=2) + "\n"

    def records(self) -> list[dict[str, Any]]:
        """Row by row, as plain values."""
        verdicts = order.verdicts(self.rows, self.file.order)
        return [_record(row, verdict) for row, verdict in zip(self.rows, verdicts, strict=True)]


def _plain(row: Row) -> bool:
    return row.quantity == "accuracy"


def _line(row: Row, verdict: str) -> dict[str, str]:
    ours, last, outcome = row.ours(), row.ours("final"), row.any
    true = "" if outcome is None else "infinity" if row.epsilon is None else round_up(row.epsilon)
    values = (
        "" if row.reported is None else row.reported.printed,
        _text(ours),
        "" if row.metric == "final" or row.quantity != "accuracy" else _text(last),
        _claimed(row),
        true,
        "" if outcome is None or row.epsilon is None else f"{outcome.delta:.2g}",
        verdict,
    )
    return dict(zip(HEAD, values, strict=True))


def _name(row: Row) -> str:
    if row.quantity == "accuracy":
        return row.cell.method
    return f"{row.cell.method}: {row.quantity.replace('_', ' ')}" + (f" ({MARK})" if row.quantity in EXACT else "")


def _mark(row: Row) -> str | None:
    """The mark, where what was measured of some run is exact on training samples."""
    exact = any(one.measured.get(name) is not None for one in row.outcomes.values() for name in EXACT)
    return MARK if exact else None


def _text(ours: Any) -> str:
    if ours is None:
        return ""
    return f"{ours.mean:.2f}" if ours.sd is None else f"{ours.mean:.2f} ± {ours.sd:.2f}"


def _claimed(row: Row) -> str:
    """What the paper says; of a run that replicates it and says nothing, what its arithmetic gives."""
    said = None if row.reported is None else row.reported.claimed_epsilon
    claims = [one.claimed for one in row.outcomes.values() if one.claimed is not None]
    if isinstance(said, float | int):
        return f"{said:g}"
    return f"{max(claims):.3g} (computed)" if claims else said or ""


def _record(row: Row, verdict: str) -> dict[str, Any]:
    reported = None if row.reported is None else asdict(row.reported)
    runs = {
        str(seed): {key: value for key, value in asdict(one).items() if key != "lines"}
        for seed, one in row.outcomes.items()
    }
    ours = row.ours()
    return {
        "cell": row.cell.name,
        "method": row.cell.method,
        "axes": row.cell.axes,
        "quantity": row.quantity,
        "mark": _mark(row),
        "as_published": row.cell.replicates,
        "paper": reported,
        "here": None if ours is None else asdict(ours),
        "metric": row.metric,
        "true_epsilon": row.epsilon,
        "order_holds": verdict,
        "runs": runs,
        "settings": row.cell.keys,
        "changed": {key: {"paper": old, "here": new} for key, (old, new) in row.cell.changed.items()},
    }


def flat_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record in one line of a CSV file."""
    paper, ours = record["paper"] or {}, record["here"] or {}
    first: dict[str, Any] = next(iter(record["runs"].values()), {})
    return {
        "method": record["method"],
        **record["axes"],
        "quantity": record["quantity"],
        "mark": record["mark"],
        "paper": paper.get("mean"),
        "paper_sd": paper.get("sd"),
        "claimed_epsilon": paper.get("claimed_epsilon"),
        "here": ours.get("mean"),
        "here_sd": ours.get("sd"),
        "seeds": ours.get("n"),
        "metric": record["metric"],
        "true_epsilon": record["true_epsilon"],
        "delta": first.get("delta"),
        "computed_claim": first.get("claimed"),
        "noise_multiplier": first.get("noise_multiplier"),
        "rounds": first.get("rounds"),
        "order_holds": record["order_holds"],
        "changed": "; ".join(f"{key} = {one['here']}" for key, one in record["changed"].items()),
    }


def changes_text(changed: Iterable[Mapping[str, tuple[Any, Any]]]) -> list[str]:
    """Every key that is not as in the paper's setting, with all values that it has in the cells."""
    found: dict[str, dict[str, None]] = {}
    for one in changed:
        for key, (old, new) in one.items():
            found.setdefault(key, {})[f"{_shown(old)} -> {_shown(new)}"] = None
    if not found:
        return ["All settings are the paper's, but for the choices."]
    every = "; ".join(f"{key} {', '.join(how)}" for key, how in found.items())
    return [f"Not as in the paper's setting: {every}."]


def _shown(value: Any) -> str:
    return "default" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
