"""The bound that a transform claims holds for any input; that is what the noise is scaled to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cloister.errors import CloisterError
from cloister.joints import Bound, Transform
from cloister.transforms import chain, clip_l2, identity

HERE = None  # a clip looks at the update alone
any_update = arrays(
    np.float64, array_shapes(max_dims=1, max_side=40), elements=st.floats(-1e300, 1e300, allow_nan=False)
)


@settings(max_examples=200)
@given(update=any_update, clip=st.floats(1e-6, 1e6))
def test_clipping_never_exceeds_its_bound(update, clip):
    encoded = clip_l2(clip).encode(torch.from_numpy(update), HERE)
    assert math.sqrt(math.fsum(x * x for x in encoded.tolist())) <= clip * (1 + 1e-15)


@settings(max_examples=200)
@given(
    update=arrays(
        np.float32, array_shapes(max_dims=1, max_side=40), elements=st.floats(-(2.0**127), 2.0**127, width=32)
    ),
    clip=st.floats(1e-3, 1e6),
)
def test_clipping_never_exceeds_its_bound_in_float32(update, clip):
    encoded = clip_l2(clip).encode(torch.from_numpy(update), HERE)
    assert torch.isfinite(encoded).all()
    assert math.sqrt(math.fsum(x * x for x in encoded.tolist())) <= clip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_long_updates_in_every_type(dtype):
    update = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    encoded = clip_l2(0.5).encode(update, HERE).double()
    assert 0.45 < encoded.norm() <= 0.5


@given(update=any_update)
def test_a_short_update_passes_unchanged(update):
    small = torch.from_numpy(update / (np.abs(update).max() * len(update) + 1))
    assert torch.equal(clip_l2(2.0).encode(small, HERE), small)


def test_clipping_is_over_the_whole_update_not_piece_by_piece():
    update = torch.tensor([3.0, 4.0, 0.0, 12.0])  # norm 13
    assert torch.allclose(clip_l2(1.3).encode(update, HERE), update / 10, rtol=1e-5)


def test_zero_stays_zero_and_an_infinite_clip_leaves_all():
    assert torch.equal(clip_l2(1.0).encode(torch.zeros(5), HERE), torch.zeros(5))
    assert torch.equal(clip_l2(math.inf).encode(torch.full((3,), 1e30), HERE), torch.full((3,), 1e30))


def test_under_vmap_each_client_is_clipped_by_itself():
    cohort = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    encoded = torch.func.vmap(lambda update: clip_l2(1.0).encode(update, HERE))(cohort)
    assert torch.allclose(encoded, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]), rtol=1e-5)


def test_bounds_travel_through_a_chain():
    assert identity().bound(Bound(), None).l2 == math.inf
    assert chain(identity(), clip_l2(2.0), identity()).bound(Bound(), None).l2 == 2.0
    assert chain(clip_l2(5.0), clip_l2(2.0)).bound(Bound(), None).l2 == 2.0


def test_a_chain_encodes_forwards_and_decodes_backwards():
    log: list[str] = []

    def spy(name: str):
        def encode(update, here):
            log.append(f"encode {name}")
            return update

        def decode(total, here, state):
            log.append(f"decode {name}")
            return total, {name: total}

        return Transform(name, {}, encode, lambda bound, layout: bound, decode)

    both = chain(spy("a"), spy("b"))
    assert set(both.decode(both.encode(torch.ones(2), HERE), HERE, {})[1]) == {"a", "b"}
    assert log == ["encode a", "encode b", "decode b", "decode a"]


@pytest.mark.parametrize("clip", [-1.0, 0.0, math.nan])
def test_a_clip_is_positive(clip):
    with pytest.raises(CloisterError, match="Expected clip > 0"):
        clip_l2(clip)
