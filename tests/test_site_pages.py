"""Hand-written pages of the site are true: what they say is printed is printed, and errors that they quote are raised.

(That every block runs is tested with the machinery of the site.)
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "pages"
PYTHON_OR_PRINTED = re.compile(
    r"^```python\n(.*?)^```$|^<!-- printed -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
PRINTED = [page for page in sorted(PAGES.rglob("*.md")) if "<!-- printed -->" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PRINTED, ids=lambda page: page.stem)
def test_what_is_said_to_be_printed_is_printed(page, tmp_path, monkeypatch):
    """Python blocks up to the last marked one; these pages plan and audit, and do not train."""
    monkeypatch.chdir(tmp_path)
    names, printed = {}, ""
    blocks = PYTHON_OR_PRINTED.findall(page.read_text(encoding="utf-8"))
    last = max(place for place, (program, _) in enumerate(blocks) if not program)
    for program, said in blocks[: last + 1]:
        if program:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(program, names)
            printed = out.getvalue()
        else:
            assert _words(printed) == _words(said)


def _words(text: str) -> list[str]:
    return text.split()


def templates() -> str:
    """All texts of the source, with … for what is filled in."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(one.value) if isinstance(one, ast.Constant) else "…" for one in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def quoted() -> list[str]:
    text = (PAGES / "howto" / "troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^`(Expected .*)`$", text, re.MULTILINE)


def pieces(message: str) -> list[str]:
    """What stands in the source: between …, and where `errors.expect` puts its parts together."""
    parts = re.split(r"…|, found | to be |: |\(|\)|^Expected ", message)
    return [part.strip(" .") for part in parts if len(part.strip(" .")) > 5]


def test_quoted_errors_are_those_of_the_source():
    known = templates()
    messages = quoted()
    assert len(messages) > 40
    gone = {message: piece for message in messages for piece in pieces(message) if piece not in known}
    assert not gone


def test_an_error_that_is_not_there_would_be_noticed():
    assert any(piece not in templates() for piece in pieces("Expected a purple model, found …: paint it green."))


def test_every_extra_is_described():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    described = re.findall(r"^\| `(\w+)` \|", (PAGES / "howto" / "extras.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(extras) <= {*described, "docs"}, "docs is for building the site"


def test_pictures_of_pages_are_those_of_the_script(tmp_path):
    """Each in both themes; one of them is drawn."""
    script = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    files = {f"{name}-{theme}.svg" for name in script["PICTURES"] for theme in ("light", "dark")}
    assert {path.name for path in (PAGES / "pictures").iterdir()} == files
    shown = set()
    for page in PAGES.rglob("*.md"):
        for link, theme in re.findall(r"\]\(([^)#]+\.svg)#only-(\w+)\)", page.read_text(encoding="utf-8")):
            path = page.parent / link
            assert path.is_file(), f"{page}: {link}"
            assert path.stem.endswith(theme)
            shown.add(path.name)
    assert shown == files
    script["main"](["unit"], tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
