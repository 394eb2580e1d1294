"""How much of a paper's setting is run: all of it, with the data at hand, or a part.

full         the paper's settings
1, here      the same, with what [here] changes: settings that public files allow
S            between 0 and 1: [here], and S times of what the rule names (rounds, clients, fraction, local_epochs)
small, tiny  [here], and what [scale.small] or [scale.tiny] change: minutes on two cores; seconds, without data files
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloister.errors import CloisterError, expect
from cloister.studies.papers.files import PaperFile

RULE = ("rounds", "clients", "fraction", "local_epochs")
"""Keys that are multiplied by S, unless [scale] has `keys` of its own."""
WITH_ROUNDS = ("evaluate_every", "checkpoint_every")
NAMED = ("full", "here", "small", "tiny")


@dataclass(frozen=True)
class Scale:
    """`name` as it was asked for; `part` is S."""

    name: str = "full"
    part: float = 1.0

    def changes(self, file: PaperFile, method: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a cell that change, with the values they get."""
        if self.name == "full":
            return {}
        changed = {**_flat(file.table("here")), **file.table("here", "methods", method)}
        if self.part < 1:
            changed |= self._reduced(file.table("scale").get("keys", RULE), {**keys, **changed})
        own = file.table("scale", self.name)
        return {**changed, **_flat(own), **file.table("scale", self.name, "methods", method)}

    def only(self, file: PaperFile) -> dict[str, list[str]]:
        """Axes that are cut down to some of their values; tiny ones need not have all cells."""
        if self.name == "full":
            return {}
        return {**file.table("here", "only"), **file.table("scale", self.name, "only")}

    def seeds(self, file: PaperFile) -> list[int]:
        """Those of the file; two of them for a small run, one for a tiny one."""
        return file.seeds[: {"tiny": 1, "small": 2}.get(self.name)]

    def _reduced(self, rule: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
        also = WITH_ROUNDS if "rounds" in rule else ()
        given = {key: keys[key] for key in (*rule, *also) if isinstance(keys.get(key), (int, float))}
        changed = {key: _part_of(value, self.part) for key, value in given.items()}
        if "fraction" in rule:
            changed["fraction"] = self.part * keys.get("fraction", 1.0)
        return changed


def scale_of(text: str) -> Scale:
    """
    >>> scale_of("0.25"), scale_of("1")
    (Scale(name='0.25', part=0.25), Scale(name='here', part=1.0))
    """
    if text in NAMED:
        return Scale(text)
    try:
        part = float(text)
    except ValueError:
        raise CloisterError(
            f"Expected a scale: a number up to 1, or one of {', '.join(NAMED)}, found {text!r}: choose one."
        ) from None
    expect(0 < part <= 1, "a scale above 0 and up to 1", text, "choose, for instance, 0.1")
    return Scale("here") if part == 1 else Scale(f"{part:g}", part)


def _part_of(value: float, part: float) -> float:
    """S times a number; of whole ones at least one."""
    return max(1, round(value * part)) if isinstance(value, int) else value * part


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a run in a table that also has tables."""
    return {key: value for key, value in table.items() if not isinstance(value, Mapping)}
