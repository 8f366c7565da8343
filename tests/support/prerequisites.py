"""Programs required before anything can be set up, and the commands that install them.

Standard library only and no import from this project: the Makefile runs this file with the system's Python,
before there is a virtual environment.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

MIN_PYTHON = (3, 11)
MIN_JAVA = 17

# Package manager -> (install command, packages). A JDK, not a JRE: one test peer is run from its Java source.
_INSTALL = {
    "apt-get": (
        "sudo apt-get install -y",
        {"java": "openjdk-17-jdk-headless", "mvn": "maven", "openssl": "openssl", "cc": "gcc python3-dev"},
    ),
    "dnf": (
        "sudo dnf install -y",
        {"java": "java-17-openjdk-devel", "mvn": "maven", "openssl": "openssl", "cc": "gcc python3-devel"},
    ),
    "apk": (
        "sudo apk add",
        {"java": "openjdk17-jdk", "mvn": "maven", "openssl": "openssl", "cc": "build-base python3-dev"},
    ),
    "pacman": ("sudo pacman -S", {"java": "jdk17-openjdk", "mvn": "maven", "openssl": "openssl", "cc": "gcc"}),
    "brew": ("brew install", {"java": "openjdk@17", "mvn": "maven", "openssl": "openssl", "cc": "gcc"}),
}


class PrerequisiteMissing(RuntimeError):
    """A program that the tests or the commands need is missing; the text says how to install it."""


def install_hint(tool: str) -> str:
    """Return the command that installs ``tool`` on this machine, or on common ones if its kind is unknown."""
    known = [
        f"{command} {packages[tool]}" for manager, (command, packages) in _INSTALL.items() if shutil.which(manager)
    ]
    if known:
        return known[0]
    return " or ".join(f"{command} {packages[tool]}" for command, packages in (_INSTALL["apt-get"], _INSTALL["brew"]))


def java_home_program(program: str) -> str | None:
    """Return the path of a JDK program: that of ``JAVA_HOME`` if set, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = shutil.which(program, path=os.path.join(home, "bin"))  # noqa: PTH118 - a search path is text
        if found:
            return found
    return shutil.which(program)


def require_java() -> str:
    """Return the path of a sufficiently new Java.

    Raises:
        PrerequisiteMissing: there is none, or it is too old.
    """
    java = java_home_program("java")
    if java is None:
        raise PrerequisiteMissing(f"java {MIN_JAVA} or newer is missing; install it with: {install_hint('java')}")
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        raise PrerequisiteMissing(f"{java} -version fails; install Java with: {install_hint('java')}")
    major = int(found[2] or 0) if found[1] == "1" else int(found[1])  # "1.8.0" is Java 8
    if major < MIN_JAVA:
        raise PrerequisiteMissing(
            f"{java} is Java {major}, {MIN_JAVA} or newer is needed (JAVA_HOME chooses one); "
            f"install it with: {install_hint('java')}"
        )
    return java


def require_program(name: str) -> str:
    """Return the path of ``mvn`` or ``openssl``.

    Raises:
        PrerequisiteMissing: it is not on the PATH.
    """
    found = shutil.which(name)
    if found is None:
        raise PrerequisiteMissing(f"{name} is missing; install it with: {install_hint(name)}")
    return found


def missing(tools: Collection[str] = ("java", "mvn")) -> list[str]:
    """Return one line for each missing prerequisite: Python, and what is needed of Java and Maven."""
    problems = []
    if sys.version_info < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        problems.append(f"python {wanted} or newer is needed, this is {sys.version.split()[0]} ({sys.executable})")
    for tool in tools:
        try:
            require_java() if tool == "java" else require_program(tool)
        except PrerequisiteMissing as error:
            problems.append(str(error))
    return problems


def main() -> int:
    """Print the missing ones of the programs on the command line (default: all); exit code 1 if there are any."""
    problems = missing(sys.argv[1:] or ("java", "mvn"))
    for problem in problems:
        print(f"prerequisite: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
