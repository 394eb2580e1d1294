"""Callbacks: what is told to others while a run is under way, with a line between what is private and what is not.

    class Watch(cl.Callback):
        def on_round(self, record):
            print(record.round, record.released["epsilon"], record.not_private.get("accuracy"))

    cl.run(method, task, ..., callbacks=[Watch()])

A record keeps two things apart. `released` follows from what the certificate is about: the description, the ledger,
released models and public samples. `not_private` is exact and protected by nothing: results on test samples, who took
part, how long it took. It is for the eyes of whoever may see the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloister.core.schedules import rate_in
from cloister.errors import CloisterError, Note, expect, nearest

if TYPE_CHECKING:
    from cloister.privacy.description import RunDescription
    from cloister.runs.result import Run


class StopTraining(Exception):
    """A callback returns or raises it to end the run after the round; its text is `Run.stopped`.

    The run is then finished: it has a certificate of what was spent, and is not continued. Where the decision rests on
    what is not private, the guarantee does not cover the number of rounds, and the certificate says so.
    """


@dataclass(frozen=True)
class Record:
    """One round, after it is done."""

    round: int
    released: dict[str, Any]
    """What the certificate lets out: epsilon spent, noise, expected cohort, learning rates, validation."""
    not_private: dict[str, Any]
    """What it does not: results on test samples, cohort sizes, counts of broken updates, seconds."""

    @property
    def values(self) -> dict[str, float]:
        """All numbers by a name that says which kind they are: `released/epsilon`, `not_private/accuracy`."""
        both = {"released": self.released, "not_private": self.not_private}
        named = {f"{kind}/{name}": value for kind, part in both.items() for name, value in part.items()}
        return {name: float(value) for name, value in named.items() if isinstance(value, (int, float))}


ABOUT = (
    "released/ follows from the description, the ledger, released models and public samples, and is covered by the "
    "certificate; not_private/ is exact and protected by nothing: do not publish it"
)


class Callback:
    """What can be told; override what you need. Any object that has some of these methods will do.

    On several processes, callbacks are called in the first one. An exception ends the run with one sentence, and its
    folder can be resumed.
    """

    def on_start(self, description: RunDescription) -> object:
        """Before the first round; of a resumed run, before the first that is left."""

    def on_round(self, record: Record) -> object:
        """After every round. Return or raise `StopTraining` to end the run."""

    def on_evaluate(self, record: Record) -> object:
        """After `on_round`, of rounds whose model was evaluated."""

    def on_end(self, run: Run) -> object:
        """When all is done and written."""


_RESULTS = {"loss", "accuracy", "validation"}
HOOKS = ("on_start", "on_round", "on_evaluate", "on_end")


@dataclass(frozen=True)
class Callbacks:
    """Several, in the order in which they were given."""

    all: Sequence[Any] = ()
    where: str = ""
    """What becomes of the run when one of them fails, in words."""

    def start(self, description: RunDescription) -> str | None:
        """Tell that the run begins; the reason to stop, if one asks for that."""
        return self._tell("on_start", description)

    def round(self, record: Record) -> str | None:
        """Tell of a round."""
        reason = self._tell("on_round", record)
        evaluated = _RESULTS & {*record.released, *record.not_private}
        return (self._tell("on_evaluate", record) if evaluated else None) or reason

    def end(self, run: Run) -> None:
        """Tell that all is done. What was computed and paid for is not lost because somebody could not take it."""
        for one in self.all:
            try:
                _call(one, "on_end", run)
            except Exception as error:
                warnings.warn(_failed(one, "on_end", error, "the run itself is complete"), Note, stacklevel=2)

    def _tell(self, hook: str, what: object) -> str | None:
        reason = None
        for one in self.all:
            try:
                said = _call(one, hook, what)
            except StopTraining as stop:
                said = stop
            except CloisterError:
                raise
            except Exception as error:
                raise CloisterError(_failed(one, hook, error, self.where)) from error
            if isinstance(said, StopTraining) or said is StopTraining:
                text = str(said) if isinstance(said, StopTraining) else ""
                reason = reason or text or f"the callback {name_of(one)} ended the run"
        return reason


def _call(callback: Any, hook: str, what: object) -> object:
    function = getattr(callback, hook, None)
    return None if function is None else function(what)


def _failed(callback: Any, hook: str, error: Exception, remedy: str) -> str:
    found = " ".join(f"{type(error).__name__} {error}".split())
    found = found if len(found) <= 200 else f"{found[:200]}..."
    return f"Expected {hook} of the callback {name_of(callback)} to return, found {found}: {remedy}."


def name_of(callback: Any) -> str:
    """How a callback is called in messages."""
    return str(getattr(callback, "name", type(callback).__name__))


def expect_callbacks(callbacks: object) -> None:
    """Refuse what cannot be told anything."""
    listed = isinstance(callbacks, (list, tuple))
    expect(listed, "callbacks to be a list", callbacks, "give [callback], even of a single one")
    assert isinstance(callbacks, (list, tuple))
    for one in callbacks:
        made = not isinstance(one, type) and any(callable(getattr(one, hook, None)) for hook in HOOKS)
        remedy = "call the class" if isinstance(one, type) else "derive it from cloister.Callback"
        expect(made, f"callbacks with some of {', '.join(HOOKS)}", one, remedy)
        hooks = [name for name in dir(one) if name.startswith("on_") and callable(getattr(one, name))]
        for name in hooks if isinstance(one, Callback) else []:
            expect(name in HOOKS, f"hooks named {', '.join(HOOKS)}", name, f"rename it: {nearest(name, HOOKS)}")


def record_of(line: Mapping[str, Any], description: RunDescription, noise_scale: float) -> Record:
    """A line of the metrics as a record. What is not known to follow from releases counts as not private."""
    number, method = int(line["round"]), description.method
    noise = method.mechanism.noise_multiplier
    released = {
        "epsilon": line["epsilon"],
        "noise_multiplier": None if noise is None else noise * noise_scale,
        "expected_cohort": description.denominator,
        "lr": rate_in(method.local, number),
        "server_lr": rate_in(method.server, number),
        "validation": line.get("validation"),
    }
    others = {name: value for name, value in line.items() if name not in ("round", "epsilon", "validation")}
    known = {name: value for name, value in released.items() if value is not None}
    return Record(number, known, {name: value for name, value in others.items() if value is not None})
