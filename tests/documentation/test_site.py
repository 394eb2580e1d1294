"""The site builds strictly, loads nothing from elsewhere, and shows its pages in a browser without a complaint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from documentation.code_blocks import page
from site_pages import generated
from site_pages.links import rewritten
from site_pages.navigation import nav

ROOT = Path(__file__).parents[2]
LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. Every warning of MkDocs, broken links and anchors among them, would have ended the build."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder


class Loaded(HTMLParser):
    """What a page makes a browser fetch, and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.names |= {given[name] or "" for name in ("id", "name") if name in given}
        if tag == "link" and given.get("rel") not in ("next", "prev", "canonical", "search"):
            self.fetched.append(given.get("href") or "")
        if tag in LOADS and given.get(LOADS[tag]):
            self.fetched.append(given[LOADS[tag]] or "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")


@pytest.mark.slow
def test_no_page_loads_anything_from_a_network(site):
    pages = {path: Loaded(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 90
    outside = {str(path): url for path, one in pages.items() for url in one.fetched if re.match(r"\w+:|//", url)}
    assert not {path: url for path, url in outside.items() if not url.startswith("data:")}
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles)


@pytest.mark.slow
def test_links_within_the_site_lead_to_pages_and_anchors(site):
    pages = {path.resolve(): Loaded(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    broken = []
    for path, one in pages.items():
        for link in one.links:
            if re.match(r"\w+:|//", link) or path.name == "404.html":  # which a server shows in place of any page
                continue
            target, _, anchor = link.partition("#")
            goal = (path.parent / target).resolve() if target else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.exists() or (anchor and goal in pages and anchor not in pages[goal].names):
                broken.append((str(path.relative_to(site.resolve())), link))
    assert not broken


@pytest.mark.slow
def test_pages_are_shown_without_complaint_and_can_be_searched(site, tmp_path):
    """As files, at the widths of a desk and of a telephone, light and dark."""
    from studies.chromium import Browser, installed

    if installed() is None:
        pytest.skip("no Chromium")
    with Browser(tmp_path) as browser:
        for name, width, dark in (
            ("index.html", 1300, False),
            ("methods/dp_fedavg.html", 1300, True),
            ("methods/pfl.html", 390, False),
            ("reference/api/cloister.html", 390, True),
            ("results/what-holds-up.html", 390, False),
        ):
            scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
            browser.call("Emulation.setEmulatedMedia", features=scheme)
            browser.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
            )
            browser.call("Page.navigate", url=(site / name).as_uri())
            browser.until("document.readyState === 'complete' && !!document.querySelector('.md-content h1')")
            assert browser.ask("document.body.dataset.mdColorScheme") == ("slate" if dark else "default")
            assert browser.ask("document.documentElement.scrollWidth") <= width, f"{name} is wider than the screen"
        browser.ask(
            "(() => { const box = document.querySelector('.md-search__input'); box.focus(); box.value = 'DP-FedSAM'; "
            "box.dispatchEvent(new Event('keyup', {bubbles: true})); "
            "box.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
        browser.until("document.querySelectorAll('.md-search-result__item').length > 0")
        assert browser.complaints() == []
        assert browser.requests() == []


def test_every_generated_page_has_a_title_and_a_place_in_the_navigation():
    pages = generated(ROOT)
    folder = ROOT / "docs" / "pages"
    listed = re.findall(r"[\w./-]+\.md", str(nav(folder, pages)))
    assert len(listed) == len(set(listed))
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
    assert set(listed) == set(pages) | written
    assert all(re.search(r"^# \S", text, re.MULTILINE) for text in pages.values())


def test_every_method_has_an_example_and_a_curve():
    from cloister.runs import catalogue

    pages = generated(ROOT)
    for name in catalogue.stored().choices["method"]:
        text = pages[f"methods/{name}.md"]
        languages = [block.language for block in page(name, text).blocks if block.is_python or block.is_commands]
        assert languages == ["python", "console"], name
        assert '<svg class="chart"' in text, f"run `python benchmarks/method_curves.py --only {name}`"


def test_handwritten_pages_are_ordered_by_their_front_matter(tmp_path):
    texts = {
        "index.md": "# First",
        "howto/b.md": "---\norder: 1\n---\n# Second",
        "howto/a.md": "# Third",
        "zoo/index.md": "# Zoo",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = nav(tmp_path, generated(ROOT))
    assert found[0] == {"Start": ["index.md"]}
    assert found[1] == {"How-to": [{"Second": "howto/b.md"}, {"Third": "howto/a.md"}]}
    assert found[2] == {"Zoo": ["zoo/index.md"]}


def test_links_to_files_become_links_to_pages_or_names_of_files():
    places = {"docs/b.md": "evidence/b.md", "experiments/README.md": "reference/experiments.md"}
    text = "[b](b.md#part) ![x](x.png) [e](../experiments) [src/c.py](../src/c.py)\n```\n[b](b.md)\n```\n[w](https://w)"
    assert rewritten(text, "docs/a.md", "project/a.md", places) == (
        "[b](../evidence/b.md#part) x (`docs/x.png`) [e](../reference/experiments.md) `src/c.py`\n"
        "```\n[b](b.md)\n```\n[w](https://w)"
    )
