"""What recipes for scattering features are searched on: images, who has them, what is held out, and noise.

Data, partitions, features, the private mean and the noise are the library's own: noise multipliers are those of a plan
with the candidate's keys, and `Centering` makes the inputs. Two things differ on purpose. The largest directions of the
second moments are found by subspace iteration, in milliseconds. And noise is `relief` times as large: a recipe is for
all training images, among which its noise counts less than among those that are left when some are held out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cloister.client.centering import MOST_DIRECTIONS, Centering
from cloister.client.preprocessing import plain
from cloister.data.cache import cached
from cloister.data.deskew import deskewed
from cloister.data.partition import partition_data
from cloister.data.raw import RawData, Samples
from cloister.data.scattering import ScatterOptions, normalized_tensor
from cloister.data.storage import data_folder
from cloister.models import scatter
from cloister.runs.choices import PARTS
from cloister.runs.config import Parts, parts_of
from cloister.runs.plan_keys import plan_of
from cloister.runs.signatures import introspected

Values = dict[str, Any]
SCATTER = ("scatter_compression", "scatter_pool", "scatter_groups", "scatter_flips", "scatter_low_orders")
PREPARING = (*SCATTER, "deskew", "center", "center_rank", "decorrelate", "bias", "cohort", "clients_per_round")
"""Keys that candidates in one product have in common: they see the same inputs in the same rounds."""
_PRICED = ("method", "trust", "sample_rate", "honest_fraction", "batch_size", "local_epochs", "clipping",
           "cohort", "clients_per_round", "rounds", "epsilon", "delta", "center", "decorrelate")  # fmt: skip
_HELD_OUT = 10_000
_BIAS = 0.1  # of the library's linear_probe
_ROWS = 8192
_SPARE, _ITERATIONS = 32, 8  # directions beside those that are kept; see _directions
_features: dict[tuple[str, bool, bool], Tensor] = {}
_plans: dict[str, Noises] = {}


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
            held = np.isin(np.asarray(train.owners), writers[: round(part * len(writers))])
        else:
            held = np.isin(np.arange(len(train)), random.permutation(len(train))[: round(part * len(train))])
        rows = np.flatnonzero(~held)
        partition = _parts(self.values).make("partition")
        owned = [rows[own] for own in partition.assign(_taken(train, rows))]
        return Split(self, number, rows, np.flatnonzero(held), owned)

    def features(self, values: Mapping[str, Any]) -> Tensor:
        """Of all images, after the recipe's scatter options [n, channels, h, w]."""
        options = ScatterOptions(**{key: values[key] for key in SCATTER if key in values})
        raw = self._scattered(options.scatter_flips, values.get("deskew", False))
        return torch.cat([normalized_tensor(part, options) for part in torch.split(raw, _ROWS)])

    @cached_property
    def _images(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.raw.train.inputs).data).hexdigest()

    def _scattered(self, flips: bool, deskew: bool) -> Tensor:
        """Computed once for the same images, whatever they are called: QMNIST's are MNIST's."""
        key = self._images, flips, deskew
        if key not in _features:
            train = (deskewed(self.raw) if deskew else self.raw).train
            images = torch.from_numpy(np.array(train.inputs)).to(self.device).float() / 255
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


def priced(values: Mapping[str, Any], units: int) -> str:
    """All that noise depends on, for all clients and samples of the whole: what `planned` takes."""
    found = {key: values[key] for key in _PRICED if key in values}
    if values["method"] == "dp_fedavg":
        return json.dumps({**found, "clients": units}, sort_keys=True)
    return json.dumps({**found, "clients": values["clients"], "sizes": units // values["clients"]}, sort_keys=True)


def planned(keys: str) -> Noises:
    """The noise of the library's plan for these keys; a tenth of a second."""
    values = json.loads(keys)
    plan = plan_of({"clip_norm": 1.0, **values})
    assert plan.terms.queries is not None
    sizes = list(plan.terms.sizes)
    asked = {
        query.name: plan.terms.queries.noises(query, values["epsilon"], values["delta"], sizes)[0]
        for query in plan.terms.queries.planned
    }
    return Noises(plan.noise_multiplier, asked)


def plan_ahead(candidates: Iterable[Values], units: int, pool: Executor) -> None:
    """Plans that will be needed, on all cores: there are hundreds, and a GPU would wait for them."""
    missing = sorted({priced(one, units) for one in candidates} - {*_plans})
    _plans.update(zip(missing, pool.map(planned, missing), strict=True))


def noises_of(values: Values, units: int) -> Noises:
    """The noise of a run with these keys."""
    keys = priced(values, units)
    if keys not in _plans:
        _plans[keys] = planned(keys)
    return _plans[keys]


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
            for some, weight in zip(torch.split(stored, _ROWS), torch.split(weights, _ROWS), strict=True):
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
            [F.pad(F.pad(see(some), (0, 1), value=bias), (0, -(wide + 1) % 8)) for some in torch.split(rows, _ROWS)]
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
        for _ in range(2):
            found = matrix @ found + level * found  # shifted: the most negative eigenvalues come last
        found = torch.linalg.qr(found)[0]
    values, vectors = torch.linalg.eigh(found.T @ matrix @ found)
    kept = min(int((values > level).sum()), centering.axes.shape[1])
    if kept:
        centering.axes[:, :kept] = (found @ vectors)[:, -kept:]
        centering.removed[:kept] = 1 - (level / values[-kept:]).sqrt()
