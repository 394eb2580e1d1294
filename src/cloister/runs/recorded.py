"""What a run recorded beside its results, round by round: norms, clip factors, thresholds, scores on training samples.

Nothing is recorded unless it is asked for (`record`). A line keeps two things apart, as a callback's record does:
`released` follows from what was paid for, `not_private` is exact and protected by nothing. Whatever shows some of the
latter shows the mark, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, expect, expect_one_of, expect_type, nearest

MARK = "NOT PRIVATE"
NOT_PRIVATE = (
    f"{MARK}: computed exactly from the clients' data; no certificate covers it, and it must not be published."
)

PRIVATE_DATA = {
    "norms": "norms of the clients' updates before clipping",
    "clipping": "by which factors clipping scaled them down",
    "gradients": "norms of single samples' gradients, client by client",
    "cosine": "how much clients' updates agree, and the released mean with the exact one",
    "signal": "the exact mean update beside the noise in it, and what clipping changes in it",
    "sparsity": "how many coordinates of updates are zero, and how many of the others clients share",
    "train": "loss and scores on the clients' training samples",
    "clients": "of updates and gradients also what each client has",
}
"""What is computed from the clients' data, and protected by nothing."""
PAID_FOR = {"thresholds": "noise multiplier and clipping threshold of the round"}
"""What follows from released models and from queries that were paid for."""
NAMES = (*PRIVATE_DATA, *PAID_FOR)


def expect_record(record: Any, secure_rng: bool) -> None:
    """Refuse what cannot be recorded, and in a deployment what is computed from the clients' data."""
    if record is None:
        return
    expect_type("record", record, (list, tuple), "a list of names", f"choose some of {', '.join(NAMES)}")
    for name in record:
        expect_one_of("record", name, NAMES)
    expect(len(set(record)) == len(record), "each name in record once", list(record), "leave the others out")
    of_clients = ("norms", "clipping", "gradients", "cosine", "sparsity")
    alone = "clients" in record and not set(of_clients) & set(record)
    expect(not alone, f"one of {', '.join(of_clients)} beside clients in record", list(record), "add one of them")
    private = not_private_in(record)
    if secure_rng and private:
        raise CloisterError(
            f"Expected no exact measurement of clients' data in a run with secure randomness, found record = "
            f"{', '.join(private)}: it would be a release beside the one that is paid for, so record thresholds alone, "
            "or measure in a simulation (secure_rng = false)."
        )


def not_private_in(record: Sequence[str]) -> tuple[str, ...]:
    """Which of these names stand for what nothing protects, in the order of the catalogue."""
    return tuple(name for name in PRIVATE_DATA if name in record)


@dataclass(frozen=True, repr=False)
class Recorded:
    """What was recorded, a line for each round.

    `by_round("norms/mean")` is one number over the rounds: the names of a line's parts, joined by slashes.
    """

    names: tuple[str, ...]
    lines: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        mark = f", {MARK}" if self.mark else ""
        return f"<Recorded: {', '.join(self.names)} of {len(self.lines)} rounds{mark}>"

    @property
    def mark(self) -> str | None:
        """What must stand beside everything that is shown of it; None where all of it was paid for."""
        return NOT_PRIVATE if not_private_in(self.names) or any(line["not_private"] for line in self.lines) else None

    def was_paid_for(self, name: str) -> bool:
        """Whether a measurement follows from what was released under noise: thresholds do, unless there was none."""
        return not any(name in line["not_private"] for line in self.lines)

    def by_round(self, name: str) -> dict[int, Any]:
        """One number by round, such as norms/mean, norms/quantiles/0.5, train/accuracy_gap or thresholds/clip_norm.

        Rounds in which there is none (an empty cohort, no evaluation) are left out. A name that no line can have is
        refused.

        >>> Recorded(("norms",)).by_round("norm/mean")
        Traceback (most recent call last):
        cloister.errors.CloisterError: Expected the name of a measurement, such as norms/mean, found 'norm/mean': \
perhaps you mean "norms".
        """
        _expect_name(name)
        found = {line["round"]: _at({**line["released"], **line["not_private"]}, name) for line in self.lines}
        return {round: value for round, value in found.items() if value is not None}

    @property
    def mean_clip_factor(self) -> dict[int, float]:
        """By round, the mean of min(1, S / ||u_i||) over the clients that took part: the papers' alpha-bar."""
        return self.by_round("clipping/mean")

    @property
    def clip_factor_spread(self) -> dict[int, float]:
        """By round, the mean distance of these factors from their mean: the papers' alpha-tilde."""
        return self.by_round("clipping/spread")

    def plot(self, path: str | Path, of: str = "norms") -> None:
        """Draw one of norms, clipping, gradients, cosine, signal, sparsity, thresholds and loss into a file; what is
        not private says so in it."""
        from cloister.runs.report.measurement_plots import recorded_plot

        recorded_plot(self, Path(path), of)


def _at(line: Mapping[str, Any], name: str) -> Any:
    value: Any = line
    for part in name.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


_DISTRIBUTION = ("count", "mean", "least", "most", "quantiles")
_FIELDS: dict[str, tuple[str, ...]] = {
    "norms": (*_DISTRIBUTION, "histogram", "clip_norm", "nonfinite"),
    "clipping": ("of", "clip_norm", "count", "mean", "spread", "least", "clipped"),
    "gradients": (*_DISTRIBUTION, "histogram", "by_client"),
    "cosine": ("pairwise", "with_mean", "released"),
    "signal": ("signal", "noise", "ratio", "expected_noise", "clipping_bias", "unclipped"),
    "sparsity": ("count", "updates", "messages", "overlap", "by_chance", "union"),
    "thresholds": ("noise_multiplier", "clip_norm", "least", "most", "by_client"),
}
"""The parts of a measurement. Those of train are names of metrics, those of clients names of clients."""


def _expect_name(name: object) -> None:
    """Refuse what no line of any run has, with the name that comes nearest."""
    expect_type("name", name, str, "the name of a measurement", "such as norms/mean")
    head, *rest = str(name).split("/")
    for part, known in ((head, NAMES), *((part, _FIELDS[head]) for part in rest[:1] if head in _FIELDS)):
        if part not in known:
            hint = nearest(part, known, f"choose one of {', '.join(known)}")
            raise CloisterError(f"Expected the name of a measurement, such as norms/mean, found {name!r}: {hint}.")
