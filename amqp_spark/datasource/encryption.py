"""TLS between the pull endpoint and the executors, with a separate certificate for each query.

Executors know the certificate by its fingerprint, which they receive with the token inside the partitions: a peer that
proves possession of its key is the reader of the query. So no authority, host name or clock is needed, and the bytes
are as safe as the data that Spark itself sends.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import hmac
import importlib.util
import secrets
import ssl
import tempfile
from typing import TYPE_CHECKING, Final

from amqp_spark.error_conditions import SparkCondition
from amqp_spark.errors import TransferError

if TYPE_CHECKING:
    import socket

_VALID: Final = (dt.datetime(2000, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC))
"""Validity period. Executors check the fingerprint and no dates: clocks may differ."""


class ForeignPeer(OSError):
    """The peer's certificate does not have the expected fingerprint."""


def available() -> bool:
    """Whether a certificate can be made here, on the driver. Executors need only Python."""
    return importlib.util.find_spec("cryptography") is not None


def server_context() -> tuple[ssl.SSLContext, bytes]:
    """Create a TLS 1.3 context with a new key, held by this process only; return it and the certificate's
    fingerprint."""
    try:
        certificate, key_and_certificate, password = _new_certificate()
    except ImportError as error:
        raise TransferError(SparkCondition.TRANSFER_CANNOT_ENCRYPT(reason=error)) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no session is resumed
    with tempfile.NamedTemporaryFile(prefix="amqp-spark-") as file:  # ssl takes files only; the key in it is encrypted
        file.write(key_and_certificate)
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return context, hashlib.sha256(certificate).digest()


def connect(connection: socket.socket, fingerprint: bytes) -> ssl.SSLSocket:
    """On an executor: start TLS with the peer that has the key of that certificate; else ForeignPeer, and nothing was
    sent."""
    secured = _client_context().wrap_socket(connection)
    found = secured.getpeercert(binary_form=True) or b""
    if not hmac.compare_digest(hashlib.sha256(found).digest(), fingerprint):
        secured.close()
        raise ForeignPeer("the certificate is not that of the reader of the query")
    return secured


@functools.cache
def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # no authority: the fingerprint is compared, before anything is sent
    return context


def _new_certificate() -> tuple[bytes, bytes, bytes]:
    """A self-signed certificate (DER), the same with its encrypted key (PEM), and the password of that key."""
    from cryptography import x509  # noqa: PLC0415  only the driver needs it, and only when it encrypts
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "amqp_spark pull endpoint")])
    begin, end = _VALID
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
    )
    password = secrets.token_hex(32).encode()
    encrypted_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return certificate.public_bytes(serialization.Encoding.DER), pem + encrypted_key, password
