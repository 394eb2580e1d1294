"""Rounds one after the other: from the newest checkpoint to the end, or until the budget or the patience is spent.

What surrounds a round (accounting, evaluation, the log, checkpoints) waits for it as little as possible: a line of the
log is written when the next round is already on its way, and checkpoints are written by a thread of their own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from torch import Tensor

from cloister import engine as engines
from cloister.core import State
from cloister.core.hashing import hash_of
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.accounts import Spending, accounts_of
from cloister.privacy.certificate import Certificate
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import ProtectedUnit
from cloister.round import Engine, Outcome, run_round
from cloister.runs import client_files
from cloister.runs.callbacks import Callbacks, record_of
from cloister.runs.checkpoint import Checkpoint, Stop
from cloister.runs.communication import communication_of
from cloister.runs.evaluate import Score
from cloister.runs.folder import RunFolder
from cloister.runs.measurement_file import MeasurementFile
from cloister.runs.personalization import Personalized
from cloister.runs.prepare import Ready
from cloister.runs.private_validation import private_validation
from cloister.runs.progress import Progress
from cloister.runs.recorded import Recorded
from cloister.runs.recording import Recorder
from cloister.runs.result import Run
from cloister.runs.resume import (
    charged_from,
    continued,
    engine_facts,
    expect_same_data,
    expect_same_record,
    renewed,
    warn_of_repeated,
    with_streams,
)
from cloister.runs.round_log import RoundLog
from cloister.runs.statistics import first_answer, statistics
from cloister.runs.verification import circumstances_at


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
    callbacks: Callbacks = field(default_factory=Callbacks)
    recorder: Recorder | None = None
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
        record: Sequence[str] = (),
    ) -> Self:
        """A new run, laid out in a folder if there is one. Its noise is that of this engine on these machines."""
        if ready.fed.method.mechanism.noise_multiplier:  # else there is nothing to protect, and engines are to agree
            streams = ready.fed.streams
            ready = with_streams(ready, replace(streams, run=engines.noise_key(streams.run, engine, machines)))
        facts, state = engine_facts(ready, engine, machines), ready.fed.method.init(ready.w)
        start = Checkpoint(0, ready.w, state, "", facts, ready.fingerprint, recorded=tuple(record))
        recorder = Recorder(Recorded(tuple(record))) if record else None
        if path is None:
            ledger = Ledger.create(None, ready.description.configuration_hash, ready.description.budgets)
            return cls(ready, engine, machines, ledger, start, recorder=recorder)
        folder = RunFolder.create(path, ready.description, start, config)
        ledger = folder.ledger(writable=True)
        start = replace(start, hash=ledger.hash)
        if recorder is not None:
            recorder.file = MeasurementFile.of(path)
        return cls(ready, engine, machines, ledger, start, folder, RoundLog(folder.metrics_file()), recorder=recorder)

    @classmethod
    def resume(
        cls,
        ready: Ready,
        folder: RunFolder,
        machines: list[engines.Arithmetic],
        ranks: engines.Ranks | None,
        record: Sequence[str] = (),
    ) -> Self:
        """The run in a folder, with the engine that it has had."""
        ledger = folder.ledger(writable=True)
        try:
            _, stored, metrics, certificate = folder.verified(ledger)
            at = stored.to(ready.w.device)
            expect_same_data(folder, at, ready)
            expect_same_record(folder, at, record)
            recorder = Recorder.resume(folder.path, record, at.round) if record else None
            known, ended, engine = metrics.models_after(at.round), certificate is not None, engines.restore(at.engine)
            metrics = metrics.up_to(at.round, at.metrics)
            metrics.write()  # what comes after is computed again
            engine = engines.Sharded(engine, ranks) if ranks else engine
            ready, repeated = continued(ready, at, engine, machines, ledger)
            log = RoundLog(metrics, metrics.public())
            training = cls(ready, engine, machines, ledger, at, folder, log, repeated, known, ended)
            training.recorder = recorder
            if at.engine != engine_facts(ready, engine, machines):
                training._checkpoint()  # where and with which noise it goes on: remembered before the first such round
                training._wait()
            return training
        except BaseException:
            ledger.close()
            raise

    def train(self, bar: Progress) -> Run:
        """To the end."""
        started, refused = time.perf_counter(), None
        self.log.start(bar)
        try:
            self.release_statistics()
            self._stop(self.callbacks.start(self.ready.description), "callback")
            while self.at.round < self.ready.description.rounds and self.at.stop is None and refused is None:
                try:
                    self._round(self.at.round + 1)
                except BudgetExceededError as refusal:
                    refused = str(refusal)
            if self._score is None and self.log.waiting is not None:  # it ended before it was due to be tested
                self._score = self.ready.score(self.at.newest, clients=True)
                self.log.waiting.update(self._score.line())
            self.log.write()
            certificate = circumstances_at(self.at).certify(self.ready.description, self.ledger)
            result = self.at.result
            current = self._score is not None and self._score.clients is not None and result is self.at.newest
            score = self._score if current else self.ready.score(result, clients=True)
            assert score is not None
            if self._score is None and result is self.at.newest and self.log.history:
                self.log.history[-1] |= score.line()  # its line was written before it was known to be the last
            personalized = self.ready.personalize(result) if self.ready.personalize else None
            self._end(certificate, score, personalized)
        finally:
            engines.dismiss(self.ready.fed)
            self._writer.shutdown()
            self.ledger.close()
        found = Run(
            model=self.ready.model_at(result),
            accuracy=score.accuracy,
            certificate=certificate,
            history=self.log.history,
            folder=None if self.folder is None else self.folder.path,
            engine=self.engine.name,
            seconds=time.perf_counter() - started,
            stopped=refused if self.at.stop is None else self.at.stop.reason,
            best_round=self.at.kept.round or None,
            scores=score.metrics,
            monitor=score.monitor,
            client_scores=score.clients,
            personalized=personalized,
            communication=communication_of(self.ready.description, self.log.history),
            preprocessing=None if self.ready.standardization is None else self.ready.standardization.preprocessing,
            recorded=None if self.recorder is None else self.recorder.recorded,
        )
        self.callbacks.end(found)
        return found

    def release_statistics(self) -> None:
        """Standardize the inputs, and tell the method what it asks for, where they are to be: by what was released
        before, or by queries of now."""
        if not self.ready.asks_first:
            return
        if not self.at.released:
            released = {} if self.ready.standardization is None else statistics(self.ready, self.ledger)
            if self.ready.fed.method.first_query is not None:
                released = {**released, **first_answer(self.ready, self.ledger)}
            self.at = replace(self.at, released=released, hash=self.ledger.hash)
            self._checkpoint()
            self._wait()
        self.ready.load_released(self.at.released)

    @property
    def _done(self) -> bool:
        return self.at.round == self.ready.description.rounds

    def _round(self, number: int) -> None:
        fed, before = self.ready.fed, self.at.state
        outcome = run_round(fed, self.ledger, self.engine, number, self.at.w, self.at.state)
        model = hash_of({"w": outcome.w}) if fed.streams.replays and self.folder is not None else None
        if model is not None and self.known.get(number, model) != model:
            self._renew(number)
            return
        kept = self.ready.selection.averaged(self.at.kept, number, outcome.w)
        self.at = replace(self.at, round=number, w=outcome.w, state=outcome.state, hash=self.ledger.hash, kept=kept)
        line = self._line(number, outcome)
        self.log.add(line, outcome.nonfinite_updates, {"ledger": self.at.hash, "model": model})
        self._score = None
        if number % self.evaluate_every == 0 or self._done:
            self._evaluate(number, line)
        if self.recorder is not None:
            self.recorder.add(self.ready, outcome, before, self.at.newest, self._score)
        self._tell(before.server)
        if number % self.checkpoint_every == 0:
            self.log.write()  # a resumed run has the lines up to its checkpoint
            self._checkpoint()

    def _evaluate(self, number: int, line: dict[str, Any]) -> None:
        """Test the newest model; and validate it where that is free or paid for, which may be the end of the run."""
        model, selection = self.at.newest, self.ready.selection
        self._score = self.ready.score(model, clients=self._done)
        line |= self._score.line()
        value = self._validated(number, model)
        if value is not None:
            line |= {"validation": value, "epsilon": self._spent()}  # which may have been paid for
            kept = selection.judged(self.at.kept, number, model, value)
            self.at = replace(self.at, kept=kept)
            self._stop(selection.why_over(kept, number), "validation")

    def _validated(self, number: int, model: Tensor) -> float | None:
        """What a model is worth by validation, where there is one."""
        ready = self.ready
        if ready.held_out is not None:
            found = private_validation(ready, self.ledger, ready.held_out, number, model)
            self.at = replace(self.at, hash=self.ledger.hash)
            return found
        return None if ready.validate is None else ready.validate(number, model)

    def _tell(self, before: State) -> None:
        """Tell the callbacks of the round, whose server began with this state."""
        if self.callbacks.all:
            self.log.write()  # now, and not beside the next round, which a callback may prevent
            schedule = self.ready.fed.method.noise_schedule
            scale = 1.0 if schedule is None else schedule(before)
            record = record_of(self.log.history[-1], self.ready.description, scale)
            self._stop(self.callbacks.round(record), "callback")

    def _stop(self, reason: str | None, by: Literal["validation", "callback"]) -> None:
        """No further round, where there is a reason and a round left; the first reason counts."""
        left = self.at.round < self.ready.description.rounds and not self.ended
        if reason is not None and self.at.stop is None and left:
            self.at = replace(self.at, stop=Stop(reason, by))

    def _line(self, number: int, outcome: Outcome) -> dict[str, Any]:
        line: dict[str, Any] = {"round": number, "cohort": outcome.cohort_size}
        if self.ready.fed.unit is ProtectedUnit.SAMPLE:
            line["dropped"] = outcome.dropped
        return {**line, "epsilon": self._spent()}

    def _spent(self) -> float:
        """What was spent so far by whoever has spent most. Where a sample may lie with several clients whose histories
        differ, no single account says that."""
        delta, copies = self.ready.description.delta, self.ready.description.task.copies
        if not delta:
            return float("inf")
        alone = self.ledger.most(delta)
        if copies == 1:
            return alone
        together = Spending(accounts_of(self.ledger), copies, self.ready.description.noise_schedule)
        return max(alone, together.renyi(delta)) if together.mixed else alone

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
        if self.recorder is not None:
            self.recorder.sync()
        folder.save(at, self.ready.description)

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def _end(self, certificate: Certificate, score: Score, personalized: Personalized | None) -> None:
        """The last checkpoint, the model and the certificate, unless a run that had ended spent nothing more."""
        if self.folder is None or (self.ended and self.at.hash == self.ledger.hash):
            return
        # No round follows, and the state of correlated noise could be subtracted from the model.
        state = replace(self.at.state, mechanism={})
        hash = self.ledger.hash  # also of rounds that were charged in vain
        self.at = replace(self.at, state=state, hash=hash, scores=score.line())
        self._checkpoint()
        self._wait()
        if score.clients is not None:
            client_files.write(self.folder.path, score.clients, personalized)
        about, standardization = self.ready.about, self.ready.standardization
        if standardization is not None:
            about = replace(about, standardization=standardization.to_json())
        tensors = self.ready.tensors_at(self.at.result)
        self.folder.finish(certificate, tensors, about.to_bytes(), circumstances_at(self.at))
