"""What stands in tables: scores and prices group by group, and the settings in which groups differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloister.privacy.certificate_text import round_up
from cloister.runs.communication import in_words
from cloister.runs.metric_text import SMALLER_IS_BETTER, figure
from cloister.runs.recorded import MARK
from cloister.runs.report.comparison import in_a_table
from cloister.runs.scores import nonfinite_share
from cloister.studies.html.gather import WITHOUT_EFFECT, Group, Study
from cloister.studies.html.over_seeds import spread

_SHOWN_ELSEWHERE = (*WITHOUT_EFFECT, "method", "epsilon", "delta", "noise_multiplier")


@dataclass(frozen=True)
class Table:
    """Cells as text. `numbers` says which columns are of numbers, which are set to the right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    colors: tuple[int | None, ...] = ()
    """For each row the place of its label among all, where it has one."""
    numbers: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def summary(study: Study) -> Table:
    """A row for each group: what it reached over seeds, and what is certified."""
    several = len(study.metrics) > 1
    claims = any(run.certificate.claimed for run in study.runs)
    more = list(dict.fromkeys(name for group in study.groups for name in group.more))
    head = [
        *(("", "metric", "score") if several else ("", study.metrics[0])),
        *("seeds", "epsilon", "delta", "protected", "must be trusted"),
        *("rounds", "noise", *(["paper claims"] if claims else []), *more),
    ]
    rows, places = [], {label: place for place, label in enumerate(study.labels)}
    for group in study.groups:
        metric = [group.first.metric] if several else []
        claimed = [_claimed(group)] if claims else []
        columns = ["-" if group.more.get(name) is None else _shown(group.more[name]) for name in more]
        rows.append((group.label, *metric, score_text(group), str(len(group.runs)), *_price(group), *claimed, *columns))
    start = 2 if several else 1
    numbers = frozenset({start, start + 1, start + 2, start + 3, start + 6, start + 7, start + 8})
    colors = tuple(places[group.label] for group in study.groups)
    return Table(tuple(head), tuple(rows), colors, numbers, tuple(_notes(study)))


def score_text(group: Group) -> str:
    """The mean over seeds, and the standard deviation where there are several."""
    if not group.scores:
        return "-"
    found, metric = spread(group.scores), group.first.metric
    mean = figure(metric, found.mean, 4)
    return mean if found.deviation is None else f"{mean} ± {figure(metric, found.deviation, 4)}"


def _price(group: Group) -> tuple[str, ...]:
    certificate = group.first.certificate
    noises = {run.certificate.noise_multiplier or 0.0 for run in group.runs}
    done = {len(run.lines) for run in group.runs}
    rounds = "-".join(map(str, sorted({min(done), max(done)}))) + f" of {certificate.rounds_planned}"
    private = group.spent is not None
    return (
        round_up(group.spent),
        f"{certificate.prices[0].delta:g}" if private else "-",
        f"one {certificate.unit}" if private else "nobody",
        certificate.trusted,
        rounds,
        "none" if not any(noises) else f"{max(noises):.4g}",
    )


def _claimed(group: Group) -> str:
    claimed = group.first.certificate.claimed
    if not claimed:
        return "-"
    return "infinity" if claimed["epsilon"] is None else f"{claimed['epsilon']:.3f}"


def _notes(study: Study) -> list[str]:
    """What must be said beside the figures, so that nobody compares what cannot be."""
    notes = ["Scores are those of the models that were kept: mean ± standard deviation over seeds."]
    neighbors: dict[str, dict[str, None]] = {}
    deltas = set()
    for group in study.groups:
        if group.spent is not None:
            neighbors.setdefault(group.first.certificate.adjacency, {})[group.label] = None
            deltas.add(group.first.certificate.prices[0].delta)
    if len(neighbors) > 1:
        parts = [f"{', '.join(own)}: {adjacency}" for adjacency, own in neighbors.items()]
        notes.append(f"An epsilon is not about the same neighbors for all. {'; '.join(parts)}.")
    if len(deltas) > 1:
        notes.append("Deltas differ: epsilons at different deltas do not compare.")
    for group in study.groups:
        lost = max(nonfinite_share(run.lines) for run in group.runs)
        if lost:
            notes.append(
                f"{group.name}: up to {max(lost, 0.001):.1%} of a run's updates were not finite, and counted as zero; "
                "a smaller learning rate may help."
            )
    unfinished = [group.name for group in study.groups if not all(run.finished for run in group.runs)]
    if unfinished:
        notes.append(f"Not ended yet: {'; '.join(unfinished)}.")
    return notes


