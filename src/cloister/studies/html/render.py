"""The page: one file of HTML with everything in it, which asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister import __version__
from cloister.errors import expect, expect_package, expect_type
from cloister.runs.files import write_atomically

if TYPE_CHECKING:
    from cloister.studies.html.gather import Study
    from cloister.studies.html.sections import Section

DEFAULT = "report.html"


def report(
    folders: str | Path | Sequence[str | Path],
    path: str | Path = DEFAULT,
    *,
    title: str | None = None,
    labels: bool = True,
) -> Path:
    """Write one self-contained HTML page about runs, and give its path back.

        cl.report("runs/compare-20260101-120000", "report.html", title="Digits")

    Args:
        folders: of runs, or of comparisons and sweeps with runs inside. Runs that differ only in their seed are drawn
            as one, with bands; the others are told apart by method, epsilon and the settings in which they differ.
        path: of the page. What is there is replaced.
        title: of the page; by default the name of the first folder.
        labels: whether to read the data sets of simulations again, to show who holds which class.

    What is on the page and computed exactly from clients' data is marked NOT PRIVATE next to it.
    """
    target = expect_page(path)
    given = [folders] if isinstance(folders, (str, Path)) else list(folders)
    for one in given:
        expect_type("folders", one, (str, Path), "paths of folders", "name the folders of runs")
    if title is not None:
        expect_type("title", title, str, "a text")
    from cloister.studies.html.gather import gather

    places = [Path(one) for one in given]
    study = gather(places)
    page = render(study, title or places[0].resolve().name, labels)
    write_atomically(target, page.encode())
    return target


def expect_page(path: str | Path) -> Path:
    """Refuse a page that could not be written, before anything is read."""
    expect_type("path", path, (str, Path), "the path of a page", f'such as "{DEFAULT}"')
    for package in ("jinja2", "plotly"):
        expect_package(package, "for a report", "report")
    target = Path(path)
    expect(target.suffix in (".html", ".htm"), "a page that ends in .html", str(path), "rename it")
    expect(target.parent.is_dir(), "a page in a folder that exists", str(path), "create the folder, or choose another")
    expect(not target.is_dir(), "a page", f"the folder {path}", "choose another name")
    return target


def render(study: Study, title: str, labels: bool = True) -> str:
    """The page as text."""
    import jinja2
    from plotly.offline import get_plotlyjs

    from cloister.studies.html import tables
    from cloister.studies.html.figures.style import DARK, LIGHT, Style
    from cloister.studies.html.sections import sections

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cloister.studies.html", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    style = Style(study)
    found = sections(style, labels)
    scripts = {"plotly": get_plotlyjs(), "page": _file("report.js")}
    return environment.get_template("report.html.j2").render(
        title=title,
        version=__version__,
        study=study,
        summary=tables.summary(study),
        settings=tables.settings(study),
        sections=found,
        legend=style.legend,
        figures=script_json(figures_of(found)),
        palettes={"light": LIGHT, "dark": DARK},
        palettes_json=script_json({"light": LIGHT, "dark": DARK}),
        css=_file("report.css"),
        scripts={name: _safe_script(text) for name, text in scripts.items()},
        hashes=[_hash(text) for text in scripts.values()],
        marked=any(figure.mark for section in found for figure in section.figures),
        simulated=[run for run in study.runs if run.certificate.private and not run.certificate.secure_rng],
    )


def figures_of(found: Sequence[Section]) -> dict[str, Any]:
    """By its id, each plot of the page as plotly.js takes it."""
    drawn = [figure for section in found for figure in section.figures]
    return {f"{one.id}-{place}": panel.json for one in drawn for place, panel in enumerate(one.panels)}


def script_json(value: Any) -> str:
    """JSON that can stand inside a script element, whatever texts are in it.

    >>> script_json("</script>")
    '"\\\\u003c/script\\\\u003e"'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _file(name: str) -> str:
    return (resources.files("cloister.studies.html") / "templates" / name).read_text(encoding="utf-8")


def _safe_script(text: str) -> str:
    """Script that does not end its own element."""
    assert "</script" not in text.lower()
    assert "<!--" not in text
    return text


def _hash(text: str) -> str:
    """By which the page's policy knows its own scripts: no other is executed."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
