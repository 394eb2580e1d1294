"""The words of a certificate: what was priced, what is left out, and the whole of it for people to read."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cloister.privacy.events import Event
from cloister.privacy.noise_arithmetic import gaps_of
from cloister.privacy.pricing import pricing_of

if TYPE_CHECKING:
    from cloister.privacy.certificate import Certificate
    from cloister.privacy.description import RunDescription, TaskDescription, WeightsDescription

_MANY = 4
"""So many different events are listed one by one."""


def priced_as(events: Counter[Event], drawn: str) -> list[str]:
    """What was charged, a line for each kind of release. `drawn` is what is drawn: cohorts, or batches."""
    records = [pricing_of(event) for event in events]
    if len(events) <= _MANY:
        return [f"{count} x {r.words(drawn)}" for r, count in zip(records, events.values(), strict=True)]
    noises = [record.noise_multiplier for record in records if record.noise_multiplier is not None]
    whole = f"{events.total()} x {records[0].words(drawn)}"
    between = f"noise multipliers from {min(noises):.6g} to {max(noises):.6g}" if noises else "various noise"
    return [whole.replace(f"noise multiplier {records[0].noise_multiplier or 0:.6g}", between)]


def not_covered(
    description: RunDescription,
    delta: float,
    private: bool,
    notes: Sequence[str] = (),
    recorded: Sequence[str] = (),
) -> list[str]:
    """What the guarantee leaves out; `notes` are of what happened on the way, `recorded` what was measured beside."""
    if not private:
        return ["everything: this run has no privacy guarantee", *_measured(recorded)]
    task, samples = description.task, description.method.unit == "sample"
    copies = task.copies
    public = [_PUBLIC] if description.selection.get("validation") == "public" else []
    gaps = [
        *dict.fromkeys([*description.method.notes, *public, *notes]),
        *_measured(recorded),
        _searched(description.tuned),
        "metrics: accuracies, losses, cohort sizes and counts of non-finite updates are exact; where test samples are "
        "the clients' own, or drawn for a client by its labels, what they show is not protected",
        "the files beside this certificate: the checkpoint holds a hash of the data (and, while a run with "
        "correlated noise is under way, noise that could be subtracted), config.toml the seed and metrics.jsonl the "
        "metrics, so publish what `cloister publish` writes, and nothing else",
        "what the run started from: the initial model, the shape and type of the data, the constants that scale them "
        "and the number of classes count as public, and what was computed from the data before they were handed over "
        "(scaling, imputation, selection) is not covered",
        *_loaded(description.model.weights),
        _declared(task.clients, samples, description.divided_by),
        *gaps_of(
            description.method.mechanism,
            description.rounded_noise,
            description.method.local.get("batch_size"),
            description.dtype,
        ),
    ]
    if not description.secure_rng:
        gaps.append(
            "simulation: cohorts, batches and noise follow from a seed, and whoever knows the seed can remove the "
            "noise; for a real release use secure_rng = true"
        )
    gaps += _of_the_data(task, samples)
    if copies > 1 and samples:
        gaps.append(
            f"clients overlap: a sample lies with up to {copies} of them, each of which releases something about it; "
            "the epsilon above is for all of these releases together"
        )
    elif copies > 1:
        gaps.append(
            f"clients overlap: a sample lies with up to {copies} of them, so that parallel composition is broken and a "
            f"sample is protected only as {copies} clients together are, for which no epsilon is certified here"
        )
    if samples:
        gaps.append(
            "a client as a whole: what is protected is any ONE of its samples; what all of them have in common is not"
        )
    summed = description.method.mechanism.settings.get("trust") == "sum"
    many = exposed(task.sizes or [0], summed) if samples else task.clients
    if large_delta(delta, many):
        gaps.append(
            f"delta {delta:g} is not below 1/{many}: a mechanism that publishes one random "
            f"{'sample' if samples else 'client'}'s data whole would satisfy it"
        )
    return gaps


def _searched(tuned: Sequence[str]) -> str:
    """What choosing settings by results has shown; and which were chosen so, where that is known."""
    if tuned:
        return (
            f"the tuning: {', '.join(tuned)} {'was' if len(tuned) == 1 else 'were'} chosen by results on these data; "
            f"the tuning itself was not charged: this epsilon does not cover the choice of {', '.join(tuned)}"
        )
    return (
        "hyper-parameter search: choosing clip, learning rate, rounds or model by looking at results on these "
        "clients' data is a release that was not charged"
    )


def _measured(recorded: Sequence[str]) -> list[str]:
    """What was recorded beside the run, for whoever may see the data and nobody else."""
    if not recorded:
        return []
    return [
        f"recorded measurements ({', '.join(recorded)}): NOT PRIVATE; they were computed exactly from the clients' "
        "data, this guarantee does not cover them, and they (measurements.jsonl, and what is drawn from it) must not "
        "be published"
    ]


def _loaded(weights: WeightsDescription | None) -> list[str]:
    if weights is None:
        return []
    return [
        f"the weights it started from ({weights.file}, sha256 {weights.sha256}) count as public: if they were trained "
        "on these clients' data, that is not covered"
    ]


_PUBLIC = "the public samples: they are protected by nothing, and count as public"


def _of_the_data(task: TaskDescription, samples: bool) -> list[str]:
    """What follows from how the data became a federation."""
    unit = "sample" if samples else "client"
    gaps = list(task.sample_notes) if samples else []
    if task.label_dependent:
        kept = "every other sample in its place" if samples else "every other client with the samples it has"
        gaps.append(
            "who holds what: labels decided which client holds which sample, as in a simulation; the guarantee is for "
            f"the federation as dealt, and its neighbors differ in one {unit}, {kept}"
        )
    if task.classes_inferred:
        gaps.append(
            f"the number of classes was taken from the largest label, so that a label which only one {unit} has would "
            "show in the shape of the model; classes = ... declares it"
        )
    return gaps


def exposed(sizes: Sequence[int], summed: bool) -> int:
    """How many samples one release is about: those of the largest client or, in a secure sum, of all clients."""
    return sum(sizes) if summed else max(sizes)


def large_delta(delta: float, units: int) -> bool:
    """Whether a delta promises nothing: publishing one of so many units whole, drawn at random, would satisfy it."""
    return delta * units >= 1 - 1e-9


def _declared(clients: int, samples: bool, divided_by: str) -> str:
    if samples:
        return (
            "numbers of samples and who took part: how many samples each client has was declared when the run began, "
            "and sets the rates and divisors of its batches"
        )
    sets = "sets the constant denominator" if "constant" in (divided_by or "constant") else "counts as public"
    return f"the number of clients: {clients} was declared when the run began and {sets}"


def round_up(epsilon: float | None, digits: int = 3) -> str:
    """An epsilon for people: rounded upwards, because a smaller number would claim too much.

    >>> round_up(1.99941), round_up(2.0000001), round_up(None)
    ('2.000', '2.001', 'infinity')
    """
    if epsilon is None or math.isinf(epsilon):
        return "infinity"
    return f"{math.ceil(epsilon * 10**digits - 1e-9) / 10**digits:.{digits}f}"


def _budget(c: Certificate) -> str:
    if c.budget is None:
        return "none"
    least = c.least_budget or c.budget["epsilon"]
    several = "" if least == c.budget["epsilon"] else f"{least:g} to "
    return f"epsilon {several}{c.budget['epsilon']:g} at delta {c.budget['delta']:g}"


def _spent(c: Certificate) -> str:
    assert c.filter is not None
    return (
        f"{round_up(c.filter['spent'])} at delta {c.prices[0].delta:g}; how much that is may depend on the data, so "
        "what is promised is the epsilon at which the filter stops"
    )


def _noise(c: Certificate) -> str:
    if not c.noise_multiplier:
        return "none"
    assumed = c.assumed_sensitivity
    taken = "" if assumed is None else f" of {assumed:g}, which the paper takes for the sensitivity"
    falls = " to begin with" if c.filter is not None else ""
    return f"{_noise_range(c.noise_multipliers or [c.noise_multiplier])}{falls}{taken}, {c.noise_place}"


def _claim(claimed: Mapping[str, Any]) -> str:
    spent = "epsilon infinity" if claimed["epsilon"] is None else f"epsilon {claimed['epsilon']:.3f}"
    return f"{spent} at {claimed['delta']:g}, {claimed['words']}; what was executed costs the epsilon above"


def _noise_range(noises: list[float]) -> str:
    few, most = min(noises), max(noises)
    return f"multiplier {most:.6g}" if few == most else f"multipliers from {few:.6g} to {most:.6g}"


def _names(clients: list[str]) -> str:
    """The names of a few clients; certificate.json has all."""
    more = len(clients) - _FEW_NAMES
    return ", ".join(clients[:_FEW_NAMES]) + (f" and {more} more" if more > 0 else "")


_FEW_NAMES = 12


def _sensitivity(c: Certificate) -> str:
    if c.noise_place == "local":
        follows = "a threshold that follows the gradients, by priced queries"
        return f"{follows if c.sensitivity is None else f'{c.sensitivity:g}'} (L2 norm of a sample's part in a step)"
    whose = "a sample's part in the sum of a round" if c.sums_of_samples else "any client's whole message"
    return "none" if c.sensitivity is None else f"{c.sensitivity:g} (L2 norm of {whose})"


def _epsilon(c: Certificate, price: Any) -> str:
    spent = round_up(price.epsilon_pld)
    if c.filter is not None:
        return f"{spent} (Renyi filter of order {c.filter['order']})"
    if price.epsilon_rdp is None and price.epsilon_pld is not None:
        return f"{spent} (PLD of what is proven of a step)"
    return f"{spent} (PLD)   {round_up(price.epsilon_rdp)} (RDP)" if c.pld else f"{round_up(price.epsilon_rdp)} (RDP)"


def rows_of(c: Certificate) -> list[tuple[str, str]]:
    """What a certificate says, line by line; a name that repeats itself is a list."""
    return [
        ("protected unit", f"one {c.unit}"),
        *((("clients", _names(c.clients)),) if c.clients else ()),
        ("adjacency", c.adjacency),
        ("released", c.released),
        ("must be trusted", c.trusted),
        ("randomness", "operating system (secure)" if c.secure_rng else "seeded: a simulation"),
        *(("sampling executed", line) for line in c.sampling_executed),
        *(("sampling accounted", line) for line in c.sampling_accounted or ["nothing was charged"]),
        ("sensitivity", _sensitivity(c)),
        ("noise", _noise(c)),
        ("arithmetic", c.noise_arithmetic),
        ("denominator", c.divided_by),
        ("rounds", f"{c.rounds_charged} of {c.rounds_planned} planned, {c.releases_charged} releases charged"),
        ("budget", _budget(c)),
        *((f"epsilon at {price.delta:g}", _epsilon(c, price)) for price in c.prices),
        *((("spent so far", _spent(c)),) if c.filter else ()),
        *((("the paper claims", _claim(c.claimed)),) if c.claimed else ()),
        *(("not covered", gap) for gap in c.not_covered),
        ("configuration", c.configuration_sha256),
        ("ledger", c.ledger_hash),
        ("versions", ", ".join(f"{name} {number}" for name, number in c.versions.items())),
    ]


def text(c: Certificate) -> str:
    """The certificate, for people."""
    lines, before = ["PRIVACY CERTIFICATE"], ""
    for name, value in rows_of(c):
        label = "-" if name == before else f"{name}:"
        wrapped = textwrap.wrap(value, 96, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"  {label:>19} {wrapped[0]}")
        lines += [f"  {'':19} {more}" for more in wrapped[1:]]
        before = name
    return "\n".join(lines)
