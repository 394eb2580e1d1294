"""TLS certificates of a federation of its own: an authority that signs one certificate, the server's.

They let nodes know that they talk to the machine they were told of, and hide traffic from whoever listens. Nothing that
is proven about privacy rests on them: every message is signed besides. A site that has certificates from elsewhere
(its institution's, or a public authority's) uses those.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cloister.errors import CloisterError, expect
from cloister.runs.files import write_atomically

DAYS = 825
"""How long the server's certificate is valid; browsers and systems refuse ones that are valid much longer."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class TlsFolder:
    """Where the files lie. Nodes are given `authority`; the rest stays with the server."""

    path: Path

    @property
    def authority(self) -> Path:
        """The certificate that nodes trust."""
        return self.path / "authority.pem"

    @property
    def authority_key(self) -> Path:
        """What signs further certificates."""
        return self.path / "authority.key"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.path / "server.pem"

    @property
    def key(self) -> Path:
        """The key of the server's certificate."""
        return self.path / "server.key"


def write_tls(path: Path, hosts: Iterable[str], name: str, days: int = DAYS) -> TlsFolder:
    """Make an authority and the server's certificate for these addresses, names or IP numbers, and for loopback.

    A folder that has an authority keeps it: nodes that trust it go on trusting it, and only the server's certificate
    is made anew.
    """
    names = _alternative_names([*hosts, *LOOPBACK])
    path.mkdir(parents=True, exist_ok=True)
    folder = TlsFolder(path)
    if folder.authority.exists():
        authority, authority_key = _read_authority(folder)
    else:
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _authority(authority_key, name)
        _write_key(folder.authority_key, authority_key)
        write_atomically(folder.authority, authority.public_bytes(serialization.Encoding.PEM))
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _server_certificate(key, names, authority, authority_key, days)
    _write_key(folder.key, key)
    write_atomically(folder.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return folder


def host_of(url: str) -> str:
    """The name or the number in an address.

    >>> host_of("https://127.0.0.1:8443"), host_of("https://[::1]:8443/"), host_of("https://server.example")
    ('127.0.0.1', '::1', 'server.example')
    """
    return address_of(url)[0]


def address_of(url: str) -> tuple[str, int]:
    """Host and port of an https address; 443 where it has no port.

    >>> address_of("https://server.example")
    ('server.example', 443)
    """
    remedy = "write it as https://HOST:PORT, such as https://127.0.0.1:8443"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise CloisterError(f"Expected the address of a server, found {url!r}: {remedy}.") from None
    expect(parts.scheme == "https" and bool(host), "the address of a server", url, remedy)
    return str(host), 443 if port is None else port


def _alternative_names(hosts: Iterable[str]) -> x509.SubjectAlternativeName:
    names: dict[str, x509.GeneralName] = {}
    for host in hosts:
        try:
            names[host] = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            fine = host.isascii() and host.replace("-", "").replace(".", "").isalnum()
            expect(fine, "the name or the IP number of a host", host, "write international names in their ASCII form")
            names[host] = x509.DNSName(host)
    return x509.SubjectAlternativeName(names.values())


def _authority(key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    subject = _name(f"Cloister authority of {name}")
    builder = _builder(subject, subject, key.public_key(), 10 * 365)
    usage = _usage(signs_certificates=True)
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _server_certificate(
    key: ec.EllipticCurvePrivateKey,
    names: x509.SubjectAlternativeName,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    days: int,
) -> x509.Certificate:
    builder = _builder(_name("Cloister server"), authority.subject, key.public_key(), days)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    return (
        builder.add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_atomically(path, pem, private=True)


def _read_authority(folder: TlsFolder) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        authority = x509.load_pem_x509_certificate(folder.authority.read_bytes())
        key = serialization.load_pem_private_key(folder.authority_key.read_bytes(), None)
    except (OSError, ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CloisterError(
            f"Expected {folder.authority.name} and its key in {folder.path}, found one that cannot be read: restore "
            "it, or remove the folder and give nodes the new authority.pem."
        )
    return authority, key
