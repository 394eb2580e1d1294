"""What is drawn before a private tuning: how many trials there are, and the candidate and the seed of each.

The theorem is about independent trials whose candidates do not depend on one another's results. So candidates are drawn
at random from the search space, all of them in advance: a sampler that learns from scores has no price here. With
secure_rng they come from the operating system, otherwise from the seed. They are written down before the first trial
begins, so that whoever continues an interrupted tuning cannot draw again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted
from cloister.privacy.selection import TrialCount
from cloister.random.streams import Streams
from cloister.runs.files import read_json, write_json
from cloister.studies.tuning.space import Space

HIDDEN = ".unreleased"
"""The folder of what is not released, in that of the tuning: so called that no list of runs, no report and no page that
shows runs as they come looks into it."""


@dataclass(frozen=True)
class State:
    """How far a private tuning has come. NOT PRIVATE: it is removed when the tuning ends."""

    identity: str
    candidates: list[dict[str, Any]]
    """A settings table for each trial."""
    seeds: list[int]
    epsilons: list[float]
    """At which each trial is run."""
    begun: int = 0
    """How many trials have begun, and how many have ended; all before the last have ended."""
    ended: int = 0
    best: int | None = None
    score: float | None = None
    lost: list[int] = field(default_factory=list)
    """Trials that were interrupted and cannot be repeated bit by bit: they count, and are never selected."""

    @classmethod
    def read(cls, folder: Path) -> State:
        """The state in a folder."""
        found, damaged = read_json(folder / "state.json"), f"Expected a state of a private tuning in {folder}"
        try:
            state = cls(**found)
            drawn, over = len(state.candidates), all(0 <= one < state.ended for one in state.lost)
            alike = drawn == len(state.seeds) == len(state.epsilons)
            inside = 0 <= state.ended <= state.begun <= min(state.ended + 1, drawn)
            chosen = state.best is None or 0 <= state.best < state.ended
            sound = alike and inside and over and chosen and (state.best is None) == (state.score is None)
        except TypeError:
            sound = False
        if not sound:
            raise Corrupted(f"{damaged}, found another: restore it.")
        return state

    def write(self, folder: Path) -> None:
        """Replace the state in a folder."""
        write_json(folder / "state.json", asdict(self))

    def continued(self, repeatable: bool) -> State:
        """After an interruption. A seeded trial comes out the same when it is run again. One whose noise came from the
        operating system would be another draw, which nobody paid for: it is given up."""
        if repeatable or self.begun == self.ended:
            return replace(self, begun=self.ended)
        return replace(self, ended=self.begun, lost=[*self.lost, self.ended])


def draw(count: TrialCount, space: Space, streams: Streams) -> tuple[list[dict[str, Any]], list[int]]:
    """The candidates of all trials, and the seed of each."""
    trials = count.draw(float(streams.protective_uniform(1, "number of trials")[0]))
    candidates, seeds = [], []
    for trial in range(trials):
        uniforms = streams.protective_uniform(len(space), "candidate", trial).tolist()
        candidates.append({name: one.at(u) for (name, one), u in zip(space.items(), uniforms, strict=True)})
        seeds.append(int(streams.protective_integers(1, 2**62, "seed of a trial", trial)[0]))
    return candidates, seeds
