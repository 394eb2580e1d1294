"""Clients one by one: what their samples have lost, and how models do on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloister.errors import CloisterError
from cloister.privacy.accounts import Account, Spending
from cloister.privacy.certificate import STRICT_DELTA
from cloister.privacy.certificate_text import round_up
from cloister.privacy.unit import sample_account
from cloister.runs.client_scores import NOT_PRIVATE, ClientScores, summed_up
from cloister.runs.folder import RunFolder
from cloister.runs.metric_catalogue import CATALOGUE
from cloister.runs.metric_text import figure
from cloister.runs.report.style import new_table

if TYPE_CHECKING:
    from rich.table import Table


def clients_table(folder: RunFolder) -> Table:
    """What each client's samples have lost, as the ledger tells: for methods that protect samples.

    Where a sample may lie with several clients, that includes what the others released about it.
    """
    description, accounts = folder.description(), folder.accounts()
    if description.method.unit != "sample":
        raise CloisterError(
            f"Expected a run that protects single samples, found one of {description.method.name}, in which all "
            "clients have one account: its certificate says what any of them has lost."
        )
    delta = description.delta or STRICT_DELTA
    table = new_table("client", "samples", "noise", "rounds", "steps", f"spent at {delta:g}", "budget")
    copies = description.task.copies
    spending = Spending(accounts, copies, description.noise_schedule)
    spent: dict[tuple[object, ...], str] = {}
    for client, samples in enumerate(description.task.sizes or ()):
        account = accounts.get(sample_account(client), Account(sample_account(client), None))
        history = (account.budget, frozenset(account.events.items()))
        if history not in spent:
            spent[history] = round_up(spending.lost(account, delta))
        noises = description.noise_multipliers
        table.add_row(
            description.task.client_names[client] if description.task.client_names else str(client),
            str(samples),
            f"{noises[client]:.3f}" if noises else f"{description.method.mechanism.noise_multiplier:.3f}",
            str(len(account.rounds - {0})),  # what was asked before the first is no round
            str(account.releases),
            spent[history],
            f"{account.budget.epsilon:g}" if account.budget else "none",
        )
    if copies > 1:
        table.caption = (
            f"A sample may lie with up to {copies} clients. What is spent is the most that any sample of a client has "
            "lost, by what all of them released about it; steps are counted once for each."
        )
    return table


def client_scores_table(before: ClientScores, after: ClientScores | None) -> Table:
    """The watched metric client by client, the worst first, and after personalization where there was any."""
    more = ("personalized",) if after is not None else ()
    table = new_table("client", "test samples", before.metric, *more)
    sign = 1 if CATALOGUE[before.metric].larger_is_better else -1
    order = sorted(before.scores.items(), key=lambda item: (item[1] is None, sign * (item[1] or 0.0)))
    for name, score in order:
        own = [score] if after is None else [score, after.scores.get(name)]
        table.add_row(name, str(before.samples[name]), *(figure(before.metric, value) for value in own))
    return table


def client_scores_text(before: ClientScores, after: ClientScores | None) -> str:
    """How far apart clients are, and that nothing of this is private."""
    lines = [summed_up(before.metric, before.summary)]
    if after is not None:
        lines.append(f"personalized, {summed_up(after.metric, after.summary)}")
    return "\n".join([*lines, NOT_PRIVATE])
