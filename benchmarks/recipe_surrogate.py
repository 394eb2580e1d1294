"""Runs of a linear probe on scattering features, many at a time: what `recipe_search.py` compares candidates by.

A round of a recipe of `experiments/best/` takes all samples of its clients in one private step (or, where clients are
protected, in a few plain ones), so that it is two products of matrices: a sample's gradient is (p - y) x^T, of norm
|p - y| |x|, and clipping it is a weight of its row. Candidates that see the same inputs are columns of one product.

Data, partitions, features, the private mean and the noise are the library's own: its noise multipliers are those of a
plan with the candidate's keys, and `Centering` makes the inputs. The rest is simulated, and `checked` tells how far it
is from a run of the library on the same split. Two things differ on purpose: the largest directions of the second
moments are found by subspace iteration, in milliseconds, and noise is `relief` times as large, because a recipe is for
all training images, and its noise counts less among all than among those that are left when some are held out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cloister.client.centering import MOST_DIRECTIONS, Centering
from cloister.client.preprocessing import plain
from cloister.core.schedules import Schedule
from cloister.data.cache import cached
from cloister.data.partition import partition_data
from cloister.data.raw import RawData, Samples
from cloister.data.scattering import ScatterOptions, normalized_tensor
from cloister.data.storage import data_folder
from cloister.models import scatter
from cloister.runs.choices import PARTS
from cloister.runs.config import Parts, build, parts_of
from cloister.runs.plan_keys import plan_of
from cloister.runs.signatures import introspected

Values = dict[str, Any]
SCATTER = ("scatter_compression", "scatter_pool", "scatter_groups", "scatter_flips", "scatter_low_orders")
PREPARING = (*SCATTER, "center", "center_rank", "decorrelate", "bias", "cohort", "clients_per_round")
"""Keys that candidates in one product have in common: they see the same inputs in the same rounds."""
_PRICED = ("method", "trust", "sample_rate", "honest_fraction", "batch_size", "local_epochs", "local_steps", "clipping",
           "cohort", "clients_per_round", "rounds", "epsilon", "delta", "center", "decorrelate")  # fmt: skip
_HELD_OUT = 10_000
_BIAS = 0.1  # of the library's linear_probe
_ROWS = 8192
_SPARE, _ITERATIONS = 32, 16  # directions beside those that are kept, and products with the matrix: see _directions
_features: dict[tuple[str, bool], Tensor] = {}


@dataclass(frozen=True)
class Source:
    """The training images of a recipe, or a share of them, and who gets which."""

    values: Values
    raw: RawData
    units: int
    """How many units there are in the whole: clients where these are protected, samples elsewhere."""
    device: str

    @classmethod
    def of(cls, values: Values, share: float, device: str) -> Source:
        """With a share of the samples below 1 there are fewer clients, too, where clients are protected."""
        split = _parts(values).resolved.get("split")
        raw = cached(values["data"], data_folder(), **({} if split is None else {"split": split}))
        train, random, by_client = raw.train, np.random.default_rng(1), values["method"] == "dp_fedavg"
        owners = train.owners if values["partition"] == "natural" else None
        people = len(train) if owners is None else len(np.unique(owners))
        units = values.get("clients", people) if by_client else people
        if share < 1:
            some = np.sort(random.permutation(people)[: round(share * people)])
            train = _taken(train, some if owners is None else np.flatnonzero(np.isin(owners, np.unique(owners)[some])))
            if by_client and owners is None:
                values = {**values, "clients": round(share * values["clients"])}
        return cls(values, RawData(train, _taken(raw.test, np.arange(0)), raw.classes), units, device)

    @property
    def by_client(self) -> bool:
        """Whether whole clients are protected."""
        return bool(self.values["method"] == "dp_fedavg")

    def split(self, number: int) -> Split:
        """Some images held out: of held-out writers where clients are writers, and at random elsewhere."""
        train = self.raw.train
        part, random = min(_HELD_OUT / len(train), 1 / 6), np.random.default_rng(100 + number)
        if self.values["partition"] == "natural":
            writers = random.permutation(np.unique(np.asarray(train.owners)))
            held = np.isin(train.owners, writers[: round(part * len(writers))])
        else:
            held = np.isin(np.arange(len(train)), random.permutation(len(train))[: round(part * len(train))])
        rows = np.flatnonzero(~held)
        partition = _parts(self.values).make("partition")
        owned = [rows[own] for own in partition.assign(_taken(train, rows))]
        return Split(self, number, rows, np.flatnonzero(held), owned)

    def features(self, values: Mapping[str, Any]) -> Tensor:
        """Of all images, after the recipe's scatter options [n, channels, h, w]."""
        options = ScatterOptions(**{key: values[key] for key in SCATTER if key in values})
        raw = self._scattered(options.scatter_flips)
        return torch.cat([normalized_tensor(part, options) for part in raw.split(_ROWS)])

    def _scattered(self, flips: bool) -> Tensor:
        """Computed once for the same images, whatever they are called: QMNIST's are MNIST's."""
        inputs = np.ascontiguousarray(self.raw.train.inputs)
        key = hashlib.sha256(inputs.data).hexdigest(), flips
        if key not in _features:
            images = torch.from_numpy(inputs.copy()).to(self.device).float() / 255
            size = 2048 if self.device == "cuda" else 256  # few launches, where these are what takes time
            found = torch.from_numpy(scatter(images, size)).to(self.device)
            if flips:
                found = (found + torch.from_numpy(scatter(images.flip(3), size)).to(self.device)) / 2
            _features[key] = found
        return _features[key]


