"""Files that pages ask for: ours, those of the report, and plotly.js as its Python package has it."""

from __future__ import annotations

from functools import cache
from importlib import resources

from fastapi.responses import Response

from cloister.studio.places import NotThere

_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_OURS = ("studio.css", "page.js", "charts.js", "runs.js", "run.js", "planner.js", "mark.svg")
_OF_THE_REPORT = ("report.css", "report.js")
_DAY = "private, max-age=86400"


_PLOTLY = "plotly.min.js"


def file(name: str) -> Response:
    """One of the names that are known; any other is refused."""
    caching = _DAY if name == _PLOTLY else "no-cache"
    return Response(_text(name), media_type=_KINDS[name.rpartition(".")[2]], headers={"cache-control": caching})


@cache
def _text(name: str) -> str:
    if name == _PLOTLY:
        from plotly.offline import get_plotlyjs

        return str(get_plotlyjs())
    if name == "palette.css":
        return _palette()
    if name in _OURS:
        return (resources.files("cloister.studio") / "pages" / name).read_text(encoding="utf-8")
    if name in _OF_THE_REPORT:
        return (resources.files("cloister.studies.html") / "templates" / name).read_text(encoding="utf-8")
    raise NotThere(f"Expected a file of this page, found {name!r}: go to the list.")


def _palette() -> str:
    """The report's colors, for both themes."""
    from cloister.studies.html.figures.style import DARK, LIGHT

    light, dark = (" ".join(f"--c{n}: {color};" for n, color in enumerate(palette)) for palette in (LIGHT, DARK))
    return (
        f":root {{ {light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f':root[data-theme="dark"] {{ {dark} }}\n'
    )
