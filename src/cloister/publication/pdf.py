"""The page as a PDF: what matters on one page, then the details. The same values give the same bytes: no time, no
random names, and nothing compressed, because what compresses differs between machines."""

from __future__ import annotations

import io
from typing import Any

from cloister.publication.fonts import BOLD, FIXED, REGULAR, markup, register
from cloister.publication.page import Guess, Page, Spent

_TEXT, _MUTED, _LINE, _TRACK = "#1c1d1f", "#5c6066", "#dcdcd8", "#e7e7e2"
_BEFORE, _AFTER, _SPENT, _WARNING, _SURFACE = "#8a9098", "#b3491a", "#00618f", "#a3240b", "#f3f3f0"
_MARGIN = 50.0
_WIDTH, _HEIGHT = 595.27, 841.89  # A4
_PADDING = 6.0  # a frame's own
_INSIDE = _WIDTH - 2 * _MARGIN - 2 * _PADDING
_FIRST = 5
"""So many accounts are on the first page."""


def pdf(page: Page) -> bytes:
    """The file."""
    from reportlab.platypus import KeepInFrame, PageBreak, SimpleDocTemplate

    register()
    content = io.BytesIO()
    document = SimpleDocTemplate(
        content,
        pagesize=(_WIDTH, _HEIGHT),
        leftMargin=_MARGIN,
        rightMargin=_MARGIN,
        topMargin=_MARGIN,
        bottomMargin=_MARGIN,
        title=page.title,
        author="Cloister",
        subject=page.subject,
        invariant=1,
        pageCompression=0,
    )
    first = KeepInFrame(_INSIDE, _HEIGHT - 2 * (_MARGIN + _PADDING) - 2, _first(page), mode="shrink")

    def footer(canvas: Any, _: Any) -> None:
        canvas.setFont(REGULAR, 7.5)
        canvas.setFillColor(_MUTED)
        canvas.drawString(_MARGIN + _PADDING, 30, "Check it: cloister verify FOLDER")
        canvas.drawRightString(_WIDTH - _MARGIN - _PADDING, 30, f"page {canvas.getPageNumber()}")

    document.build([first, PageBreak(), *_details(page)], onFirstPage=footer, onLaterPages=footer)
    return content.getvalue()


def _first(page: Page) -> list[Any]:
    """What matters."""
    parts = [_paragraph(page.title, 20, BOLD), _paragraph(page.subject, 9.5, color=_MUTED), _space(8)]
    parts += [part for banner in page.banners for part in (_banner(banner.title, banner.text), _space(8))]
    parts += [_headline(page), _space(2), _heading("What this means"), *(_paragraph(text) for text in page.meaning)]
    if page.guesses:
        parts += [_space(3), _guesses(page.guesses)]
    parts += [_heading("Who is protected"), *(_paragraph(text) for text in page.unit)]
    if page.spending:
        more = len(page.spending) - _FIRST
        rest = f" {more} more are on the next page." if more > 0 else ""
        parts += [_heading(page.spending_title), _spending(page.spending[:_FIRST]), _small(page.spending_note + rest)]
    parts += [_heading("Who must be trusted"), *_list(page.trusted)]
    parts += [
        _space(4),
        _small("What is not covered, and how to check all this, is on the next page."),
    ]
    return parts


def _details(page: Page) -> list[Any]:
    parts = [_heading("What is not covered"), *_list(page.not_covered)]
    if page.names:
        parts += [_heading("The clients"), _paragraph(page.names)]
    if len(page.spending) > _FIRST:
        parts += [_heading(page.spending_title), _spending(page.spending), _small(page.spending_note)]
    if page.formula:
        parts += [_heading("How the attacker's success is bounded"), _paragraph(page.formula)]
    parts += [_heading("How to check this certificate"), *(_paragraph(text) for text in page.signature)]
    parts += [_paragraph(command, 8, FIXED) for command in page.check]
    if page.files:
        parts.append(_rows([(name, [hash]) for name, hash in page.files], FIXED))
    parts += [_heading("Details"), _rows(page.details)]
    return parts


def _paragraph(text: str, size: float = 9.5, font: str = REGULAR, color: str = _TEXT, indent: float = 0) -> Any:
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.platypus import Paragraph

    style = ParagraphStyle(
        "text",
        fontName=font,
        fontSize=size,
        leading=size * (1.2 if size > 14 else 1.38),
        textColor=color,
        spaceAfter=size * 0.32,
        leftIndent=indent,
        bulletIndent=0,
        bulletFontName=REGULAR,
    )
    return Paragraph(markup(text, font), style, bulletText="•" if indent else None)


