"""A RabbitMQ server to run: an installed one, or one unpacked from Debian's packages into the cache, without root.

``apt-get`` fetches the packages of another suite from the mirror that this machine uses already, with lists and
archives of its own, and ``dpkg-deb`` unpacks them. Programs of another suite need its C library, so a script starts
each of them by the loader that came with it. All paths inside are relative: the directory may be moved.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.debian_packages import mirrors, own_apt, repeated, require_tools, run
from tests.support.maven import FetchFailed, cache_root, cached_directory

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# What the server and its Erlang need; the other dependencies are for a service of the system.
_NEEDED = (
    "rabbitmq-server_",
    "erlang-",
    "libc6_",
    "libcap2_",
    "libgcc-s1_",
    "libgcrypt20_",
    "libgpg-error0_",
    "liblz4-1_",
    "liblzma5_",
    "libncurses6_",
    "libsctp1_",
    "libssl3",
    "libstdc++6_",
    "libsystemd0_",
    "libtinfo6_",
    "libzstd1_",
    "zlib1g_",
)


class RabbitMQMissing(RuntimeError):
    """There is no RabbitMQ, and none can be fetched; the text says what to install."""


@dataclass(frozen=True)
class Release:
    """A version of RabbitMQ that tests use.

    Args:
        version: the beginning of the version number.
        suites: of Debian; the first that has such a version is taken.
    """

    version: str
    suites: tuple[str, ...]

    @property
    def cache_name(self) -> str:
        """The directory in the cache."""
        return f"rabbitmq-{self.version}"

    def matches(self, version: str) -> bool:
        """Whether ``version`` is one of this release."""
        return f"{version}.".startswith(f"{self.version}.")


REFERENCE = Release("4", ("forky", "trixie"))
OLD = Release("3.10", ("bookworm",))


@dataclass(frozen=True)
class Installation:
    """A RabbitMQ server on this machine.

    Args:
        home: the directory with ``sbin`` and ``plugins``.
        programs: directory of its Erlang's programs (``erl``, ``epmd``, ``escript``, ``erl_call``), or None if those on
            the PATH are the ones.
    """

    home: Path
    programs: Path | None = None

    @property
    def version(self) -> str:
        """The version by the name of the server's own package, such as ``4.3.6``."""
        names = [path.name for path in (self.home / "plugins").glob("rabbit-[0-9]*")]
        return names[0].removeprefix("rabbit-").removesuffix(".ez") if names else "unknown"

    @property
    def path(self) -> str:
        """The search path for its programs."""
        inherited = os.environ.get("PATH", os.defpath)
        return f"{self.programs}{os.pathsep}{inherited}" if self.programs else inherited

    def program(self, name: str) -> str | None:
        """Return the path of a program of its Erlang, or None."""
        return shutil.which(name, path=self.path)


def is_fetched(release: Release = REFERENCE) -> bool:
    """Whether ``find`` has nothing to fetch."""
    return _installed(release) is not None or (cache_root() / release.cache_name).is_dir()


def find(release: Release = REFERENCE) -> Installation:
    """Return a server of this release: of ``RABBITMQ_HOME``, the one on the PATH, or one in the cache.

    Raises:
        RabbitMQMissing: there is none, and none can be fetched.
    """
    found = _installed(release)
    if found is not None:
        return found
    try:
        root = cached_directory(release.cache_name, lambda directory: _fetch(release, directory))
    except FetchFailed as error:
        raise RabbitMQMissing(
            f"RabbitMQ {release.version} is missing and cannot be unpacked from Debian's packages ({error}); install "
            "rabbitmq-server, or set RABBITMQ_HOME to the directory that has its sbin"
        ) from error
    return _unpacked(root)


