"""Certificates for the hosts of one run, made from the run's secret.

Every host derives the same certificate authority from the secret and signs a key of its own with
it. So hosts that know the secret authenticate each other by mutual TLS without exchanging
certificates. A process without the secret cannot sign anything.
"""

import contextlib
import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

from penstock.errors import PenstockError

# Fixed: the authority must be the same on every host, whatever its clock says.
_FROM, _UNTIL = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_PURPOSE = b"penstock certificate authority"


def contexts(secret: str, node: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of this host as a server and as a client.

    Both demand the peer's certificate.
    """
    authority, certificate, key = _make_certificates(secret, node)
    made = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a host is known by its certificate, not by its address
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.decode())
        with _memory_file(certificate + key) as path:
            context.load_cert_chain(path)
        made.append(context)
    return made[0], made[1]


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    """Yield a path to content that never touches a disk: `ssl` reads keys from files only."""
    number = os.memfd_create("certificate")
    try:
        os.write(number, content)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def _make_certificates(secret: str, node: str) -> tuple[bytes, bytes, bytes]:
    """Return the authority's certificate, this host's certificate and this host's key, as PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (
            Ed25519PrivateKey,
            Ed25519PublicKey,
        )
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise PenstockError(
            "cluster.nodes: hosts encrypt what they say to each other, which needs the `hosts` "
            "extra: pip install 'penstock[hosts]' (or `pip install cryptography`)"
        ) from None

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    seed = HKDF(hashes.SHA256(), 32, salt=None, info=_PURPOSE).derive(secret.encode())
    authority_key, issuer = Ed25519PrivateKey.from_private_bytes(seed), named("penstock run")
    key = Ed25519PrivateKey.generate()

    def signed(subject: x509.Name, public: Ed25519PublicKey, serial: int, ca: bool) -> bytes:
        builder = x509.CertificateBuilder(
            issuer,
            subject,
            public,
            serial,
            _FROM,
            _UNTIL,
        ).add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        for extension in (
            x509.SubjectKeyIdentifier.from_public_key(public),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
        ):
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(authority_key, None).public_bytes(serialization.Encoding.PEM)

    return (
        signed(issuer, authority_key.public_key(), 1, True),
        signed(named(node[:64] or "host"), key.public_key(), x509.random_serial_number(), False),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
