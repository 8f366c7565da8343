"""How a Java source file of the tests is run: its command line, and the variables that tell it where the broker is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.support import jvm
from tests.support.prerequisites import require_java

if TYPE_CHECKING:
    from pathlib import Path


def java_command(source: Path, jars: Path, *arguments: str, heap: str = "256m") -> list[str]:
    """The command that compiles and runs a source file with the jars of a directory.

    Raises:
        PrerequisiteMissing: no Java.
    """
    return [
        require_java(),
        f"-Xmx{heap}",
        *jvm.SHORT_LIVED,
        "-Dfile.encoding=UTF-8",  # of the source file; Java 17 takes the locale's
        "-cp",
        f"{jars}/*",
        str(source),
        *arguments,
    ]


def broker_variables(*, host: str, port: int, vhost: str, username: str, password: str) -> dict[str, str]:
    """The environment of this process with the address and login of a broker."""
    return os.environ | {
        "PEER_HOST": host,
        "PEER_PORT": str(port),
        "PEER_VHOST": vhost,
        "PEER_USERNAME": username,
        "PEER_PASSWORD": password,
    }
