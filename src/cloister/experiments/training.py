"""Rounds one after the other: from the newest checkpoint to the end, or until the budget is spent.

What surrounds a round (accounting, evaluation, the log, checkpoints) waits for it as little as possible: a line of the
log is written when the next round is already on its way, and checkpoints are written by a thread of their own.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from cloister import engine as engines
from cloister.errors import BudgetExceededError, CloisterError, Corrupted, RepeatedRounds
from cloister.experiments.checkpoint import Checkpoint
from cloister.experiments.evaluate import Score
from cloister.experiments.folder import RunFolder
from cloister.experiments.identity import configuration_hash, plain
from cloister.experiments.metrics import Metrics
from cloister.experiments.prepare import Ready
from cloister.experiments.progress import Progress
from cloister.params import hash_of
from cloister.privacy.certificate import Certificate, certify
from cloister.privacy.ledger import Ledger
from cloister.round import Engine, run_round
from cloister.streams import Streams


@dataclass(frozen=True)
class Trained:
    """What training leaves behind."""

    w: Tensor
    score: Score
    certificate: Certificate
    history: list[dict[str, Any]]
    folder: Path | None
    engine: str
    seconds: float
    stopped: str | None


@dataclass
class Training:
    """One process's part of a run."""

    ready: Ready
    mapper: Engine
    machines: list[engines.Arithmetic]
    ledger: Ledger
    at: Checkpoint
    folder: RunFolder | None = None
    metrics: Metrics | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    repeated: tuple[int, ...] = ()
    """Rounds that were charged before this process began, and are computed again with other noise."""
    known: dict[int, str] = field(default_factory=dict)
    """Hashes of the models that rounds after the checkpoint gave before: these must come out again, or be paid for."""
    ended: bool = False
    """Whether the run had ended before."""
    evaluate_every: int = 1
    checkpoint_every: int = 1
    _unlogged: tuple[dict[str, Any], _OnItsWay, dict[str, str | None]] | None = None
    _score: Score | None = None  # of the newest model, where it was evaluated
    _writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))
    _written: Future[None] | None = None
    _clock: float = field(default_factory=time.perf_counter)

    @classmethod
    def begin(
        cls,
        ready: Ready,
        mapper: Engine,
        machines: list[engines.Arithmetic],
        path: Path | None,
        config: str | None,
    ) -> Self:
        """A new run, laid out in a folder if there is one. Its noise is that of this engine on these machines."""
        if ready.fed.method.mechanism.noise_multiplier:  # else there is nothing to protect, and engines are to agree
            streams = replace(ready.fed.streams, run=engines.noise_key(ready.fed.streams.run, mapper, machines))
            ready = replace(ready, fed=replace(ready.fed, streams=streams))
        start = Checkpoint(0, ready.w, ready.fed.method.init(ready.w), "", {}, ready.fingerprint)
        start = replace(start, engine=_engine_of(ready, mapper, machines))
        identity = configuration_hash(ready.description)
        if path is None:
            return cls(ready, mapper, machines, Ledger.create(None, identity, ready.budgets), start)
        folder = RunFolder.create(path, ready.description, ready.budgets, start, config)
        ledger = folder.ledger(writable=True)
        start = replace(start, seal=ledger.seal)
        return cls(ready, mapper, machines, ledger, start, folder, folder.metrics_file())

    @classmethod
    def resume(
        cls, ready: Ready, folder: RunFolder, machines: list[engines.Arithmetic], ranks: engines.Ranks | None
    ) -> Self:
        """The run in a folder, with the engine that it has had."""
        ledger = folder.ledger(writable=True)
        try:
            _, at, metrics, certificate = folder.verified(ledger, ready.w.device)
            if at.data != ready.fingerprint:
                raise Corrupted(
                    f"Expected the data with which {folder.path} was started, found that the task's data changed: "
                    "resume with the same, or start a new run."
                )
            known, ended, engine = metrics.models_after(at.round), certificate is not None, engines.restore(at.engine)
            metrics = metrics.up_to(at.round, at.metrics)
            metrics.write()  # what comes after is computed again
            mapper = engines.Sharded(engine, ranks) if ranks else engine
            ready, repeated = _continued(ready, at, mapper, machines, ledger)
            history = metrics.public()
            training = cls(ready, mapper, machines, ledger, at, folder, metrics, history, repeated, known, ended)
            if at.engine != _engine_of(ready, mapper, machines):
                training._checkpoint()  # where and with which noise it goes on: remembered before the first such round
                training._wait()
            return training
        except BaseException:
            ledger.close()
            raise

    @property
    def rounds(self) -> int:
        """How many rounds there are in all."""
        rounds: int = self.ready.description["rounds"]
        return rounds

    def train(self, bar: Progress) -> Trained:
        """To the end."""
        started, stopped = time.perf_counter(), None
        self._clock = started
        try:
            while self.at.round < self.rounds and stopped is None:
                try:
                    self._round(bar)
                except BudgetExceededError as refusal:
                    stopped = str(refusal)
            self._log(bar)
            return self._finish(stopped, started)
        finally:
            self._writer.shutdown()
            self.ledger.close()

    def _round(self, bar: Progress) -> None:
        fed, number = self.ready.fed, self.at.round + 1
        outcome = run_round(fed, self.ledger, self.mapper, number, self.at.w, self.at.state)
        model = hash_of({"w": outcome.w}) if fed.repeatable and self.folder is not None else None
        if model is not None and self.known.get(number, model) != model:
            self._renew(number, bar)
            return
        self.at = replace(self.at, round=number, w=outcome.w, state=outcome.state, seal=self.ledger.seal)
        rejected = _OnItsWay(outcome.rejected)
        delta = self.ready.delta
        line: dict[str, Any] = {"round": number, "cohort": outcome.cohort_size}
        if fed.each:
            line["dropped"] = outcome.dropped
        line["epsilon"] = self.ledger.most(delta) if delta else float("inf")
        self._log(bar)  # the line before this one, while a device works on this round
        self._unlogged, self._score = (line, rejected, {"ledger": self.at.seal, "model": model}), None
        if number % self.evaluate_every == 0 or number == self.rounds:
            self._score = self.ready.score(outcome.w)
            line |= asdict(self._score)
        if number % self.checkpoint_every == 0:
            self._log(bar)  # a resumed run has the lines up to its checkpoint
            self._checkpoint()

    def _renew(self, number: int, bar: Progress) -> None:
        """Forget a round that came out with other bits than before, and draw new noise for it and all that follow.

        Whatever made the difference, both under the same noise would show what was rounded. The round of before may
        have been looked at; this one has not, and is computed anew, and charged.
        """
        self._log(bar)
        streams = _renewed(self.ready.fed.streams, self.ledger)
        self.ready = replace(self.ready, fed=replace(self.ready.fed, streams=streams))
        self._checkpoint()
        self._wait()
        charged = tuple(sorted({entry.round for entry in self.ledger.entries if entry.round >= number}))
        warn_of_repeated(charged, "the same computation came out with other bits")
        if isinstance(self.mapper, engines.Sharded):  # the other ranks have the noise of before
            raise CloisterError(
                f"Expected round {number} to come out as it did before the run was interrupted, found other bits: "
                "resume the run once more, and all processes draw new noise."
            )

    def _log(self, bar: Progress) -> None:
        """Write the line that is ready, if there is one."""
        if self._unlogged is None:
            return
        line, rejected, ties = self._unlogged
        self._unlogged = None
        line["rejected"] = int(rejected)
        now = time.perf_counter()
        line["seconds"], self._clock = round(now - self._clock, 6), now
        self.history.append(line)
        if self.metrics is not None:
            self.metrics.append(plain(line), ties)
        bar.advance(line)

    def _checkpoint(self) -> None:
        """Begin to replace the checkpoint, when the one before is on the disk."""
        if self.folder is None or self.metrics is None:
            return
        self._wait()
        engine = _engine_of(self.ready, self.mapper, self.machines)  # with what was chosen since the start
        self.at = replace(self.at, engine=engine, metrics=self.metrics.seal)
        self._written = self._writer.submit(_save, self.folder, self.metrics, self.at, self.ready.description)

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def _finish(self, stopped: str | None, started: float) -> Trained:
        ready, w = self.ready, self.at.w
        certificate = certify(ready.description, configuration_hash(ready.description), self.ledger)
        if self.folder is not None and not (self.ended and self.at.seal == self.ledger.seal):
            # No round follows, and the state of correlated noise could be subtracted from the model.
            spent = ready.fed.method.mechanism.init(w)
            state = {k: v for k, v in self.at.state.items() if k not in spent}
            self.at = replace(self.at, state=state, seal=self.ledger.seal)  # also of rounds that were charged in vain
            self._checkpoint()
            self._wait()
            self.folder.finish(certificate, ready.fed.problem.layout.views(w))
        return Trained(
            w=w,
            score=self._score or ready.score(w),
            certificate=certificate,
            history=self.history,
            folder=None if self.folder is None else self.folder.path,
            engine=self.mapper.name,
            seconds=time.perf_counter() - started,
            stopped=stopped,
        )


