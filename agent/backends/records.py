"""Lasting records of attempts: the guard that starts each at most once, and what a restarted agent goes by.

One directory per attempt. It appears under its name in one step with its first record inside, and goes in one step;
names of attempts that were removed are kept in a bounded list.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from agent.attempts import ATTEMPT_ID, AttemptSpec, ImageFacts, ImageIdentity, Phase, ServicePort
from agent.backends.processes import Process
from agent.files import replace_file, sync_directory, write_new
from agent.resources.holdings import Holding

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

RECORD = "record.json"
REMEMBERED = 20_000
"""How many removed attempts are remembered at the least."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of an attempt. Times are seconds since the epoch, `stop_grace` is in seconds.

    `start_time` is set when the command is let go, before it is. `monitor` is the process that watches over the kernel
    and writes its exit code, `init` the first process inside. `memory_group` is the directory of
    the control group that a container's memory counts in, `out_of_memory` what it said at the end.
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

    @property
    def holding(self) -> Holding:
        """Cores and devices of its own."""
        return Holding(self.cores, self.gpus)

    @classmethod
    def of(cls, spec: AttemptSpec, boot_id: str) -> Record:
        """The first record of an attempt."""
        return cls(spec.id, spec.session_id, spec.kernel_id, boot_id, spec.networked, spec.egress)


def encode(record: Record) -> bytes:
    """The record as JSON."""
    return json.dumps(asdict(record) | {"phase": record.phase.value}, indent=1).encode()


def decode(content: bytes) -> Record:
    """Reads what `encode` wrote; raises ValueError on anything else."""
    values: Any = json.loads(content)
    try:
        known: dict[str, Any] = {field.name: values[field.name] for field in fields(Record) if field.name in values}
        known["phase"] = Phase(known["phase"])
        for name in ("monitor", "init"):
            if known.get(name) is not None:
                known[name] = Process(int(known[name]["pid"]), int(known[name]["start"]))
        for name in ("cores", "gpus"):
            known[name] = tuple(known.get(name, ()))
        if known.get("image") is not None:
            known["image"] = _image_facts(known["image"])
        return Record(**known)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a record: {error!r}") from error


def _image_facts(values: Mapping[str, Any]) -> ImageFacts:
    ports = (ServicePort(port["name"], port["protocol"], tuple(port["ports"])) for port in values["service_ports"])
    return ImageFacts(ImageIdentity(**values["identity"]), tuple(ports))


class Records:
    """The records of one backend, on disk under `directory`. Methods block for the disk."""

    def __init__(self, directory: Path) -> None:
        """Nothing is read before `load`."""
        self._directory = directory
        self._removed_list = directory / "removed"
        self._removed: dict[str, None] = {}

    def load(self) -> tuple[dict[str, Record], set[str]]:
        """All records by id, and ids of attempts whose record cannot be read. Finishes removals cut short."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._removed = dict.fromkeys(self._removed_list.read_text().split())
        records: dict[str, Record] = {}
        unreadable: set[str] = set()
        for entry in list(os.scandir(self._directory)):
            if entry.name.startswith("."):
                if entry.is_dir():
                    shutil.rmtree(entry.path)
                continue
            if not entry.is_dir() or not ATTEMPT_ID.fullmatch(entry.name):
                continue
            try:
                record = decode((self.place(entry.name) / RECORD).read_bytes())
                if record.id != entry.name:
                    raise ValueError("the record is of another attempt")
            except (OSError, ValueError) as error:
                log.warning("the record of attempt %s cannot be read: %s", entry.name, error)
                unreadable.add(entry.name)
            else:
                records[record.id] = record
        return records, unreadable

    def place(self, attempt_id: str) -> Path:
        """The attempt's directory."""
        return self._directory / attempt_id

    def was_removed(self, attempt_id: str) -> bool:
        """Whether there once was a record, and it was removed."""
        return attempt_id in self._removed

    def add(self, record: Record) -> bool:
        """Makes the attempt's directory with its first record; False when there is one already.

        It outlives a crash of the node from `make_lasting` on; nothing may be let go before.
        """
        fresh = self._directory / f".new-{record.id}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        write_new(fresh / RECORD, encode(record), lasting=False)
        try:
            # A directory that is not empty is never replaced by this.
            fresh.rename(self.place(record.id))
        except OSError:
            shutil.rmtree(fresh)
            if self.place(record.id).exists():
                return False
            raise
        return True

    def make_lasting(self, attempt_id: str) -> None:
        """Makes sure that the attempt's directory outlives a crash of the node, and its record as it is now."""
        descriptor = os.open(self.place(attempt_id) / RECORD, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self._directory)

    def set_aside(self, attempt_id: str) -> None:
        """Moves the attempt's directory away, for a person to look at."""
        with contextlib.suppress(FileNotFoundError):
            self.place(attempt_id).rename(self._directory / f"unreadable-{attempt_id}")

    def write(self, record: Record) -> None:
        """Replaces the attempt's record.

        The end of an attempt is made to outlive a crash of the node. What comes before does not need to: after such a
        crash nothing of the attempt runs, and that it was there is known from its first record.
        """
        replace_file(self.place(record.id) / RECORD, encode(record), lasting=record.phase.ended)

    def remove(self, attempt_id: str) -> None:
        """Removes the attempt's directory and remembers that it was."""
        if attempt_id not in self._removed:
            self._removed[attempt_id] = None
            self._remember(attempt_id)
        old = self._directory / f".old-{attempt_id}"
        with contextlib.suppress(FileNotFoundError):
            self.place(attempt_id).rename(old)
        shutil.rmtree(old, ignore_errors=True)

    def _remember(self, attempt_id: str) -> None:
        with self._removed_list.open("a") as removed:
            removed.write(f"{attempt_id}\n")
            removed.flush()
            os.fsync(removed.fileno())
        if len(self._removed) > 2 * REMEMBERED:
            kept = list(self._removed)[-REMEMBERED:]
            replace_file(self._removed_list, ("\n".join(kept) + "\n").encode())
            self._removed = dict.fromkeys(kept)


def ended(record: Record, phase: Phase, reason: str, message: str, end_time: float) -> Record:
    """The record of an attempt of which nothing runs any more."""
    return replace(record, phase=phase, reason=reason, message=message, end_time=end_time)