@dataclass(frozen=True)
class Split:
    """Which of a source's images the clients have, and which are held out."""

    source: Source
    number: int
    rows: np.ndarray[Any, Any]
    held: np.ndarray[Any, Any]
    owned: Sequence[np.ndarray[Any, Any]]
    """Every client's rows."""

    @property
    def relief(self) -> float:
        """What noise is to be multiplied by to count as much as among all units."""
        return (len(self.owned) if self.source.by_client else len(self.rows)) / self.source.units

    @cached_property
    def labels(self) -> tuple[Tensor, Tensor]:
        """Of the clients' images, client by client, and of those that are held out."""
        labels = torch.from_numpy(np.array(self.source.raw.train.labels)).long().to(self.source.device)
        return labels[torch.from_numpy(np.concatenate(self.owned))], labels[torch.from_numpy(self.held)]

    def task(self, values: Values) -> Any:
        """The split as the library's task, whose test images are those that are held out."""
        raw, partition = self.source.raw, _parts(self.source.values).make("partition")
        seen = replace(raw.train, inputs=self.source.features(values).cpu().numpy())
        parts = RawData(_taken(seen, self.rows), _taken(seen, self.held), raw.classes)
        return partition_data(parts, partition, values["data"])


@dataclass(frozen=True)
class Noises:
    """Noise multipliers of a plan: of a release of training, and of every query."""

    training: float
    queries: Mapping[str, float]


