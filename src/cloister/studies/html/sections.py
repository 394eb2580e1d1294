"""What is on the page, in which order. A section without data is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloister.studies.html import tables
from cloister.studies.html.figures.at_epsilon import at_equal_epsilon, blocks, meanings_of
from cloister.studies.html.figures.attacks import inversions, memberships
from cloister.studies.html.figures.landscapes import landscapes
from cloister.studies.html.figures.lines import over_epsilon, over_rounds
from cloister.studies.html.figures.matrices import MOST_CLIENTS, label_matrix, upload_bars
from cloister.studies.html.figures.norms import distributions
from cloister.studies.html.figures.style import Drawn, Panel, Style
from cloister.studies.html.gather import Group, RunData
from cloister.studies.html.label_counts import label_counts

_SEEDS = "Lines are means over seeds, bands one standard deviation."


@dataclass(frozen=True)
class Section:
    """A part of the page with its figures and tables."""

    id: str
    title: str
    figures: tuple[Drawn, ...] = ()
    tables: tuple[tables.Table, ...] = ()
    sentences: tuple[str, ...] = ()


def sections(style: Style, labels: bool = True) -> list[Section]:
    """All that these runs have data for; `labels` says whether data sets may be read to show who holds what."""
    made = [scores(style), norms(style), clipping(style), schedules(style), updates(style), gap(style)]
    made += [loss_landscapes(style), attacks(style), communication(style), partitions(style) if labels else None]
    return [section for section in made if section is not None]


def scores(style: Style) -> Section | None:
    """The watched metric over rounds, over epsilon, and at equal epsilon."""
    found: list[Drawn] = []
    for metric in style.study.metrics:
        groups = [group for group in style.study.groups if group.first.metric == metric]
        found += _scores_of(style, groups, metric)
    ranked = [table for one in style.study.rankings if (table := tables.ranking(one)) is not None]
    words = (
        "Rankings are those of the study's own file: paired by seed, p-values adjusted by Holm for all pairs. "
        "Intervals are 95 % ones, of each pair by itself.",
    )
    if not found and not ranked:
        return None
    return Section("scores", "Scores", tuple(found), tuple(ranked), words if ranked else ())


def _scores_of(style: Style, groups: Sequence[Group], metric: str) -> list[Drawn]:
    test = f"test {metric}"
    rounds = over_rounds(style, groups, metric, test)
    spent = over_epsilon(style, groups, metric, test)
    compared = blocks(style, groups)
    interval = (
        "Whiskers are 95 % intervals of the mean over seeds (Student's t); a point without has one seed, or the same "
        "score with all."
    )
    apart = [group.name for group in groups if group.spent is not None and not group.first.adds_up]
    without = f" Left out, because their epsilon does not add up round by round: {', '.join(apart)}." if apart else ""
    several = " Not all epsilons are about the same: see the notes below the summary." * (len(meanings_of(groups)) > 1)
    found = [
        _whole(f"{metric}-over-rounds", f"Test {metric} over rounds", _SEEDS, rounds),
        _whole(
            f"{metric}-over-epsilon",
            f"Test {metric} over epsilon",
            f"At what had been spent by then, at each run's own delta. {_SEEDS}{several}{without}",
            spent,
        ),
    ]
    if compared:
        panel = at_equal_epsilon(style, compared, test)
        found.append(Drawn(f"{metric}-at-epsilon", f"Test {metric} at equal epsilon", interval, (panel,), legend=False))
    return [one for one in found if one is not None]


def norms(style: Style) -> Section | None:
    """How long updates and gradients are before they are clipped."""
    groups = style.study.groups
    slider = "Pooled over seeds. The upright line is the threshold to which the norm is clipped."
    found = [
        distributions(style, groups, "norms", "Norms of updates before clipping", f"Of clients in a round. {slider}"),
        _over(style, "norms/mean", "Mean norm of updates before clipping", "mean norm"),
        distributions(style, groups, "gradients", "Norms of single samples' gradients", f"In a round. {slider}"),
        _over(style, "gradients/mean", "Mean norm of single samples' gradients", "mean norm"),
    ]
    return _section("norms", "Norms", found)


def clipping(style: Style) -> Section | None:
    """How much clipping takes away."""
    of = "Of updates, or of single samples' gradients where these are clipped."
    found = [
        _over(style, "clipping/clipped", "Fraction clipped", "fraction clipped", of, share=True),
        _over(style, "clipping/mean", "Mean clip factor", "mean of min(1, S/norm)", of, share=True),
        _over(style, "clipping/spread", "Spread of clip factors", "mean distance from their mean", of),
    ]
    return _section("clipping", "Clipping", found)


def schedules(style: Style) -> Section | None:
    """Noise and thresholds, which follow from what was released: drawn where they change, else said."""
    found: list[Drawn | None] = []
    constant: list[str] = []
    for name, words in (("noise_multiplier", "Noise multiplier"), ("clip_norm", "Clipping threshold")):
        key = f"thresholds/{name}"
        own = {group: [set(run.values()) - {0} for run in group.by_round(key)] for group in style.study.groups}
        groups = [group for group, seeds in own.items() if any(seeds)]
        if any(len(values) > 1 for group in groups for values in own[group]):
            found += [_schedule(style, groups, key, words, axis) for axis in ("rounds", "epsilon")]
        elif groups:
            values = {group.name: sorted(set().union(*own[group])) for group in groups}
            each = "; ".join(f"{name} {', '.join(f'{one:.4g}' for one in found)}" for name, found in values.items())
            constant.append(f"{words}, the same in all rounds: {each}.")
    figures = tuple(one for one in found if one is not None)
    return Section("schedules", "Schedules", figures, (), tuple(constant)) if figures or constant else None


def _schedule(style: Style, groups: Sequence[Group], key: str, words: str, axis: str) -> Drawn | None:
    draw = over_rounds if axis == "rounds" else over_epsilon
    exact = any(_is_exact(run) for group in groups for run in group.runs)
    name = key.removeprefix("thresholds/")
    panel = draw(style, groups, key, words.lower())
    return _whole(f"{name}-over-{axis}", f"{words} over {axis}", _SEEDS, panel, mark=exact)


def _is_exact(run: RunData) -> bool:
    """Whether thresholds of a run follow the data without noise, and so are not private."""
    return run.recorded is not None and not run.recorded.was_paid_for("thresholds")


def updates(style: Style) -> Section | None:
    """How updates agree with one another and with the noise."""
    found = [_over(style, name, title, y) for name, (title, y) in _UPDATES.items()]
    return _section("updates", "Updates", found)


_UPDATES = {
    "cosine/pairwise": ("Cosine of pairs of updates", "mean cosine"),
    "cosine/with_mean/mean": ("Cosine of updates with their mean", "mean cosine"),
    "cosine/released": ("Cosine of the released mean with the exact one", "cosine"),
    "signal/ratio": ("Signal to noise of the released mean", "norm of the mean / norm of the noise"),
    "signal/clipping_bias": ("What clipping changes in the mean", "norm of the change"),
    "sparsity/updates": ("Coordinates that are zero in updates", "share"),
    "sparsity/messages": ("Coordinates that are zero in messages, or not sent", "share"),
    "sparsity/overlap": ("Coordinates that two clients share, of those that are sent and not zero", "share"),
}


def gap(style: Style) -> Section | None:
    """Training samples beside test samples."""
    found = [
        _over(style, "train/accuracy", "Accuracy on training samples", "train accuracy"),
        _over(style, "train/accuracy_gap", "Train accuracy minus test accuracy", "gap"),
        _over(style, "train/loss_gap", "Test loss minus train loss", "gap"),
    ]
    return _section("gap", "Train and test", found)


def loss_landscapes(style: Style) -> Section | None:
    """The loss around the trained models."""
    groups = style.study.having(lambda run: run.landscape)
    drawn = [figure for of in ("loss", "accuracy") for figure in landscapes(style, groups, of)]
    table = tables.sharpness(groups)
    return Section("landscapes", "Loss landscapes", tuple(drawn), (table,) if table else ()) if drawn else None


def attacks(style: Style) -> Section | None:
    """What attackers made of runs, where somebody attacked them."""
    groups = style.study.having(lambda run: run.attacks)
    return _section("attacks", "Attacks", [inversions(style, groups), memberships(style, groups)])


def communication(style: Style) -> Section | None:
    """What was sent."""
    table = tables.communication(style.study.groups)
    if table is None:
        return None
    caption = "Counted from what leaves the clients; masks that follow from a seed need not be sent."
    bars = _whole("upload", "Upload", caption, upload_bars(style, style.study.groups), legend=False)
    down = "Down is what it takes to send every parameter to each client that takes part; it is not counted in a run."
    return Section("bytes", "Bytes", (bars,) if bars else (), (table,), (down,))


def partitions(style: Style) -> Section | None:
    """Who holds which class."""
    found, missing = label_counts(style.study)
    panels = tuple(map(label_matrix, found))
    some = any(len(one.counts) > MOST_CLIENTS for one in found)
    caption = "Training samples of each class with each client." + (
        f" Of more than {MOST_CLIENTS} clients, some are shown, evenly by number." if some else ""
    )
    figures = (Drawn("labels", "Labels per client", caption, panels, mark=True, legend=False),) if panels else ()
    return Section("partition", "Partition", figures, (), tuple(missing)) if figures or missing else None


def _over(style: Style, name: str, title: str, y: str, more: str = "", share: bool = False) -> Drawn | None:
    """Something that was computed exactly from the clients' data, over rounds."""
    panel = over_rounds(style, style.study.groups, name, y, share)
    return _whole(name.replace("/", "-"), title, f"{more} {_SEEDS}".strip(), panel, mark=True)


def _whole(
    id: str, title: str, caption: str, panel: Panel | None, *, mark: bool = False, legend: bool = True
) -> Drawn | None:
    return None if panel is None else Drawn(id, title, caption, (panel,), mark, legend)


def _section(id: str, title: str, figures: Iterable[Drawn | None]) -> Section | None:
    found = tuple(one for one in figures if one is not None)
    return Section(id, title, found) if found else None
