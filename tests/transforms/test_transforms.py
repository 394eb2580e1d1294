"""The bound that a transform claims holds for any input; that is what the noise is scaled to."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cloister.core import Context, Layout, Sensitivity, State, Transform
from cloister.core.state import flatten
from cloister.errors import CloisterError
from cloister.random.streams import Streams
from cloister.transforms import (
    adaptive_clip,
    chain,
    clip_l2,
    identity,
    quantize,
    quantize_to_levels,
    random_mask,
    votes,
)

LAYOUT = Layout(("w",), (torch.Size([5]),))


def here_of(size: int, broadcast: State | None = None, dtype: torch.dtype = torch.float64) -> Context:
    objective = SimpleNamespace(layout=LAYOUT)
    return Context(objective, None, 1.0, torch.zeros(size, dtype=dtype), torch.tensor(0), size, broadcast or {})


HERE = here_of(2)  # a clip looks at the update alone
any_update = arrays(
    np.float64, array_shapes(max_dims=1, max_side=40), elements=st.floats(-1e300, 1e300, allow_nan=False)
)


@settings(max_examples=200)
@given(update=any_update, clip_norm=st.floats(1e-6, 1e6))
def test_clipping_never_exceeds_its_bound(update, clip_norm):
    encoded = clip_l2(clip_norm).encode(torch.from_numpy(update), HERE)
    assert math.sqrt(math.fsum(x * x for x in encoded.tolist())) <= clip_norm * (1 + 1e-15)


@settings(max_examples=200)
@given(
    update=arrays(
        np.float32, array_shapes(max_dims=1, max_side=40), elements=st.floats(-(2.0**127), 2.0**127, width=32)
    ),
    clip_norm=st.floats(1e-3, 1e6),
)
def test_clipping_never_exceeds_its_bound_in_float32(update, clip_norm):
    encoded = clip_l2(clip_norm).encode(torch.from_numpy(update), HERE)
    assert torch.isfinite(encoded).all()
    assert math.sqrt(math.fsum(x * x for x in encoded.tolist())) <= clip_norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_long_updates_in_every_type(dtype):
    update = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    encoded = clip_l2(0.5).encode(update, HERE).double()
    assert 0.45 < encoded.norm() <= 0.5


@given(update=any_update)
def test_a_short_update_passes_unchanged(update):
    small = torch.from_numpy(update / (np.abs(update).max() * len(update) + 1))
    assert torch.equal(clip_l2(2.0).encode(small, HERE), small)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 5, 100, 10_000])
def test_many_small_numbers_are_clipped_by_their_norm(size, dtype):
    """None of them is beyond the clip; all together are."""
    update = torch.full((size,), 0.99, dtype=dtype)
    encoded = clip_l2(1.0).encode(update, HERE)
    assert float(encoded.double().norm()) == pytest.approx(1.0, rel=1e-4)
    assert math.fsum(x * x for x in encoded.tolist()) <= 1 + 1e-15


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
    assert identity().sensitivity(Sensitivity(length=5), LAYOUT).l2 == math.inf
    assert chain(identity(), clip_l2(2.0), identity()).sensitivity(Sensitivity(length=5), LAYOUT).l2 == 2.0
    assert chain(clip_l2(5.0), clip_l2(2.0)).sensitivity(Sensitivity(length=5), LAYOUT).l2 == 2.0


def test_a_chain_encodes_forwards_and_decodes_backwards():
    log: list[str] = []

    def spy(name: str):
        def encode(update, context):
            log.append(f"encode {name}")
            return update

        def decode(total, context, state):
            log.append(f"decode {name}")
            return total, {name: total}

        return Transform(name, {}, encode, lambda sensitivity, layout: sensitivity, decode)

    both = chain(spy("a"), spy("b"))
    assert set(both.decode(both.encode(torch.ones(2), HERE), HERE, {})[1]) == {"0", "1"}
    assert log == ["encode a", "encode b", "decode b", "decode a"]


@pytest.mark.parametrize("clip_norm", [-1.0, 0.0, math.nan])
def test_a_clip_is_positive(clip_norm):
    with pytest.raises(CloisterError, match="Expected clip_norm > 0"):
        clip_l2(clip_norm)


# ---- numbers of any size ----------------------------------------------------------------------------------------

KINDS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def exact_norm(update: torch.Tensor) -> Fraction:
    """In rational numbers, whatever the size: floats of a square would overflow or vanish."""
    square = sum((Fraction(x) ** 2 for x in update.double().tolist()), Fraction(0))
    scale = 2**2400  # so that the root is of a large whole number
    return Fraction(math.isqrt(math.floor(square * scale)), 2**1200)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_finite_update_of_any_size_is_clipped_to_its_bound(dtype, size):
    kind = torch.finfo(dtype)
    shape = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64).clamp(-3, 3)
    for exponent in (-1, -0.9, -0.6, -0.51, -0.4, 0, 0.4, 0.51, 0.6, 0.9, 0.98):
        update = (shape * float(kind.max) ** exponent).clamp(-kind.max, kind.max).to(dtype)
        for clip_norm in (1e-3, 1.0, 100.0):
            encoded = clip_l2(clip_norm).encode(update, HERE)
            norm, found = exact_norm(update), exact_norm(encoded)
            assert found <= clip_norm
            if norm > clip_norm:
                assert found > 0.96 * clip_norm, "clipped, and not thrown away"
            elif norm < 0.96 * clip_norm:
                assert torch.equal(encoded, update)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12),
    clip_norm=st.floats(1e-18, 1e18),
    dtype=st.sampled_from(KINDS),
)
def test_no_number_and_no_clip_is_too_small_or_too_large(numbers, clip_norm, dtype):
    update = torch.tensor(numbers, dtype=torch.float64).to(dtype)
    update = torch.where(update.isfinite(), update, torch.finfo(dtype).max)
    encoded = clip_l2(clip_norm).encode(update, HERE)
    assert torch.isfinite(encoded).all()
    assert exact_norm(encoded) <= Fraction(clip_norm)


def test_a_sum_of_many_squares_that_comes_out_too_small_is_allowed_for():
    """Ten million times 0.1 squared, added up in float64, lacks 4e-11 of it."""
    encoded = clip_l2(1.0).encode(torch.full((10_000_000,), 0.1, dtype=torch.float64), HERE)
    assert float(encoded[0]) ** 2 * 10_000_000 <= 1.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip_norm", [1e-18, 1e-3, 1.0, 1e18])
def test_an_adaptive_clip_takes_updates_of_any_size(dtype, clip_norm):
    transform = adaptive_clip(clip_norm, 0.5, 0.2, 0.1)
    broadcast = {"clip_norm": torch.tensor(clip_norm, dtype=torch.float64)}
    for top in (1e-40, 1.0, 1e30, 3e38):
        update = torch.tensor([top, -top, top / 2], dtype=dtype)
        encoded = transform.encode(update, here_of(3, broadcast, dtype))
        assert torch.isfinite(encoded).all()
        assert exact_norm(encoded[:-1]) <= 1
        assert exact_norm(encoded) <= Fraction(transform.sensitivity(Sensitivity(length=5), LAYOUT).l2)
        if exact_norm(update) > clip_norm:
            assert exact_norm(encoded[:-1]) > 0.99
        assert torch.isfinite(transform.decode(encoded, here_of(3, broadcast, dtype), broadcast)[0]).all()


def test_scaling_by_a_mask_leaves_finite_updates_finite():
    whole = chain(random_mask(0.5), clip_l2(1.0))
    update = torch.full((8,), torch.finfo(torch.float64).max, dtype=torch.float64)
    broadcast = whole.broadcast(Streams(0), 1, here_of(8), {})
    assert exact_norm(whole.encode(update, here_of(8, broadcast))) == pytest.approx(1.0)


def test_what_is_no_number_becomes_a_whole_one_within_the_bound():
    coded = quantize_to_levels(1.0, 17)
    assert torch.equal(coded.encode(torch.full((3,), math.nan), here_of(3)), torch.zeros(3, dtype=torch.int64))


# ---- chains -----------------------------------------------------------------------------------------------------


def test_parts_of_a_chain_know_how_many_numbers_reach_them():
    """Masks before a grid: the grid pads and cuts what is left, and the masks put it back in its place."""
    whole = chain(random_mask(0.4), clip_l2(2.0), quantize(1e6, 3e6, 30))
    context = here_of(37)
    context = here_of(37, whole.broadcast(Streams(0), 1, context, {}))
    update = torch.linspace(-1, 1, 37, dtype=torch.float64)
    message = whole.encode(update, context)
    assert message.shape == (16,) == (whole.sensitivity(Sensitivity(length=37), LAYOUT).length,)
    back, _ = whole.decode(message, context, {})
    assert back.shape == update.shape
    kept = back != 0
    assert kept.sum() == 14
    scaled = (update * 37 / 14)[kept]
    torch.testing.assert_close(back[kept], scaled * 2 / scaled.norm(), rtol=1e-4, atol=1e-4)


def test_two_adaptive_clips_in_a_chain_keep_their_own_state():
    first, second = adaptive_clip(1.0, 0.5, 0.2, 0.1), adaptive_clip(8.0, 0.5, 0.2, 0.1)
    whole = chain(first, second)
    state = whole.init(torch.zeros(4))
    assert sorted(map(float, flatten(state).values())) == [1.0, 8.0]
    broadcast = whole.broadcast(Streams(0), 1, here_of(4), state)
    message = whole.encode(torch.full((4,), 100.0, dtype=torch.float64), here_of(4, broadcast))
    assert message.shape == (6,) == (whole.sensitivity(Sensitivity(length=4), LAYOUT).length,)
    back, changed = whole.decode(message, here_of(4, broadcast), state)
    assert back.shape == (4,)
    assert len(set(map(float, flatten(changed).values()))) == len(flatten(changed)) == 2
    nested = chain(chain(first), second).init(torch.zeros(4))
    assert len(flatten(nested)) == 2


def test_the_bound_of_levels_counts_the_numbers_that_reach_them():
    coded = quantize_to_levels(1.0, 17)
    sensitivity = chain(adaptive_clip(1.0, 0.5, 0.2, 2.0), coded).sensitivity(Sensitivity(length=5), LAYOUT)
    assert (
        sensitivity.l2
        == coded.sensitivity(Sensitivity(math.sqrt(2), 6), LAYOUT).l2
        > coded.sensitivity(Sensitivity(math.sqrt(2), 5), LAYOUT).l2
    )


def test_nothing_follows_votes():
    with pytest.raises(CloisterError, match="votes at the end of a chain"):
        chain(votes(3), clip_l2(1.0)).sensitivity(Sensitivity(length=5), LAYOUT)


def test_a_chain_promises_finite_messages_only_if_every_part_does():
    clip, other = clip_l2(1.0), identity()
    assert clip.stays_finite
    assert not other.stays_finite
    assert chain(clip, clip).stays_finite
    assert not chain(clip, other).stays_finite
    assert not chain(other, clip).stays_finite
