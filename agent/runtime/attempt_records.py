"""Lasting records of attempts: the guard that starts each at most once, and what a restarted agent goes by.

One directory per attempt. It appears under its name in one step with its first record inside, and goes in one step;
names of attempts that were removed are kept in a bounded list. Each record has a copy in another directory, written
after it, so that a damaged file or a lost directory loses nothing; what is damaged is set aside.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
from dataclasses import asdict, dataclass, field, fields, replace
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

from retinue.agent.attempts import ATTEMPT_ID, AttemptSpec, ImageFacts, ImageIdentity, Phase, ServicePort
from retinue.agent.host.processes import Process
from retinue.agent.resources.core.holdings import Holding
from retinue.agent.resources.core.usage import FinalUsage
from retinue.agent.runtime.bwrap_status import known_exit_code
from retinue.agent.state import checked
from retinue.agent.state.damaged import DIRECTORY, DamagedFiles
from retinue.rpc import failpoints
from retinue.rpc.core.amounts import DISK
from retinue.rpc.files import replace_file, sync_directory, write_new

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from retinue.agent.state.disk import Disk

_log = logging.getLogger(__name__)

RECORD = "record.json"
COPIES = ".copies"
"""Suffix of the directory of copies, beside that of the attempts."""
_OBSTRUCTED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP}
REMEMBERED = 20_000
"""The minimum number of removed attempts that are remembered."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of an attempt. Times are seconds since the epoch, `stop_grace` is in seconds.

    `start_time` is set just before the command is released. `monitor` is the process that watches over the kernel
    and writes its exit code, `init` the first process inside. `memory_group` is the directory of
    the control group that a container's memory counts in, `out_of_memory` what it said at the end. `memory_kills` are
    the processes that Linux was seen to kill for want of memory, `first_memory_kill` and `last_memory_kill` when it was
    seen. `rebuilt` marks a record that was lost and made again from the processes; its `session_id` is empty until a
    manager names the attempt. `stop` and `warning` are codes of signals, of what asks the command to end and of what it
    gets `warn_after` seconds after its start, and 0 once it got that or if there is none.
    `usage` is known once the attempt has ended, if it ever was measured. `disk` is its slot in bytes, 0 without one.
    """

    id: str
    session_id: str
    kernel_id: str
    boot_id: str
    networked: bool = False
    egress: bool = False
    phase: Phase = Phase.CREATING
    attached: bool = False
    monitor: Process | None = None
    init: Process | None = None
    stop_grace: float = 0.0
    start_time: float | None = None
    end_time: float | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    log_size: int = 0
    image: ImageFacts | None = None
    cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    memory_group: str = ""
    out_of_memory: bool = False
    memory_kills: int = 0
    first_memory_kill: float | None = None
    last_memory_kill: float | None = None
    rebuilt: bool = False
    stop: int = SIGTERM
    warning: int = 0
    warn_after: float = 0.0
    usage: FinalUsage | None = None
    disk: int = 0

    @property
    def holding(self) -> Holding:
        """Cores and devices of its own."""
        return Holding(self.cores, self.gpus)

    @classmethod
    def of(cls, spec: AttemptSpec, boot_id: str) -> Record:
        """Returns the first record of an attempt."""
        warning = spec.warning
        return cls(
            spec.id,
            spec.session_id,
            spec.kernel_id,
            boot_id,
            spec.networked,
            spec.has_egress_link,
            stop=spec.stop.code,
            warning=0 if warning is None else warning.delivery.code,
            warn_after=0.0 if warning is None else warning.after,
            disk=spec.slots.get(DISK, 0),
        )


def encode(record: Record) -> bytes:
    """Returns the record as JSON with a checksum."""
    return checked.dump(asdict(record) | {"phase": record.phase.value})


def decode(content: bytes) -> Record:
    """Reads what `encode` wrote; raises ValueError on anything else."""
    values = checked.load(content)
    try:
        known: dict[str, Any] = {entry.name: values[entry.name] for entry in fields(Record) if entry.name in values}
        known["phase"] = Phase(known["phase"])
        for name in ("monitor", "init"):
            if known.get(name) is not None:
                known[name] = Process(int(known[name]["pid"]), int(known[name]["start"]))
        for name in ("cores", "gpus"):
            known[name] = tuple(known.get(name, ()))
        if known.get("image") is not None:
            known["image"] = _image_facts(known["image"])
        if known.get("usage") is not None:
            known["usage"] = _final_usage(known["usage"])
        known["exit_code"] = known_exit_code(known.get("exit_code"))
        return Record(**known)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a record: {error!r}") from error


def _image_facts(values: Mapping[str, Any]) -> ImageFacts:
    ports = (ServicePort(port["name"], port["protocol"], tuple(port["ports"])) for port in values["service_ports"])
    return ImageFacts(ImageIdentity(**values["identity"]), tuple(ports))


def _final_usage(values: Mapping[str, Any]) -> FinalUsage:
    counts = (values.get(name) for name in ("cpu", "memory_peak", "read", "written"))
    return FinalUsage(float(values["time"]), *(None if count is None else int(count) for count in counts))


@dataclass(slots=True)
class Loaded:
    """The contents of a directory of records: records by id, and the attempts whose record is lost,
    each with its copy if there is one.

    The copy of a lost record may be a step behind what was done.
    """

    records: dict[str, Record] = field(default_factory=dict)
    lost: dict[str, Record | None] = field(default_factory=dict)


class Records:
    """The records of one runtime, on disk under `directory`. Methods block for the disk."""

    def __init__(self, directory: Path, damaged: DamagedFiles | None = None, disk: Disk | None = None) -> None:
        """Reads nothing before `load`. Damaged files are set aside in `damaged`, by default beside the directory.

        What must be written uses the reserve of `disk`.
        """
        self._directory = directory
        self._copies = directory.with_name(directory.name + COPIES)
        self._damaged = damaged or DamagedFiles(directory.with_name(DIRECTORY))
        self._disk = disk
        self._removed_list = directory / "removed"
        self._removed: dict[str, None] = {}
        self._removing = threading.Lock()

    @failpoints.blocking("record", failpoints.disk_error)
    def load(self) -> Loaded:
        """Reads all records and finishes removals cut short. Damage costs only what is damaged.

        Raises OSError when the directory itself can be neither read nor made.
        """
        for directory in (self._directory, self._copies):
            self._damaged.make_directory(directory)
        self._load_removed()
        copies = self._load_copies()
        loaded = Loaded()
        for entry in list(os.scandir(self._directory)):
            if entry.name.startswith("."):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif ATTEMPT_ID.fullmatch(entry.name) and self._is_directory(entry):
                copy = copies.pop(entry.name, None)
                self._take(loaded, entry.name, self._read(self.directory(entry.name) / RECORD, entry.name), copy)
        for attempt_id, copy in copies.items():
            if attempt_id in self._removed:
                with contextlib.suppress(OSError):
                    self._copy_of(attempt_id).unlink(missing_ok=True)
            else:
                _log.error("attempt %s has a copy of its record only", attempt_id)
                self._take(loaded, attempt_id, None, copy)
        return loaded

    def _take(self, loaded: Loaded, attempt_id: str, record: Record | None, copy: Record | None) -> None:
        if record is None and copy is not None and copy.phase.ended:
            # Nothing happens to an attempt after its end: a copy of that is never behind.
            record = copy
        if record is None:
            loaded.lost[attempt_id] = copy
            return
        loaded.records[attempt_id] = record
        if copy is None or record is copy:
            with contextlib.suppress(OSError):
                self.write(record)

    def _is_directory(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_dir(follow_symlinks=False):
            return True
        self._damaged.set_aside(self.directory(entry.name), "it is not a directory")
        return True

    def _read(self, path: Path, attempt_id: str) -> Record | None:
        try:
            record = decode(path.read_bytes())
            if record.id != attempt_id:
                raise ValueError("the record is of another attempt")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._damaged.set_aside(path, str(error))
            return None
        return record

    def _load_copies(self) -> dict[str, Record | None]:
        found = (entry.name for entry in list(os.scandir(self._copies)) if not entry.name.startswith("."))
        names = (name.removesuffix(".json") for name in found if name.endswith(".json"))
        return {name: self._read(self._copy_of(name), name) for name in names if ATTEMPT_ID.fullmatch(name)}

    def _load_removed(self) -> None:
        try:
            lines = self._removed_list.read_bytes().decode(errors="replace").split()
        except FileNotFoundError:
            return
        except OSError as error:
            self._damaged.set_aside(self._removed_list, str(error))
            return
        kept = [line for line in lines if ATTEMPT_ID.fullmatch(line)]
        self._removed = dict.fromkeys(kept)
        if len(kept) < len(lines):
            self._damaged.set_aside(self._removed_list, f"{len(lines) - len(kept)} lines are not attempts")
            with contextlib.suppress(OSError):
                self._rewrite_removed()

    def directory(self, attempt_id: str) -> Path:
        """Returns the attempt's directory."""
        return self._directory / attempt_id

    def _copy_of(self, attempt_id: str) -> Path:
        return self._copies / f"{attempt_id}.json"

    def was_removed(self, attempt_id: str) -> bool:
        """Returns whether there once was a record, and it was removed."""
        return attempt_id in self._removed

    def add(self, record: Record) -> bool:
        """Makes the attempt's directory with its first record; False when there is one already.

        It outlives a crash of the node from `make_lasting` on; nothing may be released before.
        """
        try:
            return self._add(record)
        except OSError as error:
            # The reserve is not for what is new.
            if self._disk is not None:
                self._disk.note(error)
            raise

    @failpoints.blocking("record", failpoints.disk_error)
    def _add(self, record: Record) -> bool:
        fresh = self._directory / f".new-{record.id}"
        self._damaged.make_directory(self._directory)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        content = encode(record)
        write_new(fresh / RECORD, content, lasting=False)
        try:
            # A directory that is not empty is never replaced by this.
            fresh.rename(self.directory(record.id))
        except OSError:
            shutil.rmtree(fresh)
            if self.directory(record.id).exists():
                return False
            raise
        self._write_copy(record.id, content)
        return True

    @failpoints.blocking("record", failpoints.disk_error)
    def make_lasting(self, attempt_id: str) -> None:
        """Makes sure that the attempt's directory outlives a crash of the node, and its record as it is now."""
        descriptor = os.open(self.directory(attempt_id) / RECORD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self._directory)

    @failpoints.blocking("record", failpoints.disk_error)
    def write(self, record: Record) -> None:
        """Replaces the attempt's record.

        The end of an attempt is made to outlive a crash of the node. What comes before does not need to: after such a
        crash nothing of the attempt runs, and that it was there is known from its first record.
        """
        content = encode(record)
        self._replace(self.directory(record.id) / RECORD, content, lasting=record.phase.ended)
        self._write_copy(record.id, content)

    @failpoints.blocking("record", failpoints.disk_error)
    def _write_copy(self, attempt_id: str, content: bytes) -> None:
        # It is not what anything relies on: the record itself is written.
        with contextlib.suppress(OSError):
            self._replace_anyhow(self._copy_of(attempt_id), content, lasting=False)

    def _essential(self, action: Callable[[], None]) -> None:
        if self._disk is None:
            action()
        else:
            self._disk.essential(action)

    def _replace(self, path: Path, content: bytes, *, lasting: bool) -> None:
        self._essential(lambda: self._replace_anyhow(path, content, lasting=lasting))

    def _replace_anyhow(self, path: Path, content: bytes, *, lasting: bool) -> None:
        try:
            replace_file(path, content, lasting=lasting)
        except OSError as error:
            if error.errno not in _OBSTRUCTED:
                raise
            self._clear(path, error)
            replace_file(path, content, lasting=lasting)

    def _clear(self, path: Path, error: OSError) -> None:
        """Makes room for a file whose directory was removed, or that has something else in its place."""
        if path.is_dir():
            self._damaged.set_aside(path, str(error))
        for directory in (path.parent.parent, path.parent):
            if directory.is_relative_to(self._directory) or directory.is_relative_to(self._copies):
                self._damaged.make_directory(directory)

    @failpoints.blocking("record", failpoints.disk_error)
    def remove(self, attempt_id: str) -> None:
        """Removes the attempt's directory and remembers that it was."""
        # Several threads remove attempts, and there is one list.
        with self._removing:
            if attempt_id not in self._removed:
                self._removed[attempt_id] = None
                try:
                    self._remember(attempt_id)
                except OSError:
                    del self._removed[attempt_id]
                    raise
        old = self._directory / f".old-{attempt_id}"
        self._take_away(attempt_id, old)
        self._copy_of(attempt_id).unlink(missing_ok=True)
        shutil.rmtree(old, ignore_errors=True)

    @failpoints.blocking("record", failpoints.disk_error)
    def _take_away(self, attempt_id: str, old: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.directory(attempt_id).rename(old)

    def _remember(self, attempt_id: str) -> None:
        self._damaged.make_directory(self._directory)
        if not self._removed_list.is_file():
            # It comes to be whole: the list may have been lost while this process knows it.
            self._rewrite_removed()
            return
        self._essential(lambda: self._append_removed(attempt_id))
        if len(self._removed) > 2 * REMEMBERED:
            self._removed = dict.fromkeys(list(self._removed)[-REMEMBERED:])
            self._rewrite_removed()

    @failpoints.blocking("record", failpoints.disk_error)
    def _append_removed(self, attempt_id: str) -> None:
        with self._removed_list.open("ab", buffering=0) as removed:
            size = removed.tell()
            try:
                removed.write(f"{attempt_id}\n".encode())
            except OSError:
                # Half a line would spoil the next one.
                with contextlib.suppress(OSError):
                    removed.truncate(size)
                raise
            os.fsync(removed.fileno())

    def _rewrite_removed(self) -> None:
        self._replace(self._removed_list, ("\n".join(self._removed) + "\n").encode(), lasting=True)


def ended(record: Record, phase: Phase, reason: str, message: str, end_time: float) -> Record:
    """Returns the record of an attempt of which nothing runs any more."""
    return replace(record, phase=phase, reason=reason, message=message, end_time=end_time)


def with_memory_kills(record: Record, kills: int, when: float) -> Record:
    """Returns the record after a look that found so many processes killed for want of memory."""
    if kills <= record.memory_kills:
        return record
    first = when if record.first_memory_kill is None else record.first_memory_kill
    return replace(record, memory_kills=kills, first_memory_kill=first, last_memory_kill=when)


def identified(record: Record, spec: AttemptSpec) -> Record:
    """Returns a rebuilt record completed by what a manager knows of the attempt; any other one as it is."""
    if record.session_id:
        return record
    return replace(
        record,
        session_id=spec.session_id,
        networked=spec.networked,
        egress=spec.has_egress_link,
        disk=spec.slots.get(DISK, 0),
    )
