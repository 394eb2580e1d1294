"""Model and data where they are computed with: a module of the run's own, in its type, on its device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cloister.client.objective import explained, objective_of
from cloister.client.population import Population
from cloister.core import Objective, Samples
from cloister.core.precision import expect_precision
from cloister.errors import CloisterError, expect_type
from cloister.models.weights import Weights
from cloister.random.streams import Streams
from cloister.runs.own_models import expect_numbers, expect_plain, initialized
from cloister.runs.request import DTYPES, Request, usable_device


@dataclass(frozen=True)
class Placed:
    """Model and data on the device, in the dtype that was asked for."""

    module: nn.Module
    w: Tensor
    objective: Objective
    population: Population
    public_samples: Samples | None
    streams: Streams
    weights: Weights | None
    """Those of a file that the model starts from."""


def place(request: Request) -> Placed:
    """Model and data where they are computed with."""
    task, options = request.task, request.options
    device, dtype = usable_device(options.device), DTYPES[options.dtype]
    expect_precision(options.precision, device, dtype)
    streams = Streams(options.seed, secure=options.secure_rng)
    model = request.model if request.model is not None else task.model
    weights = request.adaptation.read()
    module = _adapted(_module(model, streams), request, weights, streams)
    with explained("a model whose parameters can be put on the device", "choose another device, or a smaller model"):
        module = module.to(device, dtype).train()
    people = task.population.to(device, dtype)
    objective = objective_of(module, task.loss, people.inputs[:2], people.labels[:2], task.classes, task.preprocessing)
    public_samples = None if task.public_samples is None else _moved(task.public_samples, device, dtype)
    w = objective.layout.flatten(dict(module.named_parameters()))
    return Placed(module, w, objective, people, public_samples, streams, weights)


def _moved(samples: Samples, device: torch.device, dtype: torch.dtype) -> Samples:
    inputs, labels = samples
    return inputs.to(device, dtype if inputs.is_floating_point() else None), labels.to(device)


def _module(model: nn.Module | Callable[[], nn.Module], streams: Streams) -> nn.Module:
    """A module of our own: a copy of the user's, or a new one initialized from the run's seed."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key("init") & (2**63 - 1))
        try:
            with explained("a model that can be made", "fix the function that makes it"):
                made = model()
        except (CloisterError, MemoryError) as error:
            if not isinstance(error, MemoryError) and "allocate" not in str(error):
                raise
            raise CloisterError(
                "Expected a model that fits into memory, found none: choose a smaller one, or fewer classes."
            ) from error
    expect_type("what model() makes", made, nn.Module, "a torch module", "return one")
    return made


def _adapted(module: nn.Module, request: Request, weights: Weights | None, streams: Streams) -> nn.Module:
    """The model as it is trained; what is random in that follows from the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.key("adaptation") & (2**63 - 1))
        expect_plain(module)
        module = initialized(module, request.task)
        expect_numbers(module)
        with explained("a model that can be adapted"):
            return request.adaptation.apply(module, weights)
