"""Markdown from plain values and from docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; bars inside of cells are escaped."""
    lines = [_row(heads), "|" + "---|" * len(heads), *(_row(row) for row in rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", str(cell)).replace("\n", " ") for cell in cells) + " |"


def fenced(text: str, language: str = "text", title: str = "") -> str:
    """A block of code."""
    name = f' title="{title}"' if title else ""
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}{name}\n{text.rstrip()}\n{fence}\n"


def indented(text: str, by: int = 4) -> str:
    """For what lies in an admonition or in a tab."""
    return "\n".join(" " * by + line if line else "" for line in text.splitlines()) + "\n"


def tabs(**by_title: str) -> str:
    """Texts in tabs of which one is seen at a time."""
    return "\n".join(f'=== "{title.replace("_", " ")}"\n\n{indented(text)}' for title, text in by_title.items())


def admonition(kind: str, title: str, text: str) -> str:
    """A box. With `???` in front of the kind it is closed at first."""
    opened = "???" if kind.startswith("???") else "!!!"
    return f'{opened} {kind.removeprefix("???")} "{title}"\n\n{indented(text)}\n'


def anchor(text: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it."""
    plain = re.sub(r"[^\w\s-]", "", text.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def docstring(text: str) -> str:
    """A docstring's paragraphs, with what is indented in it as a block of text."""
    parts: list[tuple[bool, list[str]]] = []
    for line in text.strip().splitlines():
        is_block = line.startswith("    ") or (not line.strip() and bool(parts) and parts[-1][0])
        if not parts or parts[-1][0] != is_block:
            parts.append((is_block, []))
        parts[-1][1].append(line)
    return "\n".join(_block(lines) if is_block else "\n".join(lines) + "\n" for is_block, lines in parts)


def _block(lines: list[str]) -> str:
    """A formula or a list, whose long lines are wrapped on narrow screens."""
    text = "\n".join(line[4:] for line in lines).strip("\n")
    return f"``` {{ .text .formula }}\n{text}\n```\n"
