"""Links between files of the repository become links between pages of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_OUTSIDE = ("http://", "https://", "mailto:", "#")
_FENCED = re.compile(r"^( *)(```+).*?^\1\2 *$", re.DOTALL | re.MULTILINE)


def rewritten(text: str, source: str, page: str, places: Mapping[str, str]) -> str:
    """The text of file `source` for a page, with links to where `places` says that files are on the site.

    What the site does not have is named by its path in the repository.
    """

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if target.startswith(_OUTSIDE):
            return found[0]
        path, _, fragment = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = places.get(file) or places.get(f"{file}/README.md")
        if place is None:
            return _named(found["text"], file)
        goal, _, own = place.partition("#")
        fragment = own or fragment
        relative = posixpath.relpath(goal, posixpath.dirname(page) or ".")
        return f"{found['image']}[{found['text']}]({relative}{f'#{fragment}' if fragment else ''})"

    return "".join(part if is_code else _LINK.sub(link, part) for part, is_code in _parts(text))


def _named(text: str, file: str) -> str:
    plain = text.strip("`")
    return f"`{file}`" if plain.rstrip("/") in (file, posixpath.basename(file)) else f"{text} (`{file}`)"


def _parts(text: str) -> list[tuple[str, bool]]:
    """The text in pieces, each with whether it is a fenced block, in which nothing is a link."""
    parts, end = [], 0
    for block in _FENCED.finditer(text):
        parts += [(text[end : block.start()], False), (block[0], True)]
        end = block.end()
    return [*parts, (text[end:], False)]
