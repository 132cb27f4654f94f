"""A Debian machine on which nothing was installed: a root directory of its own, with its own processes and mounts, in
this machine's network.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHE = Path("/var/cache/retinue/roots")
"""Where roots are kept as debootstrap makes them."""
RELEASE = "bookworm"
# As a machine is that someone uses: with git, by which a checkout came, and make.
PACKAGES = ("ca-certificates", "git", "make", "python3")
CHECKOUT = Path("/root/retinue")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How this machine reaches the archives of packages, and whom it trusts for that.
_FILES = ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt", "etc/pip.conf")
_VARIABLES = ("PIP_", "NPM_CONFIG_", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")
# What pages install for all sessions: it is taken over from tests that installed it, as from a cache of packages.
_INSTALLED = (Path("/var/cache/retinue/jupyterlab"), Path("/var/cache/retinue/model"))
_SETUP = r"""
base=$2
cd "$1"
mkdir root own own.work installed
# The same file system, so that they share their files: what is written goes into a layer above.
shift 2
for path; do
    mkdir -p "installed${path%/*}"
    cp -al "$path" "installed$path"
done
mount -t overlay overlay -o "lowerdir=installed:$base,upperdir=own,workdir=own.work" root
cd root
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mkdir -p run/lock old
pivot_root . old
umount -l /old
echo ready
exec sleep infinity
"""


@dataclass(slots=True)
class EmptyRoot:
    """The machine: `pid` is that of its first process, as this machine numbers it."""

    directory: Path
    pid: int
    environment: dict[str, str] = field(default_factory=dict)

    def shell(self, commands: str, directory: Path = Path("/root")) -> list[str]:
        """Returns the command that runs commands there as a shell of root would, in a directory there."""
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--", "env", "-i", *environment]
        return [*enter, "bash", "-euo", "pipefail", "-c", f"cd {directory}\n{commands}"]

    def type(self, commands: str, directory: Path = Path("/root")) -> str:
        """Runs commands, and returns what they print; fails unless all succeed."""
        done = subprocess.run(
            self.shell(commands, directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=NEVER * 2,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\nended with {done.returncode}:\n{done.stdout}"
        return done.stdout

    def path(self, path: Path) -> Path:
        """Returns where a file of that machine is on this one."""
        return self.directory / path.relative_to("/")


@contextlib.contextmanager
def empty_root(source: Path) -> Iterator[EmptyRoot]:
    """A machine with a checkout of what is in `source`; it goes with all that runs on it."""
    base = _base()
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=CACHE))
    try:
        directory.chmod(0o755)
        with _running(directory, base) as pid:
            # As its first process sees it.
            root = Path(f"/proc/{pid}/root")
            for name in _FILES:
                if Path("/", name).exists():
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(Path("/", name), root / name)
            _copy_checkout(source, root / CHECKOUT.relative_to("/"))
            kept = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
            terminal = {"HOME": "/root", "PATH": _PATH, "TERM": "xterm", "COLUMNS": "200", "TZ": "UTC"}
            yield EmptyRoot(root, pid, {**kept, **terminal})
    finally:
        shutil.rmtree(directory)


@contextlib.contextmanager
def _running(directory: Path, base: Path) -> Iterator[int]:
    installed = [str(path) for path in _INSTALLED if path.is_dir()]
    command = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--propagation",
        "private",
    ]
    with subprocess.Popen(
        [*command, "bash", "-euc", _SETUP, "setup", str(directory), str(base), *installed],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            (pid,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
            yield int(pid)
        finally:
            # With it goes its first process, and with that every other.
            holder.kill()


def _base() -> Path:
    """Returns a root as debootstrap makes it, which is kept."""
    script = Path("/usr/share/debootstrap/scripts", RELEASE)
    digest = hashlib.sha256(" ".join((RELEASE, *PACKAGES)).encode() + script.read_bytes()).hexdigest()[:12]
    base = CACHE / f"{RELEASE}-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not base.is_dir():
            with tempfile.TemporaryDirectory(dir=CACHE, prefix=".new-") as made:
                fresh = Path(made) / "root"
                include = f"--include={','.join(PACKAGES)}"
                done = subprocess.run(
                    ["debootstrap", "--variant=minbase", include, RELEASE, fresh],  # noqa: S607
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert done.returncode == 0, done.stdout
                for kept in (*fresh.glob("var/cache/apt/archives/*.deb"), *fresh.glob("var/lib/apt/lists/*_*")):
                    kept.unlink()
                fresh.rename(base)
    return base


def _copy_checkout(source: Path, target: Path) -> None:
    """Copies what a clone of the working tree would have."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=source,
        capture_output=True,
        check=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (source / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name, follow_symlinks=False)
