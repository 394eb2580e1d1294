"""What a node expects of the history that a server tells it, before it keeps a word of it.

A node pays for steps that passed since it agreed, whether it was asked or not, and it knows of them by this history
alone. So the history has the steps of the terms, in their order and none left out, and it goes on from where it stood
when the node agreed: a server that called it longer than it was would hide steps behind the beginning.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloister.deploy.certificates.chain import Chain, OtherHistory
from cloister.deploy.halves.steps import Step
from cloister.deploy.wire.refused import Refused
from cloister.errors import shown

_KINDS = ("run", "opened", "closed", "ended")


@dataclass(frozen=True)
class Agreed:
    """Where a history stands: how many links it has, and the hash of the newest."""

    length: int
    head: str


def expect_history(told: Chain, run: str, terms: str, steps: tuple[Step, ...], stood: Agreed) -> None:
    """Refuse a history of another run, with other steps, or one that is not what it was when the node agreed."""
    begun = told.links[0] if told.links else {}
    if (begun.get("link"), begun.get("run"), begun.get("terms")) != ("run", run, terms):
        raise Refused("Expected the history of the run that was agreed to, found another: it is refused.")
    if not 1 <= stood.length <= len(told) or told.hashes[stood.length - 1] != stood.head:
        raise OtherHistory(
            f"Expected the server's history to go on from link {stood.length} (head {stood.head[:12]}), where it stood "
            f"when this node agreed, found {len(told)} links of another one: leave this run, and compare receipts."
        )
    opened = 0
    for link in told.links:
        kind, found = link.get("link"), (link.get("round"), link.get("what"))
        if kind not in _KINDS:
            raise Refused(f"Expected links {', '.join(_KINDS)} in the history, found {shown(kind)}: it is refused.")
        if kind != "opened":
            continue
        step = steps[opened] if opened < len(steps) else None
        if step is None or type(found[0]) is not int or found != (step.round, step.what):
            raise Refused(
                f"Expected the history to open {step or 'no further step'} next, as the terms have it, found "
                f"{shown(found)}: every step has its turn, so it is refused."
            )
        opened += 1


def open_step(told: Chain) -> Step | None:
    """The step that is under way by a history that was expected, if one is."""
    newest = told.links[-1] if told.links else {}
    return Step(newest["round"], newest["what"]) if newest.get("link") == "opened" else None
