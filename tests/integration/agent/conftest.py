"""An agent of its own for each test, and nothing left of it after."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from retinue.agent import daemon
from retinue.agent.fencing import watchdog
from retinue.agent.host import syscalls
from retinue.agent.host.cgroups import Cgroups
from retinue.agent.inside import log_file, output_pump
from retinue.agent.network import namespaces, nftables
from retinue.agent.network.core.labels import agent_label
from retinue.agent.process.options import ProcessOptions
from retinue.agent.process.runtime import ProcessRuntime
from retinue.agent.settings import Settings
from retinue.agent.vm import machines
from retinue.devtools import leftovers
from tests.integration.agent.agent_process import AgentProcess
from tests.integration.agent.authority import Authority
from tests.integration.agent.docker.engine import TestEngine, install
from tests.integration.agent.manager_side import INTERVAL, TOKEN, Conversation, Manager
from tests.integration.agent.opened import Runtimes
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import grpc


@dataclass
class Place:
    """Where an agent keeps its things, and what it is called."""

    agent_id: str
    directory: Path

    def options(self, **values: object) -> ProcessOptions:
        settings: dict[str, object] = {
            "agent_id": self.agent_id,
            "state_dir": self.directory / "state",
            "scratch_dir": self.directory / "scratch",
            "boot_id": "this-boot",
        }
        return ProcessOptions(**(settings | values))  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place for one agent; whatever is left there after the test is ended and removed."""
    place = Place(f"rt-test-{secrets.token_hex(4)}", tmp_path)
    with contextlib.ExitStack() as stack:
        # The last comes first, and each of them whatever becomes of the others.
        stack.callback(shutil.rmtree, tmp_path, ignore_errors=True)
        stack.callback(leftovers.unmount, tmp_path)
        stack.callback(_remove_rules, place.agent_id)
        stack.callback(_remove_namespaces, place.agent_id)
        stack.callback(_end_processes, place.agent_id)
        yield place


def _end_processes(agent_id: str) -> None:
    cgroups = Cgroups(agent_id)
    remaining = [name for name in cgroups.names() if not cgroups.remove(name, NEVER)]
    cgroups.close(NEVER)
    assert not remaining


def _remove_namespaces(agent_id: str) -> None:
    for name in namespaces.names():
        if name.startswith(f"rt-{agent_id}-"):
            namespaces.delete(name)


def _remove_rules(agent_id: str) -> None:
    # An agent that was killed leaves its rules to the next one.
    if (table := f"retinue-{agent_label(agent_id)}") in nftables.tables():
        nftables.run(f"delete table inet {table}")


class Backends(Runtimes[ProcessRuntime]):
    """Opens backends of native processes at one place, one after another, as an agent does when it is restarted."""

    async def open(self, **values: object) -> ProcessRuntime:
        if self.current is not None:
            await self.current.close()
        self.current = ProcessRuntime(self.place.options(**values))
        await self.current.open(self._changed)
        return self.current


@pytest.fixture
async def backends(place: Place) -> AsyncIterator[Backends]:
    backends = Backends(place)
    yield backends
    if backends.current is not None:
        await backends.current.close()


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What agents in this process start, and what they wait for at the end of a kernel, may take its time: no test is
    about that.
    """
    monkeypatch.setattr(output_pump, "START_TIMEOUT", NEVER)
    monkeypatch.setattr(log_file, "DRAIN_TIMEOUT", NEVER)
    monkeypatch.setattr(watchdog, "START_SECONDS", NEVER)
    monkeypatch.setattr(machines, "START_TIMEOUT", NEVER)
    monkeypatch.setattr(machines, "DRAIN_TIMEOUT", NEVER)


@pytest.fixture(scope="session")
def engine() -> Iterator[TestEngine]:
    """One engine for all tests of a process that neither harm theirs nor need it in a network of its own."""
    install()
    engine = TestEngine()
    try:
        engine.start()
        engine.make_image()
        yield engine
    finally:
        engine.stop()


@pytest.fixture
def untranslated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory on a file system that has no ID-mapped mounts."""
    directory = tmp_path_factory.mktemp("untranslated")
    syscalls.mount("ramfs", str(directory), "ramfs", syscalls.MOUNT_ATTR_NOSUID)
    yield directory
    syscalls.unmount(str(directory), syscalls.MNT_DETACH)


@pytest.fixture
async def manager() -> AsyncIterator[Manager]:
    manager = Manager(Authority())
    await manager.start()
    yield manager
    await manager.stop()


@dataclass
class Agent:
    """A whole agent in this process, and the manager's side of it."""

    settings: Settings
    manager: Manager
    address: str = ""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    async def start(self) -> None:
        self.stopping = asyncio.Event()
        self.task = asyncio.create_task(daemon.serve(self.settings, self.stopping))
        announced = asyncio.create_task(self.manager.announced())
        await asyncio.wait((self.task, announced), return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            announced.cancel()
            await self.task
        self.address = await announced

    async def stop(self) -> None:
        for channel in self.channels:
            await channel.close()
        self.channels.clear()
        self.stopping.set()
        if self.task is not None:
            await self.task
            self.task = None

    def channel(self, key: str | None = None, certificate: str | None = None) -> grpc.aio.Channel:
        channel = self.manager.channel(self.settings.agent_id, self.address, key, certificate)
        self.channels.append(channel)
        return channel

    async def converse(self, term: int = 1, interval: float = INTERVAL) -> Conversation:
        conversation = Conversation(self.channel())
        await conversation.open(self.settings.agent_id, term, interval)
        return conversation


@pytest.fixture
def settings(place: Place, manager: Manager) -> Settings:
    return Settings(
        agent_id=place.agent_id,
        state_dir=place.directory / "state",
        scratch_dir=place.directory / "scratch",
        managers=(manager.address,),
        listen="127.0.0.1:0",
        join_token=TOKEN,
        ca_fingerprint=manager.authority.fingerprint,
        underlay_address="127.0.0.1",
    )


@pytest.fixture
async def agent(settings: Settings, manager: Manager) -> AsyncIterator[Agent]:
    agent = Agent(settings, manager)
    await agent.start()
    yield agent
    with contextlib.suppress(asyncio.CancelledError):
        await agent.stop()


@pytest.fixture
async def process(settings: Settings, manager: Manager) -> AsyncIterator[AgentProcess]:
    process = AgentProcess(settings, manager)
    yield process
    if process.process is not None:
        await process.end(signal.SIGKILL)
