"""What is refused of a request before anything is computed or written: wrong kinds, sizes and words."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from cloister.data.task import Task
from cloister.errors import (
    CloisterError,
    expect,
    expect_count,
    expect_delta,
    expect_epsilon,
    expect_one_of,
    expect_type,
)
from cloister.joints import Method

DTYPES = {"float32": torch.float32, "float64": torch.float64}
RANDOMNESS = ("seeded", "secure")


def expect_request(
    method: object,
    task: object,
    rounds: int,
    epsilon: Any,
    delta: float | None,
    model: object,
    seed: int,
    randomness: str,
    device: object,
    dtype: str,
) -> None:
    """Refuse arguments of a wrong kind or size, before anything is computed or written."""
    expect_type("method", method, Method, "a Method such as cloister.methods.dp_fedavg(clip=1.0, lr=0.1, steps=5)")
    expect_type("task", task, Task, "a Task such as cloister.data.digits()")
    assert isinstance(method, Method)
    assert isinstance(task, Task)
    _expect_model(model)
    expect_count("rounds", rounds, "a run has at least one round")
    expect_count("seed", seed, "any whole number that is not negative", least=0, most=2**63 - 1)
    expect_one_of("randomness", randomness, RANDOMNESS)
    expect_type("device", device, str, "the name of a device", 'give "cpu", "cuda" or "cuda:1"')
    expect_one_of("dtype", dtype, DTYPES)
    for one in epsilon if isinstance(epsilon, (list, tuple)) else [epsilon]:
        number = isinstance(one, (int, float)) and not isinstance(one, bool)
        expect(one is None or number, "epsilon to be a number, or a list of one for each client", epsilon, "give that")
        if one is not None:
            expect_epsilon(one)
    if delta is not None:
        expect_delta(delta)
    _expect_local_work(method, task)
    _expect_samples_apart(method, task)


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


def _expect_local_work(method: Method, task: Task) -> None:
    """A round's batches of one client are laid out at once, so there is a limit to what they may hold."""
    largest, batching = max(task.population.counts.tolist(), default=0), method.local.batching
    samples = batching.steps_for(largest) * min(batching.batch, largest)
    remedy = "take fewer steps or epochs in a round, and more rounds"
    expect(samples <= MOST_LOCAL, f"at most {MOST_LOCAL:,} samples a client and round, batch by batch", samples, remedy)


MOST_LOCAL = 2**27
"""Samples in all batches of one client in one round, repetitions included: some gigabytes of row numbers."""


def _expect_samples_apart(method: Method, task: Task) -> None:
    """Refuse to price a sample where it went into other samples: a neighbour would differ in all of these."""
    if method.unit == "sample" and task.prepared_by != "sample":
        raise CloisterError(
            f"Expected data in which every sample was prepared by itself, for a method that protects samples, found "
            f"{task.name}, where statistics of a client's samples went into others: fill gaps with constants (impute = "
            "public), or choose a method that protects clients."
        )
