"""Builds what ssh inside kernels is made of, once: static programs from Debian's sources,
so that they run in any image.

The server is Dropbear, because it serves an unprivileged user without any capability; the client and the file transfer
are OpenSSH's, because people and programs count on its options. Neither knows a key type but Ed25519 by OpenSSH's own
code, and so neither needs a library. Sources are found and verified by apt, with a list of its own:
the machine's is not touched.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.agent.kernel.build import CACHE, SHIPPED, BuildError
from retinue.agent.kernel.paths import FILES, PROGRAMS, PROGRAMS_PREFIX, SHELL_PROGRAM

if TYPE_CHECKING:
    from collections.abc import Sequence

RELEASES = {
    "http://deb.debian.org/debian": "bookworm bookworm-updates",
    "http://deb.debian.org/debian-security": "bookworm-security",
}
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
STEP_TIMEOUT = 900.0
DIGEST_LENGTH = 16
_BUSYBOX = Path("/bin/busybox")


@dataclass(frozen=True, slots=True)
class Source:
    """A source package, and how its programs are made.

    `files` are written into its directory before, and of `edits`, each a file, a text in it and what takes its place,
    the text has to be there.
    """

    package: str
    upstream: str
    revision: str
    files: tuple[tuple[str, str], ...]
    edits: tuple[tuple[str, str, str], ...]
    options: tuple[str, ...]
    goals: tuple[str, ...]
    programs: tuple[str, ...]


_NO_LOGIN_RECORDS = tuple(f"--disable-{name}" for name in ("lastlog", "utmp", "utmpx", "wtmp", "wtmpx"))
SOURCES = (
    Source(
        package="dropbear",
        upstream="2022.83",
        revision="1+deb12u3",
        files=(
            (
                "localoptions.h",
                f"""
