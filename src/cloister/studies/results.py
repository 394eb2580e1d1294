"""`results.json`: what came of a study, for programs. `read_results` refuses layouts that this version does not know.

Layout 1, an object with:

    format      1; goes up whenever something is to be read in another way
    command     how it was made; "" from Python
    written     when, in UTC (ISO 8601)
    software    versions of cloister, torch and numpy
    machine     processor, instructions, threads of a run, GPU: on another one, the same seed draws other noise
    seconds     computing time of all runs together
    metric      the metric that was watched; null where rows watched several
    confidence  of every interval below
    rows        runs that differ in their seed alone, in the order of the table:
        label, swept        the row's name, and the keys that vary within the study (all but the seed) with their values
        target              the epsilon that was asked for; null where none was, or one for each client
        metric, n, mean, sd, low, high      over seeds; sd, low and high are null of a single one
        seeds, scores       run by run; a score may be null
        epsilon, delta      certified: the largest of all runs; null without a guarantee
        adjacency           what epsilon is about, in words
        upload_bytes        of a client in a round
        settings            those in which the rows of the study differ
        more                columns of the table beside ours, such as what a paper reports
    cells       run by run, in the order of the study:
        folder              its name beside this file
        label, swept, seed, target
        values              every key with its value, defaults included: a config file of the run
        monitor, score, accuracy, best_on_test (selected on test data), best_round, mean_client_accuracy
        epsilon, delta, noise_multiplier, rounds, upload_bytes, seconds, adjacency, unit
        nonfinite           share of its updates that were not finite, and counted as zero
        not_private         what was measured exactly, with its mark
    ranking     for each guarantee: title, metric, and in `order` name, mean, verdict ("best", "not distinguishable",
                "worse", "cannot tell") and what it rests on: difference, low, high, p, adjusted_p, n
    failed      by folder, why a run failed; empty where all ended
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cloister.errors import expect
from cloister.runs.figures import made_by
from cloister.runs.files import read_json, write_json
from cloister.runs.report import Compared
from cloister.studies.cells import Cell
from cloister.studies.rows import Group, Row, ranked, rows_of
from cloister.studies.statistics import CONFIDENCE, Ranked

FORMAT = 1
FILE = "results.json"


def write_results(
    path: Path,
    cells: Mapping[str, Cell],
    results: Mapping[str, Compared],
    *,
    failed: Mapping[str, str],
    command: str,
    threads: int,
) -> None:
    """The results by folder, as a file."""
    rows = rows_of(results.values())
    metrics = {row.monitor for row in rows}
    about = made_by(command, _device(cells.values()))
    write_json(
        path,
        {
            "format": FORMAT,
            **about,
            "machine": {**about["machine"], "threads": threads},
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": sum(run.seconds for run in results.values()),
            "metric": next(iter(metrics)) if len(metrics) == 1 else None,
            "confidence": CONFIDENCE,
            "rows": [row_values(row) for row in rows],
            "cells": [_cell_values(cells[folder], run) for folder, run in results.items()],
            "ranking": [_group_values(group) for group in ranked(rows)],
            "failed": dict(failed),
        },
    )


def read_results(path: Path) -> dict[str, Any]:
    """What a study's file holds; `path` is the file, or its folder."""
    file = path / FILE if path.is_dir() else path
    found = read_json(file)
    expect(found.get("format") == FORMAT, f"results of format {FORMAT} in {file}", found.get("format"), "run it again")
    return found


def row_values(row: Row) -> dict[str, Any]:
    """A row as plain values."""
    about = row.about
    names = ("n", "mean", "sd", "low", "high")
    first = row.runs[0]
    return {
        "label": row.label,
        "swept": dict(row.swept),
        "target": row.target,
        "metric": row.monitor,
        **{name: (0 if name == "n" else None) if about is None else getattr(about, name) for name in names},
        "seeds": [run.seed for run in row.runs],
        "scores": [run.score for run in row.runs],
        "epsilon": row.epsilon,
        "delta": row.delta,
        "adjacency": first.adjacency,
        "upload_bytes": first.upload_bytes,
        "settings": dict(first.settings),
        "more": dict(row.more),
    }


def _cell_values(cell: Cell, run: Compared) -> dict[str, Any]:
    known = {name: value for name, value in vars(run).items() if name not in ("settings", "budgeted", "noise_chosen")}
    return {"folder": cell.folder, **known, "values": dict(cell.experiment.values)}


def _group_values(group: Group) -> dict[str, Any]:
    return {"title": group.title, "metric": group.monitor, "order": [_ranked_values(one) for one in group.order]}


def _ranked_values(one: Ranked) -> dict[str, Any]:
    gap, names = one.against_best, ("low", "high", "p", "adjusted_p", "n")
    found = {"name": one.name, "mean": one.about.mean, "verdict": one.verdict}
    return found if gap is None else {**found, "difference": gap.mean, **{name: getattr(gap, name) for name in names}}


def _device(cells: Any) -> str:
    devices: Sequence[str] = [str(cell.experiment.values.get("device", "cpu")) for cell in cells]
    return next((device for device in devices if device != "cpu"), "cpu")
