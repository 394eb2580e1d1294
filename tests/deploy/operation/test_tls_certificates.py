"""Certificates of an authority of one's own: who trusts them, and for which address."""

from __future__ import annotations

import socket
import ssl
import stat
import threading

import pytest

from cloister.deploy.operation.tls_certificates import TlsFolder, address_of, write_tls
from cloister.errors import CloisterError


def shake_hands(folder: TlsFolder, trusted, name: str) -> None:
    """A client that trusts a certificate calls the server by a name; raises what the client would see."""
    ours, theirs = socket.socketpair()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder.certificate, folder.key)

    def serve() -> None:
        try:
            with server.wrap_socket(theirs, server_side=True) as secured:
                secured.recv(1)
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client = ssl.create_default_context(cafile=str(trusted))
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by itself
    try:
        with client.wrap_socket(ours, server_hostname=name) as secured:
            secured.send(b"x")
    finally:
        ours.close()
        thread.join(10)


@pytest.mark.parametrize("name", ["10.1.2.3", "server.example", "localhost", "127.0.0.1"])
def test_a_node_that_was_given_the_authority_trusts_the_server_by_its_addresses(tmp_path, name):
    folder = write_tls(tmp_path / "tls", ["10.1.2.3", "server.example"], "four hospitals")
    shake_hands(folder, folder.authority, name)


def test_another_address_or_another_authority_is_refused(tmp_path):
    folder = write_tls(tmp_path / "tls", ["10.1.2.3"], "four hospitals")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(folder, folder.authority, "10.1.2.4")
    other = write_tls(tmp_path / "other", ["10.1.2.3"], "four hospitals")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(folder, other.authority, "10.1.2.3")


def test_keys_are_for_their_owner_alone_and_a_renewal_keeps_the_authority(tmp_path):
    folder = write_tls(tmp_path / "tls", ["10.1.2.3"], "four hospitals")
    for key in (folder.key, folder.authority_key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    trusted, before = folder.authority.read_bytes(), folder.certificate.read_bytes()
    write_tls(tmp_path / "tls", ["10.9.9.9"], "four hospitals")
    assert folder.authority.read_bytes() == trusted
    assert folder.certificate.read_bytes() != before
    shake_hands(folder, folder.authority, "10.9.9.9")
    folder.authority_key.write_bytes(b"nothing")
    with pytest.raises(CloisterError, match="cannot be read"):
        write_tls(tmp_path / "tls", ["10.9.9.9"], "four hospitals")


@pytest.mark.parametrize("url", ["http://a:1", "a:1", "https://", "https://a:99999", "https://[::1", ""])
def test_addresses_that_are_none_are_refused(url):
    with pytest.raises(CloisterError, match=r"Expected the address of a server"):
        address_of(url)


def test_a_host_that_is_none_is_refused(tmp_path):
    with pytest.raises(CloisterError, match="IP number of a host"):
        write_tls(tmp_path / "tls", ["not a host"], "x")
    assert not (tmp_path / "tls").exists()
