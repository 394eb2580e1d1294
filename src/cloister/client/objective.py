"""A torch module and a loss as one pure function of a flat vector, after checking that this is possible."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from cloister.client.dropout import KeyedDropout
from cloister.client.losses import Loss, LossFunction, loss_of, made_up_labels, main_output
from cloister.client.per_sample import Model, PerSampleGradients
from cloister.client.pixels import PixelGradients, is_pixelwise
from cloister.client.preprocessing import Preprocessing, plain
from cloister.core import Batch, Layout, Objective
from cloister.errors import CloisterError


def objective_of(
    module: nn.Module,
    loss: Loss | LossFunction | str,
    inputs: Tensor,
    labels: Tensor,
    classes: int | None,
    preprocessing: Preprocessing | None = None,
) -> Objective:
    """The minimization problem of a module; `inputs` and `labels` are a few samples to try it on."""
    layout, preprocess, loss = Layout.of(module), preprocessing or plain(), loss_of(loss)
    _refuse_batch_norm(module)
    dtype = next(iter(module.parameters())).dtype
    draws = _try(module, loss, preprocess.test(inputs, dtype), labels, classes)
    own, tied = _PerThread(module, copy.deepcopy(module)), _shares_parameters(module)

    def losses(
        parameters: dict[str, Tensor],
        inputs: Tensor,
        labels: Tensor,
        key: Tensor,
        slot: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        with KeyedDropout(key, slot) if draws else nullcontext():
            outputs = torch.func.functional_call(own.module, parameters, (inputs,), tie_weights=tied)
        found = loss(outputs, labels, mask)
        return found.flatten(1).mean(1) if found.dim() > 1 else found

    def see(batch: Batch, dtype: torch.dtype) -> Tensor:
        return preprocess.train(batch.inputs, batch.key, dtype)

    def mean_loss(w: Tensor, batch: Batch) -> Tensor:
        ready = preprocess.name == "plain" and batch.inputs.dtype == w.dtype  # nothing is left to be done
        inputs, pixelwise = batch.inputs if ready else see(batch, w.dtype), is_pixelwise(batch.inputs)
        if pixelwise:  # which preprocessing need not care about
            inputs = inputs.to(memory_format=torch.channels_last)
        with PixelGradients() if pixelwise else nullcontext():
            found = losses(layout.views(w), inputs, batch.labels, batch.key, mask=batch.mask)
        return torch.where(batch.mask, found, 0.0).sum() / batch.count

    def outputs(w: Tensor, inputs: Tensor) -> Tensor:
        return main_output(torch.func.functional_call(own.still, layout.views(w), (preprocess.test(inputs, w.dtype),)))

    samples = PerSampleGradients(
        Model(layout, dtype, see, losses), inputs.clone(), made_up_labels(loss, labels, 5, classes)
    )
    return Objective(layout, mean_loss, torch.func.grad, outputs, samples)


class _PerThread(threading.local):
    """A module for each thread: `functional_call` puts other parameters into it for as long as it runs.

    Copies are made of one that is never run: in another thread the module may hold other parameters just now.
    """

    def __init__(self, module: nn.Module, unused: nn.Module) -> None:
        first = threading.current_thread() is threading.main_thread()
        with _disable_current_modes():  # a thread may need its copy while it traces, where tensors have no numbers
            self.module = module if first else copy.deepcopy(unused)
            self.still = copy.deepcopy(unused).eval()  # as it is used, without dropout


def _shares_parameters(module: nn.Module) -> bool:
    """Whether one stands in several places; to find that out in every call takes as long as a small layer."""
    places = dict(module.named_parameters(remove_duplicate=False))
    return len(places) > len({id(parameter) for parameter in places.values()})


def _refuse_batch_norm(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and ("BatchNorm" in type(part).__name__ or part.track_running_stats):
            remedy = "convert the model with batch_norm = group_norm, or with cloister.models.group_norm(model)"
            if "BatchNorm" not in type(part).__name__:
                remedy = "its running statistics would leave the client unclipped, so set track_running_stats=False"
            raise CloisterError(
                f"Expected a model whose samples are computed alone and whose buffers stay as they are, found "
                f"{type(part).__name__} at {name or 'the top'!r}: {remedy}."
            )


def _try(module: nn.Module, loss: Loss, inputs: Tensor, labels: Tensor, classes: int | None) -> bool:
    """Run the module twice on a few samples; refuse what does not fit; say whether it uses dropout."""
    for name, parameter in module.named_parameters():
        if not parameter.isfinite().all():
            raise CloisterError(
                f"Expected a model whose weights are finite numbers, found NaN or infinity in {name!r}: initialize it "
                "anew, or load other weights."
            )
    key = torch.zeros((), dtype=torch.int64, device=inputs.device)
    given = inputs.clone()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _training(module):
        with explained(f"a model that takes inputs of shape {tuple(inputs.shape)}"):
            with KeyedDropout(key) as mode:
                outputs = module(inputs)
            with KeyedDropout(key):
                repeated = module(inputs)
        changed = [n for n, b in module.named_buffers() if n not in before or not torch.equal(b, before[n])]
        for name, buffer in module.named_buffers():
            if name in before:
                buffer.copy_(before[name])
    if changed:
        raise CloisterError(
            f"Expected a model whose buffers stay constant in training, found that {changed[0]!r} changes: such a "
            "buffer would leave the client unclipped, so make it a parameter or keep it fixed."
        )
    first, second = _tensors(outputs, loss), _tensors(repeated, loss)
    for found in first:
        if not found.isfinite().all():
            raise CloisterError(
                f"Expected a model that makes finite numbers of the data, found {found[~found.isfinite()][0].item()}: "
                "scale the inputs, or fix the model."
            )
    if not torch.equal(inputs, given):
        raise CloisterError(
            "Expected a model that leaves its inputs as they are, found that it changes them in place: write x = x + 1 "
            "for x += 1, and leave out inplace=True in the first layer."
        )
    if len(first) != len(second) or not all(map(torch.equal, first, second)):
        attention = any(isinstance(part, nn.MultiheadAttention) and part.dropout for part in module.modules())
        convert = "convert nn.MultiheadAttention with cloister.models.split_attention(model)"
        raise CloisterError(
            "Expected the model's randomness to come from dropout layers alone, found other random draws in its "
            f"forward pass: {convert if attention else 'use torch.nn.Dropout or torch.nn.functional.dropout'}."
        )
    _check_outputs(outputs, loss, labels, classes)
    return bool(mode.calls)


def _tensors(outputs: Any, loss: Loss) -> list[Tensor]:
    """What the loss is computed from: one tensor; or, of somebody's own loss, all that the model gives."""
    if not loss.own:
        return [main_output(outputs)]
    if isinstance(outputs, Mapping):
        outputs = dict(outputs)
    elif not isinstance(outputs, (Tensor, tuple, list)) and hasattr(outputs, "__dict__"):
        outputs = vars(outputs)
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _check_outputs(outputs: Any, loss: Loss, labels: Tensor, classes: int | None) -> None:
    several = _tensors(outputs, loss)
    if not several:
        raise CloisterError(
            f"Expected a model that returns tensors, found {type(outputs).__name__}: return a tensor, a dict, a tuple "
            "or an object of tensors."
        )
    found = several[0] if loss.own and classes is None else main_output(outputs)
    if loss.classes and found.dim() > 1 and found.dim() != labels.dim() + 1:
        raise CloisterError(
            "Expected a model that answers once for each label, with a number for each class, found outputs of shape "
            f"{tuple(found.shape)} for labels of shape {tuple(labels.shape)}: make it answer at every position, or "
            "only once, or label samples likewise."
        )
    if not loss.own or classes is not None:
        width = labels.shape[1] if labels.dim() > 1 else 1
        wanted = loss.outputs(classes, width)
        exact = loss.name == "ordinal" or not (loss.classes or loss.own)
        wide = found.shape[-1] if loss.name == "next_token" else found.shape[1] if found.dim() > 1 else 1
        if wide < wanted or (exact and wide != wanted) or (loss.classes and found.dim() < 2):
            raise CloisterError(
                f"Expected a model with {'' if exact else 'at least '}{wanted} outputs per sample for the loss "
                f"{loss.name}, found outputs of shape {tuple(found.shape)} for {len(labels)} samples: change the width "
                "of the model's last layer."
            )
    with explained(f"a loss that takes the model's outputs of shape {tuple(found.shape)}"):
        losses = loss(outputs, labels)
    if losses.dim() == 0 or len(losses) != len(labels):
        raise CloisterError(
            f"Expected one loss per sample ({len(labels)}), found losses of shape {tuple(losses.shape)}: use "
            "reduction='none' and a model whose outputs have the batch first."
        )


@contextmanager
def explained(expectation: str, remedy: str = "make model, loss and data fit each other") -> Iterator[None]:
    """What torch says of a misfit, in the form of all errors."""
    try:
        yield
    except CloisterError:
        raise
    except Exception as error:  # a model or a loss of somebody else's may fail in any way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, (KeyError, AssertionError)):  # whose words say little by themselves
            reason = f"{type(error).__name__}: {reason}"
        raise CloisterError(f"Expected {expectation}, found that it fails ({reason}): {remedy}.") from error


@contextmanager
def _training(module: nn.Module) -> Iterator[None]:
    was = module.training
    module.train()
    try:
        yield
    finally:
        module.train(was)
