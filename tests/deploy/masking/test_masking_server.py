"""What the server refuses, whom it names, and how it goes on after it was killed."""

from __future__ import annotations

import copy

import pytest
import torch

from cloister.deploy.masking import MaskingServer, NotOpened
from cloister.deploy.masking import node as node_module
from cloister.deploy.masking.contents import Keys
from cloister.deploy.wire.refused import Refused
from masked_sums import Play, expected_sum, key_of, numbers, play, register_of, session_of


def opened_well(game, vectors):
    total, survivors, accused = game.finish(vectors)
    assert total.tolist() == expected_sum([vectors[name] for name in survivors], game.session.settings.bits)
    return survivors, accused


def test_messages_come_once_from_members_and_in_time():
    game = play(4, {"shares": ["n3"]})
    server, keys = game.server, {name: node.keys() for name, node in game.nodes.items()}
    with pytest.raises(Refused, match="still in the sum"):
        server.take_keys("stranger", keys["n0"])
    with pytest.raises(Refused, match="signed for this step"):
        server.take_keys("n1", keys["n0"])
    server.take_keys("n0", keys["n0"])
    server.take_keys("n0", dict(keys["n0"]))
    with pytest.raises(Refused, match="one answer of n0"):
        server.take_keys("n0", keys["n1"])
    with pytest.raises(NotOpened, match="found 1 of 4") as missing:
        server.roster()
    assert missing.value.names == server.waiting_for() == ("n1", "n2", "n3")
    with pytest.raises(Refused, match="not open"):
        server.take_shares("n0", {})
    vectors = numbers(game.session)
    assert opened_well(game, vectors) == (("n0", "n1", "n2"), {})
    server.take_keys("n0", keys["n0"])
    with pytest.raises(Refused, match="not open"):
        server.take_shares("n3", game.sent["shares"]["n0"])
    with pytest.raises(Refused, match="keep the order"):
        server.finish()


@pytest.mark.parametrize("bits", [13, 16])
def test_masked_vectors_are_checked_and_added_once(bits):
    game = play(4, bits=bits).until("masked")
    vectors = numbers(game.session)
    (_, tensors) = game.nodes["n0"].masked(game.told["mailboxes"]["n0"], vectors["n0"])
    good, large = tensors["masked"], tensors["masked"].clone()
    large[1] = 255
    for wrong in [good[:-1], good.to(torch.int64), good.reshape(2, -1), *([large] if bits == 13 else [])]:
        with pytest.raises(Refused, match="masked"):
            game.server.take_masked("n0", {}, {"masked": wrong})
    with pytest.raises(Refused, match="masked vector"):
        game.server.take_masked("n0", {}, {})
    for _ in range(2):
        game.server.take_masked("n0", {}, tensors)
    with pytest.raises(Refused, match="one answer"):
        game.server.take_masked("n0", {}, {"masked": good.roll(1)})
    game.masked(vectors)
    game.agree()
    game.unmask()
    assert game.server.finish().total.tolist() == expected_sum(list(vectors.values()), bits)


@pytest.mark.parametrize(
    "change",
    [
        lambda dealt: dealt["boxes"].pop("n1"),
        lambda dealt: dealt["boxes"].update(n9=dealt["boxes"]["n1"]),
        lambda dealt: dealt["boxes"].update(n1=dealt["boxes"]["n1"][:-2]),
        lambda dealt: dealt["boxes"].update(n1=7),
        lambda dealt: dealt["commitments"].pop("n0"),
        lambda dealt: dealt["commitments"].update(n1=["one"]),
        lambda dealt: dealt.pop("boxes"),
    ],
)
def test_shares_that_are_not_for_the_roster_are_refused(change):
    game = play(4).until("shares")
    dealt = copy.deepcopy(game.nodes["n0"].shares(game.told["roster"]))
    change(dealt)
    with pytest.raises(Refused):
        game.server.take_shares("n0", dealt)
    assert game.server.waiting_for() == ("n0", "n1", "n2", "n3")


