"""An agent whose runtime is in memory: its own Sync stream, reconciler and terms,
which can be killed and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from retinue.agent.api.sync import SyncService
from retinue.agent.api.terms import Terms
from retinue.agent.attempts import AttemptSpec, ObservedAttempt, Phase
from retinue.agent.fencing.lease import Fence
from retinue.agent.probes.prober import NOT_ROUTED
from retinue.agent.probes.scraper import Scraper
from retinue.agent.reconcile.loop import Reconciler
from retinue.agent.resources.sampler import Reader, Sampler
from retinue.agent.runtime.contract import RuntimeStatus
from retinue.agent.state.damaged import DamagedFiles
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import Code, ServiceError
from tests.unit.agent.runtime.fake_runtime import FakeRuntime, State

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from pathlib import Path

AGENT = "n1"
STEP_SECONDS = 0.02
"""Time that each step of the runtime takes."""


class Journal:
    """What happened to attempts on the node, over all processes of its agent."""

    def __init__(self) -> None:
        self.created = Counter[str]()
        self.started = Counter[str]()
        self.removed = Counter[str]()
        # Called with each attempt that is about to be forgotten.
        self.on_remove: Callable[[str], None] = lambda _: None


class SlowRuntime(FakeRuntime):
    """Takes its time, so that an agent may be killed in the middle of a step; counts what is done."""

    def __init__(self, state: State, journal: Journal, clock: Callable[[], float]) -> None:
        super().__init__(state, clock)
        self._journal = journal

    async def prepare(self, spec: AttemptSpec, hosts: str) -> None:
        await asyncio.sleep(STEP_SECONDS)
        there = spec.id in self.observe()
        await super().prepare(spec, hosts)
        self._journal.created[spec.id] += not there and self.observe()[spec.id].phase is Phase.CREATED
        await asyncio.sleep(STEP_SECONDS)

    async def start(self, attempt_id: str) -> None:
        await asyncio.sleep(STEP_SECONDS)
        self._journal.started[attempt_id] += self.observe()[attempt_id].phase is Phase.CREATED
        await super().start(attempt_id)
        await asyncio.sleep(STEP_SECONDS)

    async def remove(self, attempt_id: str) -> None:
        await asyncio.sleep(STEP_SECONDS)
        self._journal.on_remove(attempt_id)
        self._journal.removed[attempt_id] += 1
        await super().remove(attempt_id)


class NoNetworks:
    """Networks and egress links of which there are none."""

    async def ensure(self, network: Any) -> int:
        raise AssertionError(network)

    async def attach(self, *_: Any) -> int:
        return 0

    async def remove(self, session_id: str) -> None:
        raise AssertionError(session_id)

    async def observed(self) -> set[str]:
        return set()


class MemoryAgent:
    """A node, on which an agent's process runs from `start` to `kill`. Within the loop of the test."""

    def __init__(self, directory: Path) -> None:
        """The term and the guard of attempts are kept in the directory, as on a disk."""
        self._directory = directory
        self._state = State(directory)
        self._task: asyncio.Task[None] | None = None
        self.journal = Journal()
        self.runtimes = [RuntimeStatus("process", available=True)]
        self.capacity = {"cpu": 64_000, "mem": 64 << 30}
        self.sync: SyncService | None = None
        self.fence: Fence | None = None

    @property
    def attempts(self) -> dict[str, ObservedAttempt]:
        """Returns what there is on the node, whether an agent runs or not."""
        return self._state.attempts

    def phase(self, attempt_id: str) -> Phase | None:
        """Returns the phase of an attempt; None when there is none."""
        attempt = self._state.attempts.get(attempt_id)
        return None if attempt is None else attempt.phase

    def end(self, attempt_id: str, code: int) -> None:
        """Ends the command of an attempt that runs."""
        runtime = FakeRuntime(self._state)
        if self.phase(attempt_id) is Phase.RUNNING:
            runtime._end(attempt_id, "EXITED", code)  # noqa: SLF001  # what a kernel does by itself
            if self.sync is not None:
                self.sync.reconciler.changed()

    async def start(self) -> None:
        """Starts the agent's process over what is on the node."""
        clock = asyncio.get_running_loop().time
        runtime = SlowRuntime(self._state, self.journal, clock)
        nothing: Any = NoNetworks()
        self.fence = Fence(self._directory, "boot", clock, lambda _: None)
        reconciler = Reconciler(
            runtime, nothing, nothing, nothing, clock=clock, random_numbers=random.Random(0), fence=self.fence
        )

        def usage(attempt_id: str) -> Reader | None:
            return runtime.kernel(attempt_id).usage if attempt_id in runtime.observe() else None

        self.sync = SyncService(
            reconciler,
            Terms(self._directory / "term", DamagedFiles(self._directory / "damaged")),
            about=pb.Welcome(
                agent_id=AGENT,
                instance="i",
                version="1",
                architecture="x86_64",
                underlay_address="192.0.2.1",
                underlay_mtu=1500,
            ),
            runtimes=lambda: self.runtimes,
            capacity=lambda: self.capacity,
            protect=lambda _: None,
            route=lambda _: None,
            routed=lambda _id, _attempt: NOT_ROUTED,
            answered=lambda _attempts: None,
            sampler=Sampler(usage, monotonic=clock),
            scraper=Scraper(runtime, nothing, reconciler.desired, clock=clock),
        )
        await runtime.open(reconciler.changed)
        self._task = asyncio.create_task(reconciler.run(asyncio.Event()), name="reconciler")

    async def kill(self) -> None:
        """Ends the agent's process at once. Streams to it have to be cut, too."""
        assert self._task is not None
        self.sync, self.fence = None, None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def serve(self, requests: AsyncIterator[pb.SyncRequest]) -> AsyncGenerator[pb.SyncResponse, None]:
        """Serves one stream."""
        if self.sync is None:
            raise ServiceError(Code.UNAVAILABLE, "UNAVAILABLE", "nothing listens")
        async with contextlib.aclosing(self.sync.serve(requests)) as responses:
            async for response in responses:
                yield response
