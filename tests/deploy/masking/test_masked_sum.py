"""The sum is that of the survivors' vectors, to the bit, whoever is lost, whatever the size and the modulus."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.deploy.masking import MaskingServer, MaskSettings, NotOpened, Session, modulus_bits, threshold_for
from cloister.errors import CloisterError
from masked_sums import STAGES, Play, expected_sum, numbers, play, register_of, session_of


@st.composite
def cases(draw):
    """A session, and who is lost at which stage: as many as it can bear, or one more."""
    nodes = draw(st.integers(2, 9))
    wanted = draw(st.integers(0, nodes))
    least = draw(st.integers(2, nodes))
    session = session_of(
        nodes, threshold=wanted, least_survivors=least, bits=draw(st.integers(1, 64)), length=draw(st.integers(1, 70))
    )
    names = draw(st.permutations(session.asked))
    losses = draw(st.lists(st.sampled_from(STAGES), max_size=nodes))
    lost = {stage: [name for name, at in zip(names, losses, strict=False) if at == stage] for stage in STAGES}
    return session, lost


@given(case=cases(), shuffle=st.integers(0, 5), restart=st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_sum_is_that_of_the_survivors_or_stays_closed(case, shuffle, restart):
    session, lost = case
    vectors = numbers(session, shuffle)
    game = Play(session, register_of(9), lost, restart=STAGES if restart else (), shuffle=shuffle)
    left, opens = len(session.asked), True
    for stage in STAGES:
        left -= len(lost[stage])
        opens &= left >= (session.needed if stage in STAGES[:3] else session.threshold)
    if not opens:
        with pytest.raises(NotOpened, match="stays closed"):
            game.finish(vectors)
        return
    total, survivors, accused = game.finish(vectors)
    gone = {name for stage in STAGES[:3] for name in lost[stage]}
    assert survivors == tuple(name for name in session.asked if name not in gone)
    assert total.dtype == torch.int64
    assert total.tolist() == expected_sum([vectors[name] for name in survivors], session.settings.bits)
    assert accused == {}


@pytest.mark.parametrize("bits", [8, 16, 20, 32, 48, 64])
def test_long_vectors(bits):
    length = 131_072 + 7  # more than one chunk of masks, and a piece
    game = play(3, {"masked": ["n1"]}, bits=bits, length=length, threshold=2)
    vectors = numbers(game.session)
    total, survivors, _ = game.finish(vectors)
    assert survivors == ("n0", "n2")
    mine = vectors["n0"] + vectors["n2"]
    if bits < 64:
        mine = torch.remainder(mine + 2 ** (bits - 1), 2**bits) - 2 ** (bits - 1)
    assert torch.equal(total, mine)
    (_, tensors) = game.sent["masked"]["n0"]
    assert tensors["masked"].nbytes == length * -(-bits // 8)


@pytest.mark.parametrize(("nodes", "largest"), [(2, 0), (3, 1), (5, 127), (7, 2**31), (2, 2**61)])
def test_sums_that_must_not_wrap_do_not(nodes, largest):
    bits = modulus_bits(largest, nodes)
    for sign in (1, -1):
        game = play(nodes, bits=bits, length=2)
        vectors = dict.fromkeys(game.session.asked, torch.tensor([sign * largest, 0]))
        assert game.finish(vectors).total.tolist() == [sign * largest * nodes, 0]


def test_a_sum_that_no_modulus_holds_is_refused():
    with pytest.raises(CloisterError, match="at most 64 bits"):
        modulus_bits(2**62, 3)


def test_of_a_sum_only_the_residue_is_learned():
    """Numbers of 5 bits travel in bytes; were they not cut, sums modulo 256 would tell how often they wrapped."""
    game = play(3, bits=5, length=4000)
    game.finish()
    for _, tensors in game.sent["masked"].values():
        assert int(tensors["masked"].max()) == 31


def test_a_sampled_cohort_is_a_group_of_its_own():
    session = session_of(9, asked=("n1", "n4", "n5", "n8"))
    vectors = numbers(session)
    total, survivors, _ = Play(session, register_of(9), {"masked": ["n5"]}).finish(vectors)
    assert survivors == ("n1", "n4", "n8")
    assert total.tolist() == expected_sum([vectors[name] for name in survivors], 16)


def test_the_threshold_is_one_rule():
    assert all(3 * threshold_for(n, 2) > 2 * n for n in range(2, 101))
    assert all(2 * threshold_for(n, 2, wanted=1) > n for n in range(2, 101))
    assert threshold_for(10, 9) == 7  # the noise of 9 is a limit of its own
    assert session_of(10 - 1, least_survivors=9).needed == 9
    for wrong in [(1, 2), (3, 4), (3, 1), (4, 2, 5), (101, 2), (4, 2, 3, 4)]:
        with pytest.raises(CloisterError, match="Expected"):
            threshold_for(*wrong)


def test_a_session_is_told_apart_by_everything_it_is_about():
    changed = [
        {"run": "another"},
        {"round": 4},
        {"step": "validation"},
        {"about": "another offer"},
        {"asked": ("n0", "n1", "n2", "n3")},
        {"length": 51},
        {"bits": 17},
        {"threshold": 5},
        {"least_survivors": 3},
    ]
    digests = {session_of(5, **one).digest for one in [{}, *changed]}
    assert len(digests) == len(changed) + 1


@pytest.mark.parametrize("asked", [("n0", "n0"), ("n1", "n0"), ("n0", "stranger"), ("n0",)])
def test_a_session_among_others_than_the_register_has_is_refused(asked):
    with pytest.raises(CloisterError, match="Expected"):
        Play(Session("run", 1, "update", asked, MaskSettings(5, 16), "offer"), register_of(3))


@pytest.mark.parametrize("given", [{"least_survivors": 4}, {"threshold": 4}, {"asked": ("n1",)}])
def test_a_drawn_cohort_that_is_too_small_opens_nothing(given):
    session = session_of(5, **{"asked": ("n0", "n2", "n3"), **given})
    with pytest.raises(NotOpened, match=r"ask more nodes|needs two"):
        MaskingServer(session, register_of(5))


@pytest.mark.slow
def test_a_hundred_nodes():
    lost = {"shares": ["n3", "n50"], "masked": [f"n{n}" for n in range(60, 75)], "agree": ["n5"], "unmask": ["n7"]}
    game = play(100, lost, length=1000)
    vectors = numbers(game.session)
    total, survivors, _ = game.finish(vectors)
    assert len(survivors) == 83
    assert total.tolist() == expected_sum([vectors[name] for name in survivors], 16)
