"""What MkDocs calls when it builds the site: generated pages are added, and all are put in order."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads a hook by its path, without its folder

from site_pages import generated, pictures
from site_pages.navigation import nav

_PAGES: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Pages have to be known before the navigation is read."""
    root = Path(config.config_file_path).parent
    _PAGES.clear()
    _PAGES.update(generated(root))
    config.nav = nav(Path(config.docs_dir), _PAGES)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, unless somebody wrote a page in its place."""
    root = Path(config.config_file_path).parent
    for path, text in _PAGES.items():
        _add(files, File.generated(config, path, content=text))
    for path, picture in pictures(root).items():
        _add(files, File.generated(config, path, content=picture.read_bytes()))
    return files


def _add(files: Files, file: File) -> None:
    if files.get_file_from_path(file.src_uri) is None:
        files.append(file)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Markers of tests are not for readers: as comments they would be in the page's source."""
    return "\n".join(line for line in markdown.split("\n") if not line.strip().startswith("<!-- test: "))
