"""Scripts and settings of the repository, shown on pages with an anchor for each file."""

from __future__ import annotations

from pathlib import Path

from site_pages.documents import SETTINGS
from site_pages.markdown import admonition, fenced

_TITLES = {
    "experiments": ("Files of experiments", "Single runs and comparisons"),
    "experiments/best": ("Recipes", "Settings with high accuracy at the papers' epsilons"),
    "experiments/papers": ("Files of the papers", "The papers' tables and figures, for `cloister reproduce`"),
}


def pages(root: Path) -> dict[str, str]:
    """Of examples and of settings."""
    found = {page: _settings(root, folder) for folder, page in SETTINGS.items()}
    return {**found, "reference/examples.md": _examples(root)}


def _examples(root: Path) -> str:
    parts = [
        "# Examples\n",
        "Short scripts of `examples/`. Each says in its first lines how it is run; tests run all of them.\n",
    ]
    for path in sorted((root / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        first = text.removeprefix('"""').splitlines()[0]
        # Scripts are executed by tests/test_examples.py, with data files that these tests make.
        marker = "<!-- test: skip because tests/test_examples.py runs it -->"
        parts += [
            f"## {path.stem} {{ #{path.stem} }}\n",
            f"{first}\n",
            marker,
            fenced(text, "python", f"examples/{path.name}"),
        ]
    return "\n".join(parts)


def _settings(root: Path, folder: str) -> str:
    title, what = _TITLES[folder]
    parts = [f"# {title}\n", f"{what}: the files of `{folder}/`, which is a folder of the repository.\n"]
    for path in sorted((root / folder).glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        box = admonition("???example", f"{folder}/{path.name}", fenced(text, "toml"))
        parts += [f"## {path.name} {{ #{path.stem.lower().replace('.', '')}toml }}\n", box]
    return "\n".join(parts)
