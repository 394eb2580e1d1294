"""A run: rounds one after the other, on disk if a folder is given, until done or until the budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from torch import nn

from cloister import engine as engines
from cloister.core import Cohort, Method
from cloister.core.arguments import flat_arguments
from cloister.data.task import Task
from cloister.errors import CloisterError, expect, expect_type
from cloister.models import Adaptation
from cloister.privacy.description import json_hash
from cloister.runs.callbacks import Callback, Callbacks, expect_callbacks
from cloister.runs.folder import RunFolder
from cloister.runs.prepare import Ready, prepare
from cloister.runs.progress import Progress
from cloister.runs.request import PRIVACY, TRAINING, Options, Request
from cloister.runs.result import Run
from cloister.runs.resume import expect_same, warn_of_repeated, why_not_repeated
from cloister.runs.trackers import log_into
from cloister.runs.training import Training
from cloister.server.cohorts import full

Model = nn.Module | Callable[[], nn.Module] | None


@flat_arguments
def run(
    method: Annotated[Method, "what is run"],
    task: Annotated[Task, "what is learned from"],
    *,
    rounds: Annotated[int, "number of rounds", TRAINING],
    cohort: Annotated[Cohort | None, "who takes part in a round (by default all clients)"] = None,
    epsilon: Annotated[
        float | list[float] | None,
        "privacy budget, which no round exceeds; where samples are protected also a list, one for each client",
        PRIVACY,
    ] = None,
    delta: Annotated[
        float | None,
        "probability that the guarantee may fail; well below 1/clients, or 1/samples of the largest client",
        PRIVACY,
    ] = None,
    model: Annotated[Model, "a torch module, or a function that makes one (by default the task's own)"] = None,
    folder: Annotated[str | Path | None, "where to keep the run; without one it cannot be resumed"] = None,
    resume: Annotated[bool, "continue the run in the folder, given the same method, task and settings"] = False,
    callbacks: Annotated[Sequence[Callback], "told of every round, see cloister.Callback"] = (),
    options: Options,
    adaptation: Adaptation,
) -> Run:
    """Train, and certify what it cost.

    With `epsilon` the ledger refuses every round that would exceed it, and noise that the method leaves open
    is calibrated to spend just that over `rounds`. Without a folder nothing is written.

    Engines round differently, and runs that do must not share their noise, so that a seed gives the same run again with
    the same engine on the same kind of machine.
    """
    who, options = full() if cohort is None else cohort, _on_this_rank(options)
    request = Request(method, task, rounds, who, epsilon, delta, model, options, adaptation)
    _expect_folder(folder, resume)
    expect_callbacks(callbacks)
    expect(options.log is None or folder is not None, "a folder to keep the log in", "none", "give folder, or no log")
    ranks = engines.join()
    is_leader = ranks is None or ranks.is_leader
    path = Path(folder) if folder is not None and is_leader else None
    with Progress(options.progress if is_leader else False, rounds, method.name, epsilon) as bar:
        return _run(request, path, resume, callbacks, ranks, bar)


def _run(
    request: Request,
    path: Path | None,
    resume: bool,
    callbacks: Sequence[Callback],
    ranks: engines.Ranks | None,
    bar: Progress,
) -> Run:
    """On this rank; what takes time before the first round is shown as well."""
    options, is_leader = request.options, ranks is None or ranks.is_leader
    old = _open(path, resume) if is_leader else None
    known = old.description() if old else None
    ready = prepare(request, ranks.broadcast(known) if ranks else known)
    machine = engines.arithmetic(ready.w.device)
    machines = ranks.collect(machine) if ranks else [machine]
    if ranks:
        _expect_alike(ranks, ready)
        if not ranks.is_leader:
            return _assist(ranks, ready)
    record = options.record or ()
    training = _resume(ready, old, machines, ranks, record) if old else _begin(request, ready, path, machines, ranks)
    training.evaluate_every = ready.selection.every or options.evaluate_every or _now_and_then(ready, request.task)
    training.checkpoint_every = options.checkpoint_every
    training.callbacks = _callbacks(callbacks, options, path)
    bar.begin(training.at.round)
    return _lead(ranks, training, bar) if ranks else training.train(bar)


def _callbacks(given: Sequence[Callback], options: Options, path: Path | None) -> Callbacks:
    """Those that were given, and those that write into the run's folder."""
    if path is None:
        return Callbacks(given, "correct it; a run without a folder has to begin again")
    own = [] if options.log is None else log_into(path, options.log)
    return Callbacks([*given, *own], f"correct it, and continue the run in {path} with resume")


