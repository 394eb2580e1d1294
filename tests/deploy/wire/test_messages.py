"""A message comes out as it was signed, or not at all."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from cloister.deploy.wire.bodies import DTYPES, Body, pack, unpack
from cloister.deploy.wire.canonical import digest_of
from cloister.deploy.wire.identity import PrivateKey, Register
from cloister.deploy.wire.messages import FORMAT, Kind, Message, open_message, seal
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError

SERVER, A, B, STRANGER = (PrivateKey.from_seed(bytes([i]) * 32) for i in range(4))
REGISTER = Register(SERVER.public, {"a": A.public, "b": B.public})
TENSORS = {"update": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7)}
MESSAGE = Message(Kind.REPLY, "run", 3, "a", "server", "ab" * 32, {"x": [1, 2.5, "é"]}, TENSORS)


def test_a_message_comes_out_as_it_was_signed():
    data = seal(MESSAGE, A)
    opened = open_message(data, REGISTER)
    assert replace(opened.message, tensors={}) == replace(MESSAGE, tensors={})
    assert opened.data == data
    for name, tensor in TENSORS.items():
        assert torch.equal(opened.message.tensors[name], tensor)
        assert opened.message.tensors[name].dtype == tensor.dtype
    assert seal(replace(MESSAGE, tensors={}), A, Body.of(TENSORS)) == data
    assert seal(MESSAGE, A) == data  # the same message is the same bytes: a digest can stand for it


def test_the_digest_is_that_of_the_header_and_changes_with_everything():
    digests = {
        open_message(seal(message, key), REGISTER).digest
        for message, key in [
            (MESSAGE, A),
            (replace(MESSAGE, round=4), A),
            (replace(MESSAGE, run="other"), A),
            (replace(MESSAGE, answers=""), A),
            (replace(MESSAGE, content={}), A),
            (replace(MESSAGE, sender="b"), B),
            (replace(MESSAGE, recipient="b"), A),
            (replace(MESSAGE, kind=Kind.ABSENT), A),
            (replace(MESSAGE, tensors={"update": TENSORS["update"] + 1}), A),
        ]
    }
    assert len(digests) == 9


@pytest.mark.parametrize("at", ["every", "random"])
def test_a_changed_byte_is_refused_wherever_it_is(at):
    data = seal(MESSAGE, A)
    rng = random.Random(0)
    for place in range(len(data)):
        bit = 1 if at == "every" else 1 << rng.randrange(8)
        changed = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
        with pytest.raises(Refused, match="Expected"):
            open_message(changed, REGISTER)


def test_a_part_of_a_message_is_refused():
    data = seal(MESSAGE, A)
    for end in range(len(data)):
        with pytest.raises(Refused, match="Expected"):
            open_message(data[:end], REGISTER)
    with pytest.raises(Refused, match="body of"):
        open_message(data + b"x", REGISTER)


def test_strangers_and_members_who_sign_for_others_are_refused():
    with pytest.raises(Refused, match="not in the register"):
        open_message(seal(replace(MESSAGE, sender="mallory"), STRANGER), REGISTER)
    for key in (STRANGER, B, SERVER):
        with pytest.raises(Refused, match="signature of a"):
            open_message(seal(MESSAGE, key), REGISTER)
    data = seal(replace(MESSAGE, sender="a"), B)  # b names itself outside, and a inside of what it signs
    at = len(FORMAT) + 1
    with pytest.raises(Refused, match="header from b"):
        open_message(data[:at] + b"b" + data[at + 1 :], REGISTER)
    with pytest.raises(Refused, match="recipient"):
        open_message(seal(replace(MESSAGE, recipient="mallory"), A), REGISTER)


def test_limits_and_versions():
    data = seal(MESSAGE, A)
    assert open_message(data, REGISTER, most_bytes=len(data)).data == data
    with pytest.raises(Refused, match="at most 10 bytes"):
        open_message(data, REGISTER, most_bytes=10)
    with pytest.raises(Refused, match="version 1"):
        open_message(data.replace(b"message 1", b"message 2", 1), REGISTER)
    with pytest.raises(CloisterError, match="as tensors"):
        seal(replace(MESSAGE, content={"x": "x" * 2**23}), A)
    with pytest.raises(Refused, match="number of a round"):
        open_message(seal(replace(MESSAGE, round=-1), A), REGISTER)


def test_bodies_hold_floats_and_integers_of_every_size_and_nothing_else():
    whole = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    tensors = {
        "rows": whole[:2],
        "turned": whole.T,
        "same": whole,
        "empty": torch.zeros(0),
        "bits": torch.tensor([True]),
    }
    tensors |= {str(t): torch.arange(3).to(t) for t in (torch.int8, torch.uint32, torch.uint64, torch.bfloat16)}
    again = unpack(pack(tensors))
    assert {name: tensor.shape for name, tensor in again.items()} == {n: t.shape for n, t in tensors.items()}
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert unpack(pack({})) == {}
    with pytest.raises(CloisterError, match="floats or integers"):
        pack({"c": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(Refused, match="floats or integers"):
        unpack(safetensors.torch.save({"c": torch.zeros(2, dtype=torch.float8_e5m2)}))
    for body in [b"x", b"\xff" * 100, b"\x80\x04K\x01."]:
        with pytest.raises(Refused, match="safetensors"):
            unpack(body)


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str))
def test_every_type_and_shape_is_what_the_library_reads_and_writes(dtype):
    tensors = {"b": torch.arange(6).reshape(2, 3).to(dtype), "é": torch.tensor(1).to(dtype)}
    tensors["a"] = torch.zeros(0, 2).to(dtype)
    again = safetensors.torch.load(pack(tensors))
    for name, tensor in unpack(safetensors.torch.save(tensors)).items():
        assert again[name].dtype == tensor.dtype == dtype
        assert again[name].shape == tensor.shape == tensors[name].shape
        assert again[name].tolist() == tensor.tolist() == tensors[name].tolist()


def test_a_body_made_before_is_not_changed_by_its_tensors():
    tensors = {"w": torch.zeros(4)}
    body = Body.of(tensors)
    tensors["w"] += 1
    assert torch.equal(open_message(seal(MESSAGE, A, body), REGISTER).message.tensors["w"], torch.zeros(4))


def test_a_digest_is_sha256():
    assert digest_of(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
