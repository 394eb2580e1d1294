"""Who holds which class, as a matrix; and what clients send, as bars."""

from __future__ import annotations

from collections.abc import Sequence

from cloister.runs.communication import in_words
from cloister.studies.html.figures.style import SHADES, Panel, Style, new_figure, words
from cloister.studies.html.gather import Group
from cloister.studies.html.label_counts import LabelCounts
from cloister.studies.html.over_seeds import thinned

MOST_CLIENTS = 200


def label_matrix(found: LabelCounts) -> Panel:
    """A row for each class and a column for each client; of very many clients, some."""
    shown = thinned(range(len(found.counts)), MOST_CLIENTS)
    figure = new_figure("client", "class")
    named = len(found.clients) == len(found.counts)
    figure.add_heatmap(
        x=[words(found.clients[client]) if named else client for client in shown],
        y=[words(name) for name in found.classes],
        z=[[found.counts[client][label] for client in shown] for label in range(len(found.classes))],
        colorscale=SHADES,
        colorbar={"thickness": 10, "outlinewidth": 0},
        hovertemplate="client %{x}, class %{y}<br>%{z} samples<extra></extra>",
    )
    figure.update_xaxes(type="category" if named else None, showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return Panel(figure, found.title, height=max(240, min(560, 90 + 18 * len(found.classes))))


def upload_bars(style: Style, groups: Sequence[Group]) -> Panel | None:
    """Bytes that a client sends in a round, a bar for each label, beside those of every parameter."""
    by_label = {group.label: group for group in reversed(groups) if group.first.communication is not None}
    own = [by_label[label] for label in style.study.labels if label in by_label]
    if not own:
        return None
    figure = new_figure("bytes that a client sends in a round", "")
    for place, group in enumerate(own):
        sent = group.first.communication
        assert sent is not None
        figure.add_bar(
            x=[sent.upload_bytes],
            y=[-place],
            orientation="h",
            width=0.34,
            marker={"color": style.color(group)},
            name=words(group.label),
            hovertemplate=f"%{{fullData.name}}<br>{in_words(sent.upload_bytes)}, {100 * sent.share:.3g} % of sending "
            "every parameter<extra></extra>",
            meta={"label": style.meta(group)["label"]},
        )
        text = f"{words(group.label)}: {in_words(sent.upload_bytes)}"
        figure.add_annotation(
            text=text, x=0, y=-place + 0.36, xref="paper", xanchor="left", yanchor="middle", showarrow=False
        )
    figure.update_yaxes(visible=False, range=[-len(own) + 0.6, 0.65], fixedrange=True)
    figure.update_xaxes(rangemode="tozero", ticksuffix="B", exponentformat="SI")
    return Panel(figure, height=80 + 40 * len(own))
