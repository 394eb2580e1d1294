"""How far a run has come, at the server: all that a checkpoint needs to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from cloister.core import MethodState, Tensors
from cloister.core.state import flatten, unflatten
from cloister.deploy.wire.canonical import JSON
from cloister.errors import Corrupted
from cloister.runs.selection import Kept


@dataclass(frozen=True)
class Progress:
    """The newest model, what the method keeps, what was released before the first round, and what comes next."""

    w: Tensor
    state: MethodState
    next: int = 0
    """The place of the next step among all steps."""
    released: Tensors = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)
    skipped: tuple[int, ...] = ()
    """Steps that were charged and not released, by their places."""
    stopped: str | None = None
    """Why no further step is asked for, where the run ends early."""

    @property
    def newest(self) -> Tensor:
        """The model that is tested and kept: the newest, or the average of those so far."""
        return self.w if self.kept.average is None else self.kept.average

    @property
    def result(self) -> Tensor:
        """The model of the run: the best in validation, where that is asked for, else the newest."""
        return self.newest if self.kept.best is None else self.kept.best

    def tensors(self) -> Tensors:
        """Everything that is a tensor, by name."""
        models = {"average": self.kept.average, "best": self.kept.best}
        kept = {name: one for name, one in models.items() if one is not None}
        return flatten({"w": self.w, "state": vars(self.state), "released": self.released, "kept": kept})

    def content(self) -> dict[str, JSON]:
        """Everything else, as plain values."""
        return {
            "next": self.next,
            "kept": {"value": self.kept.value, "round": self.kept.round, "waited": self.kept.waited},
            "skipped": list(self.skipped),
            "stopped": self.stopped,
        }

    @classmethod
    def restored(cls, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Progress:
        """The inverse of `content` and `tensors`."""
        try:
            found = unflatten(dict(tensors))
            parts, kept = found.get("state", {}), found.get("kept", {})
            return cls(
                found["w"],
                MethodState(**{name: parts.get(name, {}) for name in ("transform", "mechanism", "server", "clients")}),
                int(content["next"]),
                found.get("released", {}),
                Kept(kept.get("average"), kept.get("best"), **content["kept"]),
                tuple(content["skipped"]),
                content["stopped"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupted(
                f"Expected a checkpoint of a federation, found something else ({error}): restore it."
            ) from None
