"""TLS of the server role."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqp_core.broker.error_conditions import BrokerCondition
from amqp_core.broker.errors import UnusableFile

if TYPE_CHECKING:
    from collections.abc import Mapping


def server_context(cert: str | Path, key: str | Path, ca: str | Path | None = None) -> ssl.SSLContext:
    """The context of a server.

    Args:
        cert, key: PEM files: its certificate with the chain, and the key, without a passphrase.
        ca: PEM file of the authorities of client certificates: clients are asked for one then, and need not have it.

    Raises:
        UnusableFile: a file cannot be read or used.
    """
    files = [str(each) for each in (cert, key, ca) if each is not None]
    for file in files:  # the errors of ssl do not name it
        try:
            Path(file).read_bytes()
        except (OSError, ValueError) as error:  # a path that cannot be encoded is a ValueError
            raise _unusable(file, error) from error
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=None if ca is None else str(ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # a key with a passphrase is an error, not a prompt on the terminal of the process
        context.load_cert_chain(str(cert), str(key), password="")
    except OSError as error:  # ssl.SSLError is one
        raise _unusable(", ".join(files), error) from error
    if ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _unusable(files: str, error: Exception) -> UnusableFile:
    reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
    return UnusableFile(BrokerCondition.CERTIFICATES_UNUSABLE(files=files, reason=reason))


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """The common name of the subject of a verified certificate (``SSLSocket.getpeercert``), if it has exactly one."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for name, value in part if name == "commonName"]
    return str(names[0]) if len(names) == 1 and names[0] else None
