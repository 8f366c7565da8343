"""How a Java source file of the tests is run: its command line, and the variables that tell it where the broker is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import jvm
from tests.support.prerequisites import require_java

if TYPE_CHECKING:
    from collections.abc import Sequence


def java_command(
    source: Path,
    jars: Path | Sequence[Path],
    *arguments: str,
    heap: str = "256m",
    options: Sequence[str] = jvm.SHORT_LIVED,
) -> list[str]:
    """The command that compiles and runs a source file.

    Args:
        source: the file.
        jars: a directory of jars, or several; of a class that several have, the first one's counts.
        arguments: of the program.
        heap: of the virtual machine, as for ``-Xmx``.
        options: further ones of the virtual machine.

    Raises:
        PrerequisiteMissing: no Java.
    """
    return [
        require_java(),
        f"-Xmx{heap}",
        *options,
        "-Dfile.encoding=UTF-8",  # of the source file; Java 17 takes the locale's
        "-cp",
        os.pathsep.join(f"{directory}/*" for directory in ([jars] if isinstance(jars, Path) else jars)),
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
