"""Letters for the PDF: DejaVu, which comes with matplotlib and is embedded, has most alphabets.

Names in Chinese, Japanese and Korean are set in the fonts that every PDF reader has for them (the standard CID fonts),
so that no font of many megabytes has to travel. Words that run from right to left are turned around; Arabic letters are
not joined (the HTML page does that). What no font has is shown by its code point.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

REGULAR, BOLD, FIXED = "Cloister", "CloisterBold", "CloisterMono"
_FILES = {REGULAR: "DejaVuSans.ttf", BOLD: "DejaVuSans-Bold.ttf", FIXED: "DejaVuSansMono.ttf"}
_ASIAN = {"euc_jp": "HeiseiKakuGo-W5", "euc_kr": "HYGothic-Medium", "gb2312": "STSong-Light", "big5": "MSung-Light"}
"""By the character set that tells which of them has a text."""


_LETTERS = "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe]+"
_RIGHT_TO_LEFT = re.compile(f"{_LETTERS}( {_LETTERS})*")


@cache
def register() -> dict[str, Any]:
    """Make the fonts known to reportlab; those that are embedded, by name."""
    import matplotlib
    from reportlab.pdfbase.cidfonts import UnicodeCIDFont
    from reportlab.pdfbase.pdfmetrics import registerFont
    from reportlab.pdfbase.ttfonts import TTFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found = {name: TTFont(name, str(folder / file)) for name, file in _FILES.items()}
    for font in [*found.values(), *map(UnicodeCIDFont, _ASIAN.values())]:
        registerFont(font)
    return found


def markup(text: str, font: str = REGULAR) -> str:
    """A text as reportlab's paragraphs take it: escaped, with a font for every part of it."""
    known = register()[font].face.charToGlyph
    shown = "".join(_shown(one, one.isspace() or ord(one) in known) for one in text)
    parts = []
    for covered, run in groupby(shown, key=lambda one: ord(one) in known or one == " "):
        part = _RIGHT_TO_LEFT.sub(lambda found: found[0][::-1], "".join(run))
        parts.append(escape(part) if covered else f'<font name="{_asian(part)}">{escape(part)}</font>')
    return "".join(parts)


def _shown(one: str, covered: bool) -> str:
    """A character, or its code point where it has no picture."""
    if one.isspace():
        return " "
    if unicodedata.category(one)[0] == "C" or not (covered or _asian(one)):
        return f"<U+{ord(one):04X}>"
    return one


@cache
def _asian(text: str) -> str:
    """A font for letters of East Asia; empty where there is none."""
    for codec, name in _ASIAN.items():
        try:
            text.encode(codec)
        except UnicodeEncodeError:
            continue
        return name
    several = {_asian(one) for one in text} if len(text) > 1 else set()
    return next(iter(sorted(several - {""})), "")
