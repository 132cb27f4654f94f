"""The table that a router serves: as it comes, as it is kept on the disk, and as the engine is to follow it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from retinue.router import convert
from retinue.router.convert import TableError
from retinue.router.core.table import Common, Endpoint, Table
from retinue.router.v1 import router_service_pb2 as pb
from retinue.rpc.core.terms import TermHistory
from retinue.rpc.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The newest leadership and the newest table; without endpoints and with revision 0 there was none."""

    seen: TermHistory = field(default_factory=TermHistory)
    table: pb.Table = field(default_factory=pb.Table)


class Tables:
    """Holds the newest table; belongs on one event loop."""

    def __init__(self, path: Path, follow: Callable[[Table], None]) -> None:
        """Reads the file, blocking; `follow` gets each table, the stored one with `begin`."""
        self._path = path
        self._follow = follow
        self._stored = _load(path)
        self._writing = asyncio.Lock()
        self._messages = {message.id: message for message in self._stored.table.endpoints}
        self._endpoints: dict[str, Endpoint] = {}
        self._common = Common()
        self.refusals: dict[str, str] = {}
        """Endpoints that are none, with the reason: the former state of these stays."""

    @property
    def revision(self) -> int:
        """Returns the number of the newest table, 0 when there was none."""
        return int(self._stored.table.revision)

    def begin(self) -> None:
        """Follows the stored table."""
        if self.revision:
            try:
                self._common = convert.common(self._stored.table.common)
            except TableError as error:
                _log.error("the stored table is of no use: %s", error)
                return
            self._read(self._messages)
            _log.warning("serving the stored table %d until a manager comes", self.revision)
            self._follow(Table(self.revision, dict(self._endpoints), self._common))

    async def accept(self, incarnation: str, term: int) -> None:
        """Takes a leader; returns once that would outlive a crash. Raises StaleTermError,
        StaleIncarnationError and OSError.
        """
        seen = self._stored.seen.after(incarnation, term)
        if seen != self._stored.seen:
            self._stored = _Stored(seen, self._stored.table)
            await self._save()

    async def replace(self, table: pb.Table) -> None:
        """Takes a whole table. Raises TableError, and OSError when it cannot be kept: it is served all the same."""
        common = convert.common(table.common)
        messages = {message.id: message for message in table.endpoints}
        self._endpoints = {key: found for key, found in self._endpoints.items() if key in messages}
        self._messages = messages
        self._common = common
        self.refusals.clear()
        self._read(messages)
        await self._served(table.revision, table.common)

    async def change(self, change: pb.Change) -> None:
        """Takes a difference. Raises TableError, and OSError when it cannot be kept."""
        common = self._stored.table.common
        if change.HasField("common"):
            self._common, common = convert.common(change.common), change.common
        for key in change.removed_endpoint_ids:
            self._messages.pop(key, None)
            self._endpoints.pop(key, None)
            self.refusals.pop(key, None)
        changed = {message.id: message for message in change.endpoints}
        self._messages |= changed
        self._read(changed)
        await self._served(change.revision, common)

    def _read(self, messages: dict[str, pb.Endpoint]) -> None:
        for key, message in messages.items():
            self.refusals.pop(key, None)
            try:
                self._endpoints[key] = convert.endpoint(message)
            except TableError as error:
                _log.warning("endpoint %s is refused: %s", key, error)
                self.refusals[key] = str(error)

    async def _served(self, revision: int, common: pb.Common) -> None:
        table = pb.Table(revision=revision, common=common, endpoints=self._messages.values())
        self._stored = _Stored(self._stored.seen, table)
        # Requests do not wait for the disk.
        self._follow(Table(revision, dict(self._endpoints), self._common))
        await self._save()

    async def _save(self) -> None:
        async with self._writing:
            await asyncio.to_thread(_save, self._path, self._stored)


def _load(path: Path) -> _Stored:
    """Returns what a file holds, blocking; nothing when there is none, or a damaged one,
    which is set aside and logged.
    """
    try:
        head, _, body = path.read_bytes().partition(b"\n")
        values = json.loads(head)
        if values["sha256"] != hashlib.sha256(body).hexdigest():
            raise ValueError("its digest differs")
        seen = TermHistory(str(values["incarnation"]), int(values["term"]), tuple(map(str, values["former"])))
        return _Stored(seen, pb.Table.FromString(body))
    except FileNotFoundError:
        return _Stored()
    except (OSError, ValueError, KeyError, TypeError, DecodeError) as error:
        _log.error("%s is damaged (%s): nothing is served before a manager sends a table", path, error)
        path.rename(path.with_suffix(".damaged"))
        return _Stored()


def _save(path: Path, stored: _Stored) -> None:
    """Replaces the file in one step, blocking. Raises OSError."""
    body, seen = stored.table.SerializeToString(), stored.seen
    digest = hashlib.sha256(body).hexdigest()
    head = {"incarnation": seen.incarnation, "term": seen.term, "former": seen.former, "sha256": digest}
    replace_file(path, json.dumps(head).encode() + b"\n" + body)
