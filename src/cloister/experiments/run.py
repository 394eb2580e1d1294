"""A run: rounds one after the other, on disk if a folder is given, until done or until the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from torch import nn

from cloister import engine as engines
from cloister.cohorts import everyone
from cloister.data.task import Task
from cloister.errors import BudgetExceeded, CloisterError, Corrupted, expect_count
from cloister.experiments.folder import Checkpoint, RunFolder, configuration_hash
from cloister.experiments.prepare import Ready, prepare
from cloister.experiments.progress import Progress
from cloister.joints import Cohort, Method
from cloister.privacy.certificate import Certificate, certify, round_up
from cloister.privacy.ledger import Ledger
from cloister.round import Engine, run_round


@dataclass(frozen=True, repr=False)
class Run:
    """What came out: the model, what it cost, and a line per round."""

    model: nn.Module
    accuracy: float | None
    """Test accuracy of the final model (None where labels are no classes)."""
    certificate: Certificate
    history: list[dict[str, Any]]
    folder: Path | None
    engine: str
    seconds: float
    stopped: str | None
    """Why the run ended before its last round, if it did."""

    def __repr__(self) -> str:
        accuracy = "none" if self.accuracy is None else f"{self.accuracy:.4f}"
        price = self.certificate.prices[0]
        spent = f"epsilon {round_up(price.epsilon_pld)} at delta {price.delta:g}"
        return f"<Run: accuracy {accuracy}, {spent}, {len(self.history)} rounds, {self.engine} engine>"

    @property
    def epsilon(self) -> float:
        """The certified epsilon at the run's delta (infinite without privacy)."""
        return self.certificate.epsilon


def run(
    method: Method,
    task: Task,
    *,
    rounds: int,
    cohort: Cohort | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    engine: str = "auto",
    memory: int = engines.MEMORY_BUDGET,
    seed: int = 0,
    randomness: str = "seeded",
    device: str = "cpu",
    dtype: str = "float32",
    evaluate_every: int = 1,
    checkpoint_every: int = 10,
    progress: bool | None = None,
    config: str | None = None,
) -> Run:
    """Train, and certify what it cost.

    With `epsilon` the ledger refuses every round that would exceed it, and noise that the method leaves open
    is calibrated to spend just that over `rounds`.

    Args:
        method: what is run, such as `cloister.methods.dp_fedavg(clip=1.0, lr=1.0, steps=5)`.
        task: on what, such as `cloister.data.digits()`.
        cohort: who takes part in a round; everyone by default.
        model: a torch module, or a function that makes one; the task's own by default.
        folder: where to keep the run; without one, nothing is written and nothing can be resumed.
        resume: continue the run in `folder`, given the same method, task and settings.
        engine: "auto", "loop" or "vectorised"; the result is the same.
        memory: bytes that a chunk of clients may take.
        randomness: "seeded" (reproducible) or "secure" (cohorts and noise from the operating system).
        progress: show a bar; by default only on a terminal.
        config: the text of a config file from which the command line can build the run again.
    """
    expect_count("evaluate_every", evaluate_every, "1 evaluates after every round")
    expect_count("checkpoint_every", checkpoint_every, "1 saves after every round")
    engines.expect_known(engine)
    path = None if folder is None else Path(folder)
    old = _open(path) if resume else None
    if path is not None and old is None:
        RunFolder.expect_new(path)  # before the work of preparing, and again when it is created
    ready = prepare(
        method,
        task,
        rounds=rounds,
        cohort=cohort or everyone(),
        epsilon=epsilon,
        delta=delta,
        model=model,
        seed=seed,
        randomness=randomness,
        device=device,
        dtype=dtype,
        known=old.description() if old else None,
    )
    if old is None:
        training = _Training.begin(ready, engines.build(engine, ready.fed, ready.w, memory), path, config)
    else:
        _expect_same(old, ready)
        training = _Training.resume(ready, old)
    training.evaluate_every, training.checkpoint_every = evaluate_every, checkpoint_every
    with Progress(progress, rounds, method.name, done=training.at.round) as bar:
        return training.train(bar)


def _open(path: Path | None) -> RunFolder:
    if path is None:
        raise CloisterError("Expected a folder to resume, found none: name the folder of the run.")
    return RunFolder.open(path)


