"""Engines that fail, forget or hang, and others that use them: nothing is started twice, and nothing is held up."""

from __future__ import annotations

import asyncio
import errno
import signal
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from tenacity import wait_none

from retinue.agent.attempts import Phase, TimeWarning
from retinue.agent.docker import containers
from retinue.agent.docker.engine import Engine, EngineUnavailableError
from retinue.agent.errors import KernelRuntimeError
from retinue.agent.kernel.core.signals import Delivery, Target
from retinue.agent.runtime.attempt_records import Records
from tests.integration.agent.docker.containers import contract
from tests.integration.agent.docker.engine import IMAGE, TestEngine
from tests.integration.agent.opened import HOSTS
from tests.integration.agent.runtime.conftest import Contract, Kind
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiodocker.stream import Stream

    from tests.integration.agent.conftest import Place

__all__ = ["contract"]


@pytest.fixture
async def own_contract(place: Place, own_engine: TestEngine) -> AsyncIterator[Contract]:
    contract = Contract(place, Kind("docker", IMAGE, "docker/attempts", own_engine))
    yield contract
    if contract.current is not None:
        await contract.current.close()
    own_engine.remove_containers(place.agent_id)


class Forgetful(Engine):
    """Does what is asked, and loses its first answers."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.lost: set[str] = set()

    def _lose(self, what: str) -> None:
        if what not in self.lost:
            self.lost.add(what)
            raise EngineUnavailableError(f"the answer to {what} was lost")

    async def create(self, name: str, body: Any) -> bool:
        made = await super().create(name, body)
        self._lose("create")
        return made

    async def start(self, name: str) -> None:
        await super().start(name)
        self._lose("start")


async def test_lost_answers_start_nothing_twice(
    contract: Contract, engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.agent.docker.runtime.Engine", Forgetful)
    monkeypatch.setattr(containers._PERSIST, "wait", wait_none())  # noqa: SLF001  # no test waits for it
    observed, output = await contract.ran(contract.spec("k", "echo", "once"))
    assert (observed.exit_code, output) == (0, "once\n")
    assert not contract.left()


class Stuck(Engine):
    """Never comes to the end of opening a command, as when a kernel has a pipe where runc reads of its users."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.stuck.clear()

    stuck: ClassVar[list[str]] = []

    async def start_exec(self, execution: str) -> Stream | None:
        self.stuck.append(execution)
        await asyncio.Event().wait()
        return None


