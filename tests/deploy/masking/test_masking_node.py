"""What a node refuses, whatever the server says: every refusal leaves it as it was."""

from __future__ import annotations

import copy

import pytest
import torch

from cloister.deploy.masking import MaskingNode
from cloister.deploy.masking.contents import Keys
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError, Corrupted
from masked_sums import Play, key_of, numbers, play, register_of, session_of


def refuses(node, ask, content, match):
    """The node refuses, says why, and does not change."""
    before = node.to_bytes()
    with pytest.raises(Refused, match=match):
        ask(content)
    assert node.to_bytes() == before


def entry(name, session, **changed):
    """A member's line in a roster, as its owner would sign it for a session."""
    return {"name": name, **MaskingNode(session, name, key_of(name), register_of(9)).keys(), **changed}


@pytest.fixture
def game():
    return play(5)


def rosters(session):
    """Rosters that a lying server could make of a good one, and what is said of them."""
    other = session_of(5, round=4)

    def unsigned(members):
        members[1]["mask_key"] = members[2]["mask_key"]

    def of_another_round(members):
        members[1] = entry("n1", other)

    def of_another_run(members):
        members[1] = entry("n1", session_of(5, run="another"))

    def of_another_offer(members):
        members[1] = entry("n1", session_of(5, about="another model"))

    def of_a_smaller_threshold(members):
        members[1] = entry("n1", session_of(5, threshold=3))

    def signed_by_another(members):
        members[1] = {**members[2], "name": "n1"}

    def twice_the_same_key(members):
        keys = Keys.of(members[2])
        copied = keys.mask_key, keys.share_key, keys.seed_commitment
        members[1] = {"name": "n1", **Keys.signed(session, "n1", key_of("n1"), *copied).content()}

    def small_order(members):
        keys = Keys.of(members[1])
        point = bytes([1]) + bytes(31)
        signed = Keys.signed(session, "n1", key_of("n1"), point, keys.share_key, keys.seed_commitment)
        members[1] = {"name": "n1", **signed.content()}

    def one_key_for_both_uses(members):
        keys = Keys.of(members[1])
        signed = Keys.signed(session, "n1", key_of("n1"), keys.mask_key, keys.mask_key, keys.seed_commitment)
        members[1] = {"name": "n1", **signed.content()}

    def without_this_node(members):
        del members[0]

    def other_keys_of_this_node(members):
        members[0] = entry("n0", session)

    return {
        unsigned: "signed for this step",
        of_another_round: "signed for this step",
        of_another_run: "signed for this step",
        of_another_offer: "signed for this step",
        of_a_smaller_threshold: "signed for this step",
        signed_by_another: "signed for this step",
        twice_the_same_key: "nobody else announces",
        one_key_for_both_uses: "nobody else announces",
        small_order: "small order",
        without_this_node: "own keys",
        other_keys_of_this_node: "own keys",
        lambda members: members.append({**members[1], "name": "stranger"}): "members only",
        lambda members: members.append(members[1]): "each name once",
        lambda members: members.insert(0, members.pop()): "order of the register",
        lambda members: members.__delitem__(slice(3, 5)): "4 members at least",
        lambda members: members[1].pop("signature"): "signature",
        lambda members: members[1].update(mask_key=members[1]["mask_key"].upper()): "hexadecimal",
        lambda members: members[1].update(mask_key="ab"): "32 bytes",
        lambda members: members.__setitem__(1, 5): "list of members",
    }


@pytest.mark.parametrize("at", range(19))
def test_a_roster_that_is_not_signed_by_enough_of_the_register_is_refused(game, at):
    game.until("shares")
    change, match = list(rosters(game.session).items())[at]
    roster = copy.deepcopy(game.told["roster"])
    change(roster["members"])
    node = game.nodes["n0"]
    refuses(node, node.shares, roster, match)
    refuses(node, node.shares, {}, "list of members")


def test_a_roster_is_answered_once(game):
    game.until("masked")
    node, roster = game.nodes["n0"], game.told["roster"]
    assert node.shares(roster) == game.sent["shares"]["n0"]
    refuses(node, node.shares, {"members": roster["members"][:4]}, "answered before")


def test_stages_keep_their_order(game):
    node, vector = game.nodes["n0"], numbers(game.session)["n0"]
    for ask in (lambda content: node.masked(content, vector), node.agree, node.unmask):
        refuses(node, ask, {}, "keep their order")
    game.until("agree")
    refuses(game.nodes["n0"], game.nodes["n0"].unmask, {}, "keep their order")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda box: box["members"].append("n7"), "members only"),
        (lambda box: box.update(members=["n0", "n1", "n2"]), "4 members at least"),
        (lambda box: box["members"].remove("n0"), "this node among"),
        (lambda box: box["boxes"].pop("n2"), "shares of all who dealt"),
        (lambda box: box["commitments"].pop("n2"), "shares of all who dealt"),
        (lambda box: box.update(members=box["members"][::-1]), "order of the register"),
        (lambda box: box.update(members="n0"), "list of names"),
    ],
)
def test_a_mailbox_of_others_or_of_too_few_is_refused(game, change, match):
    game.until("masked")
    node, vector = game.nodes["n0"], numbers(game.session)["n0"]
    mailbox = copy.deepcopy(game.told["mailboxes"]["n0"])
    change(mailbox)
    refuses(node, lambda content: node.masked(content, vector), mailbox, match)


