"""The fenced blocks of a page, and what its markers say of them (CONTRIBUTING.md, "Code blocks in documents")."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

COMMANDS = ("console", "bash", "sh", "shell", "")
"""Languages of blocks whose lines are commands."""
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+) *(?P<language>[\w+-]*)(?P<rest>[^`\n]*)$")
_MARKER = re.compile(r"^ *<!-- test: (.*?) --> *$")
_PAGE_SLOW = re.compile(r"^ *<!-- test: page slow --> *$", re.MULTILINE)
_PAGE_SKIPPED = re.compile(r"^ *<!-- test: page (skip because .*?) --> *$", re.MULTILINE)
_REASON = "skip because "


@dataclass(frozen=True)
class Block:
    """One block: its text without indentation, the line of its fence, and the markers before it."""

    language: str
    text: str
    line: int
    markers: tuple[str, ...] = ()
    slow: bool = False

    def value(self, name: str) -> str | None:
        """What a marker NAME=VALUE says."""
        return next((one.removeprefix(f"{name}=") for one in self.markers if one.startswith(f"{name}=")), None)

    @property
    def skipped(self) -> bool:
        return any(one.startswith(_REASON) for one in self.markers)

    @property
    def replaced(self) -> dict[str, str]:
        """Values to run it with in place of those that are shown."""
        words = [word for one in self.markers if one.startswith("with ") for word in one.split()[1:]]
        return dict(word.split("=", 1) for word in words)

    @property
    def added(self) -> list[str]:
        """Words that are put behind every command."""
        return [word for one in self.markers if one.startswith("add ") for word in one.split()[1:]]

    @property
    def source(self) -> str:
        """The text with these values."""
        text = self.text
        for name, value in self.replaced.items():
            given = rf"(?<![\w-])(--{name}[ =]|{name} ?=(?!=) ?)(\[[^]]*\]|'[^']*'|[^\s,)]+)"
            changed = re.sub(given, rf"\g<1>{value}", text)
            assert changed != text, f"line {self.line}: nothing is called {name} here, which `with` changes"
            text = changed
        return text

    @property
    def is_python(self) -> bool:
        return self.language in ("python", "py") and self.value("file") is None

    @property
    def is_commands(self) -> bool:
        return self.language in COMMANDS and self.value("file") is None and bool(commands(self.text, self.language))


@dataclass(frozen=True)
class Page:
    """A page with its blocks."""

    name: str
    blocks: tuple[Block, ...] = field(repr=False)

    @property
    def has_slow(self) -> bool:
        return any(block.slow and not block.skipped for block in self.blocks)

    @property
    def has_fast(self) -> bool:
        ran = [block for block in self.blocks if not block.slow and not block.skipped]
        return any(block.is_python or block.is_commands for block in ran)


def page(name: str, text: str) -> Page:
    """The blocks of a page, refusing markers that say nothing."""
    all_slow, skipped = bool(_PAGE_SLOW.search(text)), _PAGE_SKIPPED.search(text)
    blocks, lines, pending, place = [], text.splitlines(), "", 0
    while place < len(lines):
        opened = _FENCE.match(lines[place])
        if opened is None:
            if (marker := _MARKER.match(lines[place])) and not marker[1].startswith("page "):
                pending = f"{pending}, {marker[1]}" if pending else marker[1]
            elif lines[place].strip():
                pending = ""
            place += 1
            continue
        first = place + 1
        place = first
        while place < len(lines) and lines[place].strip() != opened["fence"]:
            place += 1
        inside = textwrap.dedent("\n".join(lines[first:place]))
        markers = _markers(pending if skipped is None else skipped[1], f"{name}, line {first}")
        slow = all_slow or "slow" in markers or any(one.startswith("needs=") for one in markers)
        blocks.append(Block(opened["language"], inside + "\n", first, markers, slow))
        pending, place = "", place + 1
    return Page(name, tuple(blocks))


def _markers(text: str, where: str) -> tuple[str, ...]:
    """A reason may have commas of its own, so it comes last."""
    before, reason, why = text.partition(_REASON)
    found = [one for one in re.split(r",\s+", before.rstrip(", ")) if one and one != "page slow"]
    names = ("setup=", "needs=", "file=", "status=", "raises=", "with ", "add ")
    wrong = [one for one in found if one != "slow" and not one.startswith(names)]
    assert not wrong, f"{where}: expected a marker of CONTRIBUTING.md, found {wrong}"
    assert not reason or len(why) > 5, f"{where}: expected a reason after `skip because`"
    return (*found, *([reason + why] if reason else []))


def commands(text: str, language: str = "") -> list[str]:
    """The command lines of a block. With `$ ` in front of some, the others are output."""
    lines = text.replace("\\\n", " ").splitlines()
    prompted = [line.strip()[2:] for line in lines if line.strip().startswith("$ ")]
    if prompted:
        return prompted
    found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if language == "" and not any(line.startswith(("cloister ", "python ", "make ", "pip ")) for line in found):
        return []
    return found


def pages_of(root: Path, folder: Path) -> list[Page]:
    """README.md and the hand-written pages."""
    paths = [root / "README.md", *sorted(folder.rglob("*.md"))]
    return [page(str(path.relative_to(root)), path.read_text(encoding="utf-8")) for path in paths]
