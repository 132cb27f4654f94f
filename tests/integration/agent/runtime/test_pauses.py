"""Kernels that something outside of them keeps from running: said, refused in words, and ended like any other."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from retinue.agent.attempts import Phase
from retinue.agent.errors import PausedError
from retinue.agent.host.freezer import FROZEN, STOPPED, is_frozen
from retinue.agent.host.processes import Process, identify, send_signal
from retinue.agent.network.sockets import LOOPBACK
from tests.integration.agent.runtime.conftest import first_process
from tests.integration.agent.runtime.paused import members, paused
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from tests.integration.agent.runtime.conftest import Contract

ASKED = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.05; done"


async def test_a_paused_kernel_is_said_to_be(contract: Contract) -> None:
    backend = await contract.started(contract.spec("k", "sh", "-c", ASKED))
    await contract.until_printed("k.1", "ready")
    assert backend.observe()["k.1"].pause is None
    async with paused(contract, "k.1"):
        observed = backend.observe()["k.1"]
        assert observed.phase is Phase.RUNNING
        assert observed.pause is not None
        assert observed.pause.message == FROZEN
        with pytest.raises(PausedError, match=rf"^the kernel is paused: {FROZEN}$"):
            await backend.kernel("k.1").exec()
        with pytest.raises(PausedError):
            await backend.kernel("k.1").connect(7000, LOOPBACK)
        with pytest.raises(PausedError):
            await backend.kernel("k.1").open_sockets("/tmp", ("x",))  # noqa: S108
    await eventually(lambda: backend.observe()["k.1"].pause is None)
    wire = await backend.kernel("k.1").exec()
    await wire.channel.close()
    await wire.ended()
    await backend.stop("k.1", 0)
    await backend.kill("k.1")
    await contract.until("k.1", Phase.EXITED)


async def test_a_paused_kernel_is_asked_to_end(contract: Contract) -> None:
    """Its command runs again, and has its grace; another process that is frozen with it stays so."""
    backend = await contract.started(contract.spec("k", "sh", "-c", ASKED))
    await contract.until_printed("k.1", "ready")
    with subprocess.Popen(["sleep", "1000"]) as beside:  # noqa: ASYNC220, S607  # it does nothing
        try:
            async with paused(contract, "k.1", beside.pid) as group:
                await backend.stop("k.1", NEVER)
                observed = await contract.until("k.1", Phase.EXITED)
                assert (observed.exit_code, observed.pause) == (5, None)
                assert "asked" in contract.printed("k.1")
                if group is not None:
                    assert beside.pid in members(group)
                    assert is_frozen(_identified(beside.pid))
        finally:
            beside.kill()
    await backend.remove("k.1")
    assert not contract.left()


async def test_a_paused_kernel_is_killed(contract: Contract) -> None:
    backend = await contract.started(contract.spec("k", "sleep", "1000"))
    async with paused(contract, "k.1"):
        await backend.stop("k.1", 0)
        await backend.kill("k.1")
        observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.pause) == ("STOPPED", None)
    await backend.remove("k.1")
    assert not contract.left()


async def test_a_kernel_that_is_paused_as_it_ends_is_killed_again(
    contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await contract.started(contract.spec("k", "sleep", "1000"))
    kill = type(backend)._kill  # type: ignore[attr-defined]  # noqa: SLF001  # between it and what follows

    async def late(self: object, attempt_id: str, init: Process | None) -> None:
        monkeypatch.undo()
        await pausing.__aenter__()
        await kill(self, attempt_id, init)
        # As if it was paused only now.
        monkeypatch.setattr(type(backend), "_resume", once)

    async def once(*_: object) -> None:
        monkeypatch.undo()

    pausing = paused(contract, "k.1")
    await backend.stop("k.1", 0)
    monkeypatch.setattr(type(backend), "_kill", late)
    await backend.kill("k.1")
    try:
        await contract.until("k.1", Phase.EXITED)
    finally:
        await pausing.__aexit__(None, None, None)
    await backend.remove("k.1")


async def test_a_restarted_agent_finds_what_is_paused(contract: Contract) -> None:
    """Before it reports anything: what is still paused is not said to run meanwhile."""
    await contract.started(contract.spec("k", "sleep", "1000"))
    async with paused(contract, "k.1"):
        backend = await contract.open()
        assert backend.observe()["k.1"].pause is not None
        await backend.stop("k.1", 0)
        await backend.kill("k.1")
        await contract.until("k.1", Phase.EXITED)
    await backend.remove("k.1")


async def test_a_stopped_first_process(contract: Contract) -> None:
    """It runs commands, and passes a signal on once it is asked to end."""
    backend = await contract.started(contract.spec("k", "sh", "-c", ASKED))
    await contract.until_printed("k.1", "ready")
    send_signal(first_process(contract, "k.1"), signal.SIGSTOP)
    observed = await eventually(lambda: backend.observe()["k.1"].pause)
    assert observed is not None
    assert observed.message == STOPPED
    wire = await backend.kernel("k.1").exec()
    await wire.channel.close()
    await wire.ended()
    await asyncio.wait_for(backend.stop("k.1", NEVER), NEVER)
    assert (await contract.until("k.1", Phase.EXITED)).exit_code == 5
    await backend.remove("k.1")


def _identified(pid: int) -> Process:
    found = identify(pid)
    assert found is not None
    return found
