"""A run: rounds one after the other, on disk if a folder is given, until done or until the budget is spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from cloister import engine as engines
from cloister.cohorts import everyone
from cloister.data.task import Task
from cloister.errors import CloisterError, Corrupted, expect, expect_count, expect_type
from cloister.experiments.folder import RunFolder
from cloister.experiments.identity import configuration_hash
from cloister.experiments.prepare import Ready, prepare
from cloister.experiments.progress import Progress
from cloister.experiments.training import Trained, Training, warn_of_repeated
from cloister.joints import Cohort, Method
from cloister.privacy.certificate import Certificate
from cloister.privacy.wording import round_up


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
    epsilon: float | list[float] | None = None,
    delta: float | None = None,
    allow_large_delta: bool = False,
    model: nn.Module | Callable[[], nn.Module] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    engine: str = "auto",
    memory: int | None = None,
    seed: int = 0,
    randomness: str = "seeded",
    device: str = "cpu",
    dtype: str = "float32",
    precision: str = "exact",
    evaluate_every: int | None = None,
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
        epsilon: the budget; where samples are protected, also one for each client.
        allow_large_delta: accept a delta that is not below 1/clients (where samples are protected, 1/samples of the
            largest client), which publishing one of them whole would satisfy.
        model: a torch module, or a function that makes one; the task's own by default.
        folder: where to keep the run; without one, nothing is written and nothing can be resumed.
        resume: continue the run in `folder`, given the same method, task and settings.
        engine: "auto", "loop", "vectorised" or (on a GPU) "graphed": how, never what is computed. Engines round
            differently, and runs that do must not share their noise, so that a seed gives the same run again with the
            same engine on the same kind of machine.
        memory: bytes that a chunk of clients may take; by default 1 GiB, or half of what is free on a GPU.
        randomness: "seeded" (reproducible) or "secure" (cohorts and noise from the operating system).
        precision: "exact", or on a GPU "tf32" or "bf16": faster and coarser matrix products and convolutions.
        evaluate_every: rounds between evaluations; by default so many that they take a few hundredths of the time.
        checkpoint_every: rounds between checkpoints.
        progress: show a bar; by default only on a terminal.
        config: the text of a config file from which the command line can build the run again.
    """
    _expect_arguments(cohort, memory, evaluate_every, checkpoint_every, folder, resume, progress, config)
    engines.expect_known(engine)
    ranks = engines.join()
    leads = ranks is None or ranks.leads
    path = Path(folder) if folder is not None and leads else None
    old = _open(path) if resume and leads else None
    if path is not None and old is None:
        RunFolder.expect_new(path)  # before the work of preparing, and again when it is created
    known = old.description() if old else None
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
        device=engines.local_device(device),
        dtype=dtype,
        precision=precision,
        allow_large_delta=allow_large_delta,
        known=ranks.tell(known) if ranks else known,
    )
    machine = engines.arithmetic(ready.w.device)
    machines = ranks.collect(machine) if ranks else [machine]
    if ranks:
        _expect_alike(ranks, ready)
        if not ranks.leads:
            return _assist(ranks, ready)
    if old is None:
        mapper = engines.build(engine, ready.fed, ready.w, memory, rounds, _choice_key(ready, machines, memory))
        mapper = engines.Sharded(mapper, ranks) if ranks else mapper
        training = Training.begin(ready, mapper, machines, path, config)
    else:
        _expect_same(old, ready)
        training = Training.resume(ready, old, machines, ranks)
        warn_of_repeated(training.repeated, _why_not_repeated(training))
    training.evaluate_every = evaluate_every or _now_and_then(ready, task)
    training.checkpoint_every = checkpoint_every
    with Progress(progress, rounds, method.name, done=training.at.round) as bar:
        return _run_of(ready, _lead(ranks, training, bar) if ranks else training.train(bar))


def _choice_key(ready: Ready, machines: list[engines.Arithmetic], memory: int | None) -> str:
    """What an engine is chosen for, whatever the seed."""
    about = {name: value for name, value in ready.description.items() if name not in ("seed", "budgets", "delta")}
    return configuration_hash({"run": about, "machines": machines, "memory": memory})