def _installed(release: Release) -> Installation | None:
    """Return the server of ``RABBITMQ_HOME``, of any version, as the reference; else a fitting one on the PATH."""
    named = os.environ.get("RABBITMQ_HOME")
    if named and release is REFERENCE:
        home = Path(named).resolve()
        if not (home / "sbin" / "rabbitmq-server").exists():
            raise RabbitMQMissing(f"RABBITMQ_HOME={named} has no sbin/rabbitmq-server; unset it or correct it")
        return Installation(home)
    on_path = shutil.which("rabbitmq-server")
    # Debian's program on the PATH only works for root and for its own user: it starts the one of this directory.
    homes = [*Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*")] if on_path else []
    if on_path:
        homes.append(Path(on_path).resolve().parents[1])
    for home in homes:
        found = Installation(home)
        if (home / "sbin" / "rabbitmq-server").exists() and release.matches(found.version):
            return found
    return None


# -- Debian's packages -------------------------------------------------------------------------------------


def _unpacked(root: Path) -> Installation:
    homes = [*root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*")]
    if len(homes) != 1:
        raise FetchFailed(f"the packages hold {len(homes)} servers, expected 1")
    return Installation(homes[0], root / "bin")


def _fetch(release: Release, into: Path) -> None:
    """Fetch and unpack the first suite that has the release, trying a few times: mirrors fail now and then."""
    require_tools()
    found = mirrors()

    def each() -> None:
        problem = FetchFailed("apt is configured without a mirror of Debian")
        for suite in release.suites:
            for mirror in found:
                shutil.rmtree(into)
                into.mkdir()
                try:
                    return _fetch_suite(mirror, suite, release, into)
                except FetchFailed as error:
                    problem = error
        raise problem

    repeated(each)


def _fetch_suite(mirror: str, suite: str, release: Release, into: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".apt.", dir=into.parent) as name:
        work = Path(name)
        (work / "status").touch()
        key = f"[signed-by={_KEYRING}] " if _KEYRING.is_file() else ""
        (work / "sources.list").write_text(f"deb {key}{mirror} {suite} main\n", encoding="utf-8")
        apt = (
            *own_apt(work),
            f"-oDir::Etc::sourcelist={work}/sources.list",
            "-oDir::Etc::sourceparts=-",
            "-oDir::Etc::preferences=-",
            "-oDir::Etc::preferencesparts=-",
            f"-oDir::State::status={work}/status",
            "-oAPT::Install-Recommends=0",
            "-oAPT::Update::Error-Mode=any",
        )
        run(*apt, "update")
        run(*apt, "--yes", "--download-only", "install", "rabbitmq-server")
        for package in sorted((work / "archives").glob("*.deb")):
            if package.name.startswith(_NEEDED):
                run("dpkg-deb", "--extract", str(package), str(into))
    found = _unpacked(into).version
    if not release.matches(found):
        raise FetchFailed(f"Debian {suite} has RabbitMQ {found}, expected {release.version}")
    _make_runnable(into)


# -- programs of another suite -----------------------------------------------------------------------------


def _make_runnable(root: Path) -> None:
    """Put a script in the place of each program of Erlang, and those that are called by name into ``bin``."""
    loaders = [*root.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*"), *root.glob("lib/*-linux-gnu*/ld-linux*.so.*")]
    if not loaders:
        raise FetchFailed("the packages hold no loader of their C library")
    libraries = [path for path in (*root.glob("usr/lib/*-linux-gnu*"), *root.glob("lib/*-linux-gnu*")) if path.is_dir()]
    erlang = root / "usr/lib/erlang"
    for program in [path for path in erlang.rglob("*") if _is_program(path)]:
        moved = program.with_name(f"{program.name}.elf")
        program.rename(moved)
        here = os.path.relpath(root, program.parent)
        search = ":".join(f"$here/{path.relative_to(root)}" for path in libraries)
        _write_script(
            program,
            f"here=${{0%/*}}/{here}",
            f'exec "$here/{loaders[0].relative_to(root)}" --argv0 "$0" --library-path "{search}" "$0.elf" "$@"',
        )
    programs = root / "bin"
    programs.mkdir()
    erts = next(erlang.glob("erts-*/bin")).relative_to(root)
    # Absolute, as Erlang changes its working directory.
    settings = (
        'here=$(cd -P "${0%/*}/.." && pwd)',
        'export ROOTDIR="$here/usr/lib/erlang" EMU=beam PROGNAME=erl ESCRIPT_EMULATOR="$here/bin/erl"',
        f'export BINDIR="$here/{erts}"',
    )
    for name, program_name in (("erl", "erlexec"), ("escript", "escript"), ("epmd", "epmd")):
        _write_script(programs / name, *settings, f'exec "$BINDIR/{program_name}" "$@"')
    call = next(erlang.glob("lib/erl_interface-*/bin/erl_call")).relative_to(root)
    _write_script(programs / "erl_call", *settings, f'exec "$here/{call}" "$@"')


def _is_program(path: Path) -> bool:
    if path.suffix == ".so" or path.is_symlink() or not path.is_file() or not os.access(path, os.X_OK):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _write_script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")), encoding="utf-8")
    path.chmod(0o755)