def test_a_consent_that_its_node_did_not_sign_is_refused_and_the_others_go_on():
    game = play(4, {"agree": ["n1"]}).until("agree")
    foreign = game.nodes["n0"].agree(game.told["survivors"])
    for wrong in (foreign, {"signature": "00" * 64}, {"signature": "00"}, {}):
        with pytest.raises(Refused):
            game.server.take_consent("n1", wrong)
    game.agree()
    assert set(game.told["consents"]["consents"]) == {"n0", "n2", "n3"}
    game.unmask()
    assert game.server.finish().survivors == game.session.asked


@pytest.mark.parametrize("lie", ["00" * 66, "zz", "ff" * 66, 5, None])
@pytest.mark.parametrize("kind", ["seed_shares", "key_shares"])
def test_whoever_reveals_a_wrong_share_is_named_and_the_sum_opens_without_it(kind, lie):
    def change(stage, name, answer):
        if stage == "unmask" and name == "n1":
            owner = next(iter(answer[kind]))
            answer = {**answer, kind: {**answer[kind], owner: lie}}
        return answer

    game = play(6, {"masked": ["n4"]}, threshold=4, change=change)
    survivors, accused = opened_well(game, numbers(game.session))
    assert "n4" not in survivors
    assert list(accused) == ["n1"]
    assert "n1 revealed a share of" in accused["n1"]


def test_a_share_of_another_owner_or_session_is_wrong():
    other = play(6, threshold=4, round=4)
    other.finish()

    def change(stage, name, answer):
        if stage == "unmask" and name in ("n1", "n2"):
            seeds = answer["seed_shares"]
            lie = seeds["n3"] if name == "n1" else other.sent["unmask"]["n2"]["seed_shares"]["n0"]
            answer = {**answer, "seed_shares": {**seeds, "n0": lie}}
        return answer

    game = play(6, threshold=4, change=change)
    _, accused = opened_well(game, numbers(game.session))
    assert set(accused) == {"n1", "n2"}


def test_too_many_wrong_shares_keep_the_sum_closed():
    def change(stage, name, answer):
        return {**answer, "seed_shares": {}} if stage == "unmask" and name in ("n1", "n2") else answer

    game = play(5, change=change).until("unmask")
    game.unmask()
    assert not game.server.enough()
    with pytest.raises(NotOpened, match="4 members to reveal"):
        game.server.finish()


@pytest.mark.parametrize(("kind", "lost"), [("seed", []), ("key", ["n0"])])
def test_whoever_deals_shares_of_something_else_is_named(monkeypatch, kind, lost):
    """A dealer that commits to the wrong shares it deals cannot put it on those who reveal them."""
    game = play(5, {"masked": lost}).until("shares")
    split = node_module.shamir.split
    private = game.nodes["n0"]._state
    secret = private.seed if kind == "seed" else private.mask_private

    def wrong(value, threshold, points):
        return split(bytes(32) if value.hex() == secret else value, threshold, points)

    monkeypatch.setattr(node_module.shamir, "split", wrong)
    game.shares()
    game.masked(numbers(game.session))
    game.agree()
    game.unmask()
    with pytest.raises(NotOpened, match="of what they signed from n0") as refused:
        game.server.finish()
    assert refused.value.names == ("n0",)
    assert game.server.accused == {}


@pytest.mark.parametrize("field", ["boxes", "commitments"])
def test_a_box_that_cannot_be_opened_is_told_and_costs_one_share(field):
    def change(stage, name, answer):
        if stage == "shares" and name == "n1":
            answer = copy.deepcopy(answer)
            answer[field]["n2"] = answer[field]["n3"]
        return answer

    game = play(5, change=change)
    survivors, accused = opened_well(game, numbers(game.session))
    assert survivors == game.session.asked
    assert "one of the two is at fault" in accused["n1"]
    assert "n1" not in game.sent["unmask"]["n2"]["seed_shares"]