def _why_not_repeated(training: Training) -> str:
    if training.ready.fed.streams.secure:
        return "secure randomness cannot be drawn again"
    return (
        "this process would not compute the same bits (another machine, another number of threads or processes, a GPU, "
        "or noise that was renewed before)"
    )


def _expect_arguments(
    cohort: object,
    memory: int | None,
    evaluate_every: int | None,
    checkpoint_every: int,
    folder: object,
    resume: object,
    progress: object,
    config: object,
) -> None:
    """Refuse what is wrong in how the run is kept and shown; `prepare` refuses the rest, before anything is written."""
    if cohort is not None:
        expect_type("cohort", cohort, Cohort, "a Cohort such as cloister.poisson(0.5)")
    if memory is not None:
        expect_count("memory", memory, "the bytes that a chunk of clients may take", most=2**62)
    if evaluate_every is not None:
        expect_count("evaluate_every", evaluate_every, "1 evaluates after every round")
    expect_count("checkpoint_every", checkpoint_every, "1 saves after every round")
    expect_type("folder", folder, (str, Path, type(None)), "the path of a folder", "give a text or a pathlib.Path")
    expect("\0" not in str(folder), "a folder whose name the system takes", folder, "choose another")
    expect_type("resume", resume, bool, "True or False", "True continues the run in the folder")
    expect_type("progress", progress, (bool, type(None)), "True, False or None", "None shows a bar on terminals alone")
    expect_type("config", config, (str, type(None)), "the text of a config file", "leave it out")


def _now_and_then(ready: Ready, task: Task) -> int:
    """Rounds between evaluations that take some two hundredths of the time, but not more than fifty evaluations.

    A sample costs about three times as much to train on as to test.
    """
    batching, sizes = ready.fed.method.local.batching, ready.fed.population.counts.double()
    passed = float(sizes.mean()) * batching.epochs if batching.epochs else (batching.steps or 1) * batching.batch
    trained = 3 * passed * ready.fed.denominator
    rounds: int = ready.description["rounds"]
    return max(1, -(-rounds // 50), round(len(task.test_labels) / max(0.015 * trained, 1e-9)))


def _run_of(ready: Ready, trained: Trained) -> Run:
    return Run(
        model=ready.fed.problem.layout.load(ready.module, trained.w.to(ready.w.device)).eval(),
        accuracy=trained.score.accuracy,
        certificate=trained.certificate,
        history=trained.history,
        folder=trained.folder,
        engine=trained.engine,
        seconds=trained.seconds,
        stopped=trained.stopped,
    )


def _lead(ranks: engines.Ranks, training: Training, bar: Progress) -> Trained:
    """Train with the help of the other ranks, and let them know how it ended."""
    assert isinstance(training.mapper, engines.Sharded)
    try:
        with engines.in_words_when_stopped():
            ranks.tell((engines.describe(training.mapper.inner), training.ready.fed.streams))
            trained = training.train(bar)
            training.mapper.dismiss()
            ranks.tell(replace(trained, w=trained.w.cpu()))
    except BaseException:
        engines.leave()  # wherever the others are waiting, they learn that it is over
        raise
    return trained


def _assist(ranks: engines.Ranks, ready: Ready) -> Run:
    """Compute a share of every round, and return what rank 0 returns."""
    with engines.in_words_when_stopped():
        engine, streams = ranks.tell()  # a resumed run may have new ones
        engines.assist(engines.restore(engine), ranks, replace(ready.fed, streams=streams), ready.w)
        return _run_of(ready, ranks.tell())


def _expect_alike(ranks: engines.Ranks, ready: Ready) -> None:
    """All processes must run the same thing on the same data."""
    mine = (configuration_hash(ready.description), ready.fingerprint)
    if ranks.tell(mine) != mine:
        raise CloisterError(
            f"Expected rank {ranks.rank} to have the settings, software and data of rank 0, found others: give every "
            "process the same command, packages and data."
        )


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
