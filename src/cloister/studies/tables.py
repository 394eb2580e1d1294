"""A study's rows as a table: for the terminal, as Markdown, CSV and LaTeX, and for pandas.

Every setting that differs between rows is a column. Tables for people have rounded figures, epsilons rounded upwards;
CSV and pandas have all digits, in a column each.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cloister.errors import expect_one_of
from cloister.privacy.certificate_text import round_up
from cloister.runs.metric_text import figure
from cloister.runs.report.comparison import in_a_table
from cloister.runs.report.style import new_table
from cloister.studies.rows import Row

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

Format = Literal["text", "markdown", "csv", "latex"]
FORMATS: tuple[Format, ...] = ("text", "markdown", "csv", "latex")
FILES: dict[str, Format] = {"table.md": "markdown", "table.csv": "csv", "table.tex": "latex"}
"""What is written into the folder of a study."""


def table(rows: Sequence[Row], form: Format = "markdown") -> str:
    """The rows as text."""
    expect_one_of("format", form, FORMATS)
    if form == "csv":
        return _csv(plain(rows))
    heads, cells = readable(rows)
    return {"text": _text, "markdown": _markdown, "latex": _latex}[form](heads, cells)


def plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A dictionary for every row, with numbers as they are; all have the same keys."""
    settings, more = _settings(rows), _more(rows)
    swept = [key for key in _swept(rows) if key != "epsilon"]  # what was spent is called so, below
    found = []
    for row in rows:
        about = row.about
        statistics = {name: None if about is None else getattr(about, name) for name in ("mean", "sd", "low", "high")}
        found.append(
            {
                "method": row.label,
                **{key: row.swept.get(key) for key in swept},
                "epsilon asked": row.swept.get("epsilon") if row.target is None else row.target,
                "metric": row.monitor,
                **statistics,
                "n": 0 if about is None else about.n,
                "seeds": " ".join(str(run.seed) for run in row.runs),
                "epsilon": row.epsilon,
                "delta": row.delta,
                "neighbors": row.neighbors,
                "upload bytes": row.runs[0].upload_bytes,
                **{key: row.more.get(key) for key in more},
                **{key: row.runs[0].settings.get(key) for key in settings},
            }
        )
    return found


def to_pandas(rows: Sequence[Row]) -> pandas.DataFrame:
    """The same as a data frame."""
    import pandas

    return pandas.DataFrame(plain(rows))


def readable(rows: Sequence[Row], settings: bool = True) -> tuple[list[str], list[list[str]]]:
    """Heads and cells as people read them."""
    names = dict.fromkeys(row.monitor for row in rows)
    metric = next(iter(names)) if len(names) == 1 else "score"
    columns: dict[str, list[str]] = {"method": [row.label for row in rows]}
    columns |= {key: [in_a_table(row.swept.get(key)) for row in rows] for key in _swept(rows)}
    if any(row.target is not None for row in rows):
        columns["at epsilon"] = ["-" if row.target is None else f"{row.target:g}" for row in rows]
    columns[metric] = [_score(row, named=len(names) > 1) for row in rows]
    if any(row.about is not None and row.about.n > 1 for row in rows):
        columns["n"] = [_count(row) for row in rows]
        columns["95 % interval"] = [_interval(row) for row in rows]
    seeds = [" ".join(str(run.seed) for run in row.runs) for row in rows]
    if len(set(seeds)) > 1:
        columns["seeds"] = seeds
    columns["spent"] = [round_up(row.epsilon) for row in rows]
    columns["delta"] = ["-" if row.delta is None else f"{row.delta:g}" for row in rows]
    columns |= {key: [in_a_table(row.more.get(key)) for row in rows] for key in _more(rows)}
    if settings:
        if len({row.neighbors for row in rows if row.private}) > 1:
            columns["neighbors"] = [in_a_table(row.neighbors) for row in rows]  # the terminal has them in a sentence
        columns["upload"] = [f"{row.runs[0].upload_bytes / 1000:.1f} kB" for row in rows]
        columns |= {key: [in_a_table(row.runs[0].settings.get(key)) for row in rows] for key in _settings(rows)}
    return list(columns), [list(cells) for cells in zip(*columns.values(), strict=True)]


