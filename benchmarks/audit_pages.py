"""The figures of docs/audit.md, from docs/audit.json (benchmarks/audit.py)."""

from __future__ import annotations

from typing import Any


def gaussian(found: dict[str, Any]) -> str:
    """How tight and how often wrong, under Gaussian noise."""
    heads = "rounds | certified epsilon | trials | audits | mean of lower / certified | nine in ten are above | "
    heads += "audits for coverage (trials each) | above at 95 % | above at 99.99 %"
    lines = [f"| {heads} |", "|---" * 9 + "|"]
    for row in found["gaussian"]:
        cells = [str(row["rounds"]), f"{row['certified']:.2f}", f"{row['trials']:,}", f"{row['audits']:,}"]
        cells += [f"{row['mean_ratio']:.3f}", f"{row['tenth_smallest_ratio']:.3f}"]
        cells += [f"{row['covered_audits']:,} ({row['covered_trials']:,})"]
        cells += [str(row["above_at_0.95"]), str(row["above_at_0.9999"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def methods(found: dict[str, Any]) -> str:
    """Both bounds of every method."""
    rows = found.get("methods", [])
    lines = ["| method | cohort | neighbors | at least | certified | trials |", "|---" * 6 + "|"]
    for row in rows:
        (bound,) = row["bounds"]
        cells = [row["label"], row["cohort"], row["neighbors"], f"{row['lower']:.2f}", f"{row['certified']:.2f}"]
        lines.append("| " + " | ".join([*cells, f"{bound['trials']:,}"]) + " |")
    above = [row for row in rows if row["lower"] > row["certified"]]
    exposed = [row for row in rows if row["exposed"]]
    sure = min((row["bounds"][0]["confidence"] for row in rows), default=0.95)
    words = f"{len(rows)} entries of the catalogue, each at {100 * sure:g} %: {len(above)} lower bounds are above the "
    lines += ["", f"{words}certificate, and {len(exposed)} methods are exposed."]
    return "\n".join(lines)


def bugs(found: dict[str, Any]) -> str:
    """Planted bugs and what was found."""
    rows = found.get("bugs", [])
    lines = ["| planted in the executed code | at least (99.99 %) | certified |", "|---" * 3 + "|"]
    for row in rows:
        second = row["confirmation"]["epsilon"] if row["confirmation"] else row["lower"]
        lines.append(f"| {row['bug']} | {second:.2f} | {row['certified']:.2f} |")
    exposed = sum(row["exposed"] for row in rows)
    return "\n".join([*lines, "", f"{exposed} of {len(rows)} are exposed."])


def canaries(found: dict[str, Any]) -> str:
    """How long 1,000 canaries take."""
    lines = ["| 1,000 canaries | seconds |", "|---" * 2 + "|"]
    lines += [f"| {row['audit']} | {row['seconds']:.1f} |" for row in found["canaries"]]
    about = found["measured"]["canaries"]
    where = f"{about['cores']} cores, load {about['load']:g}" if about["device"] == "cpu" else about["device"]
    return "\n".join([*lines, "", f"Measured on: {where} (`{about['command']}`)."])
