"""Streams go into kernels that run on an agent, and into no others."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from retinue.manager.domain.session.states import KernelState
from retinue.manager.session.kernel_locator import KernelNotRunningError, location_of
from retinue.manager.store.placement.attempts import KernelLocationRecord, kernel_location

KERNEL = uuid.UUID(int=1)
RUNNING = KernelLocationRecord(KERNEL, KernelState.RUNNING, 2, "n1", "127.0.0.1:7000")


def test_a_kernel_that_runs_is_at_its_agent() -> None:
    found = location_of(RUNNING)
    assert (found.agent_id, found.address, found.attempt_id) == ("n1", "127.0.0.1:7000", f"{KERNEL}.2")


def test_a_kernel_without_an_attempt_does_not_run() -> None:
    with pytest.raises(KernelNotRunningError, match="PENDING"):
        location_of(KernelLocationRecord(KERNEL, KernelState.PENDING, None, None, None))


def test_a_kernel_that_has_ended_says_why() -> None:
    ended = dataclasses.replace(RUNNING, state=KernelState.TERMINATED, reason="COMMAND_ENDED", exit_code=3)
    with pytest.raises(KernelNotRunningError, match=r"it is TERMINATED \(COMMAND_ENDED, exit code 3\)$"):
        location_of(ended)


def test_a_kernel_in_a_state_of_another_version_does_not_run() -> None:
    row = {**dataclasses.asdict(RUNNING), "state": "HIBERNATING"}
    with pytest.raises(KernelNotRunningError) as raised:
        location_of(kernel_location(row))
    assert raised.value.state == "UNKNOWN"