def _expect_same(old: RunFolder, ready: Ready) -> None:
    before, now = old.description(), ready.description
    if configuration_hash(before) == configuration_hash(now):
        return
    changed = [k for k in now if configuration_hash({k: now[k]}) != configuration_hash({k: before.get(k)})]
    raise Corrupted(
        f"Expected the settings and data with which {old.path} was started, found that {', '.join(changed)} changed: "
        "resume with the same, or start a new run."
    )


@dataclass
class _Training:
    """One process's part of a run: from its newest checkpoint to its end."""

    ready: Ready
    mapper: Engine
    ledger: Ledger
    at: Checkpoint
    folder: RunFolder | None
    history: list[dict[str, Any]]
    evaluate_every: int = 1
    checkpoint_every: int = 1

    @classmethod
    def begin(cls, ready: Ready, mapper: Engine, path: Path | None, config: str | None) -> Self:
        fed, w = ready.fed, ready.w
        budgets = {fed.method.unit: ready.budget} if ready.budget else {}
        state = fed.method.server.init(w)
        start = Checkpoint(0, w, state, "", engines.describe(mapper), ready.fingerprint)
        if path is None:
            ledger = Ledger.create(None, configuration_hash(ready.description), budgets)
            return cls(ready, mapper, ledger, start, None, [])
        return cls.resume(ready, RunFolder.create(path, ready.description, budgets, start, config))

    @classmethod
    def resume(cls, ready: Ready, folder: RunFolder) -> Self:
        ledger = folder.ledger(writable=True)
        try:
            at = folder.load(ready.w.device)
            ledger.expect_continues(at.seal)
            if at.data != ready.fingerprint:
                raise Corrupted(
                    f"Expected the data with which {folder.path} was started, found that the task's data changed: "
                    "resume with the same, or start a new run."
                )
            return cls(ready, engines.restore(at.engine), ledger, at, folder, folder.cut_metrics(at.round))
        except BaseException:
            ledger.close()
            raise

    @property
    def rounds(self) -> int:
        rounds: int = self.ready.description["rounds"]
        return rounds

    def train(self, bar: Progress) -> Run:
        started, stopped = time.perf_counter(), None
        try:
            while self.at.round < self.rounds and stopped is None:
                try:
                    self._round(bar)
                except BudgetExceeded as refusal:
                    stopped = str(refusal)
            return self._finish(stopped, started)
        finally:
            self.ledger.close()

    def _round(self, bar: Progress) -> None:
        fed, number, started = self.ready.fed, self.at.round + 1, time.perf_counter()
        outcome = run_round(fed, self.ledger, self.mapper, number, self.at.w, self.at.state)
        self.at = replace(self.at, round=number, w=outcome.w, state=outcome.state, seal=self.ledger.seal)
        line: dict[str, Any] = {"round": number}
        if number % self.evaluate_every == 0 or number == self.rounds:
            line |= asdict(self.ready.score(outcome.w))
        delta = self.ready.delta
        line["epsilon"] = self.ledger.epsilon(fed.method.unit, delta) if delta else float("inf")
        line |= {"cohort": outcome.cohort_size, "rejected": outcome.rejected}
        line["seconds"] = round(time.perf_counter() - started, 4)
        self.history.append(line)
        if self.folder is not None:
            self.folder.append_metrics(line)
            if number % self.checkpoint_every == 0:
                self.folder.save(self.at, self.ready.description)
        bar.advance(line)

    def _finish(self, stopped: str | None, started: float) -> Run:
        ready, w = self.ready, self.at.w
        certificate = certify(ready.description, configuration_hash(ready.description), self.ledger)
        if self.folder is not None:
            self.folder.save(self.at, ready.description)
            self.folder.finish(certificate, ready.fed.problem.layout.views(w))
        return Run(
            model=ready.fed.problem.layout.load(ready.module, w).eval(),
            accuracy=ready.score(w).accuracy,
            certificate=certificate,
            history=self.history,
            folder=None if self.folder is None else self.folder.path,
            engine=self.mapper.name,
            seconds=time.perf_counter() - started,
            stopped=stopped,
        )