def _renewed(streams: Streams, ledger: Ledger) -> Streams:
    """Other noise than any that the run has had, under which nothing counts as repeatable any more."""
    return replace(streams, run=f"{streams.run}/{len(ledger.entries)}", repeatable=False)


def warn_of_repeated(rounds: tuple[int, ...], why: str) -> None:
    """Rounds that are paid for twice are never so without a word."""
    if not rounds:
        return
    first, last = rounds[0], rounds[-1]
    warnings.warn(
        f"Expected to repeat {f'round {first}' if first == last else f'rounds {first} to {last}'}, charged before the "
        f"run was interrupted, to the bit, found that {why}: what is computed again has new noise, and is charged.",
        RepeatedRounds,
        stacklevel=4,
    )


def _save(folder: RunFolder, metrics: Metrics, at: Checkpoint, description: Mapping[str, Any]) -> None:
    metrics.sync()  # the lines that the checkpoint remembers
    folder.save(at, description)


def _engine_of(ready: Ready, mapper: Engine, machines: list[engines.Arithmetic]) -> dict[str, Any]:
    """What decides which bits a round comes to, as a checkpoint remembers it."""
    streams = ready.fed.streams
    renewed = not streams.repeatable
    return {**engines.describe(mapper), "machines": machines, "renewed": renewed, "noise": streams.run}