def _on_this_rank(options: Options) -> Options:
    return replace(options, device=engines.local_device(options.device))


def _expect_folder(folder: object, resume: object) -> None:
    expect_type("folder", folder, (str, Path, type(None)), "the path of a folder", "give a text or a pathlib.Path")
    expect("\0" not in str(folder), "a folder whose name the system takes", folder, "choose another")
    expect_type("resume", resume, bool, "True or False", "True continues the run in the folder")


def _open(path: Path | None, resume: bool) -> RunFolder | None:
    """The run that is resumed, if one is; otherwise the folder must be new."""
    if resume:
        if path is None:
            raise CloisterError("Expected a folder to resume, found none: name the folder of the run.")
        return RunFolder.open(path)
    if path is not None:
        RunFolder.expect_new(path)  # before the work of preparing, and again when it is created
    return None


def _begin(
    request: Request,
    ready: Ready,
    path: Path | None,
    machines: list[engines.Arithmetic],
    ranks: engines.Ranks | None,
) -> Training:
    options = request.options
    key = _choice_key(ready, machines, options.memory)
    engine = engines.build(options.engine, ready.fed, ready.w, options.memory, request.rounds, key)
    engine = engines.Sharded(engine, ranks) if ranks else engine
    return Training.begin(ready, engine, machines, path, options.config, options.record or ())


def _resume(
    ready: Ready,
    old: RunFolder,
    machines: list[engines.Arithmetic],
    ranks: engines.Ranks | None,
    record: Sequence[str],
) -> Training:
    expect_same(old, ready)
    training = Training.resume(ready, old, machines, ranks, record)
    warn_of_repeated(training.repeated, why_not_repeated(training.ready.fed.streams))
    return training


def _choice_key(ready: Ready, machines: list[engines.Arithmetic], memory: int | None) -> str:
    """What an engine is chosen for, whatever the seed."""
    described = ready.description.to_json()
    about = {name: value for name, value in described.items() if name not in ("seed", "budgets", "delta")}
    return json_hash({"run": about, "machines": machines, "memory": memory})


def _now_and_then(ready: Ready, task: Task) -> int:
    """Rounds between evaluations that take some two hundredths of the time, but not more than fifty evaluations.

    A sample costs about three times as much to train on as to test.
    """
    batching, sizes = ready.fed.method.local.batching, ready.fed.population.counts.double()
    batch = batching.batch_size if batching.sample_rate is None else batching.expected(int(sizes.mean()))
    passed = (
        float(sizes.mean()) * batching.local_epochs if batching.local_epochs else (batching.local_steps or 1) * batch
    )
    rounds = batching.by_round or (1,)
    trained = 3 * passed * sum(rounds) / len(rounds) * ready.fed.denominator
    return max(1, -(-ready.description.rounds // 50), round(len(task.test_labels) / max(0.015 * trained, 1e-9)))


def _lead(ranks: engines.Ranks, training: Training, bar: Progress) -> Run:
    """Train with the help of the other ranks, and let them know how it ended."""
    assert isinstance(training.engine, engines.Sharded)
    try:
        with engines.in_words_when_stopped():
            training.release_statistics()
            told = engines.describe(training.engine.inner), training.ready.fed.streams, training.at.released
            ranks.broadcast(told)
            found = training.train(bar)
            training.engine.dismiss()
            alike = replace(found, model=nn.Identity(), preprocessing=None)  # not every model can be sent
            ranks.broadcast((alike, training.at.result.cpu()))
    except BaseException:
        engines.leave()  # wherever the others are waiting, they learn that it is over
        raise
    return found


def _assist(ranks: engines.Ranks, ready: Ready) -> Run:
    """Compute a share of every round, and return what rank 0 returns."""
    with engines.in_words_when_stopped():
        engine, streams, released = ranks.broadcast()  # a resumed run may have new ones
        if ready.asks_first:
            ready.load_released(released)
        engines.assist(engines.restore(engine), ranks, replace(ready.fed, streams=streams), ready.w)
        found: Run
        found, w = ranks.broadcast()
        known = None if ready.standardization is None else ready.standardization.preprocessing
        return replace(found, model=ready.model_at(w), preprocessing=known)


def _expect_alike(ranks: engines.Ranks, ready: Ready) -> None:
    """All processes must run the same thing on the same data."""
    mine = (ready.description.configuration_hash, ready.fingerprint)
    if ranks.broadcast(mine) != mine:
        raise CloisterError(
            f"Expected rank {ranks.rank} to have the settings, software and data of rank 0, found others: give every "
            "process the same command, packages and data."
        )
