"""Documents that are in the repository for its readers there, as pages: docs/*.md, results/, changelog and others."""

from __future__ import annotations

import re
from pathlib import Path

from site_pages.links import rewritten

PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "docs/methods.md": "methods/user-level.md",
    "docs/samples.md": "methods/sample-level.md",
    "docs/federation.md": "reference/federation.md",
    **{
        f"docs/{name}.md": f"evidence/{name}.md"
        for name in ("speed", "audit", "mutants", "torture", "theory", "papers", "rounded-noise")
    },
    "results/README.md": "results/index.md",
    "results/best.md": "results/best.md",
    "results/what-holds-up.md": "results/what-holds-up.md",
    "experiments/README.md": "reference/experiments.md",
    "experiments/papers/README.md": "reference/experiments-papers.md",
}
"""Where a file of the repository is on the site. The README's own place is the hand-written first page."""


def places(root: Path) -> dict[str, str]:
    """Of documents, their pictures, and the scripts and settings that have a place on a page."""
    found = dict(PLACES)
    for folder in ("results/papers", "results/comparisons"):
        for path in sorted((root / folder).glob("*.md")):
            found[f"{folder}/{path.name}"] = f"{folder}/{path.name}"
    for picture in pictures(root):
        found[picture] = f"assets/{picture}"
    for path in sorted((root / "examples").glob("*.py")):
        found[f"examples/{path.name}"] = f"reference/examples.md#{path.stem}"
    for folder, page in SETTINGS.items():
        for path in sorted((root / folder).glob("*.toml")):
            found[f"{folder}/{path.name}"] = f"{page}#{_anchor(path.stem)}"
    return {**found, "examples": "reference/examples.md"}


SETTINGS = {
    "experiments": "reference/experiment-files.md",
    "experiments/best": "reference/best-files.md",
    "experiments/papers": "reference/paper-files.md",
}
"""Folders of settings, each on a page."""


def _anchor(stem: str) -> str:
    return re.sub(r"[^\w-]", "", f"{stem}.toml").lower()


def pictures(root: Path) -> list[str]:
    """Those that documents show."""
    folders = (root / "docs", root / "results")
    return [str(path.relative_to(root)) for folder in folders for path in sorted(folder.rglob("*.png"))]


def pages(root: Path) -> dict[str, str]:
    """Page by page, the text with links that lead to pages of the site."""
    known = places(root)
    sources = {source: page for source, page in known.items() if source.endswith(".md") and source != "README.md"}
    return {
        page: rewritten((root / source).read_text(encoding="utf-8"), source, page, known)
        for source, page in sources.items()
    }
