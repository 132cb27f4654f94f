"""Rebuilds the record of a container's attempt, from its copy or from what the engine says of the container."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.agent.attempts import Phase
from retinue.agent.docker.barrier import waits_at_barrier
from retinue.agent.host.cgroups import memory_group
from retinue.agent.host.processes import alive, identify
from retinue.agent.runtime.attempt_records import Record
from retinue.agent.runtime.rebuild import LiveKernel, rebuilt
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from pathlib import Path

    from retinue.agent.docker.core.container_state import ContainerState
    from retinue.agent.host.processes import Process


def from_copy(copy: Record, boot_id: str, directory: Path, now: float) -> Record | None:
    """Returns the record of an attempt whose own is lost; None when the engine has to be asked. Blocks.

    `directory` is the attempt's directory. A copy may be a step behind.
    """
    if copy.boot_id == boot_id and copy.init is None:
        return None
    if copy.init is None or copy.boot_id != boot_id or not alive(copy.init):
        # Its end is found when the record is adopted.
        return copy
    return rebuilt(copy.id, boot_id, copy, _found(directory, copy.init), now)


def placeholder(attempt_id: str, boot_id: str, copy: Record | None) -> Record:
    """Returns what is shown of an attempt until the engine answers."""
    if copy is not None:
        return replace(copy, phase=Phase.CREATING)
    return Record(attempt_id, "", attempt_id.rpartition(".")[0], boot_id, egress=True, rebuilt=True)


def from_engine(  # noqa: PLR0917  # all that is known of it
    attempt_id: str, boot_id: str, copy: Record | None, state: ContainerState | None, directory: Path, now: float
) -> Record:
    """Returns the record of an attempt by its container, None when there is none. Blocks."""
    record = placeholder(attempt_id, boot_id, copy)
    init = identify(state.pid) if state is not None and state.running and state.pid > 0 else None
    if init is not None:
        record = rebuilt(attempt_id, boot_id, copy, _found(directory, init), now)
        return replace(record, memory_group=str(memory_group(init.pid) or ""))
    if state is not None and state.end_time is not None:
        # Its end is taken from the engine.
        return replace(record, phase=Phase.RUNNING, start_time=state.end_time)
    if copy is not None:
        return copy
    return replace(record, reason=AttemptReason.RECORD_LOST, message="the agent's record of the attempt was lost")


def _found(directory: Path, init: Process) -> LiveKernel:
    return LiveKernel(init, None, waits_at_barrier(directory, init), ())