#define DROPBEAR_SVR_PASSWORD_AUTH 0
#define SFTPSERVER_PATH "{PROGRAMS}/sftp-server"
/* What starts the server gives it the environment of the kernel, and a search path with it. */
#define DEFAULT_PATH (getenv("PATH") ? getenv("PATH") : "/usr/local/bin:/usr/bin:/bin")
/* All clients are the session's own, and a launcher starts many at once. */
#define MAX_UNAUTH_PER_IP 256
#define MAX_UNAUTH_CLIENTS 256
""",
            ),
        ),
        # Without privileges, a terminal cannot be given to the group that an image has for terminals.
        edits=(("sshpty.c", 'getgrnam("tty")', "NULL"),),
        options=(
            "--enable-static",
            "--disable-zlib",
            "--enable-bundled-libtom",
            "--disable-syslog",
            "--disable-loginfunc",
            "--disable-pututline",
            "--disable-pututxline",
            *_NO_LOGIN_RECORDS,
        ),
        goals=("PROGRAMS=dropbear", "STATIC=1"),
        programs=("dropbear",),
    ),
    Source(
        package="openssh",
        upstream="1:9.2p1",
        revision="2+deb12u10",
        files=(),
        edits=(),
        options=(
            "--without-openssl",
            "--without-zlib",
            "--without-pam",
            "--without-shadow",
            "--disable-libutil",
            f"--prefix={PROGRAMS_PREFIX}",
            f"--sysconfdir={FILES}",
            "LDFLAGS=-static",
            "CFLAGS=-Os",
            *_NO_LOGIN_RECORDS,
        ),
        goals=("ssh", "scp", "sftp", "sftp-server"),
        programs=("ssh", "scp", "sftp", "sftp-server"),
    ),
)


def programs_path(cache: Path = CACHE) -> Path:
    """Returns the directory of the built programs; differs with their sources."""
    digest = hashlib.sha256(repr(SOURCES).encode()).hexdigest()[:DIGEST_LENGTH]
    return cache / f"ssh-{platform.machine()}-{digest}"


def find_programs(cache: Path = CACHE) -> Path | None:
    """Returns the directory of the programs; None while they are not built, and an image of the agent has none."""
    return next((path for path in (programs_path(cache), programs_path(SHIPPED)) if path.is_dir()), None)


def build_programs(cache: Path = CACHE) -> Path:
    """Returns the directory of the programs; they are built if they are not there yet, which takes a minute.
    Raises BuildError.
    """
    path = programs_path(cache)
    if path.is_dir():
        return path
    for program in ("musl-gcc", "make", "dpkg-source", "apt-get"):
        if shutil.which(program) is None:
            raise BuildError(f"ssh inside kernels cannot be built: the program {program} is missing")
    try:
        cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".build-") as name:
            directory = Path(name)
            made = directory / "made"
            made.mkdir()
            commands = _Commands()
            options = _update(directory, commands)
            with ThreadPoolExecutor(len(SOURCES)) as pool:
                building = [pool.submit(_build, source, directory, options, made, commands) for source in SOURCES]
                try:
                    for each in building:
                        each.result()
                except BaseException:
                    # The pool waits for the other one.
                    commands.end()
                    raise
            if _is_static(_BUSYBOX):
                # For images that have no shell of their own: a server runs every command by one.
                shutil.copyfile(_BUSYBOX, made / SHELL_PROGRAM)
            for path_made in made.iterdir():
                path_made.chmod(0o755)
            made.chmod(0o755)
            os.sync()
            try:
                made.rename(path)
            except OSError:
                # Another process was faster, and what is there is the same.
                if not path.is_dir():
                    raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"ssh inside kernels does not build: {error}") from error
    return path


def _update(directory: Path, commands: _Commands) -> list[str]:
    """Fetches the list of sources into the directory; options of apt-get that use it and nothing of the machine's."""
    entries = [
        f"Types: deb-src\nURIs: {address}\nSuites: {suites}\nComponents: main\nSigned-By: {KEYRING}\n"
        for address, suites in RELEASES.items()
    ]
    sources = directory / "retinue.sources"
    sources.write_text("\n".join(entries))
    for name in ("lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": directory / "lists",
        "Dir::Cache": directory / "cache",
        # The directory is closed to the user that apt would become.
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    said = commands.run(["apt-get", *options, "-q", "update"], directory)
    if not any((directory / "lists").glob("*_Sources*")):
        # It calls that a success.
        why = [line for line in said.splitlines() if line.startswith(("W: ", "E: "))]
        raise BuildError(f"Debian's sources cannot be fetched: {why[0][3:] if why else said.strip()}")
    return options


def _build(source: Source, directory: Path, apt_options: Sequence[str], made: Path, commands: _Commands) -> None:
    work = directory / source.package
    work.mkdir()
    wanted = f"{source.package}={source.upstream}-{source.revision}"
    fetch = ["apt-get", *apt_options, "-q", "source", "--download-only"]
    try:
        commands.run([*fetch, wanted], work)
    except BuildError:
        # Debian keeps the newest only: its later fixes of the same version are as good, another version is not.
        commands.run([*fetch, source.package], work)
    upstream = source.upstream.rpartition(":")[2]
    description = next(work.glob(f"{source.package}_{upstream}-*.dsc"), None)
    if description is None:
        raise BuildError(f"Debian has no {source.package} {upstream} any more")
    # Debian's patches, security fixes among them, are applied by this.
    commands.run(["dpkg-source", "--no-check", "-x", description.name, "tree"], work)
    tree = work / "tree"
    for name in ("config.h.in", "configure"):
        # A patch made what it is generated from newer.
        for found in (tree / name, tree / "src" / name):
            if found.exists():
                found.touch()
    for name, text in source.files:
        (tree / name).write_text(text)
    for name, old, new in source.edits:
        before = (tree / name).read_text()
        if old not in before:
            raise BuildError(f"{source.package}: {name} is not as it was")
        (tree / name).write_text(before.replace(old, new))
    commands.run(["./configure", *source.options], tree)
    commands.run(["make", f"-j{os.cpu_count() or 1}", *source.goals], tree)
    commands.run(["strip", *source.programs], tree)
    for program in source.programs:
        shutil.copyfile(tree / program, made / program)


class _Commands:
    """The commands of a build, of several threads, which end together. Each is a process group, so that nothing that it
    started writes on into a directory that is removed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = set[subprocess.Popen[str]]()
        self._ended = False

    def end(self) -> None:
        """Ends those that run; no other begins."""
        with self._lock:
            self._ended = True
            for process in self._running:
                os.killpg(process.pid, signal.SIGKILL)

    def run(self, command: Sequence[str], directory: Path) -> str:
        """Runs one to its end and returns its output. Raises BuildError."""
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "CC": "musl-gcc",
            "HOME": str(directory),
        }
        environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        with self._lock:
            if self._ended:
                raise BuildError("the build was ended")
            process = subprocess.Popen(  # noqa: S603
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,
            )
            self._running.add(process)
        with process:
            try:
                output, _ = process.communicate(timeout=STEP_TIMEOUT)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            finally:
                with self._lock:
                    self._running.discard(process)
        if process.returncode != 0:
            raise BuildError(f"`{' '.join(command[:3])}` failed: {output.strip()[-2000:]}")
        return output


def _is_static(program: Path) -> bool:
    """Returns whether a program needs no loader: its header names none."""
    try:
        return b"/ld-" not in program.read_bytes()[:4096]
    except OSError:
        return False
