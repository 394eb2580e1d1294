"""The house's floor plan: an import may only point downwards."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "cloister"

# Each floor may import from the floors before it. Rooms on one floor do not know one another.
FLOORS = [
    {"errors"},
    {"random"},
    {"privacy"},
    {"core"},
    {"client", "transforms", "mechanisms", "server"},
    {"round"},
    {"engine"},
    {"methods"},
    {"models"},
    {"data"},
    {"runs"},
    {"cli"},
    {"__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def arrows() -> set[tuple[str, str]]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).with_suffix("").parts[0]
        if room == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = node.module == "cloister"
                names = [f"cloister.{alias.name}" for alias in node.names] if whole else [node.module]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found |= {(room, n.split(".")[1]) for n in names if n.startswith("cloister.")}
    return {(room, other) for room, other in found if room != other and other != "__version__"}


def test_every_room_has_a_floor():
    rooms = {p.relative_to(SOURCE).with_suffix("").parts[0] for p in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == set(FLOOR)


def test_no_arrow_points_upwards_or_sideways():
    wrong = {f"{room} -> {other}" for room, other in arrows() if FLOOR[other] >= FLOOR[room]}
    assert not wrong


def test_privacy_knows_nothing_of_torch():
    for path in (SOURCE / "privacy").glob("*.py"):
        assert "torch" not in {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
            )
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
