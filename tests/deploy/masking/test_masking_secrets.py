"""Masks and shares: against other implementations, never used twice, and telling nothing."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import random

import numpy as np
import pytest
import torch
from scipy import stats

from cloister.deploy.masking import NOT_CHECKED, agreement, masks, shamir, trust_in, whom_to_trust
from cloister.deploy.masking.agreement import KeyPair, new_secret
from cloister.deploy.masking.contents import survivors_text
from cloister.deploy.wire.refused import Refused
from masked_sums import numbers, play, session_of

PRIME = 2**521 - 1


def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not():
    secret = bytes(range(32))
    points = [1, 2, 5, 9, 100]
    for threshold in range(1, 6):
        shares = shamir.split(secret, threshold, points)
        for size in range(1, 6):
            for some in itertools.combinations(points, size):
                found = shamir.combine({point: shares[point] for point in some})
                assert (found == secret) == (size >= threshold)


def test_shares_lie_on_a_polynomial_of_the_os_randomness(monkeypatch):
    drawn = iter([b"\xff" * 66, (7).to_bytes(66), b"\xff" + (2**520 + 3).to_bytes(66)[1:]])
    monkeypatch.setattr("os.urandom", lambda size: next(drawn))
    shares = shamir.split((5).to_bytes(32), 3, [1, 4, 6])  # the first draw is none of the field's, and drawn again
    third = (2**520 + 3 | 0xFF << 520) & PRIME
    for point, share in shares.items():
        assert int.from_bytes(share) == (5 + 7 * point + third * point**2) % PRIME
    assert list(drawn) == []


def test_shares_of_one_secret_differ_every_time_and_fill_the_field():
    several = [int.from_bytes(shamir.split(bytes(32), 2, [1, 2])[1]) for _ in range(64)]
    assert len(set(several)) == 64
    assert max(several) > PRIME // 2  # 1 of 2^64 runs fails here
    assert not shamir.is_share(PRIME.to_bytes(66))
    assert not shamir.is_share(bytes(65))


def test_a_mask_is_the_key_stream_of_chacha20():
    """RFC 8439, appendix A.1, test vectors 1 and 2: key and nonce of zeros, blocks 0 and 1."""
    stream = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    for bits, width in [(5, 1), (16, 2), (24, 4), (64, 8)]:
        total = masks.zeros(128 // width, bits)
        masks.add_mask(total, bytes(32))
        assert total.tobytes() == stream
        masks.add_mask(total, bytes(32), subtract=True)
        assert not total.any()


def test_a_long_mask_has_no_part_twice():
    total = masks.zeros(2**17, 64)
    masks.add_mask(total, bytes(32))
    assert len(np.unique(total)) == len(total)


def test_keys_are_hkdf_of_the_agreed_secret():
    session, one, other = session_of(3), KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32)
    key = agreement.pair_mask_key(session, one, "n0", "n1", other.public)
    assert key == agreement.pair_mask_key(session, other, "n1", "n0", one.public)
    use = ["mask", "n0", "n1", one.public.hex(), other.public.hex()]
    parts = [text.encode() for text in ("cloister masking 1", session.digest, "run", "3", "update", *use)]
    about = b"".join(len(part).to_bytes(4) + part for part in parts)
    extracted = hmac.digest(bytes.fromhex(session.digest), one.exchange(other.public), hashlib.sha256)
    assert key == hmac.digest(extracted, about + b"\x01", hashlib.sha256)


@pytest.mark.parametrize("change", [{"round": 4}, {"run": "another"}, {"step": "mean"}, {"about": "another"}])
def test_the_same_secrets_would_give_other_masks_in_another_session(change):
    """Were a key used twice by mistake, masks would differ all the same."""
    session, other = session_of(3), session_of(3, **change)
    pair, peer, seed = KeyPair(bytes([1]) * 32), KeyPair(bytes([2]) * 32), bytes([3]) * 32
    keys = [
        key
        for one in (session, other)
        for key in (
            agreement.own_mask_key(one, "n0", seed),
            agreement.own_mask_key(one, "n1", seed),
            agreement.pair_mask_key(one, pair, "n0", "n1", peer.public),
            agreement.pair_mask_key(one, pair, "n0", "n2", peer.public),
            bytes.fromhex(agreement.commitment(one, ["seed", "n0"], seed)),
        )
    ]
    assert len(set(keys)) == len(keys)


def test_no_mask_is_used_in_two_rounds_and_nothing_is_seeded():
    """The difference of what a node sends in two rounds would be that of its vectors, under masks used twice."""
    sent, secrets = [], []
    for number in (1, 1, 2):  # the same session twice too: whatever happens, keys are new
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        game = play(3, round=number, length=2000)
        vectors = numbers(game.session)
        game.until("agree", vectors)
        sent.append(masks.unpacked(game.sent["masked"]["n0"][1]["masked"], 2000, 16))
        secrets += [value for node in game.nodes.values() for value in (node._state.seed, node._state.mask_private)]
    assert len(set(secrets)) == len(secrets)
    for one, other in itertools.combinations(sent, 2):
        assert np.mean(one == other) < 0.01


def test_a_masked_vector_looks_like_noise_without_any_one_of_its_masks():
    """Every mask alone hides the vector: taking all others away leaves numbers that fit the uniform law."""
    game = play(4, length=40_000, bits=4, threshold=3)
    vectors = dict.fromkeys(game.session.asked, torch.zeros(40_000, dtype=torch.int64))
    game.until("agree", vectors)
    session, node = game.session, game.nodes["n1"]
    state, roster = node._state, node._members
    keys = [agreement.own_mask_key(session, "n1", bytes.fromhex(state.seed))] + [
        agreement.pair_mask_key(session, node._mask_pair, "n1", peer, roster[peer].mask_key)
        for peer in ("n0", "n2", "n3")
    ]
    signs = (False, True, False, False)  # n1 comes after n0, and before the others
    assert len(set(keys)) == 4
    for spared in (*range(4), None):
        total = masks.unpacked(game.sent["masked"]["n1"][1]["masked"], 40_000, 4)
        for at, (key, negative) in enumerate(zip(keys, signs, strict=True)):
            if at != spared:
                masks.add_mask(total, key, subtract=not negative)
        counts = np.bincount(total & 15, minlength=16)
        if spared is None:
            assert counts[0] == 40_000
        else:
            assert stats.chisquare(counts).pvalue > 1e-9


def test_a_signature_under_survivors_fits_one_session_roster_and_list():
    session, names = session_of(3), ["n0", "n1", "n2"]
    texts = [
        survivors_text(session, "roster", names, names),
        survivors_text(session_of(3, round=4), "roster", names, names),
        survivors_text(session, "another", names, names),
        survivors_text(session, "roster", names, names[:2]),
        survivors_text(session, "roster", names[:2], names),
    ]
    assert len(set(texts)) == len(texts)


def test_a_box_opens_for_its_recipient_in_its_session_only():
    session, other = session_of(3), session_of(3, round=4)
    sender, recipient = KeyPair(new_secret()), KeyPair(new_secret())
    box = agreement.sealed(session, sender, "n0", "n1", recipient.public, b"data")
    assert agreement.opened(session, recipient, "n0", "n1", sender.public, box) == b"data"
    assert box != agreement.sealed(session, sender, "n0", "n1", recipient.public, b"data")
    wrong = [
        (other, recipient, "n0", "n1", sender.public, box),
        (session, recipient, "n2", "n1", sender.public, box),
        (session, recipient, "n0", "n2", sender.public, box),
        (session, KeyPair(new_secret()), "n0", "n1", sender.public, box),
        (session, recipient, "n0", "n1", KeyPair(new_secret()).public, box),
        (session, sender, "n1", "n0", recipient.public, box),  # back to where it came from
        (session, recipient, "n0", "n1", sender.public, box[:-1] + bytes([box[-1] ^ 1])),
        (session, recipient, "n0", "n1", sender.public, b""),
    ]
    for arguments in wrong:
        with pytest.raises(Refused, match="sealed for"):
            agreement.opened(*arguments)


def test_nothing_that_leaves_a_node_holds_a_secret_of_its_own():
    game = play(4, {"masked": ["n3"]}).until("unmask")
    game.unmask()
    for name, node in game.nodes.items():
        state = node._state
        left = json.dumps([game.sent[stage][name] for stage in ("keys", "shares", "agree", "unmask")])
        for secret in (state.seed, state.mask_private, state.share_private):
            assert secret not in left
        others = [share for owner, share in state.key_shares.items() if owner != "n3"]
        assert len(others) == 3
        assert not any(share in left for share in [*others, state.seed_shares["n3"]])


def test_certificates_say_whom_to_trust():
    lying = whom_to_trust(4, 3)[0]
    assert lying.startswith("a sum opens with 3 of 4 nodes")
    assert "even from a server that lies, as long as at most 1 of the nodes tells it" in lying
    assert whom_to_trust(4, 3, wanted=2)[0] == lying  # more than half of 4 is 3
    follows = whom_to_trust(20, 11, wanted=11)[0]
    assert "from a server that follows the protocol, as long as at most 9 of the nodes tell it" in follows
    assert "threshold of 14" in follows
    assert "fewer than 16 messages" in whom_to_trust(20, 16)[1]
    assert trust_in(session_of(4, least_survivors=3)) == whom_to_trust(4, 3)
    assert "norm" in NOT_CHECKED[0]
