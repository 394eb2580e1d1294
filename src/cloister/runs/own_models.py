"""What a stranger's model may be that a run cannot take as it is."""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from cloister.client.objective import explained
from cloister.data.task import Task
from cloister.errors import CloisterError


def initialized(module: nn.Module, task: Task) -> nn.Module:
    """The module with all its parameters: lazy ones get their shapes from an input of zeros."""
    held = chain(module.parameters(), module.buffers())
    if not any(is_lazy(tensor) for tensor in held):
        return module
    inputs = task.preprocessing.test(task.population.inputs[:1] * 0, torch.float32)
    was = module.training
    with torch.no_grad(), explained(f"a model whose lazy layers take inputs of shape {tuple(inputs.shape)}"):
        module.eval()(inputs)
    return module.train(was)


def expect_plain(module: nn.Module) -> None:
    """Refuse what other parameters cannot be put into, as every client of a cohort needs it."""
    for name, part in module.named_modules():
        if isinstance(part, (torch.jit.ScriptModule, nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise CloisterError(
                f"Expected a plain torch module, found {type(part).__name__} at {name or 'the top'!r}: give the module "
                "that it was made of; a run maps clients over hardware by itself."
            )


def expect_numbers(module: nn.Module) -> None:
    """Refuse numbers that are not there, and complex ones: conversion to the run's type would drop half of each."""
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_complex():
            raise CloisterError(
                f"Expected a model of real numbers, found {tensor.dtype} in {name!r}: keep real and imaginary parts "
                "apart with torch.view_as_real, and put them together where they are used."
            )
        if tensor.is_meta:
            raise CloisterError(
                f"Expected a model that holds numbers, found {name!r} on the device meta: make the model without "
                "torch.device('meta'), and give weights = FILE to load some."
            )
