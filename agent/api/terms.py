"""The newest leadership that was ever seen here: the guard against a manager that was replaced.

Terms count within an incarnation of the manager's database. A restored database is another incarnation, and its terms
start again from those of the backup; the incarnations before it are refused from then on,
so that a manager on the lost database is not obeyed again.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from retinue.agent.host.lanes import STATE
from retinue.agent.state import checked
from retinue.rpc.core.terms import TermHistory
from retinue.rpc.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.agent.state.damaged import DamagedFiles
    from retinue.agent.state.disk import Disk

_log = logging.getLogger(__name__)

WRITE_TIMEOUT = 5.0
"""Seconds that the disk may take before a leader is followed all the same."""


def encode(seen: TermHistory) -> bytes:
    """Returns the content of the file."""
    return checked.dump({"incarnation": seen.incarnation, "term": seen.term, "former": seen.former})


def decode(content: bytes) -> TermHistory:
    """Reads what `encode` wrote; raises ValueError on anything else."""
    try:
        values = checked.load(content)
    except ValueError as error:
        raise ValueError(f"not a term: {error}") from error
    match values:
        case {"incarnation": str(incarnation), "term": int(term), "former": [*former]} if term >= 0:
            return TermHistory(incarnation, term, tuple(map(str, former)))
    raise ValueError("not a term")


class Terms:
    """The terms that were seen, kept in a file. A value that cannot be written now stays in
    memory until the next stream.
    """

    def __init__(self, path: Path, damaged: DamagedFiles, disk: Disk | None = None) -> None:
        """Reads the file, blocking; without one, or with a damaged one, the next leader is accepted,
        whatever its term.
        """
        self._path = path
        self._disk = disk
        self._lock = asyncio.Lock()
        self._seen = self._written = TermHistory()
        try:
            self._seen = self._written = decode(path.read_bytes())
        except FileNotFoundError:
            _log.info("no leader's term is known: the next one is accepted")
        except (OSError, ValueError) as error:
            damaged.set_aside(path, f"{error}; the next leader is accepted, whatever its term")

    async def accept(self, incarnation: str, term: int) -> None:
        """Takes a term; returns once it would outlive a crash of the node, if the disk lets it.

        Raises StaleTermError and StaleIncarnationError.
        """
        async with self._lock:
            before, self._seen = self._seen, self._seen.after(incarnation, term)
            if self._seen != self._written:
                await self._write(self._seen)
            if before.incarnation not in {"", incarnation}:
                _log.warning(
                    "the manager's database is another one, or was restored: incarnation %s after %s; what runs continues",
                    incarnation,
                    before.incarnation,
                )

    async def _write(self, seen: TermHistory) -> None:
        content = encode(seen)

        def replace() -> None:
            replace_file(self._path, content)

        writing = asyncio.ensure_future(
            STATE.run(replace if self._disk is None else partial(self._disk.essential, replace))
        )
        # Retrieved whatever becomes of the stream that waits: asyncio would log it.
        writing.add_done_callback(lambda late: late.cancelled() or late.exception())
        done, _ = await asyncio.wait({writing}, timeout=WRITE_TIMEOUT)
        if done and writing.exception() is None:
            self._written = seen
            return
        # A node without a leader is useless: until the disk takes it, only a restart would forget it.
        _log.error(
            "term %d cannot be written: %s", seen.term, writing.exception() if done else "the disk does not answer"
        )
