from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.linalg import hadamard as sylvester
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from cloister.errors import CloisterError
from cloister.transforms.hadamard import hadamard, padded, round_within


@pytest.mark.parametrize("levels", range(12))
def test_it_is_the_matrix_and_its_own_inverse(levels):
    d = 2**levels
    x = torch.from_numpy(np.random.default_rng(levels).normal(size=(3, 2, d)))
    expected = x.numpy() @ sylvester(d) / math.sqrt(d)
    np.testing.assert_allclose(hadamard(x).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(hadamard(hadamard(x)).numpy(), x.numpy(), atol=1e-12)
    assert padded(d) == d


def test_a_long_vector_keeps_its_norm_and_is_spread_evenly():
    x = torch.zeros(2**20)
    x[12345] = 3.0
    y = hadamard(x)
    assert y.dtype == torch.float32
    assert torch.allclose(y.abs(), torch.tensor(3 / 1024))
    assert torch.allclose(hadamard(y), x, atol=1e-5)


def test_it_can_be_mapped_and_traced():
    x = torch.randn(4, 2**7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(vmap(hadamard)(x), hadamard(x), atol=1e-6)
    assert torch.equal(make_fx(hadamard)(torch.zeros_like(x))(x), hadamard(x))
    keys = torch.arange(4)
    mapped = vmap(lambda one, key: round_within(one, key, 12.0))(x, keys)
    assert torch.equal(mapped, torch.stack([round_within(x[i], keys[i], 12.0) for i in range(4)]))
    traced = make_fx(lambda one, key: round_within(one, key, 12.0))(torch.zeros_like(x[0]), keys[0])
    assert torch.equal(traced(x[1], keys[1]), mapped[1]), "another vector takes the same path"


def test_a_length_that_is_no_power_of_two_is_refused():
    with pytest.raises(CloisterError, match=r"a power of two, found 6: pad with zeros"):
        hadamard(torch.zeros(6))


vectors = arrays.arrays(
    st.sampled_from([np.float32, np.float64]),
    st.integers(1, 40),
    elements=st.floats(-1e4, 1e4, width=32),
)


def exact_square(whole: torch.Tensor) -> int:
    return sum(int(value) ** 2 for value in whole)


@settings(max_examples=200, deadline=None)
@given(x=vectors, key=st.integers(0, 2**60), slack=st.sampled_from([1.0, 1.0001, 1.1, 3.0]), tries=st.integers(1, 3))
def test_the_norm_never_exceeds_the_bound_and_every_number_is_a_neighbor(x, key, slack, tries):
    bound = max(float(np.linalg.norm(x.astype(np.float64))) * slack, 1e-3) * (1 + 1e-12)
    found = round_within(torch.from_numpy(x), torch.tensor(key), bound, tries)
    assert found.dtype == torch.int64
    assert exact_square(found) <= bound**2
    assert (np.abs(found.numpy() - x) < 1).all()


@settings(max_examples=100, deadline=None)
@given(
    x=arrays.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32)),
    bound=st.floats(0.1, 1e6),
)
def test_the_bound_holds_for_any_input_at_all(x, bound):
    found = round_within(torch.from_numpy(x), torch.tensor(5), bound)
    assert exact_square(found) <= bound**2


def test_the_bound_is_met_exactly():
    three_four = torch.tensor([3.0, 4.0])
    assert round_within(three_four, torch.tensor(0), 5.0).tolist() == [3, 4]
    assert round_within(three_four, torch.tensor(0), math.nextafter(5.0, 0)).tolist() == [0, 0]
    almost = torch.tensor([3.9, -3.9])
    assert round_within(almost, torch.tensor(0), 4.3, tries=1).tolist() == [3, -3], "cut off where nothing else fits"


def test_rounding_is_right_in_the_mean_unless_the_bound_forces_it():
    x = torch.tensor([0.25, -1.75, 3.5, 2.0], dtype=torch.float64)
    draws = vmap(lambda key: round_within(x, key, 100.0))(torch.arange(20_000)).double()
    error = (draws.mean(0) - x) / (draws.std(0) / math.sqrt(20_000) + 1e-12)
    assert error.abs().max() < 4.5
    assert set(draws[:, 1].tolist()) == {-2.0, -1.0}
    tight = vmap(lambda key: round_within(x, key, 4.6, tries=1))(torch.arange(2000)).double()
    assert (tight.mean(0).abs() < x.abs() - 0.01)[:3].any(), "the test would notice a bias"
    assert tight.square().sum(1).max() <= 4.6**2


def test_trying_again_rescues_most_that_did_not_fit():
    x = torch.full((64,), 0.5)
    bound = math.sqrt(32)
    once = vmap(lambda key: round_within(x, key, bound, tries=1))(torch.arange(500))
    twice = vmap(lambda key: round_within(x, key, bound, tries=2))(torch.arange(500))
    assert 100 < (once.sum(1) == 0).sum() < 400
    assert (twice.sum(1) == 0).sum() == 0, "what was rounded up in the first try is rounded down in the second"
