"""Rounds one after the other: from the newest checkpoint to the end, or until the budget is spent.

What surrounds a round (accounting, evaluation, the log, checkpoints) waits for it as little as possible: a line of the
log is written when the next round is already on its way, and checkpoints are written by a thread of their own.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from torch import nn

from cloister import engine as engines
from cloister.core.hashing import hash_of
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.certificate import Certificate, certify
from cloister.privacy.certificate_text import round_up
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import ProtectedUnit
from cloister.round import Engine, Outcome, run_round
from cloister.runs import client_files
from cloister.runs.checkpoint import Checkpoint
from cloister.runs.client_scores import ClientScores
from cloister.runs.evaluate import Score
from cloister.runs.folder import RunFolder
from cloister.runs.metric_catalogue import figure
from cloister.runs.personalization import Personalized
from cloister.runs.prepare import Ready
from cloister.runs.progress import Progress
from cloister.runs.resume import (
    charged_from,
    continued,
    engine_facts,
    expect_same_data,
    renewed,
    warn_of_repeated,
    with_streams,
)
from cloister.runs.round_log import RoundLog


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
    scores: dict[str, float | None] = field(default_factory=dict)
    """The metrics of the final model, by name; None where one is undefined."""
    monitor: str = "accuracy"
    """The metric that is watched."""
    client_scores: ClientScores | None = None
    """That metric on every client's own test samples, where clients have some. Exact, and so not private."""
    personalized: Personalized | None = None
    """The same before and after personalization, where that was asked for. Not private either."""

    def __repr__(self) -> str:
        watched = self.scores.get(self.monitor, self.accuracy)
        value = "none" if watched is None else figure(self.monitor, watched, 4)
        price = self.certificate.prices[0]
        spent = f"epsilon {round_up(price.epsilon_pld)} at delta {price.delta:g}"
        return f"<Run: {self.monitor} {value}, {spent}, {len(self.history)} rounds, {self.engine} engine>"

    @property
    def epsilon(self) -> float:
        """The certified epsilon at the run's delta (infinite without privacy)."""
        return self.certificate.epsilon


