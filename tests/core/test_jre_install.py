"""The Java that make unpacks where there is none."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme

from tests.support import debian_packages, jre_install
from tests.support.prerequisites import java_home_program, missing

MAKEFILE = Path(__file__).resolve().parents[2] / "Makefile"
DEBIAN = """\
set -e
for last; do :; done  # dpkg-deb --extract PACKAGE INTO
home=$last/usr/lib/jvm/java-17-openjdk-amd64
mkdir -p "$home/bin" "$home/lib/security" "$home/conf" "$last/etc/java-17-openjdk"
printf '#!/bin/sh\\ntest -f "${0%%/*}/../conf/net.properties"\\n' > "$home/bin/java"
chmod +x "$home/bin/java"
touch "$last/etc/java-17-openjdk/net.properties"
ln -s /etc/java-17-openjdk/net.properties "$home/conf/net.properties"
ln -s /etc/ssl/certs/java/cacerts "$home/lib/security/cacerts"
"""


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a PATH with this directory only, which has what shell scripts need, and no Java."""
    directory = tmp_path / "programs"
    directory.mkdir()
    for name in ("chmod", "ln", "mkdir", "touch"):
        (directory / name).symlink_to(shutil.which(name, path=os.defpath) or name)
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(debian_packages, "_PAUSE_S", 0.0)
    return directory


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def test_the_first_version_that_the_machine_has_is_unpacked_once(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    write_program(
        programs / "apt-get",
        f"""for last; do :; done
echo "$last" >> {asked}
case $last in
*-17-*) echo 'E: Unable to locate package'; exit 100 ;;
*-21-*) touch openjdk-21-jre-headless_21_amd64.deb ;;
esac""",
    )
    write_program(programs / "dpkg-deb", DEBIAN)
    ca = trustme.CA()
    bundle = tmp_path / "ca-certificates.crt"
    bundle.write_bytes(b"# a comment\n" + ca.cert_pem.bytes())
    monkeypatch.setattr(jre_install, "_CERTIFICATES", bundle)
    assert jre_install.main() == 0
    home = tmp_path / "cache" / "amqp_spark" / "jre" / "home"
    assert jre_install.java_home() == home
    assert asked.read_text(encoding="utf-8").split() == [
        "update",
        "openjdk-17-jre-headless",
        "openjdk-21-jre-headless",
    ]
    assert not (home / "conf" / "net.properties").readlink().is_absolute()
    certificate = ssl.PEM_cert_to_DER_cert(ca.cert_pem.bytes().decode())
    assert certificate in (home / "lib" / "security" / "cacerts").read_bytes()

    monkeypatch.setenv("JAVA_HOME", str(home))
    assert jre_install.main() == 0
    assert len(asked.read_text(encoding="utf-8").split()) == 3


def test_what_cannot_be_unpacked_is_reported_and_left_to_the_next_check(
    programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jre_install.main() == 0  # no apt
    assert capsys.readouterr() == ("", "")
    write_program(programs / "apt-get", "echo 'E: Unable to fetch it'; exit 100")
    write_program(programs / "dpkg-deb", "exit 1")
    assert jre_install.main() == 0
    assert "from the packages of this machine: apt-get: E: Unable to fetch it" in capsys.readouterr().err
    assert not (tmp_path / "cache" / "amqp_spark" / "jre").exists()
    assert missing(["java"]) == [
        "java 17 or newer is missing; install it with: sudo apt-get install -y openjdk-17-jdk-headless"
    ]


def test_java_reads_the_trust_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the Java of this machine
    cas = [trustme.CA(organization_name=name) for name in ("One", "Two")]
    ders = [ssl.PEM_cert_to_DER_cert(ca.cert_pem.bytes().decode()) for ca in cas]
    (tmp_path / "cacerts").write_bytes(jre_install.trust_store(ders))
    keytool = java_home_program("keytool")
    assert keytool is not None
    listed = subprocess.run(
        [keytool, "-list", "-v", "-keystore", tmp_path / "cacerts", "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall(r"Owner:.* O=(\w+)", listed.stdout) == ["One", "Two"]


def test_make_exports_it_only_where_there_is_no_java(programs: Path, tmp_path: Path) -> None:
    for name in ("bash", "make"):
        (programs / name).symlink_to(shutil.which(name, path=os.defpath) or name)

    def java_home(**environment: str) -> str:
        command = [
            "make",
            "--no-print-directory",
            "-f",
            str(MAKEFILE),
            "--eval",
            "show: ; @echo home=$${JAVA_HOME-}",
            "show",
        ]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    of_cache = f"home={jre_install.java_home()}"
    assert java_home() == of_cache
    assert java_home(JAVA_HOME=str(tmp_path)) == of_cache
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin" / "java", "")
    assert java_home(JAVA_HOME=str(tmp_path)) == f"home={tmp_path}"
    write_program(programs / "java", "")
    assert java_home() == "home="
