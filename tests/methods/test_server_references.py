"""What the server does beside adding: noise that is correlated over rounds, and students that learn from votes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from references import (
    CLASSES,
    NET,
    SIZES,
    Named,
    batches_of,
    check_messages,
    check_rounds,
    clipped,
    federated,
    flat,
    members,
    named,
    normal,
    plain,
    public_batches,
    summed,
    trained,
)
from torch import Tensor

import cloister as cl
from cloister.engine import Loop
from cloister.round import cohort_total
from cloister.round.bind import Federation

CLIP, LR, Z, ROUNDS = 0.3, 0.4, 0.8, 11
RULE = {"lr": LR, "batch_size": 4, "local_steps": 3}


def message(fed: Federation, round: int, client: int, start: Named) -> Tensor:
    return clipped(flat(trained(start, batches_of(fed, round, client), plain, LR)) - flat(start), CLIP)


# ---- DP-FTRL ----------------------------------------------------------------------------------------------------


def banded_matrix(band: int) -> np.ndarray:
    """C: the square root of the matrix of prefix sums, cut to a band; whole columns have norm 1."""
    c = np.array([math.comb(2 * j, j) / 4**j for j in range(band)])
    c /= np.linalg.norm(c)
    return sum(c[j] * np.eye(ROUNDS, k=-j) for j in range(band))


def tree_nodes(cycle: int) -> list[tuple[int, int]]:
    """(first, last) round, from 0, of every node of the cycles' binary trees that is ever used."""
    nodes = []
    for last in range(ROUNDS):
        place = last % cycle + 1
        size = max(2**level for level in range(10) if place % 2**level == 0)
        nodes.append((last - size + 1, last))
    return nodes


def tree_matrices(cycle: int) -> tuple[np.ndarray, np.ndarray]:
    """Which rounds each node sums up, and which nodes cover each prefix (of all cycles before, and of this one)."""
    nodes = tree_nodes(cycle)
    sums = np.array([[float(first <= r <= last) for r in range(ROUNDS)] for first, last in nodes])
    covers = np.zeros((ROUNDS, ROUNDS))
    for last in range(ROUNDS):
        left = last
        while left >= 0:  # from the right, the node that ends here, and then whatever is before it
            covers[last, left] = 1
            left = nodes[left][0] - 1
    assert (covers @ sums == np.tri(ROUNDS)).all(), "each prefix is covered, each round once"
    return sums, covers


def noise_matrix(factorization: str, cycle: int, band: int) -> tuple[np.ndarray, np.ndarray]:
    """(from draws to the noise of every round, what a unit contribution to each round moves under unit noise)."""
    if factorization == "banded":
        c = banded_matrix(min(band, cycle))
        return np.linalg.inv(c), c
    sums, covers = tree_matrices(cycle)
    scale = math.sqrt(math.floor(math.log2(cycle)) + 1)
    return scale * np.diff(covers, axis=0, prepend=0), sums / scale


CYCLES = [("tree", 2, 16), ("tree", 1, 16), ("tree", 3, 16), ("banded", 2, 16), ("banded", 2, 3), ("banded", 1, 5)]


