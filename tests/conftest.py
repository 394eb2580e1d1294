"""Small federations that the tests share, and what makes a test give the same answer every time.

Global generators are seeded before each test, so that no test depends on those before it. Hypothesis tries the same
examples in every run, takes its time, and stores nothing; for other examples every time:

    HYPOTHESIS_PROFILE=explore pytest tests/test_transforms.py

What is drawn from the system's generator cannot be seeded: `bounds.py` has tests whose chance to fail is known.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor, nn

import cloister as cl
from cloister.cli.app import main
from cloister.client.batches import Work, shapes_of, work_of
from cloister.client.objective import objective_of
from cloister.core import Cohort, Mechanism, Method, MethodState
from cloister.core.arguments import flat_arguments
from cloister.core.state import flatten
from cloister.data import Task
from cloister.engine import Loop, Vectorized
from cloister.privacy.description import json_hash
from cloister.privacy.ledger import Ledger
from cloister.random.streams import Streams
from cloister.round import Federation, Offer, RoundPlan
from cloister.runs import training
from cloister.runs.prepare import Ready, prepare
from cloister.runs.request import Request

torch.set_num_threads(1)
# Choices that an earlier run of the tests made by its clock must not reach this one.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="cloister-tests-")

# Deadlines, and the health check that inputs are made quickly, would measure how busy the machine is.
_UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
settings.register_profile("repeatable", derandomize=True, **_UNHURRIED)
settings.register_profile("explore", derandomize=False, **_UNHURRIED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# What some machines set to have colors in a log, and no test expects in what it reads.
for _name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"):
    os.environ.pop(_name, None)
# Processes that tests start have one thread each, as this one: the same sums everywhere, and no fight for two cores.
os.environ["OMP_NUM_THREADS"] = "1"

ENGINES = [Loop(), Vectorized(chunk=1000), Vectorized(chunk=3)]

_VARIANTS_ARE_SLOW = {
    "test_engines_agree",
    "test_server_and_nodes_give_the_bits_of_the_simulator",
    "test_nothing_is_drawn_twice_and_engines_draw_the_same",
    "test_the_plan_of_every_method_is_that_of_its_run",
    "test_an_empty_cohort_still_releases_noise",
    "test_a_broken_client_counts_as_zero_and_is_counted",
    "test_whatever_a_client_computes_its_message_stays_within_the_bound",
    "test_a_description_tells_nothing_of_what_is_protected",
    "test_models_over_rounds_are_the_references",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In these tests, options of a method (entries of the contract that have two words) are for `make test-all`."""
    from contract.catalogue import METHODS

    for item in items:
        given = getattr(item, "callspec", None)
        if given is None or getattr(item, "originalname", "") not in _VARIANTS_ARE_SLOW:
            continue
        if any(isinstance(value, str) and " " in value and value in METHODS for value in given.params.values()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Whatever a test draws without a generator of its own."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


class Killed(BaseException):
    """What ends a run at once, and nothing catches."""


def look_whole(certificate: dict) -> str:
    """A certificate that was changed, with the hash of itself that it would have had."""
    rest = {name: value for name, value in certificate.items() if name != "sha256"}
    return json.dumps({**rest, "sha256": json_hash(rest)}, indent=2) + "\n"


@contextmanager
def killed_in_round(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[None]:
    """The run in here is killed when its `at`-th round is about to begin."""
    rounds, real = [], training.run_round

    def dying(*args):
        rounds.append(1)
        if len(rounds) == at:
            raise Killed
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(training, "run_round", dying)
        with pytest.raises(Killed):
            yield


def toy_task(sizes: tuple[int, ...] = (7, 3, 1, 0, 12, 5, 4, 2), features: int = 6, seed: int = 0) -> Task:
    """Clients of unequal sizes, one sample and none included; three classes that can be told apart."""
    random = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = random.integers(0, 3, len(owner))
    inputs = random.normal(size=(len(owner), features)) + labels[:, None]
    test_labels = random.integers(0, 3, 20)
    tests = random.normal(size=(20, features)) + test_labels[:, None]
    people = cl.data.from_arrays(inputs, labels, owner, test=(tests, test_labels), classes=3)
    # from_arrays knows clients by their samples, so the empty ones are put back in their places here.
    counts = torch.tensor(sizes)
    population = type(people.population)(
        people.population.inputs, people.population.labels, counts.cumsum(0) - counts, counts
    )
    return Task("toy", population, people.test_inputs, people.test_labels, 3, people.model)


def toy_model(task: Task, dropout: bool = False, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    middle = [nn.Dropout(0.3)] if dropout else []
    return nn.Sequential(nn.Linear(task.shape[0], 8), nn.Tanh(), *middle, nn.Linear(8, 3))


def federation(
    method: Method,
    cohort: Cohort | None = None,
    task: Task | None = None,
    model: nn.Module | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    secure: bool = False,
    device: str = "cpu",
    public_samples: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[Federation, torch.Tensor]:
    """A federation ready for `run_round`, and the parameters it starts from."""
    task = task or toy_task()
    module = (model or toy_model(task)).to(device, dtype).train()
    population = task.population.to(torch.device(device), dtype)
    objective = objective_of(
        module, task.loss, population.inputs[:2], population.labels[:2], task.classes, task.preprocessing
    )
    if public_samples is not None and public_samples[0].is_floating_point():
        public_samples = public_samples[0].to(device, dtype), public_samples[1].to(device)
    fed = Federation(
        method, cohort or cl.full(), objective, population, Streams(seed, secure), public_samples=public_samples
    )
    return fed, objective.layout.flatten(dict(module.named_parameters()))


def prepared(method: Method, task: Task, **more: Any) -> Ready:
    """A run that is ready to begin: seeded, on a CPU, of a few rounds in which everybody takes part."""
    usual = {"rounds": 3, "cohort": cl.full(), "delta": 1e-3}
    return prepare(flat_arguments(Request)(method, task, **{**usual, **more}))


@pytest.fixture
def ledger() -> Callable[[], Ledger]:
    return lambda: Ledger.create(None, "test", {})


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line without a new process (and so without importing torch again)."""

    def run(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        if cwd is not None:
            monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["cloister", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "100")
        code: int | str | None = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess([], int(code or 0), out, err)

    return run


def plan_of(fed: Federation, round: int, w: Tensor, clients: Tensor) -> RoundPlan:
    """What an engine is asked for, where these clients are the cohort."""
    clients = clients.sort().values
    return RoundPlan.of(fed, Offer(round, clients, w, fed.broadcast(round, w, fed.method.init(w).transform)), clients)


def work_of_one(fed: Federation, round: int, w: Tensor, client: int) -> Work:
    """All that one client needs for a round, stacked."""
    plan = plan_of(fed, round, w, torch.tensor([client]))
    who, local = plan.clients, fed.method.local
    shapes = shapes_of(fed.population.counts[who], local)
    return work_of(fed.population, local, shapes, plan.chunk(who), plan.drawn(who, 1).batches)


def flat_state(state: MethodState) -> dict[str, Tensor]:
    """All that is kept from round to round, by part and name: "server/velocity"."""
    return flatten(vars(state))


def share(mechanism: Mechanism, *place: Any) -> Tensor:
    """One part of a mechanism's noise: streams, like, sensitivity, round, client, of how many."""
    return mechanism.draw(mechanism.noise_multiplier, *place)
