"""From the suites' JSON to the tables and the picture of docs/speed.md; `documents.py` puts them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def spread(times: dict[str, Any]) -> str:
    """A median with the middle eight tenths of the rounds."""
    return f"{times['median']:,.1f} ({times['low']:,.1f} to {times['high']:,.1f})"


def comparisons(rows: list[dict[str, Any]]) -> list[str]:
    """Ours beside a peer."""
    lines = ["| work | engine | ours, ms | peer | peer, ms | times as fast | bar | apart | of peak |", "|---" * 9 + "|"]
    for row in rows:
        if "ratio" in row:
            apart = f"{row['apart']:.0e}" if "apart" in row else ""
            share = f"{100 * row['of peak']:.0f} %" if "of peak" in row else ""
            cells = [row["work"], row.get("engine", ""), spread(row["ours"]), row["peer"], spread(row["theirs"])]
            cells += [f"**{row['ratio']:.2f}**", f"{row['bar']:.2f}", apart, share]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """How a round's time grows."""
    grown = [row for row in rows if "growth" in row]
    if not grown:
        return []
    lines = ["", "| what grows | to | ms per round | GPU memory |", "|---|---|---|---|"]
    for row in grown:
        size = row.get("cohort") or row.get("parameters") or row.get("registered")
        memory = f"{row['GiB']:.1f} GiB" if "GiB" in row else ""
        lines.append(f"| {row['growth']} | {size:,} | {spread(row['ours'])} | {memory} |")
    return lines


def picture(found: list[dict[str, Any]], path: Path) -> None:
    """Times as fast as the peer, beside the bar that was set."""
    rows = [row for suite in found for row in suite["rows"] if "ratio" in row and "ourselves" not in row["peer"]]
    figure = Figure(figsize=(9, 0.5 * len(rows) + 1.2), layout="constrained")
    axes = figure.subplots()
    names = [f"{row['work']}\nagainst {row['peer']}" for row in rows]
    axes.barh(names, [row["ratio"] for row in rows], color="#4477aa")
    for place, row in enumerate(rows):
        axes.plot([row["bar"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
        axes.text(max(row["ratio"], row["bar"]) + 1, place, f"{row['ratio']:.2f}", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("times as fast as the peer (line: what we set out to reach)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def rendered(suites: list[dict[str, Any]]) -> str:
    """All suites' tables."""
    lines = []
    for suite in suites:
        peaks = ", ".join(f"{name} {rate:.2f}" for name, rate in suite["peak TFLOP/s"].items())
        lines += [f"### {suite['machine']}", "", f"Matrix-product peak, TFLOP/s: {peaks}.", ""]
        lines += [*comparisons(suite["rows"]), *growth(suite["rows"]), ""]
    return "\n".join(lines)