@pytest.mark.parametrize(("factorization", "size", "band"), CYCLES)
def test_correlated_noise_is_that_of_the_explicit_matrix(factorization, size, band):
    made = cl.methods.dp_ftrl(
        CLIP, factorization, None if factorization == "tree" else band, noise_multiplier=Z, **RULE
    )
    fed, w, _ = federated(made, cl.cyclic(size))
    cycle = -(-8 // size)
    draws = torch.stack([normal(fed, round) for round in range(1, ROUNDS + 1)])
    noise = torch.from_numpy(noise_matrix(factorization, cycle, band)[0]) @ (Z * CLIP * draws)

    def step(round: int, w: Tensor) -> Tensor:
        first = (round - 1) % cycle * size
        turn = range(first, min(first + size, 8))
        assert list(turn) == members(fed, round)
        total = summed(fed, message, round, w) if any(SIZES[c] for c in turn) else 0
        return w + (total + noise[round - 1]) / size

    check_rounds(fed, w, step, ROUNDS)


@pytest.mark.parametrize(("factorization", "size", "band"), [*CYCLES, ("tree", 8, 16), ("banded", 8, 16)])
def test_correlated_noise_is_worth_one_release_a_cycle(factorization, size, band):
    """Whatever rounds of its own a client takes part in, and in whatever directions, it moves sqrt(turns) at most."""
    cycle = -(-8 // size)
    to_noise, moves = noise_matrix(factorization, cycle, band)
    np.testing.assert_allclose(moves @ to_noise, np.eye(ROUNDS), atol=1e-12)  # moves x + z, seen through to_noise
    gram, worst = np.abs(moves.T @ moves), 0.0
    for first in range(cycle):
        participations = range(first, ROUNDS, cycle)
        assert len(participations) <= cl.cyclic(size).releases(ROUNDS, 8)
        for count in range(1, len(participations) + 1):
            for there in itertools.combinations(participations, count):
                moved = gram[np.ix_(there, there)].sum()  # the most that unit vectors can make of it
                assert moved <= count * (1 + 1e-12)
                worst = max(worst, moved / count)
    assert worst == pytest.approx(1), "no noise is wasted"


def test_correlated_noise_is_smaller_in_the_last_model_than_independent_noise():
    for factorization, size in (("tree", 1), ("banded", 1), ("banded", 2)):
        to_noise, _ = noise_matrix(factorization, -(-8 // size), 16)
        spread = np.linalg.norm(np.tri(ROUNDS) @ to_noise, axis=1)
        assert spread[7] < math.sqrt(8)


# ---- AE-DPFL ----------------------------------------------------------------------------------------------------

QUERIES = 25


def pool() -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(9)
    labels = random.integers(0, CLASSES, 30)
    inputs = random.normal(size=(30, 6)) + labels[:, None]
    return torch.tensor(inputs), torch.full((30,), -1)  # nobody may look at their labels


def votes(fed: Federation, round: int, client: int, start: Named) -> Tensor:
    teacher = trained(start, batches_of(fed, round, client), plain, LR, 0.5, 0.01)
    outputs = torch.func.functional_call(NET, teacher, (pool()[0][:QUERIES],)).detach()
    cast = torch.zeros(QUERIES, CLASSES).double()
    for query, row in enumerate(outputs.tolist()):
        cast[query, row.index(max(row))] = 1
    return cast.flatten()


@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_a_student_learns_what_most_teachers_say(noise):
    made = cl.methods.ae_dpfl(
        QUERIES,
        **RULE,
        momentum=0.5,
        weight_decay=0.01,
        student_lr=0.2,
        student_epochs=3,
        student_batch_size=8,
        noise_multiplier=0.3,
        noise=noise,
    )
    fed, w, _ = federated(made, public_samples=pool())
    spread = 0.3 * math.sqrt(QUERIES)  # on a count

    def step(round: int, w: Tensor) -> Tensor:
        size = QUERIES * CLASSES
        shares = [normal(fed, round, c, size) / math.sqrt(8) for c in range(8)] if noise == "distributed" else []
        drawn = torch.stack(shares or [normal(fed, round, -1, size)]).sum(0)
        counts = summed(fed, votes, round, w)
        labels = [row.index(max(row)) for row in (counts + spread * drawn).view(QUERIES, CLASSES).tolist()]
        assert labels != counts.view(QUERIES, CLASSES).argmax(1).tolist(), "noise changes some"
        batches = public_batches((pool()[0][:QUERIES], torch.tensor(labels)), 0, 3 * 4, 8)
        return flat(trained(named(w), batches, plain, 0.2, 0.5))

    check_rounds(fed, w, step, 2)
    if noise == "central":
        check_messages(fed, w, votes)
        norms = [float(cohort_total(fed, Loop(), 1, w, torch.tensor([c]))[0].norm()) for c in range(8)]
        assert norms == pytest.approx([math.sqrt(QUERIES) if size else 0 for size in SIZES])
