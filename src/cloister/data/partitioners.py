"""Partitions: which client gets which sample. Exact, quick, and a function of the seed.

All but `overlapping` are disjoint and complete: every sample goes to exactly one client. All but the label-dependent
ones go by numbers of samples and by owners alone: another sample in one place leaves every other one where it is. (A
sample that is removed keeps its place on the roster, so that the numbers are the declared ones.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from cloister.data.arguments import Clients, Evenness, SplitSeed
from cloister.data.raw import Array, Samples
from cloister.errors import CloisterError, expect, expect_count, expect_positive

ClientRows = list[Array]
"""For each client, the rows of its samples."""


@dataclass(frozen=True)
class Partition:
    """`assign(samples)` gives every client its rows. `overlapping` says that a sample may go to several clients.

    `label_dependent` says that labels decide who gets what: with another label in one place, other samples may move to
    other clients. A guarantee is then for the federation as dealt, and its certificate says so.
    """

    name: str
    settings: Mapping[str, Any]
    assign: Callable[[Samples], ClientRows]
    overlapping: bool = False
    label_dependent: bool = False


def iid(clients: Clients = 100, split_seed: SplitSeed = 0) -> Partition:
    """Shuffle all samples and deal them into equal hands (sizes differ by one at most).

    >>> [len(own_rows) for own_rows in iid(3).assign(Samples(np.zeros(10), np.zeros(10)))]
    [4, 3, 3]
    """
    _expect_clients(clients, split_seed)

    def assign(samples: Samples) -> ClientRows:
        _expect_enough(samples, clients)
        return list(np.array_split(np.random.default_rng(split_seed).permutation(len(samples)), clients))

    return Partition("iid", {"clients": clients, "split_seed": split_seed}, assign)


def dirichlet(clients: Clients = 100, alpha: Evenness = 0.5, split_seed: SplitSeed = 0) -> Partition:
    """Equal-sized clients, each with class probabilities of its own, pi_i ~ Dir(alpha, ..., alpha).

    Labels are drawn from pi_i without replacement from what is left; where a class is used up, pi_i is
    renormalized over the others. Clients take turns, a fifth of their hand at a time, so that the shortage
    at the end is shared. (The convention of DP-FedSAM's CIFAR experiments.)
    """
    _expect_clients(clients, split_seed)
    expect_positive("alpha", alpha, "small is uneven, large is even")

    def assign(samples: Samples) -> ClientRows:
        _expect_enough(samples, clients)
        random = np.random.default_rng(split_seed)
        piles = _by_class(samples, random)
        left = np.array([len(pile) for pile in piles])
        prior = random.dirichlet(np.full(len(piles), alpha), size=clients)
        wanted = np.array([len(part) for part in np.array_split(np.arange(len(samples)), clients)])
        client_rows: list[list[Array]] = [[] for _ in range(clients)]
        for turn in range(_TURNS):
            for client in random.permutation(clients):
                share = wanted[client] * (turn + 1) // _TURNS - wanted[client] * turn // _TURNS
                for label, count in enumerate(_draw(random, prior[client], left, int(share))):
                    if count:
                        client_rows[client].append(piles[label][left[label] - count : left[label]])
                        left[label] -= count
        return [np.concatenate(own_rows) if own_rows else np.empty(0, dtype=np.int64) for own_rows in client_rows]

    settings = {"clients": clients, "alpha": alpha, "split_seed": split_seed}
    return Partition("dirichlet", settings, assign, label_dependent=True)


_TURNS = 5


def _draw(random: np.random.Generator, prior: Array, left: Array, share: int) -> Array:
    """How many of each class come up in `share` draws from the prior, when used-up classes do not count.

    Drawing in blocks and throwing away what exceeds the pile has the same law as drawing one by one.
    """
    taken = np.zeros(len(prior), dtype=np.int64)
    while (need := share - int(taken.sum())) > 0:
        open_classes = left > taken
        chances = np.where(open_classes, prior, 0.0)
        # A prior that gives practically nothing to what is left falls back on what there is.
        chances = chances if chances.sum() > 1e-12 else np.where(open_classes, left - taken, 0).astype(float)
        taken += np.minimum(random.multinomial(need, chances / chances.sum()), left - taken)
    return taken


def dirichlet_by_class(clients: Clients = 100, alpha: Evenness = 0.5, split_seed: SplitSeed = 0) -> Partition:
    """Each class is cut among the clients in proportions ~ Dir(alpha, ..., alpha): sizes differ, some may be empty.

    (The convention of DP-FedSAM's EMNIST experiments.)
    """
    _expect_clients(clients, split_seed)
    expect_positive("alpha", alpha, "small is uneven, large is even")

    def assign(samples: Samples) -> ClientRows:
        random = np.random.default_rng(split_seed)
        client_rows: list[list[Array]] = [[] for _ in range(clients)]
        for pile in _by_class(samples, random):
            share = random.dirichlet(np.full(clients, alpha))
            cuts = np.round(np.cumsum(share)[:-1] * len(pile)).astype(np.int64)
            for client, part in enumerate(np.split(pile, cuts)):
                client_rows[client].append(part)
        return [np.concatenate(own_rows) for own_rows in client_rows]

    settings = {"clients": clients, "alpha": alpha, "split_seed": split_seed}
    return Partition("dirichlet_by_class", settings, assign, label_dependent=True)


def shards(
    clients: Clients = 10, per_client: Annotated[int, "label shards that a client gets"] = 4, split_seed: SplitSeed = 0
) -> Partition:
    """Sort by label, cut into clients * per_client shards, deal each client `per_client` of them at random.

    (Adap DP-FL: 40 shards of 1,500 MNIST images, 4 for each of 10 clients, so three or four labels a client.)
    """
    _expect_clients(clients, split_seed)
    expect_count("per_client", per_client, "the number of shards that a client gets")

    def assign(samples: Samples) -> ClientRows:
        _expect_enough(samples, clients * per_client)
        random = np.random.default_rng(split_seed)
        pieces = np.array_split(np.concatenate(_by_class(samples, random)), clients * per_client)
        order = random.permutation(clients * per_client).reshape(clients, per_client)
        return [np.concatenate([pieces[shard] for shard in mine]) for mine in order]

    settings = {"clients": clients, "per_client": per_client, "split_seed": split_seed}
    return Partition("shards", settings, assign, label_dependent=True)


def natural(split_seed: SplitSeed = 0) -> Partition:
    """Every client is somebody: a writer, a hospital, a role. In the order of their names or numbers.

    The seed moves no sample; it says who is set aside as public, and which test samples are drawn for whom.
    """
    _expect_seed(split_seed)

    def assign(samples: Samples) -> ClientRows:
        if samples.owners is None:
            raise CloisterError(
                "Expected samples that know their owners for the natural partition, found none: choose iid, "
                "dirichlet, dirichlet_by_class or shards."
            )
        _, owner = np.unique(samples.owners, return_inverse=True)
        return np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])

    return Partition("natural", {"split_seed": split_seed}, assign)


def overlapping(clients: Clients = 10, split_seed: SplitSeed = 0) -> Partition:
    """Each client draws max(n/clients, n/10) samples by itself, so that clients share samples.

    This is what the published code of PFL does. It breaks parallel composition: whoever's sample lies with c
    clients is protected c times less, and the certificate says so. For replication only.
    """
    _expect_clients(clients, split_seed)

    def assign(samples: Samples) -> ClientRows:
        random = np.random.default_rng(split_seed)
        each = max(len(samples) // clients, len(samples) // 10, 1)
        expect(clients * each <= 2**27, f"at most {2**27:,} samples in all", clients * each, "ask for fewer clients")
        return [random.choice(len(samples), each, replace=False, shuffle=False) for _ in range(clients)]

    return Partition("overlapping", {"clients": clients, "split_seed": split_seed}, assign, overlapping=True)


CATALOGUE: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet_by_class": dirichlet_by_class,
    "shards": shards,
    "natural": natural,
    "overlapping": overlapping,
}


def most_copies(client_rows: ClientRows, samples: int) -> int:
    """With how many clients the most widespread sample lies."""
    return int(np.bincount(np.concatenate(client_rows), minlength=samples).max()) if samples else 0


def _by_class(samples: Samples, random: np.random.Generator) -> ClientRows:
    """The rows of each class, shuffled; classes in order."""
    shuffled = random.permutation(len(samples))
    labels = np.asarray(samples.labels)[shuffled]
    expect(labels.ndim == 1, "one label per sample", labels.shape, "choose the partition iid or natural")
    _, first = np.unique(np.sort(labels), return_index=True)
    return np.split(shuffled[np.argsort(labels, kind="stable")], first[1:])


def _expect_clients(clients: int, split_seed: int) -> None:
    expect_count("clients", clients, "the number of clients among which the samples are dealt", most=10**6)
    _expect_seed(split_seed)


def _expect_seed(split_seed: int) -> None:
    expect_count("split_seed", split_seed, "any whole number that is not negative", least=0)


def _expect_enough(samples: Samples, client_rows: int) -> None:
    expect(
        client_rows <= len(samples), f"at most {len(samples)} parts, one for every sample", client_rows, "ask for fewer"
    )
