"""The page as HTML: one file that asks no network for anything and runs no script; its bytes follow from its values."""

from __future__ import annotations

import unicodedata
from importlib import resources
from typing import Any

import markupsafe

from cloister.publication.page import Page


def html(page: Page) -> bytes:
    """The file. Whatever comes from people (names, notes) is escaped."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cloister.publication", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
    )
    folder = resources.files("cloister.publication") / "templates"
    styles = (folder / "certificate.css").read_text(encoding="utf-8")
    text = environment.get_template("certificate.html.j2").render(page=page, css=markupsafe.Markup(styles))
    return (text + "\n").encode(errors="xmlcharrefreplace")


def _visible(value: Any) -> Any:
    """A text without characters that nobody sees and that turn others around: these are shown by their code points."""
    if not isinstance(value, str) or isinstance(value, markupsafe.Markup):
        return value
    return "".join(f"<U+{ord(one):04X}>" if unicodedata.category(one) in ("Cc", "Cf", "Cs") else one for one in value)