def replayed(game, upto):
    """A server made anew from what it had received and sent, as after a kill."""
    server = MaskingServer(game.session, game.register)
    steps = [
        ("keys", server.take_keys, server.roster, "roster"),
        ("shares", server.take_shares, server.mailboxes, "mailboxes"),
        ("masked", lambda name, answer: server.take_masked(name, *answer), server.survivors, "survivors"),
        ("agree", server.take_consent, server.consents, "consents"),
        ("unmask", server.take_unmask, server.finish, "sum"),
    ]
    for stage, take, close, told in steps[:upto]:
        for name, answer in reversed(game.sent[stage].items()):
            take(name, answer)
        result = close()
        if told != "sum":
            assert result == game.told[told]
    return server, result


def test_a_server_that_was_killed_goes_on_from_stored_messages():
    game = play(5, {"shares": ["n4"]})
    vectors = numbers(game.session)
    first = game.finish(vectors)
    server, second = replayed(game, 5)
    assert torch.equal(first.total, second.total)
    assert first.survivors == second.survivors
    for upto in range(1, 5):
        server, _ = replayed(game, upto)
        assert server.stage == upto


def test_keys_of_two_members_that_are_the_same_are_refused():
    game = play(3)
    first = game.nodes["n0"].keys()
    game.server.take_keys("n0", first)
    keys = Keys.of(first)
    copied = Keys.signed(game.session, "n1", key_of("n1"), keys.mask_key, keys.share_key, keys.seed_commitment)
    with pytest.raises(Refused, match="nobody else announces"):
        game.server.take_keys("n1", copied.content())
    assert game.server.waiting_for() == ("n1", "n2")


def test_two_lists_of_survivors_open_nothing():
    """With 7 of 9 needed, a server can show a list without n8 to some, and one without n7 to the others."""
    session = session_of(9)
    names = list(session.asked)
    without = {one: [name for name in names if name != one] for one in ("n7", "n8")}
    game = Play(session, register_of(9)).until("agree")
    views = {name: "n8" if number % 2 or name == "n7" else "n7" for number, name in enumerate(names)}
    signed = {name: node.agree({"survivors": without[views[name]]}) for name, node in game.nodes.items()}
    for name, node in game.nodes.items():
        same = {one: signed[one]["signature"] for one in names if views[one] == views[name]}
        everybody = {one: signed[one]["signature"] for one in without[views[name]]}
        assert len(same) < session.threshold <= len(everybody)
        for consents in (same, everybody):
            with pytest.raises(Refused, match=r"signed by 7|under this list"):
                node.unmask({"consents": consents})


def test_two_rosters_open_nothing():
    """Members that saw different keys do not sign the same text, even for the same list of survivors."""
    game = play(4).until("shares")
    spare = MaskingServer(game.session, game.register)
    for name in ("n0", "n1", "n2"):
        spare.take_keys(name, game.sent["keys"][name])
    small = spare.roster()
    dealt = {name: game.nodes[name].shares(small if name == "n0" else game.told["roster"]) for name in game.nodes}
    members, vectors = ["n0", "n1", "n2"], numbers(game.session)
    for name in members:
        others = [one for one in members if one != name]
        parts = {field: {one: dealt[one][field][name] for one in others} for field in ("boxes", "commitments")}
        game.nodes[name].masked({"members": members, **parts}, vectors[name])
    signed = {name: game.nodes[name].agree({"survivors": members})["signature"] for name in members}
    for name in members:
        with pytest.raises(Refused, match="under this list"):
            game.nodes[name].unmask({"consents": signed})


def test_nodes_that_were_told_different_models_do_not_meet():
    session, other = session_of(4), session_of(4, about="another model")
    game, apart = Play(session, register_of(4)), Play(other, register_of(4))
    with pytest.raises(Refused, match="told something else"):
        game.server.take_keys("n1", apart.nodes["n1"].keys())