def noises_of(values: Mapping[str, Any], units: int) -> Noises:
    """Those of the library's plan for these keys, with all clients and samples of the whole."""
    found = {key: values[key] for key in _PRICED if key in values}
    if values["method"] == "dp_fedavg":
        people = {"clients": units}
    else:
        people = {"clients": values["clients"], "sizes": units // values["clients"]}
    return _planned(json.dumps({**found, **people}, sort_keys=True))


@cache
def _planned(keys: str) -> Noises:
    values = json.loads(keys)
    plan = plan_of({"clip_norm": 1.0, **values})
    assert plan.terms.queries is not None
    sizes = list(plan.terms.sizes)
    asked = {
        query.name: plan.terms.queries.noises(query, values["epsilon"], values["delta"], sizes)[0]
        for query in plan.terms.queries.planned
    }
    return Noises(plan.noise_multiplier, asked)


@dataclass(frozen=True)
class Inputs:
    """What the probe sees, client by client, with the constant in the place of a bias, and what is held out."""

    split: Split
    x: Tensor
    held: Tensor
    relief: float

    @cached_property
    def padded(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Every client's samples filled up to as many as the largest has: rows [k n, d], labels, what is real [k, n],
        and their inner products [k, n, n], by which local steps never touch the rows."""
        sizes = [len(own) for own in self.split.owned]
        starts, most = np.cumsum([0, *sizes[:-1]]), max(sizes)
        places = starts[:, None] + np.minimum(np.arange(most), np.array(sizes)[:, None] - 1)
        real = torch.from_numpy(np.arange(most) < np.array(sizes)[:, None]).to(self.x.device)
        index = torch.from_numpy(places).to(self.x.device)
        rows = self.x[index] * real[:, :, None]
        return rows.flatten(0, 1), self.split.labels[0][index], real, rows @ rows.transpose(1, 2)


def inputs_of(split: Split, values: Values, seed: int, relief: float | None = None) -> Inputs:
    """Features that a noisy mean and noisy second moments have centered: the library's computation, seen once."""
    source, relief = split.source, split.relief if relief is None else relief
    features = source.features(values)
    random = torch.Generator(source.device).manual_seed(1000 + seed)
    owned, held = (torch.from_numpy(rows).to(source.device) for rows in (np.concatenate(split.owned), split.held))
    stored = features.flatten(1)[owned]
    see: Callable[[Tensor], Tensor] = torch.clone
    if values.get("center") is not None:
        like, rank = features[:1], values.get("center_rank")
        centering = Centering.begin(plain(), like, torch.float32, rank, values.get("decorrelate") is not None)
        weights, noise = _shares(split, values)
        noises = noises_of(values, source.units).queries
        for query in centering.queries:
            deviation = noise * noises[query.name] * relief
            total: Tensor | float = 0.0
            for some, weight in zip(stored.split(_ROWS), weights.split(_ROWS), strict=True):
                seen = query.vectors(some)
                total = total + ((seen * weight[:, None]).T @ seen if query.second_moments else weight @ seen)
            assert isinstance(total, Tensor)
            total = total + deviation * torch.randn(total.shape, generator=random, device=total.device)
            if query.second_moments:
                _directions(centering, total, deviation)
            else:
                query.receive(total, deviation)
            see = centering.apply
    bias, wide = values.get("bias", _BIAS), features[0].numel()

    def prepared(rows: Tensor) -> Tensor:
        # Zeros fill a row up to a multiple of 8 numbers, which products of matrices are fastest with.
        return torch.cat(
            [F.pad(F.pad(see(some), (0, 1), value=bias), (0, -(wide + 1) % 8)) for some in rows.split(_ROWS)]
        )

    return Inputs(split, prepared(stored), prepared(features.flatten(1)[held]), relief)


def _parts(values: Values) -> Parts:
    """Of a run with these keys; unknown ones are refused."""
    return parts_of(values, PARTS, introspected().run)


def _taken(samples: Samples, rows: np.ndarray[Any, Any]) -> Samples:
    owners = None if samples.owners is None else samples.owners[rows]
    return Samples(samples.inputs[rows], samples.labels[rows], owners)


def _shares(split: Split, values: Values) -> tuple[Tensor, float]:
    """What a sample counts in the answer to a query, and by what its noise is multiplied in each number."""
    sizes = torch.tensor([len(own) for own in split.owned], dtype=torch.float32, device=split.source.device)
    clients, samples = len(sizes), float(sizes.sum())
    if split.source.by_client:
        return (1 / (sizes * clients)).repeat_interleave(sizes.long()), 1 / clients
    alone = values.get("trust", "message") == "message"  # every client's own noise, or shares of one
    noise = math.sqrt(clients) if alone else 1 / math.sqrt(values.get("honest_fraction", 1.0))
    return torch.full((int(samples),), 1 / samples, device=sizes.device), noise / samples


def _directions(centering: Centering, moments: Tensor, noise: float) -> None:
    """As `Centering` sets them, without all eigenvalues of a large matrix: those near the level of the noise, which
    iterations tell apart slowly, are hardly made smaller anyway."""
    matrix, level = (moments + moments.T) / 2, max(noise * math.sqrt(2 * len(moments)), 1e-4)
    wanted = min(MOST_DIRECTIONS + _SPARE, len(matrix))
    found = torch.randn(len(matrix), wanted, generator=torch.Generator().manual_seed(0)).to(matrix)
    for _ in range(_ITERATIONS):
        found = torch.linalg.qr(matrix @ found + level * found)[0]  # shifted: the most negative ones come last
    values, vectors = torch.linalg.eigh(found.T @ matrix @ found)
    kept = min(int((values > level).sum()), centering.axes.shape[1])
    if kept:
        centering.axes[:, :kept] = (found @ vectors)[:, -kept:]
        centering.removed[:kept] = 1 - (level / values[-kept:]).sqrt()


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
        for number in range(int(self.numbers["local_steps"].max())):
            now = before - products @ parts if number else before
            residual = self._residuals(now.flatten(0, 1), labels.flatten()).view(clients, most, -1, self.classes)
            lr = self.numbers["lr"] * (number < self.numbers["local_steps"])
            parts += (residual * weights * lr[:, None]).flatten(2)
        split = parts.view(clients, most, -1, self.classes)
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
