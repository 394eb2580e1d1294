"""Planning: what a target costs in noise, what noise gives in epsilon, and how many rounds both allow.

Everything is priced by what prices a run (`terms.py`). No sample is looked at: where a task is given, its model, its
clients and their numbers of samples are, which count as public in a run as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor, nn

from cloister.core import Cohort, Layout, Method, Samples
from cloister.core.arguments import flat_arguments
from cloister.data.task import Task
from cloister.data.validation import left_by_validation
from cloister.errors import (
    MOST_COUNT,
    CloisterError,
    expect,
    expect_count,
    expect_delta,
    expect_noise,
    expect_positive,
    expect_type,
)
from cloister.privacy.unit import ProtectedUnit
from cloister.runs.noise import with_noise
from cloister.runs.planned import Plan
from cloister.runs.queries import expect_gaussian, queries_of
from cloister.runs.request import Options, Target, expect_samples_apart, expect_target
from cloister.runs.terms import Terms
from cloister.server.cohorts import full

USUAL_PARAMETERS = 650
"""Of a logistic regression on 8x8 digits: assumed where nobody says more, and only where no price depends on it."""

MOST_CLIENTS = 10**5
"""So many clients, each with noise of its own, are priced one by one."""


@flat_arguments
def plan(
    method: Annotated[Method, "what would be run"],
    task: Annotated[Task | None, "what would be learned from: says all of the following but rounds and privacy"] = None,
    *,
    rounds: Annotated[int | None, "number of rounds; left out, the most that epsilon and noise allow"] = None,
    cohort: Annotated[Cohort | None, "who takes part in a round (by default all clients)"] = None,
    clients: Annotated[int | None, "number of clients of the federation"] = None,
    sizes: Annotated[
        int | list[int] | None,
        "numbers of samples: one for every client, or one that all have; where samples are protected",
    ] = None,
    parameters: Annotated[int | None, "number of the model's parameters (or say model and data)"] = None,
    model: Annotated[nn.Module | Callable[[], nn.Module] | None, "a torch module, or what makes one"] = None,
    epsilon: Annotated[
        float | list[float] | None, "target; where samples are protected also one for each client"
    ] = None,
    delta: Annotated[float | None, "probability that the guarantee may fail, such as 1e-5 or 1/3400"] = None,
    noise_multiplier: Annotated[float | None, "noise, if not the method's own; epsilon is computed"] = None,
    public_samples: Annotated[int, "samples that are nobody's, for methods that need some"] = 0,
    options: Options,
) -> Plan:
    """What a run would cost and come to, before anything is run: from epsilon to noise, from noise to epsilon, or,
    given both and no `rounds`, to the most rounds that stay within. Of a run's options, `standardize` and private
    validation have a share of the budget; on the others no price depends.

    >>> from cloister.methods import dp_fedavg
    >>> from cloister.server.cohorts import poisson
    >>> method = dp_fedavg(clip_norm=1.0, local_steps=5, noise_multiplier=5.8)
    >>> plan(method, rounds=60, cohort=poisson(0.5), clients=300, delta=1e-3).epsilon < 2
    True
    """
    expect_type("method", method, Method, "a Method such as cloister.methods.pfl()")
    expect_type("task", task, (Task, type(None)), "a Task such as cloister.data.digits()")
    cohort = full() if cohort is None else cohort
    expect_type("cohort", cohort, Cohort, "a Cohort such as cloister.poisson(0.5)")
    method = _with_noise(method, noise_multiplier)
    if task is not None:
        expect_samples_apart(method, task)
    _expect_question(method, rounds, epsilon, delta)
    assert delta is not None
    names, notes = ((), ()) if task is None else (task.client_names, (_FROM_DATA,))
    held = options.validation == "private"
    expect(rounds is not None or not held, "rounds beside private validation", "none", "say how many")
    _expect_rounds(method, rounds)
    own, copies = _sizes(method, task, clients, sizes), 1 if task is None else task.copies
    terms = Terms(
        cohort,
        rounds or 1,
        _layout(task, model, parameters),
        left_by_validation(own, options.validation_fraction, options.seed) if held else own,
        copies,
        _public(task, public_samples),
        _any_norms,
        lambda: 1.0,
        queries_of(method, cohort, options, rounds or 1, len(own), copies, epsilon),
    )
    if task is None and model is None and parameters is None:
        notes = (*notes, _assumed(terms, method))
    solved = "noise_multiplier" if method.mechanism.noise_multiplier is None else "epsilon"
    if rounds is None:
        solved, terms = "rounds", replace(terms, rounds=most_rounds(terms, method, epsilon, delta))
    noise = terms.noise(method, epsilon, delta)
    complete = terms.complete(noise.method)
    assert terms.queries is not None
    expect_gaussian(complete, terms.queries)
    return Plan(method, complete, terms, noise, delta, epsilon, names, solved, notes)


_FROM_DATA = (
    "clients, their numbers of samples and the model's size are those of the data; they count as public in a run, "
    "whose certificate says so"
)


def most_rounds(terms: Terms, method: Method, epsilon: Target, delta: float) -> int:
    """The most rounds that every account can pay for, at the noise that the method has."""

    def within(rounds: int) -> bool:
        now = replace(terms, rounds=rounds)
        accounts = now.accounts(now.noise(method, epsilon, delta)).values()
        different = {(account.budget, frozenset(account.events.items())): account for account in accounts}
        for account in different.values():
            assert account.budget is not None
            loss, budget = account.loss(), account.budget  # as a ledger decides it; Renyi's answer is quick, and above
            quick = loss.epsilon(budget.delta, "rdp") <= budget.epsilon
            if not quick and loss.epsilon(budget.delta) > budget.epsilon:
                return False
        return True

    if not within(1):
        raise CloisterError(
            f"Expected an epsilon that pays for one round at least, found {epsilon} with noise multiplier "
            f"{method.mechanism.noise_multiplier:g}: raise one of them, or give rounds and leave the noise out."
        )
    least, most = 1, 2
    while within(most):
        least, most = most, 4 * most
        if most > MOST_COUNT:
            return MOST_COUNT
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if within(middle) else (least, middle)
    return least


def _with_noise(method: Method, multiplier: float | None) -> Method:
    """The method at the noise that is given; refused where it has none."""
    if multiplier is not None:
        expect_positive("noise_multiplier", multiplier, "without noise epsilon is infinite")
        expect_noise("noise_multiplier", multiplier)
        method = with_noise(method, multiplier)
    noiseless = method.mechanism.place == "nowhere" or method.mechanism.noise_multiplier == 0
    if noiseless:
        raise CloisterError(
            f"Expected a private method with noise_multiplier > 0, found {method.name} without noise: its epsilon is "
            "infinite, so choose another, or leave noise_multiplier out."
        )
    return method


def _expect_question(method: Method, rounds: int | None, epsilon: Target, delta: float | None) -> None:
    """Two of rounds, epsilon and noise are given, and the third is asked for. (Noise that is chosen on the way needs a
    target beside it.)"""
    if rounds is not None:
        expect_count("rounds", rounds, "a run has at least one round")
    expect_target(epsilon)
    noise = method.mechanism.noise_multiplier
    if rounds is None and (epsilon is None or noise is None):
        raise CloisterError(
            f"Expected rounds, or both epsilon and noise_multiplier, found epsilon {epsilon} and noise_multiplier "
            f"{noise}: give rounds, such as rounds=50."
        )
    both = epsilon is not None and noise is not None and method.noise_schedule is None
    if rounds is not None and (both or (epsilon is None and noise is None)):
        raise CloisterError(
            f"Expected either epsilon or noise_multiplier beside rounds, found epsilon {epsilon} and noise_multiplier "
            f"{noise}: give one, and the other is computed; or leave rounds out, and they are."
        )
    expect(delta is not None, "a delta", None, "choose one well below 1/clients, such as 1e-5")
    assert delta is not None
    expect_delta(delta)


def _expect_rounds(method: Method, rounds: int | None) -> None:
    """Steps that are given for each round say how many rounds there are."""
    batching = method.local.batching
    known = len(batching.by_round)
    expect(rounds is not None or not known, f"rounds = {known}, as many as steps are given for", None, "give them")
    batching.expect_rounds(rounds or 1)


def _layout(task: Task | None, model: nn.Module | Callable[[], nn.Module] | None, parameters: int | None) -> Layout:
    """Where parameters lie; of a bare number of them, in one tensor."""
    if parameters is not None:
        expect(model is None, "parameters or a model", "both", "the model knows how many it has")
        expect_count("parameters", parameters, "the number of the model's parameters")
        return _flat(parameters)
    made = model if model is not None or task is None else task.model
    if made is None:
        return _flat(USUAL_PARAMETERS)
    module = made if isinstance(made, nn.Module) else made()
    expect_type("model", module, nn.Module, "a torch module, or a function that makes one")
    return Layout.of(module)


def _flat(*numbers: int) -> Layout:
    return Layout(tuple(f"tensor {i}" for i in range(len(numbers))), tuple(torch.Size([n]) for n in numbers))


def _assumed(terms: Terms, method: Method) -> str:
    """The usual number of parameters is assumed; refused where a price depends on that."""

    def price(layout: Layout) -> object:
        now = replace(terms, layout=layout)
        return (
            now.charge(method, 1.0, 100) if method.unit is ProtectedUnit.SAMPLE else now.event(with_noise(method, 1.0))
        )

    if price(_flat(USUAL_PARAMETERS)) != price(_flat(3000, 7000)):
        raise CloisterError(
            f"Expected a model for {method.name}, whose price depends on it, found none: give parameters, or model and "
            "data."
        )
    return f"{USUAL_PARAMETERS} parameters are assumed: give parameters, or model and data; the price is the same"


def _sizes(method: Method, task: Task | None, clients: int | None, sizes: int | Sequence[int] | None) -> Sequence[int]:
    """The clients' numbers of samples; where clients are protected only their number counts."""
    if task is not None:
        expect(clients is None and sizes is None, "a task, or clients and sizes", "both", "the task knows who has what")
        return [int(count) for count in task.population.counts]
    if clients is not None:
        expect_count("clients", clients, "the number of clients of the federation")
    if method.unit is ProtectedUnit.CLIENT:
        expect(sizes is None, f"clients alone for {method.name}, which protects whole clients", f"sizes {sizes}",
               "leave sizes out")  # fmt: skip
        expect(clients is not None, "clients, the number of them", None, "give clients, such as clients=300")
        return range(clients or 0)
    several = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    if sizes is None or (not several and clients is None):
        raise CloisterError(
            f"Expected sizes, the clients' numbers of samples, for {method.name}, which protects samples, found "
            f"{'none' if sizes is None else 'one number and no clients'}: give sizes=[303, 294], or sizes=300 and "
            "clients=4."
        )
    found = list(sizes) if isinstance(sizes, Sequence) else [sizes] * (clients or 1)
    expect(len(found) <= MOST_CLIENTS, f"at most {MOST_CLIENTS:,} clients", len(found), "plan for some of them")
    expect(bool(found), "sizes, the clients' numbers of samples", found, "give some, such as sizes=[303, 294]")
    for size in found[: len(found) if several else 1]:
        expect_count("sizes", size, "the numbers of samples of the clients")
    alike = clients in (None, len(found))
    expect(alike, f"as many sizes as clients ({clients})", len(found), "leave clients out")
    return found


def _public(task: Task | None, count: int) -> Samples | None:
    """Public samples: those of the task, or so many that only their number is known of."""
    if task is not None:
        return task.public_samples
    expect_count("public_samples", count, "the number of samples that are nobody's", least=0)
    return (torch.zeros(count, 0), torch.zeros(count, dtype=torch.long)) if count else None


def _any_norms() -> Tensor:
    """What a threshold may start from: no price depends on it."""
    return torch.ones(1)