def _continued(
    ready: Ready, at: Checkpoint, mapper: Engine, machines: list[engines.Arithmetic], ledger: Ledger
) -> tuple[Ready, tuple[int, ...]]:
    """A resumed run with its noise: what it has had, or new where rounds that were charged would have other bits.

    Two releases with the same noise that are rounded differently would show by their difference what was rounded, which
    nothing protects. So rounds after the checkpoint that were charged are then new releases: cohorts and noise are
    drawn anew, and paid for. Which these are is returned, too.
    """
    charged = tuple(sorted({entry.round for entry in ledger.entries if entry.round > at.round}))
    streams = replace(ready.fed.streams, run=str(at.engine["noise"]))  # whatever the model that it was resumed with
    same = engines.same_bits(at.engine, mapper, machines)
    if not same and (charged or at.engine["renewed"]):
        streams = _renewed(streams, ledger)
    again = () if streams.repeatable and not streams.secure else charged
    return replace(ready, fed=replace(ready.fed, streams=streams)), again


class _OnItsWay:
    """A number that a device is still computing; asking for it waits for it, and not for what was queued later."""

    def __init__(self, number: Tensor) -> None:
        self._number, self._done = number, None
        if number.is_cuda:
            self._number = torch.empty(number.shape, dtype=number.dtype, pin_memory=True)
            self._number.copy_(number, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record()

    def __int__(self) -> int:
        if self._done is not None:
            self._done.synchronize()
        return int(self._number)
