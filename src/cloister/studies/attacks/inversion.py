"""Gradient inversion: from what one client sends to the image that it was trained on.

Geiping, Bauermeister, Droege & Moeller, "Inverting gradients - how easy is it to break privacy in federated learning?",
NeurIPS 2020.

    minimize over x   1 - cos(gradient at x, what was sent) + weight * total variation of x

The attacker knows the model, the method and everybody else's updates, which it subtracts from the released sum. What is
left is one client's message under all the noise of the round. The client has one sample; more of them would blur.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cloister.client.population import Population
from cloister.data.task import Task
from cloister.engine import Loop
from cloister.errors import CloisterError
from cloister.privacy.ledger import Ledger
from cloister.round import Federation, run_round
from cloister.runs.prepare import Ready
from cloister.studies.attacks.found import Inverted

STEPS = 400
_RATE, _SMOOTH = 0.1, 1e-3


def invert(ready: Ready, task: Task, client: int, steps: int = STEPS, seed: int = 0) -> Inverted:
    """Attack the message that one client, with its first sample alone, sends in the first round."""
    fed, w = ready.fed, ready.w
    if fed.objective.layout.size != len(w) or not fed.method.server.takes_updates:
        raise CloisterError(
            f"Expected releases as long as the model, to invert one, found those of {fed.method.name}: attack another."
        )
    start = int(fed.population.starts[client])
    sent = released(fed, w, client)
    image = task.preprocessing.test(fed.population.inputs[start : start + 1], w.dtype)
    guessed = guessed_label(ready, sent, task.classes or 1)
    found = matched(ready, task, sent, image.shape, guessed, steps, seed)
    one, other = as_picture(image[0]), as_picture(found[0])
    label = int(fed.population.labels[start])
    return Inverted(client, label, guessed, _rounded(one), _rounded(other), correlation(one, other))


def released(fed: Federation, w: Tensor, client: int) -> Tensor:
    """What a round releases of one client with one sample, when everybody else's part is known and subtracted."""
    people = fed.population
    sizes = torch.zeros_like(people.sizes)
    sizes[client] = 1
    alone = replace(
        fed,
        population=Population(people.inputs, people.labels, people.starts, sizes),
        cohort=replace(fed.cohort, sample=lambda streams, round, clients: torch.tensor([client])),
    )
    outcome = run_round(alone, Ledger.create(None, "attack", {}), Loop(), 1, w, fed.method.init(w))
    assert outcome.mean is not None
    return outcome.mean


def guessed_label(ready: Ready, sent: Tensor, classes: int) -> int:
    """The class whose output a step raised: of all outputs only that of the label has a negative gradient."""
    pieces = ready.fed.objective.layout.views(sent)
    last = [piece for piece in pieces.values() if piece.shape[0] == classes]
    if not last:
        return 0
    rows = last[-1].reshape(classes, -1)
    return int(rows.sum(1).argmax()) if rows.shape[1] == 1 else int(rows.norm(dim=1).argmax())


def matched(
    ready: Ready, task: Task, sent: Tensor, shape: torch.Size, label: int, steps: int = STEPS, seed: int = 0
) -> Tensor:
    """The input whose gradient points where the update points, smoothed a little."""
    module, layout = ready.module, ready.fed.objective.layout
    random = torch.Generator().manual_seed(seed)
    x = (0.1 * torch.randn(shape, generator=random)).to(sent).requires_grad_()
    labels = torch.tensor([label], device=sent.device)
    target = -sent / sent.norm().clamp(min=1e-30)
    optimizer = torch.optim.Adam([x], lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    training = module.training
    module.eval()
    parameters = {name: piece.detach().requires_grad_() for name, piece in layout.views(ready.w).items()}
    for _ in range(steps):
        outputs = torch.func.functional_call(module, parameters, (x,))
        loss = task.loss(outputs, labels).sum()
        gradient = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(parameters.values()), create_graph=True)]
        )
        distance = 1 - (gradient * target).sum() / gradient.norm().clamp(min=1e-30) + _SMOOTH * variation(x)
        optimizer.zero_grad()
        (x.grad,) = torch.autograd.grad(distance, x)
        x.grad.sign_()  # as the paper does: only where to go, not how far
        optimizer.step()
        schedule.step()
    module.train(training)
    return x.detach()


def variation(x: Tensor) -> Tensor:
    """The mean distance of neighboring pixels; nothing where inputs are no images."""
    if x.dim() < 4:
        return x.new_zeros(())
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def as_picture(x: Tensor) -> Tensor:
    """[h, w], from 0 to 1: channels are averaged, a row of numbers becomes a square where it can."""
    x = x.detach().double().cpu()
    if x.dim() == 3:
        x = x.mean(0)
    elif x.dim() != 2:
        side = math.isqrt(x.numel())
        x = x.reshape(side, side) if side * side == x.numel() else x.reshape(1, -1)
    return (x - x.min()) / (x.max() - x.min()).clamp(min=1e-12)


def correlation(one: Tensor, other: Tensor) -> float:
    """Pearson's."""
    one, other = one.flatten() - one.mean(), other.flatten() - other.mean()
    return float((one * other).sum() / (one.norm() * other.norm()).clamp(min=1e-12))


def _rounded(picture: Tensor) -> list[list[float]]:
    return [[round(value, 3) for value in row] for row in picture.tolist()]


def several(
    ready: Ready, task: Task, count: int, steps: int, seed: int, tick: Callable[[], None] = lambda: None
) -> list[Inverted]:
    """The same for some clients, evenly among those who have data."""
    having = [client for client, size in enumerate(ready.fed.population.counts.tolist()) if size]
    chosen = [having[len(having) * place // count] for place in range(min(count, len(having)))]
    found = []
    for client in dict.fromkeys(chosen):
        found.append(invert(ready, task, client, steps, seed))
        tick()
    return found
