"""Folders have an order in which they are read, and an import only points to a folder that was read before."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "cloister"

ORDER = [
    *("errors", "random", "privacy", "core", "client", "transforms", "mechanisms", "server", "round", "engine"),
    *("methods", "theory", "models", "data", "runs", "auditing", "studies", "deploy", "publication"),
    *("studio", "cli", "__main__"),
]
# The parts of a method meet in a round and nowhere else.
APART = {"client", "transforms", "mechanisms", "server"}


def module_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@cache
def imports() -> set[tuple[str, str]]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        if module_of(path) == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = node.module == "cloister"
                names = [f"cloister.{alias.name}" for alias in node.names] if whole else [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found |= {(module_of(path), name.split(".")[1]) for name in names if name.startswith("cloister.")}
    return {(one, other) for one, other in found if one != other and other != "__version__"}


def test_everything_has_its_place_in_the_order():
    assert {module_of(path) for path in SOURCE.rglob("*.py")} - {"__init__"} == set(ORDER)


def test_an_import_points_to_what_was_read_before():
    assert len(imports()) > 30
    assert not {f"{one} -> {other}" for one, other in imports() if ORDER.index(other) >= ORDER.index(one)}


def test_the_parts_of_a_method_do_not_know_one_another():
    assert not {(one, other) for one, other in imports() if {one, other} <= APART}


def test_the_readme_shows_the_folders_in_reading_order():
    (table,) = re.findall(r"<!-- folders -->(.*?)<!-- end of folders -->", (ROOT / "README.md").read_text(), re.DOTALL)
    shown = re.findall(r"^\| `(\w+)/`", table, re.MULTILINE)
    assert shown == [name for name in ORDER if (SOURCE / name).is_dir()]


def test_few_files_lie_beside_the_folders():
    assert len([path for path in SOURCE.iterdir() if path.is_file()]) <= 4


def test_privacy_and_theory_know_nothing_of_torch():
    for path in [*(SOURCE / "privacy").glob("*.py"), *(SOURCE / "theory").glob("*.py")]:
        assert "torch" not in {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
            )
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
