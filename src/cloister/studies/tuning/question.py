"""What is to be tuned, and how: checked before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cloister.data.task import Task
from cloister.errors import CloisterError, expect, expect_count
from cloister.privacy.description import json_hash
from cloister.runs.choices import PARTS
from cloister.runs.config import build, build_task, method_info, parts_of
from cloister.runs.keys import converted
from cloister.runs.metric_catalogue import Metric, watched
from cloister.runs.plan import plan
from cloister.runs.planned import Plan
from cloister.runs.result import Run
from cloister.runs.signatures import introspected
from cloister.studies.tuning.held_out import FRACTION, held_out_task, public_task
from cloister.studies.tuning.on import On, expect_on
from cloister.studies.tuning.space import Space, candidates_of, first_of, space_of

_FROM_DATA = ("clients", "sizes", "parameters", "public_samples")


@dataclass(frozen=True)
class Question:
    """Fixed keys, and what is searched."""

    values: dict[str, Any]
    space: Space
    on: On
    trials: int
    seeds: int = 1
    hold_out: float = FRACTION
    public_data: str | None = None
    task: Task | None = None
    """The data, where they do not come from keys."""

    @classmethod
    def of(cls, values: Mapping[str, Any], searched: Mapping[str, Any], on: Any, **more: Any) -> Question:
        """The question, once it was found to make sense."""
        expect_on(on)
        fixed = {name: value for name, value in values.items() if name not in searched}
        found = cls(fixed, space_of(introspected(), values, searched), on, **more)
        expect_count("trials", found.trials, "how many candidates to try", most=10_000)
        expect_count("seeds", found.seeds, "with how many seeds each candidate is run", most=1000)
        if found.public_data is not None:
            expect(on == "public", "public_data beside on = public", on, "tune on public data, or leave it out")
        if on == "simulated" and fixed.get("secure_rng"):
            raise CloisterError(
                "Expected a simulation for a tuning that is not charged, found secure_rng = true: exact scores on "
                "clients' held-out samples would be releases that nothing pays for, so tune on private or public data."
            )
        if on == "private":
            expect(found.seeds == 1, "one seed in every private trial", found.seeds, "every further run would cost")
            noisy = "noise_multiplier" in found.space
            expect(not noisy, "noise that follows from epsilon", "noise_multiplier to be searched", "leave it out")
        found.values_with(first_of(found.space))
        return found

    @property
    def unit(self) -> str:
        """Whom the method protects: client, sample or nobody."""
        return method_info({**self.values, **first_of(self.space)}).unit

    @property
    def most_trials(self) -> int:
        """How many candidates are tried where nothing is charged: no more than there are."""
        all_of_them = candidates_of(self.space)
        return self.trials if all_of_them is None else min(self.trials, len(all_of_them))

    @property
    def seed(self) -> int:
        """That of the search, and of the first run of every candidate."""
        return int(self.values.get("seed", 0))

    def whole_task(self) -> Task:
        """The data, the test set included."""
        return build_task(self._of_data(self.values))[0] if self.task is None else self.task

    def trial_task(self) -> Task:
        """What candidates are trained and scored on where nothing is charged; no test set is in it."""
        if self.on == "simulated":
            task = self.whole_task()
        elif self.public_data is None:
            task = public_task(self.whole_task(), self.seed)
        else:
            task = build_task(self._of_data({**self.values, "data": self.public_data}))[0]
        return held_out_task(task, self.unit, self.hold_out, self.seed)

    def _of_data(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of the data and of how they are dealt."""
        catalogue = introspected()
        known = {"data", "partition"}
        for part in catalogue.part_names(values, ("data", "partition")):
            known |= {key.name for key in catalogue.keys_of(part, catalogue.option(part, values))}
        return {name: value for name, value in values.items() if name in known}

    def metric(self, task: Task) -> Metric:
        """By which candidates are judged."""
        metrics = self.values.get("metrics")
        if metrics is not None:  # words, as on the command line: metrics=f1,auroc
            metrics = converted(next(key for key in introspected().run if key.name == "metrics"), metrics)
        return watched(task, metrics, self.values.get("monitor")).monitor

    def values_with(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a run with a candidate's settings; refused where there is no such run."""
        values = {**self.values, **settings}
        parts_of(values, self._parts, introspected().run)
        return values

    def all_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The same with the defaults of all other keys, as a run's own file has them."""
        return parts_of(values, self._parts, introspected().run).resolved

    @property
    def _parts(self) -> list[str]:
        unnamed = ("data", "partition") if self.task is not None else ()
        return [part for part in PARTS if part not in unnamed]

    def run(self, values: Mapping[str, Any], task: Task, **options: Any) -> Run:
        """One run on some data."""
        found: Run = build(values, task=task).start(**options)
        return found

    def plan(self, values: Mapping[str, Any], task: Task) -> Plan:
        """What a run on some data would cost, computed as the run computes it."""
        parts = parts_of(values, self._parts, introspected().run)
        names = {key.name for key in introspected().plan} - set(_FROM_DATA)
        given = {name: value for name, value in parts.resolved.items() if name in names}
        model: Any = partial(parts.make, "model", shape=task.shape, classes=task.outputs)
        method = parts.make("method", **parts.make_if_chosen("server"))
        return plan(method, task, cohort=parts.make("cohort"), model=model, **given)

    def to_json(self, task: Task) -> dict[str, Any]:
        """What makes this tuning the same as another one, its number of trials aside."""
        return {
            "on": self.on,
            "keys": self.values,
            "space": {name: str(one) for name, one in self.space.items()},
            "seeds": self.seeds,
            "hold_out": self.hold_out,
            "public_data": self.public_data,
            "data_sha256": task.fingerprint(),
        }

    def identity(self, task: Task) -> str:
        """A hash of all that."""
        return json_hash(self.to_json(task))

    def without(self, *names: str) -> Question:
        """The same without some fixed keys."""
        return replace(self, values={name: value for name, value in self.values.items() if name not in names})
