"""Captured graphs at once, and a compiled program when it is ready: nobody waits for a compiler.

While the first rounds are replayed from graphs, which take a second or two to capture, a thread compiles the same
rounds on made-up data. From a round on that was fixed before the run (so that a seed gives the same run again), the
compiled program takes over.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from cloister.core.precision import multiplying
from cloister.engine.cuda.graphs import Graphed
from cloister.engine.made_up import made_up_clients
from cloister.errors import Note
from cloister.round import Federation, Offer, RoundPlan, Sum

NEVER = 2**31
"""A round that does not come."""


@dataclass
class Switching:
    """Graphs of `chunk` clients, and from round `compiled_from` on compiled ones.

    What cannot be compiled goes on with graphs, says so, and is described so from then on. Its noise is still that of a
    run that switches: of two runs with one seed, of which one could be compiled, publish one.
    """

    chunk: int
    compiled_from: int
    name: ClassVar[str] = "graphed, then compiled"
    _graphed: Graphed = field(init=False, repr=False)
    _compiled: Graphed = field(init=False, repr=False)
    _compiling: threading.Thread | None = field(default=None, init=False, repr=False)
    _failed: Exception | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._graphed, self._compiled = Graphed(self.chunk), Graphed(self.chunk, compiled=True)

    def total(self, plan: RoundPlan) -> Sum:
        if plan.offer.round < self.compiled_from:
            found = self._graphed.total(plan)
            self._compile(plan)
            return found
        if self._compiling is None:  # a resumed run, which is beyond the switch
            self._compile(plan)
        assert self._compiling is not None
        if self._compiling.is_alive() or self._graphed._graphs:
            self._compiling.join()
            self._graphed._graphs.clear()  # and their memory
        if self._failed is None:
            return self._compiled.total(plan)
        self.compiled_from = NEVER
        return self._graphed.total(plan)

    def _compile(self, plan: RoundPlan) -> None:
        """Start to compile, once, in the background."""
        if self._compiling is None:
            plan = _made_up(plan, self.chunk)
            self._compiling = threading.Thread(target=self._try, args=(plan,), name="compile", daemon=True)
            self._compiling.start()

    def _try(self, plan: RoundPlan) -> None:
        device = plan.offer.w.device
        try:
            with multiplying(plan.fed.precision, device), torch.cuda.device(device):
                self._compiled.total(plan)
        except Exception as error:  # what torch raises for what it cannot compile has no common type
            self._failed = error
            reason = " ".join(str(error).split())[:160]
            warnings.warn(f"the run goes on with graphs, because it cannot be compiled ({reason})", Note, stacklevel=2)


def _made_up(plan: RoundPlan, clients: int) -> RoundPlan:
    """A round of as many clients as go together, whose samples are all zero."""
    fed: Federation = made_up_clients(plan.fed, clients)
    everybody = torch.arange(fed.population.clients)
    offer = Offer(1, everybody, plan.offer.w.clone(), plan.offer.broadcast)
    return RoundPlan.of(fed, offer, everybody)
