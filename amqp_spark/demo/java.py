"""Spark needs Java: found before Spark is started, which says less clearly what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from amqp_spark.error_conditions import SparkCondition

MIN_JAVA: Final = 17
_INSTALL: Final = {
    "apt-get": "sudo apt-get install -y openjdk-17-jre-headless",
    "dnf": "sudo dnf install -y java-17-openjdk-headless",
    "apk": "sudo apk add openjdk17-jre-headless",
    "pacman": "sudo pacman -S jre17-openjdk-headless",
    "brew": "brew install openjdk@17",
}


class JavaMissing(Exception):
    """Spark cannot be started here."""


def require_java() -> int:
    """Check the Java that Spark takes: that of ``JAVA_HOME`` if it is set, else the one on the PATH.

    Returns:
        Its version, such as 17.

    Raises:
        JavaMissing: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        raise _missing(f"JAVA_HOME={home} has no bin/java" if home else "neither JAVA_HOME nor the PATH has one")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)  # noqa: S603 - what Spark runs, too
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        raise _missing(f"'{java} -version' fails")
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])  # "1.8.0" is Java 8
    if major < MIN_JAVA:
        raise _missing(f"{java} is Java {major}")
    return major


def _missing(found: str) -> JavaMissing:
    known = [command for manager, command in _INSTALL.items() if shutil.which(manager)]
    commands = known[:1] or [_INSTALL["apt-get"], _INSTALL["brew"]]
    command = " or ".join(f"'{command}'" for command in commands)
    return JavaMissing(SparkCondition.JAVA_MISSING(needed=MIN_JAVA, found=found, command=command))
