"""What `cloister` alone says: what to do next, and which run was the last. Nothing is imported for it."""

from __future__ import annotations

import shlex
from pathlib import Path

_NEXT = """\
Differentially private federated learning. What to do next:

  {program} demo                  train on real handwritten digits, with and without privacy
  {program} plan --help           what would a target cost, and is the federation large enough?
  {program} run --help            train, on your own keys or on a file such as experiments/digits.toml
  {program} compare --help        methods, seeds and values of any key side by side
  {program} tune --help           which settings are best, at a price that is known
  {program} federation --help     nodes that keep their data, and a server that has none
  {program} methods               all methods: whom they protect, and who must be trusted
  {program} keys METHOD           every key of a method and of a run
  {program} completion bash       commands, keys and runs by the Tab key (or zsh, fish)
  {program} --help                all commands"""


def first_steps(program: str, runs: Path = Path("runs")) -> str:
    """The page."""
    return _NEXT.format(program=program) + _last_run(program, runs)


def _last_run(program: str, runs: Path) -> str:
    newest = newest_run(runs)
    if newest is None:
        return ""
    path = shlex.quote(str(newest))
    if (newest / "certificate.json").exists():
        return f"\n\nThe newest run here has ended:\n\n  {program} show {path}"
    return f"\n\nThe newest run here has not ended:\n\n  {program} resume {path}"


def newest_run(runs: Path) -> Path | None:
    """That whose ledger was written last."""
    found: list[tuple[float, Path]] = []
    for path in runs_below(runs):
        try:
            found.append(((path / "ledger.jsonl").stat().st_mtime, path))
        except OSError:
            continue  # one that is just being made, or is removed
    return max(found)[1] if found else None


def runs_below(folder: Path) -> list[Path]:
    """The runs in a folder, and those of comparisons in it."""
    try:
        return sorted(
            file.parent
            for pattern in ("*/description.json", "*/*/description.json")
            for file in folder.glob(pattern)
            if not file.parent.name.startswith(".")
        )
    except OSError:
        return []
