# SPDX-License-Identifier: Apache-2.0
"""Debian's cloud kernels: which the host's own mirror serves, the newest of each series, and their images.

What it is not: it installs nothing, and the host's own package lists and sources stay as they are (a private apt).
Source: apt.conf(5), apt-cache(8); Debian's package names: linux-image-VER-cloud-amd64, from 6.19 on
linux-binary-VER-cloud-amd64 (image and modules were split). Old versions vanish from the mirror, so none is pinned.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Debian", "Kernel", "MirrorError"]

SUITES = ("bullseye-security", "bookworm-security", "trixie-security", "trixie-backports")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
IMAGE = re.compile(r"\./(boot/vmlinuz-\S+|usr/lib/modules/\S+/vmlinuz)")
CLOUD = re.compile(r"linux-(image|binary)-\d+\.\d+\.\S*-cloud-amd64")
NEW_NAME_SINCE = (6, 19)


class MirrorError(Exception):
    """The mirror did not answer as a Debian mirror does; says what was asked."""


@dataclass(frozen=True)
class Kernel:
    """The newest kernel of a series: its package and the image in it."""

    series: str
    package: str
    image: Path


def _run(command: list[str], environment: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)
    if done.returncode:
        raise MirrorError(f"{' '.join(command)} failed with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _mirrors() -> tuple[str, str]:
    """The host's own mirrors: of Debian, and of its security updates."""
    archives = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).split()
    main = [uri.rstrip("/") for uri in archives if uri.rstrip("/").endswith("/debian")]
    security = [uri.rstrip("/") for uri in archives if uri.rstrip("/").endswith("/debian-security")]
    if not main:
        raise MirrorError("apt's sources name no Debian mirror (an address that ends in /debian): add one")
    return main[0], security[0] if security else main[0] + "-security"


class Debian:
    """A private apt in ``folder``, where the images stay between runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._images = folder / "images"
        for name in ("lists/partial", "cache/archives/partial", "empty"):
            (folder / "apt" / name).mkdir(parents=True, exist_ok=True)
        self._images.mkdir(parents=True, exist_ok=True)
        self._environment = {**os.environ, "APT_CONFIG": str(folder / "apt" / "apt.conf"), "LC_ALL": "C"}

    def update(self) -> None:
        """Asks the mirror what it serves."""
        main, security = _mirrors()
        apt = self._folder / "apt"
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        lines = [f"deb {signed}{security if suite.endswith('security') else main} {suite} main" for suite in SUITES]
        (apt / "sources.list").write_text("\n".join(lines) + "\n")
        options = {
            "Dir::Etc::sourcelist": apt / "sources.list",
            "Dir::Etc::sourceparts": apt / "empty",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": apt / "empty",
            "Dir::State::lists": apt / "lists",
            "Dir::Cache": apt / "cache",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "root",
        }
        (apt / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in options.items()))
        _run(["apt-get", "-qq", "update"], self._environment)

    def series(self) -> list[str]:
        """Every series that is served, oldest first."""
        found = {self._version(name)[:2] for name in self._names("linux-image-") + self._names("linux-binary-")}
        return [f"{major}.{minor}" for major, minor in sorted(found)]

    def _names(self, prefix: str) -> list[str]:
        names = _run(["apt-cache", "pkgnames", prefix], self._environment).split()
        return [name for name in names if CLOUD.fullmatch(name)]

    @staticmethod
    def _version(name: str) -> tuple[int, ...]:
        version = name.split("-", 2)[2].removesuffix("-cloud-amd64")
        return tuple(int(number) for number in re.findall(r"\d+", version))

    def newest(self, series: str) -> Kernel | None:
        """The newest kernel of a series ("6.12"), fetched unless its image is here; None when it is not served."""
        prefix = "linux-binary-" if tuple(map(int, series.split("."))) >= NEW_NAME_SINCE else "linux-image-"
        names = self._names(f"{prefix}{series}.")
        if not names:
            return None
        package = max(names, key=self._version)
        image = self._images / package
        if not image.exists():
            self._fetch(package, image)
        for other in self._images.glob(f"{prefix}{series}.*"):
            if other != image:
                other.unlink()
        return Kernel(series, package, image)

    def _fetch(self, package: str, image: Path) -> None:
        scratch = self._folder / "fetch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        _run(["apt-get", "-qq", "download", package], self._environment, scratch)
        (archive,) = scratch.glob("*.deb")
        process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE)
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as files:
                for member in files:
                    if member.isfile() and IMAGE.fullmatch(member.name):
                        data = files.extractfile(member)
                        assert data is not None, member.name
                        partial = image.with_name(image.name + ".partial")
                        with partial.open("wb") as out:
                            shutil.copyfileobj(data, out)
                        partial.rename(image)
                        return
            raise MirrorError(f"{package} holds no kernel image (vmlinuz)")
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
            shutil.rmtree(scratch, ignore_errors=True)