@dataclass
class Training:
    """One process's part of a run."""

    ready: Ready
    engine: Engine
    machines: list[engines.Arithmetic]
    ledger: Ledger
    at: Checkpoint
    folder: RunFolder | None = None
    log: RoundLog = field(default_factory=RoundLog)
    repeated: tuple[int, ...] = ()
    """Rounds that were charged before this process began, and are computed again with other noise."""
    known: dict[int, str] = field(default_factory=dict)
    """Hashes of the models that rounds after the checkpoint gave before: these must come out again, or be paid for."""
    ended: bool = False
    """Whether the run had ended before."""
    evaluate_every: int = 1
    checkpoint_every: int = 1
    _score: Score | None = None  # of the newest model, where it was evaluated
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _written: Future[None] | None = None

    @classmethod
    def begin(
        cls,
        ready: Ready,
        engine: Engine,
        machines: list[engines.Arithmetic],
        path: Path | None,
        config: str | None,
    ) -> Self:
        """A new run, laid out in a folder if there is one. Its noise is that of this engine on these machines."""
        if ready.fed.method.mechanism.noise_multiplier:  # else there is nothing to protect, and engines are to agree
            streams = ready.fed.streams
            ready = with_streams(ready, replace(streams, run=engines.noise_key(streams.run, engine, machines)))
        facts, state = engine_facts(ready, engine, machines), ready.fed.method.init(ready.w)
        start = Checkpoint(0, ready.w, state, "", facts, ready.fingerprint)
        if path is None:
            ledger = Ledger.create(None, ready.description.configuration_hash, ready.description.budgets)
            return cls(ready, engine, machines, ledger, start)
        folder = RunFolder.create(path, ready.description, start, config)
        ledger = folder.ledger(writable=True)
        start = replace(start, hash=ledger.hash)
        return cls(ready, engine, machines, ledger, start, folder, RoundLog(folder.metrics_file()))

    @classmethod
    def resume(
        cls, ready: Ready, folder: RunFolder, machines: list[engines.Arithmetic], ranks: engines.Ranks | None
    ) -> Self:
        """The run in a folder, with the engine that it has had."""
        ledger = folder.ledger(writable=True)
        try:
            _, at, metrics, certificate = folder.verified(ledger, ready.w.device)
            expect_same_data(folder, at, ready)
            known, ended, engine = metrics.models_after(at.round), certificate is not None, engines.restore(at.engine)
            metrics = metrics.up_to(at.round, at.metrics)
            metrics.write()  # what comes after is computed again
            engine = engines.Sharded(engine, ranks) if ranks else engine
            ready, repeated = continued(ready, at, engine, machines, ledger)
            log = RoundLog(metrics, metrics.public())
            training = cls(ready, engine, machines, ledger, at, folder, log, repeated, known, ended)
            if at.engine != engine_facts(ready, engine, machines):
                training._checkpoint()  # where and with which noise it goes on: remembered before the first such round
                training._wait()
            return training
        except BaseException:
            ledger.close()
            raise

    def train(self, bar: Progress) -> Run:
        """To the end."""
        started, stopped = time.perf_counter(), None
        self.log.start(bar)
        try:
            while self.at.round < self.ready.description.rounds and stopped is None:
                try:
                    self._round(self.at.round + 1)
                except BudgetExceededError as refusal:
                    stopped = str(refusal)
            self.log.write()
            certificate = certify(self.ready.description, self.ledger)
            score = self._score if self._score and self._done else self.ready.score(self.at.w, clients=True)
            personalized = self.ready.personalize(self.at.w) if self.ready.personalize else None
            self._end(certificate, score.clients, personalized)
        finally:
            self._writer.shutdown()
            self.ledger.close()
        return Run(
            model=self.ready.model_at(self.at.w),
            accuracy=score.accuracy,
            certificate=certificate,
            history=self.log.history,
            folder=None if self.folder is None else self.folder.path,
            engine=self.engine.name,
            seconds=time.perf_counter() - started,
            stopped=stopped,
            scores=score.metrics,
            monitor=score.monitor,
            client_scores=score.clients,
            personalized=personalized,
        )

    @property
    def _done(self) -> bool:
        return self.at.round == self.ready.description.rounds

    def _round(self, number: int) -> None:
        fed = self.ready.fed
        outcome = run_round(fed, self.ledger, self.engine, number, self.at.w, self.at.state)
        model = hash_of({"w": outcome.w}) if fed.streams.replays and self.folder is not None else None
        if model is not None and self.known.get(number, model) != model:
            self._renew(number)
            return
        self.at = replace(self.at, round=number, w=outcome.w, state=outcome.state, hash=self.ledger.hash)
        line = self._line(number, outcome)
        self.log.add(line, outcome.nonfinite_updates, {"ledger": self.at.hash, "model": model})
        self._score = None
        if number % self.evaluate_every == 0 or self._done:
            self._score = self.ready.score(outcome.w, clients=self._done)
            line |= self._score.line()
        if number % self.checkpoint_every == 0:
            self.log.write()  # a resumed run has the lines up to its checkpoint
            self._checkpoint()

    def _line(self, number: int, outcome: Outcome) -> dict[str, Any]:
        line: dict[str, Any] = {"round": number, "cohort": outcome.cohort_size}
        if self.ready.fed.unit is ProtectedUnit.SAMPLE:
            line["dropped"] = outcome.dropped
        delta = self.ready.description.delta
        return {**line, "epsilon": self.ledger.most(delta) if delta else float("inf")}

    def _renew(self, number: int) -> None:
        """Forget a round that came out with other bits than before, and draw new noise for it and all that follow.

        Whatever made the difference, both under the same noise would show what was rounded. The round of before may
        have been looked at; this one has not, and is computed anew, and charged.
        """
        self.log.write()
        self.ready = with_streams(self.ready, renewed(self.ready.fed.streams, self.ledger))
        self._checkpoint()
        self._wait()
        warn_of_repeated(charged_from(number, self.ledger), "the same computation came out with other bits")
        if isinstance(self.engine, engines.Sharded):  # the other ranks have the noise of before
            raise CloisterError(
                f"Expected round {number} to come out as it did before the run was interrupted, found other bits: "
                "resume the run once more, and all processes draw new noise."
            )

    def _checkpoint(self) -> None:
        """Begin to replace the checkpoint, when the one before is on the disk."""
        if self.folder is None or self.log.metrics is None:
            return
        self._wait()
        facts = engine_facts(self.ready, self.engine, self.machines)  # with what was chosen since the start
        self.at = replace(self.at, engine=facts, metrics=self.log.metrics.hash)
        self._written = self._writer.submit(self._save, self.folder, self.at)

    def _save(self, folder: RunFolder, at: Checkpoint) -> None:
        assert self.log.metrics is not None
        self.log.metrics.sync()  # the lines that the checkpoint remembers
        folder.save(at, self.ready.description)

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def _end(self, certificate: Certificate, scores: ClientScores | None, personalized: Personalized | None) -> None:
        """The last checkpoint, the model and the certificate, unless a run that had ended spent nothing more."""
        if self.folder is None or (self.ended and self.at.hash == self.ledger.hash):
            return
        # No round follows, and the state of correlated noise could be subtracted from the model.
        state = replace(self.at.state, mechanism={})
        self.at = replace(self.at, state=state, hash=self.ledger.hash)  # also of rounds that were charged in vain
        self._checkpoint()
        self._wait()
        if scores is not None:
            client_files.write(self.folder.path, scores, personalized)
        self.folder.finish(certificate, self.ready.fed.objective.layout.views(self.at.w))