def settings(study: Study) -> Table | None:
    """A row for each label: keys to which labels give different values, and keys that not all of them have."""
    by_label = {group.label: group.first.keys for group in reversed(study.groups)}
    known = {label: by_label[label] for label in study.labels if by_label[label]}
    keys = dict.fromkeys(key for own in known.values() for key in own if key not in _SHOWN_ELSEWHERE)
    values = {key: {_shown(own[key]) for own in known.values() if key in own} for key in keys}
    differing = [key for key in keys if len(values[key]) > 1]
    lacked = [key for key in keys if len(values[key]) == 1 and any(key not in own for own in known.values())]
    if len(known) < 2 or not (differing or lacked):
        return None
    rows = []
    for label, own in known.items():
        further = ", ".join(f"{key} {_shown(own[key])}" for key in lacked if key in own)
        cells = [_shown(own[key]) if key in own else "-" for key in differing]
        rows.append((label, *cells, *([further or "-"] if lacked else [])))
    head = ("", *differing, *(["keys that not all have"] if lacked else []))
    places = {label: place for place, label in enumerate(study.labels)}
    return Table(head, tuple(rows), tuple(places[label] for label in known))


def _shown(value: Any) -> str:
    return in_a_table(value).strip("[]")


def ranking(found: Mapping[str, Any]) -> Table | None:
    """One epsilon of a study's ranking: who is best, and whether the others' distance is more than noise.

    None of a single row: it is the best of nothing."""
    order = [one for one in found.get("order") or () if isinstance(one, Mapping)]
    smaller = found.get("metric") in SMALLER_IS_BETTER
    rows = [
        (
            str(one.get("name")),
            _number(one.get("mean")),
            str(one.get("verdict")),
            _number(_behind(one, smaller, "difference")),
            _interval(_behind(one, smaller, "low"), _behind(one, smaller, "high")),
            _number(one.get("adjusted_p")),
        )
        for one in order
    ]
    title = f"{found.get('title', '')} ({found.get('metric', 'score')})"
    head = (title, "mean", "verdict", "behind the best", "95 % interval", "adjusted p")
    return Table(head, tuple(rows), numbers=frozenset({1, 3, 4, 5})) if len(rows) > 1 else None


def _behind(one: Mapping[str, Any], smaller: bool, name: str) -> float | None:
    """The best minus this one, as the file has it; turned around where smaller is better, so that behind is above 0."""
    value = one.get({"low": "high", "high": "low"}.get(name, name) if smaller else name)
    return None if value is None else -value if smaller else value


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{_number(low)} to {_number(high)}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else "-"


def sharpness(groups: Sequence[Group]) -> Table | None:
    """How much the loss rises around the first model of each group that was looked at."""
    found = {group.name: run.landscape for group in groups for run in reversed(group.runs) if run.landscape is not None}
    radii = list(dict.fromkeys(radius for land in found.values() for radius in land.rise))
    rows = [
        (name, *(_number(land.rise.get(radius)) for radius in radii), _number(land.hessian))
        for name, land in found.items()
    ]
    head = ("", *(f"rise at {radius}" for radius in radii), "largest eigenvalue")
    notes = ["Rises are means over random directions, at so many lengths of the model's filters."]
    exact = [name for name, land in found.items() if land.of == "train"]
    if exact:
        notes.append(f"{MARK}, for on training samples: {', '.join(exact)}.")
    return Table(head, tuple(rows), numbers=frozenset(range(1, len(head))), notes=tuple(notes)) if rows else None


def communication(groups: Sequence[Group]) -> Table | None:
    """What was sent, in bytes: counted upwards, and downwards what it takes to send every parameter as often."""
    rows = []
    for group in groups:
        sent = group.first.communication
        if sent is not None:
            each, total, mean = map(in_words, (sent.upload_bytes, sent.total_bytes, sent.mean_bytes))
            down = in_words(sent.dense_bytes * sent.messages)
            rows.append((group.name, each, f"{100 * sent.share:.3g} %", total, mean, in_words(sent.dense_bytes), down))
    head = ("", "up, a client and round", "of every parameter", "up in all", "up, a client on average")
    down_head = ("down, a client and round", "down in all")
    numbers = frozenset(range(1, 7))
    return Table((*head, *down_head), tuple(rows), numbers=numbers) if rows else None
