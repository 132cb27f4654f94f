"""The Linux of virtual machines: that of Debian's package, with the modules they need and our first process.

Nothing is installed: `retinue-agent build linux` fetches it, once, which agents with QEMU do by themselves.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.kernel.build import ATTACH, CACHE, GUEST, REACH, SRUN, BuildError, build, store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGE = "linux-image-amd64"
LINUX, MODULES = "linux", "modules"
WANTED = (
    "virtio_pci",
    "virtio_console",
    "virtio_rng",
    "virtio_net",
    "virtio_blk",
    "squashfs",
    "9pnet_virtio",
    "9p",
    "overlay",
)
"""Modules; those they depend on come by themselves."""
FETCH_TIMEOUT = 600.0
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")
_RELEASE = re.compile(r"[0-9]+\.[0-9A-Za-z.+~-]+")
_END = "TRAILER!!!"
_NUMBERS = re.compile(r"\d+")


class NoLinuxError(Exception):
    """There is no Linux for virtual machines; the text says why."""


@dataclass(frozen=True, slots=True)
class GuestLinux:
    """The files that a machine boots from."""

    release: str
    linux: Path
    initramfs: Path


def find(cache: Path = CACHE) -> GuestLinux:
    """Returns the newest that was fetched, with its first files, which are built if need be. Blocks.
    Raises NoLinuxError.
    """
    found = sorted(_fetched(cache), key=lambda path: [int(number) for number in _NUMBERS.findall(path.name)])
    if not found:
        raise NoLinuxError("there is no Linux for virtual machines: `retinue-agent build linux` fetches Debian's")
    directory = found[-1]
    try:
        return GuestLinux(directory.name.removeprefix("linux-"), directory / LINUX, _initramfs(directory, cache))
    except (BuildError, OSError) as error:
        raise NoLinuxError(f"what virtual machines begin with cannot be made: {error}") from error


def find_fetched(cache: Path = CACHE) -> Path | None:
    """Returns the directory of one that was fetched; None when there is none."""
    return next(_fetched(cache), None)


def fetch(cache: Path = CACHE) -> Path:
    """Fetches Debian's package and keeps what machines need of it, unless it is there; returns the directory.
    Blocks. Raises NoLinuxError.
    """
    try:
        return _fetch(cache / "vm")
    except OSError:
        # Lists of packages may be missing, or older than the archive.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            _run("apt-get", "update", "-qq", cwd=Path("/"))
    except (ValueError, lzma.LZMAError, subprocess.SubprocessError) as error:
        raise NoLinuxError(f"Debian's {PACKAGE} cannot be fetched: {error}") from error
    try:
        return _fetch(cache / "vm")
    except (OSError, ValueError, lzma.LZMAError, subprocess.SubprocessError) as error:
        raise NoLinuxError(f"Debian's {PACKAGE} cannot be fetched: {error}") from error


def _fetch(cache: Path) -> Path:
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    package = _newest_package()
    directory = cache / f"linux-{package.removeprefix('linux-image-')}"
    if directory.is_dir():
        return directory
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as name:
        fresh = Path(name)
        fresh.chmod(0o755)
        _run("apt-get", "download", "-qq", package, cwd=fresh)
        (archive_file,) = fresh.glob("*.deb")
        _run("dpkg-deb", "-x", str(archive_file), "unpacked", cwd=fresh)
        kept = fresh / "kept"
        _keep(fresh / "unpacked", kept)
        kept.rename(directory)
    return directory


def _fetched(cache: Path) -> Iterator[Path]:
    for directory in (cache / "vm").glob("linux-*"):
        if (directory / LINUX).is_file() and (directory / MODULES).is_dir():
            yield directory


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=False)  # noqa: S603
    if done.returncode != 0:
        raise OSError(done.stderr.strip() or f"{command[0]} ended with {done.returncode}")
    return done.stdout


def _newest_package() -> str:
    """Returns the package that Debian's name for its current Linux stands for."""
    for line in _run("apt-cache", "depends", PACKAGE, cwd=Path("/")).splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind == "Depends" and _RELEASE.match(name.removeprefix("linux-image-")):
            return name
    raise OSError(f"apt knows no {PACKAGE}: run `apt-get update`")


def _keep(unpacked: Path, kept: Path) -> None:
    (image,) = (unpacked / "boot").glob("vmlinuz-*")
    files = {_module(path): path for path in (unpacked / "lib/modules").rglob("*.ko*")}
    (kept / MODULES).mkdir(parents=True)
    order = list[str]()
    for name in WANTED:
        _add(name, files, kept / MODULES, order)
    (kept / MODULES / "order").write_text("".join(f"{name}.ko\n" for name in order))
    content = image.read_bytes()
    (kept / LINUX).write_bytes(_unpacked(content) or content)
    for path in kept.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    kept.chmod(0o755)
    for path in (*kept.rglob("*"), kept):
        _sync(path)


def _module(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def _add(name: str, files: dict[str, Path], directory: Path, order: list[str]) -> None:
    # What this Linux has built in is no module.
    if name in order or name not in files:
        return
    content = files[name].read_bytes()
    if files[name].suffix == ".xz":
        content = lzma.decompress(content)
    found = _DEPENDS.search(content)
    for needed in found[1].decode().split(",") if found else []:
        _add(needed.replace("-", "_"), files, directory, order)
    (directory / f"{name}.ko").write_bytes(content)
    order.append(name)


def _unpacked(image: bytes) -> bytes | None:
    """Returns what a compressed Linux unpacks to: to do so costs a machine without KVM seconds.
    None for what is not packed with xz.
    """
    setup = (image[0x1F1] or 4) + 1
    offset = setup * 512 + int.from_bytes(image[0x248:0x24C], "little")
    payload = image[offset : offset + int.from_bytes(image[0x24C:0x250], "little")]
    if not payload.startswith(b"\xfd7zXZ"):
        return None
    return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)


def _initramfs(directory: Path, cache: Path) -> Path:
    modules = directory / MODULES
    entries = [Entry(name, 0o755) for name in ("dev", "proc", "sys", "modules", "share")]
    for program, name in ((GUEST, "init"), (ATTACH, "attach"), (REACH, "reach"), (SRUN, "srun")):
        entries.append(Entry(name, 0o755, build(cache, program).read_bytes()))
    entries += [Entry(f"modules/{path.name}", 0o644, path.read_bytes()) for path in sorted(modules.iterdir())]
    return store("initramfs", archive(entries), cache)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an archive: a directory, without content, or a plain file."""

    name: str
    mode: int
    content: bytes | None = None


def archive(entries: Iterable[Entry]) -> bytes:
    """Returns an archive of the kind that Linux unpacks at its start (cpio, `newc`);
    a directory comes before what is in it.
    """
    parts = [_entry(number, entry) for number, entry in enumerate(entries, 1)]
    return b"".join([*parts, _entry(0, Entry(_END, 0, b""))])


def _entry(number: int, entry: Entry) -> bytes:
    content = entry.content or b""
    kind = 0 if entry.name == _END else stat.S_IFDIR if entry.content is None else stat.S_IFREG
    name = entry.name.encode() + b"\0"
    values = (number, kind | entry.mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08x" % value for value in values)
    return _padded(header + name) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def why_not(cache: Path = CACHE) -> str:
    """Returns why no virtual machine can run on this node, in words; empty when they can, as far as files say.
    Blocks.
    """
    if shutil.which("qemu-system-x86_64") is None:
        return "QEMU is missing: install the package qemu-system-x86"
    try:
        find(cache)
    except NoLinuxError as error:
        return str(error)
    return ""
