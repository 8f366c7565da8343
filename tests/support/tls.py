"""Keys and certificates for tests, made on demand: none are committed, so none expire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

if TYPE_CHECKING:
    from pathlib import Path

# Broker-J's PEM key store reads RSA keys only, and those as PKCS #8.
_KEY_TYPE = trustme.KeyType.RSA


@dataclass(frozen=True)
class KeyPair:
    """A certificate chain and its private key, each a PEM file."""

    cert_file: Path
    key_file: Path


@dataclass(frozen=True)
class TlsMaterial:
    """Certificates of a broker and its clients, and ones that they must refuse.

    Args:
        ca_file: the authority of ``server`` and ``client``.
        server: valid for ``localhost`` and ``127.0.0.1``.
        client: of the user ``client``; EXTERNAL reports its common name.
        wrong_name: signed by the same authority, for another host.
        other_ca_file: an authority that signed none of these.
        stranger: a client certificate of that other authority.
    """

    ca_file: Path
    server: KeyPair
    client: KeyPair
    wrong_name: KeyPair
    other_ca_file: Path
    stranger: KeyPair

    @classmethod
    def make(cls, directory: Path) -> Self:
        """Write all files into ``directory``, which is created."""
        directory.mkdir(parents=True)
        ca, other = trustme.CA(), trustme.CA()
        ca_file, other_ca_file = directory / "ca.pem", directory / "other-ca.pem"
        ca.cert_pem.write_to_path(ca_file)
        other.cert_pem.write_to_path(other_ca_file)
        return cls(
            ca_file=ca_file,
            server=_issue(ca, "localhost", "127.0.0.1", into=directory / "server"),
            client=_issue(ca, "client@example.org", into=directory / "client", common_name="client"),
            wrong_name=_issue(ca, "broker.example.org", into=directory / "wrong-name"),
            other_ca_file=other_ca_file,
            stranger=_issue(other, "client@example.org", into=directory / "stranger", common_name="client"),
        )


def _issue(ca: trustme.CA, *names: str, into: Path, common_name: str | None = None) -> KeyPair:
    cert = ca.issue_cert(*names, common_name=common_name, key_type=_KEY_TYPE)
    pair = KeyPair(into.with_suffix(".pem"), into.with_suffix(".key"))
    pair.cert_file.write_bytes(b"".join(blob.bytes() for blob in cert.cert_chain_pems))
    key = load_pem_private_key(cert.private_key_pem.bytes(), password=None)
    pair.key_file.touch(mode=0o600)
    pair.key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pair
