"""Keys: who may read them, what they look like, whose they are."""

from __future__ import annotations

import os

import pytest

from cloister.deploy.wire.identity import PrivateKey, PublicKey, Register
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError


def test_a_saved_key_signs_as_before(tmp_path):
    key = PrivateKey.generate()
    key.save(tmp_path / "key")
    again = PrivateKey.load(tmp_path / "key")
    assert again.public == key.public
    assert key.public.verify(b"data", again.sign(b"data"))
    assert not key.public.verify(b"date", again.sign(b"data"))
    assert not key.public.verify(b"data", b"short")
    assert not PrivateKey.generate().public.verify(b"data", again.sign(b"data"))


def test_a_key_is_never_overwritten_and_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "key"
    PrivateKey.generate().save(path)
    before = path.read_bytes()
    with pytest.raises(CloisterError, match="Expected no file"):
        PrivateKey.generate().save(path)
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o600
    os.chmod(path, 0o640)
    with pytest.raises(CloisterError, match="chmod 600"):
        PrivateKey.load(path)


def test_what_is_no_key_is_refused(tmp_path):
    (tmp_path / "key").write_text("nothing")
    os.chmod(tmp_path / "key", 0o600)
    with pytest.raises(CloisterError, match="ed25519 key"):
        PrivateKey.load(tmp_path / "key")
    with pytest.raises(CloisterError, match="keys new"):
        PrivateKey.load(tmp_path / "none")


def test_a_public_key_has_one_text():
    key = PrivateKey.from_seed(bytes(32)).public
    assert PublicKey.from_text(key.text) == key
    assert key.text == "ed25519:O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik"
    assert len(key.fingerprint) == 19
    for other in [
        "",
        key.text + "=",
        key.text[8:],
        key.text[:-1],
        key.text[:-1] + "l",
        key.text + "AAAA",
        "rsa:" + key.text,
    ]:
        with pytest.raises(CloisterError, match="public key"):
            PublicKey.from_text(other)


def test_the_register_numbers_nodes_by_position():
    keys = [PrivateKey.generate().public for _ in range(3)]
    register = Register(keys[0], {"zurich": keys[1], "aarau": keys[2]})
    assert register.names == ("zurich", "aarau")
    assert [register.number_of(name) for name in register.names] == [0, 1]
    assert register.key_of("server") == keys[0]
    assert register.key_of("aarau") == keys[2]
    with pytest.raises(Refused, match="not in the register"):
        register.key_of("basel")
    with pytest.raises(CloisterError, match="client number"):
        register.number_of("server")


def test_the_register_refuses_names_and_keys_that_are_not_one_members_own():
    a, b, c = (PrivateKey.generate().public for _ in range(3))
    for nodes in [
        {"server": b},
        {"Server": b},
        {"a": b, "A": c},
        {"a": b, "b": b},
        {"a": a},
        {"": b},
        {"a/b": b},
        {"é": b},
    ]:
        with pytest.raises(CloisterError, match="Expected"):
            Register(a, nodes)
