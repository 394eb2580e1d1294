"""Line charts as SVG inside of a page: no script, no image file, and colors that follow the light or dark palette."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 420, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 26, 40


@dataclass(frozen=True)
class Line:
    """A curve, and the least and greatest of what it is the mean of."""

    name: str
    color: int
    """Which of the colors of assets/site.css."""
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def line_chart(title: str, x_label: str, lines: Sequence[Line], y_label: str = "test accuracy") -> str:
    """Curves over a common axis; y goes from 0 to 1."""
    least, most = 0.0, max(x for line in lines for x in line.xs)
    scale = _Scale(least, most)
    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">']
    parts.append(f'<text class="title" x="{_LEFT}" y="15">{escape(title)}</text>')
    parts += _axes(scale, x_label, y_label, most)
    for line in lines:
        if line.low:
            points = [*zip(line.xs, line.high, strict=True), *reversed([*zip(line.xs, line.low, strict=True)])]
            parts.append(f'<polygon class="band color-{line.color}" points="{scale.points(points)}"/>')
        points = list(zip(line.xs, line.ys, strict=True))
        parts.append(f'<polyline class="line color-{line.color}" points="{scale.points(points)}"/>')
        x, y = scale.at(*points[-1])
        parts.append(f'<circle class="dot color-{line.color}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    return "".join([*parts, "</svg>"])


def legend(lines: Sequence[Line]) -> str:
    """Names beside their colors."""
    items = "".join(f'<span class="key color-{line.color}">{escape(line.name)}</span>' for line in lines)
    return f'<p class="chart-legend">{items}</p>'


@dataclass(frozen=True)
class _Scale:
    least: float
    most: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.least) / ((self.most - self.least) or 1)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y * (_HEIGHT - _TOP - _BOTTOM)

    def points(self, points: Sequence[tuple[float, float]]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*self.at(*point)) for point in points)


def _axes(scale: _Scale, x_label: str, y_label: str, most: float) -> list[str]:
    parts = []
    for y in (0, 0.25, 0.5, 0.75, 1):
        (x0, at), (x1, _) = scale.at(0, y), scale.at(most, y)
        parts.append(f'<line class="grid" x1="{x0:.1f}" x2="{x1:.1f}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{at + 4:.1f}">{y:g}</text>')
    for x in (most * part / 4 for part in range(5)):
        at, _ = scale.at(x, 0)
        parts.append(f'<text class="tick middle" x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 15}">{x:.3g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="tick middle" x="{middle}" y="{_HEIGHT - 8}">{escape(x_label)}</text>')
    side = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<text class="tick middle" transform="translate(11 {side}) rotate(-90)">{escape(y_label)}</text>')
    return parts