def _heading(text: str) -> Any:
    found = _paragraph(text, 11.5, BOLD)
    found.style.spaceBefore, found.style.spaceAfter, found.style.keepWithNext = 9, 3, 1
    return found


def _small(text: str) -> Any:
    return _paragraph(text, 8, color=_MUTED)


def _list(texts: list[str]) -> list[Any]:
    return [_paragraph(text, 9, indent=10) for text in texts]


def _space(points: float) -> Any:
    from reportlab.platypus import Spacer

    return Spacer(1, points)


def _banner(title: str, text: str) -> Any:
    parts = [_paragraph(title, 13, BOLD, "#ffffff"), _paragraph(text, 9, color="#ffffff")]
    return _table([[parts]], [_INSIDE], [("BACKGROUND", (0, 0), (-1, -1), _WARNING), *_padding(9)])


def _headline(page: Page) -> Any:
    if page.epsilon:
        parts = [_paragraph(f"epsilon {page.epsilon}", 22, BOLD)]
        parts.append(_paragraph(f"{page.at_delta}, {page.whom}", 10, color=_MUTED))
    else:
        parts = [_paragraph("no guarantee", 22, BOLD, _WARNING)]
    return _table([[parts]], [_INSIDE], [("BACKGROUND", (0, 0), (-1, -1), _SURFACE), *_padding(9)])


def _guesses(guesses: list[Guess]) -> Any:
    rows = [[_small("The attacker"), _small("right beforehand, and afterwards at most"), ""]]
    for guess in guesses:
        bars = [_bar(guess.before, _BEFORE), _space(3), _bar(guess.after, _AFTER)]
        numbers = [_paragraph(guess.before_text, 8.5), _paragraph(guess.after_text, 8.5, BOLD)]
        rows.append([_paragraph(guess.question, 8.5), bars, numbers])
    return _table(rows, [_INSIDE * 0.5, _INSIDE * 0.4, _INSIDE * 0.1], _lines())


def _spending(spending: list[Spent]) -> Any:
    rows = []
    for one in spending:
        name = [_paragraph(one.name, 9, BOLD), _small(one.more)]
        bar = "" if one.share is None else [_space(3), _bar(one.share, _SPENT, one.room)]
        rows.append([name, bar, _paragraph(f"{one.epsilon} {one.budget}", 9)])
    return _table(rows, [_INSIDE * 0.45, _INSIDE * 0.33, _INSIDE * 0.22], _lines())


def _rows(rows: list[tuple[str, list[str]]], font: str = REGULAR) -> Any:
    """Names and values; every line of a value is a row, so that a long one can be broken between pages."""
    cells = []
    for name, values in rows:
        for at, value in enumerate(values or ["none"]):
            label = _paragraph(name, 8, color=_MUTED) if at == 0 else ""
            cells.append([label, _paragraph(value, 7.2 if font == FIXED else 8, font)])
    return _table(cells, [_INSIDE * 0.24, _INSIDE * 0.76], _lines())


def _bar(share: float, color: str, room: float = 1.0) -> Any:
    from reportlab.graphics.shapes import Drawing, Rect

    width, height = _INSIDE * 0.33 - 14, 7
    drawing = Drawing(width, height + 2)
    for part, fill in ((room, _TRACK), (share, color)):
        drawing.add(Rect(0, 1, width * part, height, fillColor=_color(fill), strokeColor=None, strokeWidth=0))
    return drawing


def _color(text: str) -> Any:
    from reportlab.lib.colors import HexColor

    return HexColor(text)


def _table(rows: list[list[Any]], widths: list[float], style: list[tuple[Any, ...]]) -> Any:
    from reportlab.platypus import Table

    colored = [(*rule[:-1], _color(rule[-1])) if str(rule[-1]).startswith("#") else rule for rule in style]
    return Table(rows, colWidths=widths, style=colored, hAlign="LEFT")


def _padding(points: float) -> list[tuple[Any, ...]]:
    names = ("LEFTPADDING", "RIGHTPADDING", "TOPPADDING", "BOTTOMPADDING")
    return [(name, (0, 0), (-1, -1), points) for name in names]


def _lines() -> list[tuple[Any, ...]]:
    return [
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), 0),
        ("RIGHTPADDING", (0, 0), (-1, -1), 8),
        ("TOPPADDING", (0, 0), (-1, -1), 3),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
        ("LINEBELOW", (0, 0), (-1, -1), 0.5, _LINE),
    ]
