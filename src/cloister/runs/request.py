"""What a user asks for. Wrong kinds, sizes and words are refused before anything is computed or written."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import nn

from cloister import engine as engines
from cloister.core import Cohort, Method
from cloister.core.arguments import Group
from cloister.core.precision import PRECISIONS
from cloister.data.task import Task
from cloister.errors import (
    CloisterError,
    expect,
    expect_count,
    expect_delta,
    expect_epsilon,
    expect_one_of,
    expect_positive,
    expect_share,
    expect_type,
)
from cloister.models import Adaptation
from cloister.runs.keys import HEADINGS
from cloister.runs.recorded import expect_record
from cloister.runs.selection import Validation, expect_selection, expect_validated
from cloister.runs.trackers import expect_trackers

DTYPES = {"float32": torch.float32, "float64": torch.float64}

PRIVACY, TRAINING, COMPUTING, KEEPING = (Group(heading) for heading in HEADINGS)
"""Headings of the keys of every run."""

Target = float | Sequence[float] | None
"""Epsilon: the same for everybody, or one for each client (where samples are protected)."""

MOST_LOCAL = 2**27
"""Samples in all batches of one client in one round, repetitions included: some gigabytes of row numbers."""


@dataclass(frozen=True)
class Options:
    """How a run is computed, kept and shown."""

    given_as_keywords: ClassVar[bool] = True

    seed: Annotated[int, "seed of everything random in a simulation", COMPUTING] = 0
    secure_rng: Annotated[
        bool, "true: cohorts and noise come from the operating system, not from the seed", PRIVACY
    ] = False
    rounded_noise: Annotated[
        bool | None,
        "true: Gaussian noise is rounded to a grid, exactly, and so is what it is added to (default: with secure_rng)",
        PRIVACY,
    ] = None
    device: Annotated[str, "cpu, cuda, cuda:1, ...", COMPUTING] = "cpu"
    dtype: Annotated[str, "float32 or float64", COMPUTING] = "float32"
    precision: Annotated[
        str, "exact; on a GPU also tf32 or bf16: faster, coarser products and convolutions", COMPUTING
    ] = "exact"
    tuned: Annotated[
        list[str] | None,
        "keys that were chosen by results on these data without a charge: the certificate says that it leaves them out",
        PRIVACY,
    ] = None
    allow_large_delta: Annotated[
        bool, "true: accept a delta that publishing one client's data would satisfy", PRIVACY
    ] = False
    engine: Annotated[
        str, "auto, loop, vectorized, on a GPU graphed or compiled: how, not what is computed", COMPUTING
    ] = "auto"
    memory: Annotated[
        int | None, "bytes for a chunk of clients (default: 1 GiB; on a GPU half of what is free)", COMPUTING
    ] = None
    evaluate_every: Annotated[int | None, "rounds between evaluations (by default they take little time)", TRAINING] = (
        None
    )
    checkpoint_every: Annotated[int, "rounds between checkpoints", KEEPING] = 10
    standardize: Annotated[
        float | None,
        "share of the budget (0.05, say) for a private mean and variance of the inputs, by which they are standardized",
        PRIVACY,
    ] = None
    standardize_bound: Annotated[float, "inputs count as within +-bound in that mean and variance", PRIVACY] = 1.0
    center: Annotated[
        float | None,
        "share of the budget for a private mean of the inputs, which is taken away; they are scaled to length 1",
        PRIVACY,
    ] = None
    center_rank: Annotated[
        int | None, "smooth that mean to a matrix of this rank (channels by places); costs nothing", PRIVACY
    ] = None
    decorrelate: Annotated[
        float | None,
        "beside center: share of the budget for second moments of the inputs, by which their main directions shrink",
        PRIVACY,
    ] = None
    average: Annotated[
        float | None,
        "decay, such as 0.9: what is tested and kept is the exponential average of the released models; costs nothing",
        TRAINING,
    ] = None
    validation: Annotated[
        Validation,
        "public: watch how the model does on public samples, free; private: on held-out samples of clients, priced",
        TRAINING,
    ] = "none"
    validation_fraction: Annotated[
        float, "private validation: how much of its samples each client holds out", TRAINING
    ] = 0.1
    validation_share: Annotated[
        float, "private validation: share of the budget, for all validations together", PRIVACY
    ] = 0.1
    patience: Annotated[int | None, "end the run after so many evaluations without a better validation", TRAINING] = (
        None
    )
    min_delta: Annotated[float, "what counts as better in validation: more than this", TRAINING] = 0.0
    restore_best: Annotated[bool, "true: the model that did best in validation is kept, not the newest", TRAINING] = (
        False
    )
    log: Annotated[
        str | None, "csv, tensorboard, mlflow or wandb, or several (csv,tensorboard): in the folder", KEEPING
    ] = None
    record: Annotated[
        list[str] | None,
        "measure: norms, clipping, gradients, cosine, signal, sparsity, train, clients (NOT PRIVATE); thresholds",
        KEEPING,
    ] = None
    metrics: Annotated[
        list[str] | None, "names of metrics, such as accuracy, f1 (by default those of the loss)", TRAINING
    ] = None
    monitor: Annotated[
        str | None,
        "the metric to watch: in the bar, in tables, and by validation (privately, accuracy or else the loss)",
        TRAINING,
    ] = None
    personalize: Annotated[
        Literal["none", "fine_tune", "head"],
        "after the run every client trains a copy (fine_tune) or its last layer (head) on its own samples; scored",
        TRAINING,
    ] = "none"
    personalize_steps: Annotated[int, "steps of that on every client", TRAINING] = 20
    personalize_lr: Annotated[float, "its learning rate", TRAINING] = 0.1
    personalize_batch_size: Annotated[int, "its batches", TRAINING] = 32
    progress: Annotated[
        bool | None,
        "true: show how far it is, elsewhere than on a terminal by a line now and then; by default on terminals alone",
    ] = None
    config: Annotated[str | None, "text of a config file from which the command line can build the run again"] = None

    def __post_init__(self) -> None:
        expect_count("seed", self.seed, "any whole number that is not negative", least=0, most=2**63 - 1)
        for name, value in (("secure_rng", self.secure_rng), ("allow_large_delta", self.allow_large_delta)):
            expect_type(name, value, bool, "True or False", "give one of them")
        rounded = (bool, type(None))
        expect_type(
            "rounded_noise", self.rounded_noise, rounded, "True, False or None", "None rounds where it protects"
        )
        if self.tuned is not None:
            words = isinstance(self.tuned, (list, tuple)) and all(isinstance(key, str) for key in self.tuned)
            expect(words, "tuned to be a list of keys", self.tuned, "name those that were chosen, such as [lr]")
        if self.standardize is not None:
            expect_share("standardize", self.standardize, "the share of the budget that goes into mean and variance")
        expect_positive("standardize_bound", self.standardize_bound, "1 suits inputs that were scaled to -1 to 1")
        _expect_centering(self)
        expect_type("device", self.device, str, "the name of a device", 'give "cpu", "cuda" or "cuda:1"')
        expect_one_of("dtype", self.dtype, DTYPES)
        expect_one_of("precision", self.precision, PRECISIONS)
        engines.expect_known(self.engine)
        if self.memory is not None:
            expect_count("memory", self.memory, "the bytes that a chunk of clients may take", most=2**62)
        if self.evaluate_every is not None:
            expect_count("evaluate_every", self.evaluate_every, "1 evaluates after every round")
        expect_count("checkpoint_every", self.checkpoint_every, "1 saves after every round")
        expect_one_of("personalize", self.personalize, ("none", "fine_tune", "head"))
        expect_count("personalize_steps", self.personalize_steps, "steps on every client's own samples")
        expect_positive("personalize_lr", self.personalize_lr, "the learning rate of these steps")
        expect_count("personalize_batch_size", self.personalize_batch_size, "samples in each of these steps")
        shown = (bool, type(None))
        expect_type(
            "progress", self.progress, shown, "True, False or None", "None shows how far it is on terminals alone"
        )
        expect_type("config", self.config, (str, type(None)), "the text of a config file", "leave it out")
        expect_selection(self)
        expect_record(self.record, self.secure_rng)
        if self.log is not None:
            expect_trackers(self.log)


def _expect_centering(options: Options) -> None:
    """Refuse shares that are none, and what needs a mean without one."""
    for name in ("center", "decorrelate"):
        if getattr(options, name) is not None:
            expect_share(name, getattr(options, name), "the share of the budget that goes into it")
    if options.center_rank is not None:
        expect_count("center_rank", options.center_rank, "4 suits scattering features")
    together = options.center is not None and options.standardize is not None
    expect(not together, "standardize or center", "both of them", "leave one of them out")
    for name in ("center_rank", "decorrelate"):
        given = getattr(options, name)
        expect(given is None or options.center is not None, f"center beside {name}", None, "give center = 0.05, say")


@dataclass(frozen=True)
class Request:
    """What is run, on what, and how private it shall be."""

    method: Method
    task: Task
    rounds: int
    cohort: Cohort
    epsilon: Target = None
    delta: float | None = None
    model: nn.Module | Callable[[], nn.Module] | None = None
    options: Options = Options()
    adaptation: Adaptation = field(default_factory=Adaptation)

    def __post_init__(self) -> None:
        method = "a Method such as cloister.methods.dp_fedavg(clip_norm=1.0, lr=0.1, local_steps=5)"
        expect_type("method", self.method, Method, method)
        expect_type("task", self.task, Task, "a Task such as cloister.data.digits()")
        expect_type("cohort", self.cohort, Cohort, "a Cohort such as cloister.poisson(0.5)")
        _expect_model(self.model)
        expect_count("rounds", self.rounds, "a run has at least one round")
        expect_target(self.epsilon)
        if self.delta is not None:
            expect_delta(self.delta)
        self.method.local.batching.expect_rounds(self.rounds)
        _expect_local_work(self.method, self.task, self.rounds)
        expect_samples_apart(self.method, self.task)
        expect_validated(self.options, self.task)
        if self.options.personalize != "none":
            expect_own_tests(self.task)
        if "gradients" in (self.options.record or ()) and self.task.loss.mixes_samples:
            raise CloisterError(
                f"Expected a loss for every sample by itself, to record gradients of single samples, found "
                f"{self.task.loss.name}: leave gradients out of record."
            )


def expect_own_tests(task: Task) -> None:
    """Refuse to personalize where nobody could tell what came of it."""
    some = task.local_test is not None and len(task.local_test[0]) > 0
    remedy = "hold some of every client's samples out (test=0.2), or leave personalize out"
    expect(some, "clients with test samples of their own, to personalize a model", "none", remedy)


def expect_target(epsilon: Any) -> None:
    """A number, or a list of one for each client, each of which promises something."""
    for one in epsilon if isinstance(epsilon, (list, tuple)) else [epsilon]:
        number = isinstance(one, (int, float)) and not isinstance(one, bool)
        expect(one is None or number, "epsilon to be a number, or a list of one for each client", epsilon, "give that")
        if one is not None:
            expect_epsilon(one)


def _expect_model(model: object) -> None:
    """A module, or a function that makes one without being told anything."""
    if model is None or isinstance(model, nn.Module):
        return
    wanted = "model to be a torch module, or a function without arguments that makes one"
    expect(callable(model), wanted, model, "give a module, such as torch.nn.Linear(64, 10)")
    assert callable(model)
    try:
        inspect.signature(model).bind()
    except TypeError:
        expect(False, wanted, model, "call it with its arguments, or wrap it in a lambda")
    except ValueError:
        pass  # no signature is known, so that only trying tells


def _expect_local_work(method: Method, task: Task, rounds: int) -> None:
    """A round's batches of one client are laid out at once, so there is a limit to what they may hold."""
    largest, batching = max(task.population.counts.tolist(), default=0), method.local.batching
    samples = batching.most_steps(largest, rounds, 1) * batching.usual_size(largest)
    remedy = "take fewer steps or epochs in a round, and more rounds"
    expect(samples <= MOST_LOCAL, f"at most {MOST_LOCAL:,} samples a client and round, batch by batch", samples, remedy)


def expect_samples_apart(method: Method, task: Task) -> None:
    """Refuse to price a sample where it went into other samples: an adjacent data set would differ in all of these."""
    if method.unit == "sample" and task.loss.mixes_samples:
        raise CloisterError(
            f"Expected a loss for every sample by itself, for a method that protects samples, found {task.loss.name}, "
            "which compares the samples of a batch: use hazards, or choose a method that protects clients."
        )
    if method.unit == "sample" and task.prepared_by != "sample":
        raise CloisterError(
            f"Expected data in which every sample was prepared by itself, for a method that protects samples, found "
            f"{task.name}, where statistics of a client's samples went into others: fill gaps with constants (in a "
            "schema: fill = a number or a category), or choose a method that protects clients."
        )


def usable_device(name: str) -> torch.device:
    """The device of this name, where torch can use it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise CloisterError(
            f"Expected a device that torch can use here, found {name!r}: use cpu, or install a torch build for it."
        ) from error
    return device
