"""The work that is timed: the same rounds as federations of ours, and by hand as a plain PyTorch loop.

Images and learning rates are made up: speed does not depend on them, and at a small rate rounding does not grow. Sizes,
models and batches are those of the papers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import cloister as cl
from cloister.client.batches import shape_of, shuffled
from cloister.client.losses import cross_entropy
from cloister.client.objective import objective_of
from cloister.client.population import Population
from cloister.client.preprocessing import Preprocessing, images, plain
from cloister.models import CATALOGUE as MODELS
from cloister.random.streams import Streams, fold
from cloister.round.bind import Federation


@dataclass(frozen=True)
class Work:
    """`cohort` clients train `model` for `steps` steps of `batch_size` samples; the sum of clipped
    updates gets noise.
    """

    model: str
    shape: tuple[int, ...]
    classes: int
    cohort: int
    steps: int
    batch_size: int
    registered: int = 1000
    samples: int = 50
    lr: float = 0.1
    clip_norm: float = 0.4
    hidden: int = 0  # of an mlp; 0 is its own default
    pixels: bool = True  # bytes of an image; or features, which are floats

    def __str__(self) -> str:
        return f"{self.model}, {self.cohort} clients x {self.steps} steps x batch {self.batch_size}"


WORKS = {
    "cifar": Work("pfl_benchmark_cnn", (3, 32, 32), 10, cohort=50, steps=5, batch_size=10, lr=0.01),
    "emnist": Work(
        "fedsam_cnn", (1, 32, 32), 62, cohort=50, steps=20, batch_size=32, samples=640, registered=100, lr=0.01
    ),
    "resnet": Work(
        "resnet18", (3, 32, 32), 10, cohort=50, steps=2, batch_size=50, samples=100, registered=100, lr=0.01
    ),
    "writers": Work("emnist_cnn", (1, 28, 28), 62, 50, steps=30, batch_size=64, samples=226, registered=100, lr=0.01),
    "small": Work("mlp", (64,), 10, cohort=50, steps=30, batch_size=10, registered=50, samples=40, clip_norm=1.0),
    "digits": Work("mlp", (64,), 10, cohort=50, steps=5, batch_size=10, registered=50, clip_norm=1.0),
}


def federation(
    work: Work,
    device: str,
    precision: str = "exact",
    dtype: torch.dtype = torch.float32,
    method: cl.Method | None = None,
    cohort: cl.Cohort | None = None,
) -> tuple[Federation, Tensor, nn.Module]:
    """The work as a federation with central noise or another method, the parameters it starts from, the module."""
    random = torch.Generator(device).manual_seed(0)
    stored = work.registered * work.samples
    if len(work.shape) == 3 and work.pixels:
        inputs = torch.randint(0, 256, (stored, *work.shape), dtype=torch.uint8, generator=random, device=device)
        preprocessing: Preprocessing = images((0.5,) * work.shape[0], (0.25,) * work.shape[0])
    else:
        inputs, preprocessing = torch.rand(stored, *work.shape, generator=random, device=device), plain()
    labels = torch.randint(0, work.classes, (stored,), generator=random, device=device)
    sizes = torch.full((work.registered,), work.samples)
    population = Population(inputs, labels, sizes.cumsum(0) - sizes, sizes).to(torch.device(device), dtype)
    torch.manual_seed(0)
    more = {"hidden": work.hidden} if work.hidden else {}
    module = MODELS[work.model](work.shape, work.classes, **more).to(device, dtype).train()
    objective = objective_of(
        module, cross_entropy, population.inputs[:2], population.labels[:2], work.classes, preprocessing
    )
    usual = cl.methods.dp_fedavg(
        clip_norm=work.clip_norm, lr=work.lr, local_steps=work.steps, batch_size=work.batch_size, noise_multiplier=1.0
    )
    public_samples = population.inputs[:200], population.labels[:200]
    cohort = cohort or cl.fixed_size(work.cohort)
    fed = Federation(method or usual, cohort, objective, population, Streams(0), precision, public_samples)
    return fed, objective.layout.flatten(dict(module.named_parameters())), module


def plain_loop(work: Work, fed: Federation, module: nn.Module, w: Tensor, round: int, cohort: Tensor) -> Tensor:
    """The sum of the clipped updates by hand: a module, torch's SGD, one client after the other."""
    batching, clients = fed.method.local.batching, cohort.to(w.device)
    keys = fold(torch.tensor(fed.streams.key("batches", round), device=w.device), clients)
    shape = shape_of(fed.population.counts[cohort], batching)
    batches, _ = shuffled(fed.population, batching, shape, clients, keys)
    net, total = copy.deepcopy(module), torch.zeros_like(w)
    for rows_of_client in batches:
        net.load_state_dict(fed.objective.layout.views(w))
        optimizer = torch.optim.SGD(net.parameters(), lr=work.lr)
        for rows in rows_of_client:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(_seen(fed.population.inputs[rows])), fed.population.labels[rows])
            torch.autograd.backward(loss)
            optimizer.step()
        update = nn.utils.parameters_to_vector(net.parameters()).detach() - w
        total += update * torch.clamp(work.clip_norm / update.norm(), max=1.0)
    return total


def _seen(inputs: Tensor) -> Tensor:
    return (inputs.float() / 255 - 0.5) / 0.25 if inputs.dtype == torch.uint8 else inputs


def flops(work: Work, module: nn.Module) -> float:
    """Floating-point operations of a round: forward and backward of every batch, as torch counts them."""
    device = next(module.parameters()).device
    with FlopCounterMode(display=False) as counter:
        outputs = module(torch.rand(work.batch_size, *work.shape, device=device))
        torch.autograd.backward(outputs.sum())
    return float(counter.get_total_flops()) * work.steps * work.cohort