async def test_commands_that_cannot_be_attached_hold_up_nothing_else(
    contract: Contract, engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retinue.agent.docker.runtime.Engine", Stuck)
    backend = await contract.held(contract.spec("k", "sleep", "1000"))
    await backend.start("k.1")
    attached = [asyncio.create_task(backend.kernel("k.1").exec()) for _ in range(32)]
    try:
        await eventually(lambda: len(Stuck.stuck) == len(attached))
        await contract.held(contract.spec("other", "true"))
        await backend.stop("k.1", 0)
        await backend.kill("k.1")
        await eventually(lambda: backend.observe()["k.1"].phase.ended)
    finally:
        for each in attached:
            each.cancel()
        outcomes = await asyncio.gather(*attached, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}


async def test_nothing_is_released_that_a_crash_would_forget(
    contract: Contract, engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record goes to the disk while the engine starts the container; if it cannot, the container does not stay."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(Records, "make_lasting", full)
    backend = await contract.open()
    await backend.prepare(contract.spec("k", "true"), HOSTS)
    observed = backend.observe()["k.1"]
    assert (observed.phase, observed.reason) == (Phase.FAILED, "START_FAILED")
    assert "the disk is full" in observed.message
    assert not engine.inspected("retinue-k.1")["State"]["Running"]
    await backend.remove("k.1")
    assert not contract.left()


async def test_container_of_that_name_is_not_started_again(contract: Contract, engine: TestEngine) -> None:
    """Whatever ran under the name of an attempt is not run for it a second time, and not taken for its own."""
    client = engine.client()
    try:
        client.create_container(IMAGE, "true", name="retinue-k.1")
        backend = await contract.open()
        await backend.prepare(contract.spec("k", "true"), HOSTS)
        observed = backend.observe()["k.1"]
        assert (observed.phase, observed.reason) == (Phase.FAILED, "START_FAILED")
        assert "there is a container retinue-k.1 already" in observed.message
        assert client.inspect_container("retinue-k.1")["State"]["Status"] == "created"
    finally:
        client.remove_container("retinue-k.1")
        client.close()


async def test_container_removed_by_another_process(contract: Contract, engine: TestEngine) -> None:
    backend = await contract.held(contract.spec("k"))
    await backend.start("k.1")
    engine.remove_containers(contract.place.agent_id)
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("KILLED", None)
    await backend.remove("k.1")
    assert not contract.left()


async def test_container_restarted_by_another_process(contract: Contract, engine: TestEngine) -> None:
    backend = await contract.held(contract.spec("k", "sh", "-c", "echo once; sleep 1000"))
    await backend.start("k.1")
    client = engine.client()
    try:
        await asyncio.to_thread(client.restart, "retinue-k.1", timeout=0)
        observed = await contract.until("k.1", Phase.EXITED)
        assert observed.reason == "ENGINE_STOPPED"
        assert observed.exit_code in {137, 143}
        # It waits at its barrier, which no agent opens again.
        assert contract.printed("k.1") in {"", "once\n"}
    finally:
        client.close()
    await backend.remove("k.1")
    assert not contract.left()


ENDS = "trap 'exit 3' TERM INT; echo ready; while :; do sleep 0.05; done"
STAYS = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize(
    ("script", "call", "values", "code", "words"),
    [
        ("echo ready; exec sleep 1000", "stop", {"timeout": int(NEVER)}, 143, "its container was asked to end"),
        (ENDS, "stop", {"timeout": int(NEVER)}, 3, "its container was asked to end"),
        (STAYS, "stop", {"timeout": 0}, 137, "its container was killed"),
        (ENDS, "restart", {"timeout": int(NEVER)}, 3, "its container was asked to end"),
        (ENDS, "kill", {"signal": "INT"}, 3, "its container was asked to end"),
        (ENDS, "kill", {}, 137, "its container was killed"),
    ],
)
async def test_what_ends_by_the_engine_has_not_ended_by_itself(  # one case
    contract: Contract, engine: TestEngine, script: str, call: str, values: dict[str, Any], code: int, words: str
) -> None:
    backend = await contract.started(contract.spec("k", "sh", "-c", script))
    await contract.until_printed("k.1", "ready")
    client = engine.client()
    try:
        await asyncio.to_thread(getattr(client, call), "retinue-k.1", **values)
    finally:
        client.close()
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("ENGINE_STOPPED", code)
    assert observed.message == f"the container engine stopped it: {words}"
    await backend.remove("k.1")
    assert not contract.left()


async def test_a_stopped_container_that_is_gone_keeps_its_end(contract: Contract, engine: TestEngine) -> None:
    """Also where its agent was away meanwhile."""
    backend = await contract.started(contract.spec("k", "sh", "-c", ENDS))
    await contract.until_printed("k.1", "ready")
    await backend.close()
    client = engine.client()
    try:
        await asyncio.to_thread(client.stop, "retinue-k.1", timeout=int(NEVER))
    finally:
        client.close()
    engine.remove_containers(contract.place.agent_id)
    backend = await contract.open()
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("ENGINE_STOPPED", 3)
    await backend.remove("k.1")
    assert not contract.left()


@pytest.mark.parametrize(
    ("script", "warns", "code"),
    [
        ("exec sleep 1000", True, 143),
        # Its first process passes it on.
        ("kill -TERM 1; exec sleep 1000", False, 143),
        ("kill -TERM $$", False, 143),
        ("kill -KILL $$", False, 137),
    ],
)
async def test_signals_of_the_agent_and_of_a_kernel_are_no_stop_by_the_engine(
    contract: Contract, script: str, warns: bool, code: int
) -> None:
    warning = TimeWarning(Delivery(signal.SIGTERM, Target.COMMAND), 0.0) if warns else None
    observed, _ = await contract.ran(contract.spec("k", "sh", "-c", script, warning=warning))
    assert (observed.reason, observed.exit_code) == ("EXITED", code)


async def test_success_after_a_stop_is_success(contract: Contract, engine: TestEngine) -> None:
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    backend = await contract.started(contract.spec("k", "sh", "-c", script))
    await contract.until_printed("k.1", "ready")
    client = engine.client()
    try:
        await asyncio.to_thread(client.stop, "retinue-k.1", timeout=int(NEVER))
    finally:
        client.close()
    observed = await contract.until("k.1", Phase.EXITED)
    assert (observed.reason, observed.exit_code) == ("EXITED", 0)
    await backend.remove("k.1")


async def test_engine_that_comes_later(own_contract: Contract, own_engine: TestEngine) -> None:
    """Without its engine, an agent starts and knows its kernels; it creates none until the engine is back."""
    await own_contract.held(own_contract.spec("on"))
    backend = await own_contract.held(own_contract.spec("k", "sh", "-c", "echo on; exit 4"))
    await backend.close()
    own_engine.end(signal.SIGKILL)
    backend = await own_contract.open()
    assert not backend.available  # type: ignore[attr-defined]
    with pytest.raises(KernelRuntimeError, match="does not answer"):
        await backend.prepare(own_contract.spec("other", "true"), HOSTS)
    assert set(backend.observe()) == {"k.1", "on.1"}
    # Kernels are released and end without the engine; how they ended is known once it is back.
    await backend.start("k.1")
    await own_contract.until_printed("k.1", "on\n")
    await backend.start("on.1")
    assert {attempt.phase for attempt in backend.observe().values()} == {Phase.RUNNING}
    own_engine.start()
    observed = await own_contract.until("k.1", Phase.EXITED)
    assert observed.reason == "EXITED"
    assert backend.observe()["on.1"].phase is Phase.RUNNING
    await backend.stop("on.1", NEVER)
    assert (await own_contract.until("on.1", Phase.EXITED)).exit_code == 143
    await backend.prepare(own_contract.spec("other", "true"), HOSTS)
    assert backend.observe()["other.1"].phase is Phase.CREATED
    await backend.kill("other.1")
    await own_contract.until("other.1", Phase.FAILED)