def rich_table(rows: Sequence[Row]) -> Table:
    """For the terminal, where it fits 80 columns; `report.settings_text` has the settings line by line."""
    heads, cells = readable(rows, settings=False)
    return _rich(heads, cells, adjacencies(rows))


def adjacencies(rows: Sequence[Row]) -> str | None:
    """What is said where one epsilon does not mean the same for all."""
    labels: dict[str, dict[str, None]] = {}
    for row in rows:
        for run in row.runs if row.private else ():
            labels.setdefault(run.adjacency, {})[row.series] = None
    if len(labels) < 2:
        return None
    parts = [f"{', '.join(own)}: {adjacency}" for adjacency, own in labels.items()]
    return "An epsilon is not about the same neighbors for all: " + "; ".join(parts) + "."


def _swept(rows: Sequence[Row]) -> list[str]:
    """A single epsilon has a column of its own."""
    found = dict.fromkeys(key for row in rows for key in row.swept)
    lists = any(row.target is None and row.swept.get("epsilon") is not None for row in rows)
    return [key for key in found if key != "epsilon" or lists]


def _settings(rows: Sequence[Row]) -> list[str]:
    shown = _swept(rows)
    return [key for key in dict.fromkeys(key for row in rows for key in row.runs[0].settings) if key not in shown]


def _more(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row.more))


def _score(row: Row, named: bool) -> str:
    about = row.about
    if about is None:
        return "-"
    spread = "" if about.sd is None else f" ± {figure(row.monitor, about.sd)}"
    return f"{row.monitor} " * named + figure(row.monitor, about.mean) + spread


def _count(row: Row) -> str:
    """How many runs have a score, of how many where these are fewer."""
    scored = 0 if row.about is None else row.about.n
    return str(scored) if scored == len(row.runs) else f"{scored} of {len(row.runs)}"


def _interval(row: Row) -> str:
    about = row.about
    if about is None or about.low is None or about.high is None:
        return "-"
    return f"{figure(row.monitor, about.low)} to {figure(row.monitor, about.high)}"


def _rich(heads: Sequence[str], cells: Sequence[Sequence[str]], caption: str | None = None) -> Table:
    made = new_table(*heads)
    made.columns[0].no_wrap = True
    for row in cells:
        made.add_row(*row)
    made.caption = caption
    return made


def _text(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    from rich.console import Console

    page = io.StringIO()
    Console(file=page, width=1000, color_system=None, force_jupyter=False).print(_rich(heads, cells))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _markdown(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *cells]
    return "".join("| " + " | ".join(one.replace("|", "\\|") for one in line) + " |\n" for line in lines)


def _csv(found: Sequence[Mapping[str, Any]]) -> str:
    page = io.StringIO()
    writer = csv.DictWriter(page, list(found[0]) if found else ["method"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return page.getvalue()


_GREEK = "alpha beta gamma delta varepsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau varphi chi psi omega"
"""Letters that people name methods after, and that LaTeX has in formulas alone."""

_ESCAPED = {
    **{one: f"\\{one}" for one in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "<": "$<$",
    ">": "$>$",
    "|": "\\textbar{}",
    **{letter: f"$\\{name}$" for letter, name in zip("αβγδεζηθκλμνξπρστφχψω", _GREEK.split(), strict=True)},
}


def _latex(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A tabular with the rules of booktabs."""

    def line(row: Sequence[str]) -> str:
        return " & ".join("$\\infty$" if one == "infinity" else _escaped(one) for one in row) + " \\\\\n"

    body = "".join(map(line, cells))
    columns = "l" + "r" * (len(heads) - 1)
    return (
        f"% \\usepackage{{booktabs}}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{line(heads)}\\midrule\n{body}"
        "\\bottomrule\n\\end{tabular}\n"
    )


def _escaped(text: str) -> str:
    plain = "".join(_ESCAPED.get(one, one) for one in text).replace("--", "-{}-")  # no dash of two hyphens
    return f"{{}}{plain}" if plain[:1] in ("[", "*") else plain  # after the end of a row these would belong to it