def test_one_vector_is_masked_once(game):
    """Two vectors under the same masks, or one under masks of two groups, would tell a difference."""
    vectors = numbers(game.session)
    game.until("agree", vectors)
    node, mailbox = game.nodes["n0"], game.told["mailboxes"]["n0"]
    _, again = node.masked(mailbox, vectors["n0"])
    assert torch.equal(again["masked"], game.sent["masked"]["n0"][1]["masked"])
    before = node.to_bytes()
    with pytest.raises(CloisterError, match="masked before"):
        node.masked(mailbox, vectors["n0"] + 1)
    fewer = {
        "members": mailbox["members"][:4],
        **{field: {k: v for k, v in mailbox[field].items() if k != "n4"} for field in ("boxes", "commitments")},
    }
    with pytest.raises(Refused, match="answered before"):
        node.masked(fewer, vectors["n0"])
    assert node.to_bytes() == before


@pytest.mark.parametrize(
    "vector", [torch.zeros(50), torch.zeros(49, dtype=torch.int64), torch.zeros(50, 1, dtype=torch.int64)]
)
def test_only_whole_numbers_of_the_right_length_are_masked(game, vector):
    game.until("masked")
    with pytest.raises(CloisterError, match="to mask"):
        game.nodes["n0"].masked(game.told["mailboxes"]["n0"], vector)


@pytest.mark.parametrize(
    ("survivors", "match"),
    [
        (["n0", "n1", "n2"], "4 members at least"),
        (["n0", "n1", "n2", "n4"], "members only"),  # n4 is asked, and did not deal
        (["n0", "n1", "n2", "n3", "n9"], "members only"),
        (["n0", "n0", "n1", "n2", "n3"], "each name once"),
        (["n3", "n2", "n1", "n0"], "order of the register"),
        (["n1", "n2", "n3", "n5"], "this node among"),
        (None, "list of names"),
    ],
)
def test_a_list_of_survivors_that_is_no_large_part_of_the_dealers_is_refused(survivors, match):
    game = play(6, {"shares": ["n4"]}, threshold=4).until("agree")
    node = game.nodes["n0"]
    refuses(node, node.agree, {"survivors": survivors}, match)


def test_less_noise_than_accounted_is_refused_above_the_threshold():
    game = play(6, threshold=4, least_survivors=6).until("agree")
    assert (game.session.threshold, game.session.needed) == (4, 6)
    node = game.nodes["n0"]
    refuses(node, node.agree, {"survivors": ["n0", "n1", "n2", "n3", "n4"]}, "accounted noise of 6")


def test_a_second_list_of_survivors_is_refused_and_never_both_shares_of_a_peer(game):
    game.until("unmask")
    node = game.nodes["n0"]
    assert node.agree(game.told["survivors"]) == game.sent["agree"]["n0"]
    second = {"survivors": ["n0", "n1", "n2", "n3"]}
    refuses(node, node.agree, second, "answered before")
    revealed = node.unmask(game.told["consents"])
    assert set(revealed["seed_shares"]) == set(game.session.asked)
    assert revealed["key_shares"] == {}
    refuses(node, node.agree, second, "answered before")
    again = MaskingNode(game.session, "n0", key_of("n0"), game.register, node.to_bytes())
    refuses(again, again.agree, second, "answered before")
    assert again.unmask(game.told["consents"]) == revealed


def test_shares_of_lost_members_keys_and_of_survivors_seeds():
    game = play(6, {"masked": ["n2", "n5"]}, threshold=4).until("unmask")
    for node in game.nodes.values():
        revealed = node.unmask(game.told["consents"])
        assert list(revealed["key_shares"]) == ["n2", "n5"]
        assert list(revealed["seed_shares"]) == ["n0", "n1", "n3", "n4"]


def test_consents_are_checked(game):
    other = play(5, round=4).until("unmask")
    game.until("unmask")
    node, good = game.nodes["n0"], game.told["consents"]["consents"]
    few = dict(list(good.items())[:3])
    for consents, match in [
        (few, "signed by 4"),
        ({**few, "n3": good["n0"]}, "signature of n3"),
        ({**few, "n3": other.told["consents"]["consents"]["n3"]}, "signature of n3"),
        ({**few, "n3": "00"}, "64 bytes"),
        ({**good, "n9": good["n0"]}, "survivors only"),
        (None, "mapping"),
    ]:
        refuses(node, node.unmask, {"consents": consents}, match)


def test_a_state_belongs_to_one_session_and_one_node(game):
    state = game.until("masked").nodes["n0"].to_bytes()
    for session, name in [(session_of(5, round=4), "n0"), (game.session, "n1")]:
        with pytest.raises(Corrupted, match="that of another"):
            MaskingNode(session, name, key_of(name), game.register, state)
    for broken in (b"", b"[]", b"{}", state[:-5], state.replace(b'"shares"', b'"dreams"', 1)):
        with pytest.raises(Corrupted, match="state of a masked sum"):
            MaskingNode(game.session, "n0", key_of("n0"), game.register, broken)


def test_a_node_needs_its_own_key_and_a_place_in_the_cohort():
    session = session_of(5, asked=("n0", "n1", "n2"))
    with pytest.raises(CloisterError, match="the key of n0"):
        MaskingNode(session, "n0", key_of("n1"), register_of(5))
    with pytest.raises(CloisterError, match="a node that is asked"):
        MaskingNode(session, "n4", key_of("n4"), register_of(5))
    assert Play(session, register_of(5)).finish().survivors == session.asked
