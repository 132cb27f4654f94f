"""Pauses kernels from outside, as people and programs of a node do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from retinue.agent.host.cgroups import MOUNT, Cgroups, is_unified
from tests.support.eventually import eventually, eventually_blocking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator
    from pathlib import Path

    from tests.integration.agent.runtime.conftest import Contract


@contextlib.contextmanager
def frozen(name: str, pids: Iterable[int]) -> Iterator[Path]:
    """Freezes processes in a control group of their own, until they have left it or the block ends."""
    unified = is_unified()
    group = (MOUNT if unified else MOUNT / "freezer") / name
    state, on, off = ("cgroup.freeze", "1", "0") if unified else ("freezer.state", "FROZEN", "THAWED")
    group.mkdir()
    try:
        for pid in pids:
            # One that has ended meanwhile needs no freezing.
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))
        (group / state).write_text(on)
        yield group
    finally:
        (group / state).write_text(off)
        eventually_blocking(lambda: _empty(group), ignoring=OSError)


def _empty(group: Path) -> bool:
    for pid in members(group):
        with contextlib.suppress(ProcessLookupError):
            (group.parent / "cgroup.procs").write_text(str(pid))
    group.rmdir()
    return True


def members(group: Path) -> set[int]:
    """Returns the processes of a control group."""
    return set(map(int, (group / "cgroup.procs").read_text().split()))


@contextlib.asynccontextmanager
async def paused(contract: Contract, attempt_id: str, *beside: int) -> AsyncIterator[Path | None]:
    """Pauses a kernel: a container by its engine, and processes by a group of theirs, with those `beside` them."""
    backend = contract.current
    assert backend is not None
    if contract.kind.engine is None:
        name = f"{contract.place.agent_id}-frozen"
        with frozen(name, {*Cgroups(contract.place.agent_id).processes(attempt_id), *beside}) as group:
            await eventually(lambda: backend.observe()[attempt_id].pause is not None)
            yield group
        return
    client = contract.kind.engine.client()
    try:
        await asyncio.to_thread(client.pause, f"retinue-{attempt_id}")
        await eventually(lambda: backend.observe()[attempt_id].pause is not None)
        yield None
        # Another one by now, where the test opened it.
        if contract.current is not None and not contract.current.observe()[attempt_id].phase.ended:
            await asyncio.to_thread(client.unpause, f"retinue-{attempt_id}")
    finally:
        client.close()
