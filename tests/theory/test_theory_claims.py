"""What papers say in words beside their tables: every claim is computed once more, by hand, and holds or not."""

from __future__ import annotations

import pytest

from cloister.privacy.accountant import epsilon
from cloister.privacy.events import PoissonGaussian
from cloister.theory import CLAIMS

# Paper, beginning of the claim: what the tables say, and whether the words agree. Counts are of rows that disagree.
BY_HAND = {
    ("000", "LUS alone"): ([76.52 - 76.24, 77.75 - 76.24], False),
    ("000", "BLUR and LUS improve DP-FedAvg by 3 to 4"): ([78.09 - 75.36, 74.48 - 69.65], False),
    ("000", "BLUR and LUS improve DP-FedAvg by 4 to 5"): ([82.12 - 78.06, 78.58 - 73.52], True),
    ("000", "on ResNet-18, 4 to 5"): ([81.55 - 77.64, 78.58 - 73.16], True),
    ("000", "on ResNet-18, 1 to 2"): ([82.12 - 81.33, 78.58 - 76.37], True),
    ("000", "with the CNN, 4.83"): ([4.83, 2.73], True),
    ("000", "the gain over DP-FedAvg"): ([0], True),
    ("000", "with the CNN, 5.11"): ([5.11, 2.32], True),
    ("000", "the noise term of DP-FedAvg"): ([0.25], False),
    ("000", "ResNet-18 on EMNIST"): ([76.24, 80.32], False),
    ("001", "EMNIST, IID"): ([85.90, 87.70], True),
    ("001", "EMNIST, training minus"): ([19.47, 10.75, 9.71], True),
    ("001", "the same of DP-FedAvg"): ([26.18, 17.35, 17.76], False),
    ("001", "the same of DP-FedSAM-top_k"): ([17.50, 11.07, 8.42], False),
    ("001", "the same of Fed-SMP"): ([23.56, 16.31, 16.41], True),
    ("001", "DP-FedSAM is better"): ([1], False),
    ("001", "CIFAR-10: DP-FedSAM is"): ([39.89 - 38.23, 51.30 - 46.74], False),
    ("001", "CIFAR-10: DP-FedSAM-top_k"): ([38.96 - 38.99, 53.64 - 49.78], False),
    ("001", "CIFAR-100: DP-FedSAM is"): ([10.03 - 9.65, 19.65 - 15.23], False),
    ("001", "CIFAR-100: DP-FedSAM-top_k"): ([10.08 - 9.90, 20.79 - 17.71], False),
    ("001", "accuracy rises"): ([0], True),
    ("001", "accuracy falls"): ([0], True),
    ("001", "EMNIST, Dirichlet 0.6"): ([0.52], False),
    ("001", "300 rounds"): ([57.8], False),
    ("002", "more than 80"): ([100 - 1.97 / 0.3931, 100 - 3.93 / 0.3931], True),
    ("002", "on MNIST 86"): ([100 - 1.97 / 0.3931], False),
    ("002", "on MNIST Fed-SPA"): ([0], True),
    ("002", "on CIFAR-10 Fed-SPA"): ([0], True),
    ("002", "the noise is proportional"): ([0.5], False),
    ("002", "a quarter of the coordinates"): ([4.0], False),
    ("002", "p d 32 T r bits come to 0.3931"): ([21_840 * 4 * 4.5 / 1e6], True),
    ("002", "p d 32 T r bits come to 21.50"): ([537_610 * 4 * 20 / 1e6], False),
    ("002", "Fed-SPA spends"): ([14.5], False),
    ("003", "MNIST at epsilon 1.2"): ([91.30, 13.24], True),
    ("003", "Fashion-MNIST at epsilon 2.7, end"): ([78.41, 39.52, 80.14, 55.36], True),
    ("003", "Fashion-MNIST at epsilon 2.7, ScatterNet and linear"): ([86.01, 83.73], False),
    ("003", "Fashion-MNIST at epsilon 2.7, ScatterNet and CNN"): ([81.26, 44.12], False),
    ("003", "one local epoch a round is always"): ([7], False),
    ("003", "ScatterNet and linear model"): ([2], False),
    ("003", "accuracy rises"): ([2], False),
    ("003", "epsilon on CIFAR-10"): ([7.53], False),
    ("003", "MNIST, CNN with ReLU"): ([93.06], False),
    ("003", "epsilon on MNIST"): ([7.7], False),
    ("003", "one local epoch a round has"): ([1.0], False),
    ("004", "most clients"): ([9.88], False),
    ("004", "on MNIST the noise"): ([2.34], False),
    ("004", "MNIST at epsilon 2"): ([0], True),
    ("004", "Fashion-MNIST at epsilon 2"): ([0], True),
}
LOOSELY = {"300 rounds", "Fed-SPA spends", "epsilon on MNIST", "most clients", "on MNIST the noise"}  # prices, rounded


@pytest.mark.parametrize(("paper", "begins"), BY_HAND)
def test_a_claim_is_what_its_tables_make_of_it(paper, begins):
    (claim,) = [one for one in CLAIMS if one.paper == paper and one.says.startswith(begins)]
    found, agrees = BY_HAND[paper, begins]
    assert claim.found() == pytest.approx(found, abs=0.06 if begins in LOOSELY else 0.001)
    assert claim.agrees() is agrees


def test_every_claim_was_computed_by_hand():
    assert len(CLAIMS) == len(BY_HAND)
    assert all(claim.paper and claim.place and claim.says and claim.table for claim in CLAIMS)


def test_the_rows_that_contradict_one_local_epoch_are_those_of_the_tables():
    """Five of the six columns of the linear model, and two others by less than a tenth."""
    (claim,) = [one for one in CLAIMS if one.says.startswith("one local epoch a round is always")]
    against = [index for index, row in enumerate(claim.rows) if max(row) > row[0]]
    assert [index for index in against if index % 4 == 2] == [2, 6, 10, 18, 22]
    assert all(max(claim.rows[index]) - claim.rows[index][0] < 0.1 for index in against if index % 4 != 2)


def test_the_noise_behind_pfls_epsilon_is_the_published_one():
    assert epsilon(PoissonGaussian(0.96, 1 / 94), 1880, 1e-5) == pytest.approx(2.93, abs=0.02)
