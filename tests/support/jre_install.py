"""A Java for ``make`` where the machine has none: unpacked from its own packages into the cache, without root.

The Makefile exports the JAVA_HOME that is made here. The libraries that the package of Java needs at run time are those
of apt itself, so they are there. Standard library only: ``make`` runs it before there is a virtual environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import struct
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.debian_packages import own_apt, repeated, require_tools, run
from tests.support.maven import FetchFailed, cache_root, cached_directory
from tests.support.prerequisites import java_home_program

if TYPE_CHECKING:
    from collections.abc import Sequence

_CACHE_NAME: Final = "jre"
_VERSIONS: Final = (17, 21)
"""The first that the machine's release has is taken: Spark runs on both."""
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def java_home() -> Path:
    """The JAVA_HOME of the Java in the cache, which may not be there yet; the Makefile has the same path."""
    return cache_root() / _CACHE_NAME / "home"


def fetch() -> Path:
    """Return the JAVA_HOME of the Java in the cache, unpacked on first use.

    Raises:
        FetchFailed: it cannot be fetched, or does not run.
    """
    cached_directory(_CACHE_NAME, _fill)
    return java_home()


def _fill(into: Path) -> None:
    require_tools()
    repeated(lambda: _download(into))
    (package,) = into.glob("*.deb")
    run("dpkg-deb", "--extract", str(package), str(into))
    package.unlink()
    homes = [path for path in into.glob("usr/lib/jvm/*") if (path / "bin/java").is_file() and not path.is_symlink()]
    if len(homes) != 1:
        raise FetchFailed(f"{package.name} holds {len(homes)} Javas, expected 1")
    (into / "home").symlink_to(homes[0].relative_to(into))
    make_relative(into)
    store = homes[0] / "lib/security/cacerts"  # a link to what the installation of another package makes
    store.unlink(missing_ok=True)
    if _CERTIFICATES.is_file():
        texts = _PEM.findall(_CERTIFICATES.read_text(encoding="ascii", errors="replace"))
        store.write_bytes(trust_store([ssl.PEM_cert_to_DER_cert(text) for text in texts]))
    run(str(homes[0] / "bin/java"), "-version")


def _download(into: Path) -> None:
    """Download the package of the first version that this machine's sources have."""
    with tempfile.TemporaryDirectory(prefix=".apt.", dir=into.parent) as name:
        apt = own_apt(Path(name))
        run(*apt, "update")
        problem: FetchFailed | None = None
        for version in _VERSIONS:
            try:
                run(*apt, "download", f"openjdk-{version}-jre-headless", cwd=into)
            except FetchFailed as error:
                problem = problem or error
            else:
                return
        if problem is not None:
            raise problem


def make_relative(root: Path) -> None:
    """Let links of an unpacked package that start at ``/`` lead to its own files."""
    for path in root.rglob("*"):
        if path.is_symlink() and path.readlink().is_absolute():
            target = root / path.readlink().relative_to("/")
            if target.exists():
                path.unlink()
                path.symlink_to(os.path.relpath(target, path.parent))


def trust_store(certificates: Sequence[bytes]) -> bytes:
    """The certificates (DER) as a key store of Java (JKS) with its customary password."""
    parts = [struct.pack(">III", 0xFEEDFEED, 2, len(certificates))]
    for number, certificate in enumerate(certificates):
        alias = b"%d" % number
        parts += (struct.pack(">IH", 2, len(alias)), alias, struct.pack(">QH", 0, 5), b"X.509")
        parts += (struct.pack(">I", len(certificate)), certificate)
    content = b"".join(parts)
    return content + hashlib.sha1("changeit".encode("utf-16-be") + b"Mighty Aphrodite" + content).digest()


def main() -> int:
    """Unpack a Java if there is none; return 0 also where that is not possible: the next check says what to install."""
    if java_home_program("java") is not None or shutil.which("apt-get") is None:
        return 0
    print(f"setup: unpacking Java into {cache_root()}", flush=True)
    try:
        fetch()
    except FetchFailed as error:
        print(f"setup: it cannot be unpacked from the packages of this machine: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
