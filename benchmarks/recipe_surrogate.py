"""Runs of a linear probe on scattering features, many at a time: what `recipe_search.py` compares candidates by.

A round of a recipe of `experiments/best/` takes all samples of its clients in one private step (or, where clients are
protected, in a few plain ones), so that it is two products of matrices: a sample's gradient is (p - y) x^T, of norm
|p - y| |x|, and clipping it is a weight of its row. Candidates that see the same inputs are columns of one product.
`checked` tells how far this is from runs of the library on the same split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cloister.core.schedules import Schedule
from cloister.runs.config import build
from recipe_inputs import Inputs, Split, Values, inputs_of, noises_of


def scores(inputs: Inputs, candidates: Sequence[Values], seed: int) -> list[float]:
    """The accuracy on what is held out of every candidate's last (or average) model; all of them see the same noise,
    each scaled to its own deviation, so that they differ by their keys alone."""
    order = sorted(range(len(candidates)), key=lambda one: -candidates[one]["rounds"])
    runs = _Runs.of(inputs, [candidates[one] for one in order])
    random = torch.Generator(inputs.x.device).manual_seed(2000 + seed)
    found = [0.0] * len(order)
    for number in range(1, max(runs.rounds) + 1):
        noise = torch.randn(runs.classes, inputs.x.shape[1], generator=random, device=inputs.x.device)
        runs.step(number, noise)
        over = sum(rounds == number for rounds in runs.rounds)
        for place, score in zip(order[len(runs.rounds) - over :], runs.accuracies(over), strict=True):
            found[place] = score
        order = order[: len(order) - over]
        runs.drop(over)
    return found


@dataclass
class _Runs:
    """Runs that are under way, those that last longest first. Models are [runs, classes, d]."""

    inputs: Inputs
    classes: int
    rounds: list[int]
    numbers: dict[str, Tensor]
    """Of every run: lr, clip, deviation of the noise, ..."""
    factors: Tensor
    """Of its learning rate [runs, rounds]."""
    models: list[Tensor]
    """The newest, the velocity, and the average."""
    cycle: int
    normalizes: bool

    @classmethod
    def of(cls, inputs: Inputs, candidates: Sequence[Values]) -> _Runs:
        split, device = inputs.split, inputs.x.device
        first, classes = candidates[0], split.source.raw.classes
        members = first["clients_per_round"] if first["cohort"] == "cyclic" else len(split.owned)
        if split.source.by_client:
            share = 1 / members
        elif first.get("trust", "message") == "sum":
            share = 1 / (len(inputs.x) * math.sqrt(first.get("honest_fraction", 1.0)))
        else:  # equal clients: all divide by as many samples, up to one
            share = 1 / (math.sqrt(members) * len(inputs.x) / len(split.owned))
        deviations = [
            noises_of(one, split.source.units).training * one["clip_norm"] * share * inputs.relief for one in candidates
        ]
        usual = {
            "lr": 0.1,
            "clip_norm": 1.0,
            "server_lr": 1.0,
            "server_momentum": 0.0,
            "average": 0.0,
            "local_steps": 1,
        }
        columns = {name: [one.get(name, value) for one in candidates] for name, value in usual.items()}
        numbers = {
            name: torch.tensor(column, dtype=torch.float32, device=device)
            for name, column in {**columns, "deviation": deviations}.items()
        }
        longest = max(one["rounds"] for one in candidates)
        factors = torch.stack([_factors(one, longest, split.source.by_client) for one in candidates]).to(device)
        models = [torch.zeros(len(candidates), classes, inputs.x.shape[1], device=device) for _ in range(3)]
        normalizes = first.get("clipping") == "normalize"
        cycle = -(-len(split.owned) // members)
        return cls(inputs, classes, [one["rounds"] for one in candidates], numbers, factors, models, cycle, normalizes)

    def step(self, number: int, noise: Tensor) -> None:
        """A round, as `pfl` or `dp_fedavg` has it, and the server's step."""
        newest, velocity, average = self.models
        mean = self._of_clients() if self.inputs.split.source.by_client else self._of_samples(number)
        mean += self._each("deviation") * noise
        rate = self.factors[:, number - 1, None, None]
        if self.inputs.split.source.by_client:
            velocity.mul_(self._each("server_momentum")).add_(mean)
            newest.add_(self._each("server_lr") * rate * velocity)
        else:
            velocity.mul_(self._each("server_momentum")).sub_(self._each("lr") * rate * mean)
            newest.add_(self._each("server_lr") * velocity)
        decay = self._each("average")
        average.add_((1 - decay) / (1 - decay**number) * (newest - average))

    def _of_samples(self, number: int) -> Tensor:
        """The mean of clipped gradients of those who take part: one full batch of each."""
        labels, sizes = self.inputs.split.labels[0], [len(own) for own in self.inputs.split.owned]
        members = -(-len(sizes) // self.cycle)
        first = (number - 1) % self.cycle * members
        rows = slice(sum(sizes[:first]), sum(sizes[: first + members]))
        x = self.inputs.x[rows]
        residual = self._residuals(x @ self.models[0].flatten(0, 1).T, labels[rows])
        norms = residual.norm(dim=2) * torch.linalg.vector_norm(x, dim=1)[:, None]
        residual *= ((self.numbers["clip_norm"] / norms).clamp(max=1) / len(x))[:, :, None]
        return (residual.flatten(1).T @ x).view_as(self.models[0])

    def _of_clients(self) -> Tensor:
        """The mean of clients' updates, each clipped or scaled to the clip. A client's model after some steps differs
        from the global one by a sum of its own rows, of which `parts` are the coefficients."""
        x, labels, real, products = self.inputs.padded
        clients, most = real.shape
        before = (x @ self.models[0].flatten(0, 1).T).view(clients, most, -1)
        weights = (real / real.sum(1, keepdim=True))[:, :, None, None]
        parts = torch.zeros_like(before)
        split = parts.view(clients, most, -1, self.classes)
        for number in range(int(self.numbers["local_steps"].max())):
            now = torch.baddbmm(before, products, parts, alpha=-1) if number else before
            residual = self._residuals(now.flatten(0, 1), labels.flatten()).view_as(split)
            lr = self.numbers["lr"] * (number < self.numbers["local_steps"])
            split.addcmul_(residual, weights * lr[:, None])
        norms = (parts * (products @ parts)).view_as(split).sum((1, 3)).clamp(min=1e-20).sqrt()
        scale = self.numbers["clip_norm"] / norms
        scale = scale if self.normalizes else scale.clamp(max=1)
        sent = (split * scale[:, None, :, None]).flatten(2).flatten(0, 1)
        return (sent.T @ x).view_as(self.models[0]) / -clients

    def _residuals(self, logits: Tensor, labels: Tensor) -> Tensor:
        """p - y [n, runs, classes]."""
        found = logits.view(len(logits), -1, self.classes).softmax(2)
        place = labels[:, None, None].expand(-1, found.shape[1], 1)
        return found.scatter_add_(2, place, torch.full_like(place, -1, dtype=found.dtype))

    def _each(self, name: str) -> Tensor:
        return self.numbers[name][:, None, None]

    def accuracies(self, count: int) -> list[float]:
        """Of the average models of the last so many."""
        if not count:
            return []
        logits = self.inputs.held @ self.models[2][-count:].flatten(0, 1).T
        right = logits.view(len(logits), count, -1).argmax(2) == self.inputs.split.labels[1][:, None]
        found: list[float] = right.double().mean(0).tolist()
        return found

    def drop(self, count: int) -> None:
        """Let go of the last so many."""
        left = len(self.rounds) - count
        self.rounds, self.factors = self.rounds[:left], self.factors[:left]
        self.models = [model[:left] for model in self.models]
        self.numbers = {name: column[:left] for name, column in self.numbers.items()}


def _factors(values: Values, longest: int, by_client: bool) -> Tensor:
    """Of the learning rate that steps are taken with: the server's where clients are protected."""
    prefix = "server_" if by_client else ""
    name = values.get(f"{prefix}lr_schedule", "constant")
    schedule = Schedule(
        name,
        values.get(f"{prefix}lr_warmup", 0),
        values.get(f"{prefix}lr_final", 0.0),
        None if name == "constant" else values["rounds"],
    )
    return schedule.factor(torch.arange(1, longest + 1, dtype=torch.float64)).float()


def checked(split: Split, values: Values, seeds: Sequence[int]) -> tuple[list[float], list[float]]:
    """Accuracies on the same split, seed by seed: of the library's runs, and simulated with the noise of these."""
    task, device = split.task(values), split.source.device
    theirs, ours = [], []
    for seed in seeds:
        keys = {**values, "seed": seed, "device": device, "evaluate_every": values["rounds"], "allow_large_delta": True}
        if not split.source.by_client and "batch_size" in keys:
            keys["batch_size"] = max(len(own) for own in split.owned)
        theirs.append(float(build({**split.source.values, **keys}, task=task).start(progress=False).accuracy))
        ours += scores(inputs_of(split, values, seed, relief=1.0), [values], seed)
    return theirs, ours
