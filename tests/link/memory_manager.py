"""Leaders of a store that is in memory: their link to one agent and their queue of reports are the manager's own."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch.agent_link import AgentLink
from retinue.manager.dispatch.reports import ReportQueue, report_of
from retinue.manager.dispatch.sent_state import DesiredState
from retinue.manager.domain.session.attempts import (
    AttemptKey,
    AttemptStatus,
    NodeCondition,
    NodeFacts,
    NodeReport,
    TermOverError,
)
from retinue.manager.domain.session.events import KernelMoved
from retinue.manager.domain.session.state_machine import Kernel, Session, SessionMachine
from retinue.manager.domain.session.states import (
    KernelState,
    Observed,
    SessionState,
    SessionType,
)
from retinue.manager.store.leadership.leadership import NotLeader
from retinue.manager.supervision import for_links
from retinue.rpc.times import duration
from tests.link.memory_agent import AGENT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from retinue.manager.dispatch.convert import Rejected
    from tests.link.wire import Wire

INCARNATION = "1ca4a71e-0000-4000-8000-000000000001"
HEARTBEAT = 0.5
LOST_AFTER = 60.0
COMMIT_SECONDS = 0.01


class MemoryStore:
    """Sessions of one kernel each, with one attempt on the agent; what is committed of them,
    and what a commit may fail with.
    """

    def __init__(self) -> None:
        self.term = 0
        self.machines: dict[uuid.UUID, SessionMachine] = {}
        self.commands: dict[str, tuple[str, ...]] = {}
        self.fence_seconds = 0.0
        # The states of attempts that were committed, however often.
        self.committed = Counter[tuple[str, Observed]]()
        self.welcomes = 0
        # Raises what the next commit fails with: before anything is written, or once it is.
        self.before_commit: Callable[[Sequence[NodeReport]], None] = lambda _: None
        self.after_commit: Callable[[Sequence[NodeReport]], None] = lambda _: None
        self.on_change: Callable[[Collection[uuid.UUID]], None] = lambda _: None

    def place(self, number: int, *command: str) -> str:
        """Places a session on the agent; returns the id of its attempt."""
        identity = uuid.UUID(int=number)
        kernel = Kernel(identity, "main", "main1", KernelState.SCHEDULED, AGENT, 1, attempt_ended=False)
        self.machines[identity] = SessionMachine(
            Session(identity, SessionType.BATCH, SessionState.SCHEDULED, [kernel], failed_starts=4)
        )
        self.commands[f"{identity}.1"] = command
        self.on_change([identity])
        return f"{identity}.1"

    def terminate(self, attempt_id: str) -> None:
        """Ends a session on request."""
        machine = self.machine(attempt_id)
        machine.terminate("TERMINATED_BY_USER")
        self.on_change([machine.session.id])

    def machine(self, attempt_id: str) -> SessionMachine:
        """Returns the machine of an attempt's session."""
        return self.machines[uuid.UUID(attempt_id.partition(".")[0])]

    def state(self, attempt_id: str) -> SessionState:
        """Returns the state of an attempt's session."""
        return self.machine(attempt_id).session.state

    def has_end(self, attempt_id: str) -> bool:
        """Returns whether the end of an attempt is committed."""
        return self.machine(attempt_id).session.kernels[0].attempt_ended

    def moves(self, attempt_id: str) -> list[KernelState]:
        """Returns the states that an attempt's kernel was moved to, in order."""
        return [move.to_state for move in self.machine(attempt_id).moves if isinstance(move, KernelMoved)]

    def check(self, term: int) -> None:
        """Raises NotLeader when another manager leads."""
        if term != self.term:
            raise NotLeader(f"term {self.term} follows {term}")

    def desired(self, session_ids: Collection[uuid.UUID] | None) -> DesiredState:
        """Returns what is desired on the agent, of all sessions or of some."""
        wanted = {}
        for identity, machine in self.machines.items():
            (kernel,) = machine.session.kernels
            if not kernel.attempt_ended and (session_ids is None or identity in session_ids):
                attempt_id = f"{identity}.{kernel.epoch}"
                wanted[attempt_id] = pb.Attempt(
                    id=attempt_id,
                    session_id=str(identity),
                    kernel_id=str(identity),
                    number=kernel.epoch,
                    goal=pb.Goal.Value(f"GOAL_{kernel.goal}"),
                    stop_grace=duration(5.0),
                    hostname=kernel.hostname,
                    command=self.commands[attempt_id],
                    slots={"cpu": 1000},
                    fence_timeout=duration(self.fence_seconds) if self.fence_seconds else None,
                )
        return DesiredState(wanted)

    def removable(self, undesired: Sequence[AttemptStatus]) -> list[str]:
        """Returns those whose end is committed; what is unknown here is left alone."""
        return [status.attempt_id for status in undesired if status.key[0] in self.machines]

    def reported(self) -> list[AttemptKey]:
        """Returns the live attempts that were reported before."""
        kernels = [machine.session.kernels[0] for machine in self.machines.values()]
        return [(kernel.id, kernel.epoch) for kernel in kernels if kernel.observed and not kernel.attempt_ended]

    async def commit(self, term: int, reports: Sequence[NodeReport]) -> None:
        """Commits reports together. Raises NotLeader, and what a test wants."""
        await asyncio.sleep(COMMIT_SECONDS)
        self.check(term)
        self.before_commit(reports)
        changed = set[uuid.UUID]()
        for report in reports:
            for status in report.attempts:
                self.committed[status.attempt_id, status.state] += 1
                if (machine := self.machines.get(status.key[0])) is not None:
                    machine.observe(status)
                    changed.add(status.key[0])
        self.after_commit(reports)
        self.on_change(changed)


class Leader:
    """A manager that leads in one term, from `start` to `stop`, whether it knows that another has followed or not."""

    def __init__(self, store: MemoryStore, wire: Wire, term: int, *, incarnation: str = INCARNATION) -> None:
        self._store = store
        self._term = term
        self._queue = ReportQueue(lambda reports: store.commit(term, reports))
        self._tasks: list[asyncio.Task[None]] = []
        self._conditions: tuple[NodeCondition, ...] = ()
        self.quarantines: list[tuple[str, float]] = []
        self.following: list[str] = []
        self.lease_ended = False
        dialer: Any = wire
        loop = asyncio.get_running_loop()
        self.link = AgentLink(
            AGENT,
            "memory:1",
            incarnation=incarnation,
            term=term,
            dialer=dialer,
            heartbeat=HEARTBEAT,
            lost_after=LOST_AFTER,
            desired=self._desired,
            protected=frozenset,
            removable=self._removable,
            listener=self,
            clock=loop.time,
            check_lease=self._check_lease,
        )

    def start(self) -> None:
        """Begins to lead: the store is this one's from here on."""
        self._store.term = self._term
        self._store.on_change = self.link.wake
        self._tasks = [
            asyncio.create_task(self.link.run(), name=f"link of term {self._term}"),
            asyncio.create_task(self._commit(), name=f"reports of term {self._term}"),
        ]
        # All parts of a term end together.
        self._tasks[1].add_done_callback(lambda _: self._tasks[0].cancel())

    async def stop(self) -> None:
        """Ends the process. Its streams end with it."""
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError | TermOverError | NotLeader | None):
                raise outcome

    @property
    def term_has_ended(self) -> bool:
        """Returns whether it has found that another leads."""
        return any(task.done() for task in self._tasks)

    async def _commit(self) -> None:
        while True:
            await self._queue.commit_next(1.0)

    def _check_lease(self) -> None:
        if self.lease_ended:
            raise TermOverError("the lease has ended")

    async def _desired(self, agent_id: str, session_ids: Collection[uuid.UUID] | None) -> DesiredState:
        assert agent_id == AGENT
        await asyncio.sleep(COMMIT_SECONDS)
        with for_links("nothing"):
            self._store.check(self._term)
        return self._store.desired(session_ids)

    async def _removable(self, agent_id: str, undesired: Sequence[AttemptStatus]) -> Collection[str]:
        assert agent_id == AGENT
        await asyncio.sleep(COMMIT_SECONDS)
        with for_links("nothing"):
            self._store.check(self._term)
        return self._store.removable(undesired)

    async def connected(self, facts: NodeFacts) -> None:
        """Commits a welcome, as the manager's listener does."""
        with for_links("its welcome"):
            self._store.check(self._term)
            self._store.welcomes += 1
            await self._store.commit(self._term, [report_of(facts, self._store.reported(), ())])

    async def reported(self, report: NodeReport) -> None:
        """Returns once a report is committed."""
        await self._queue.add(report)

    async def conditions_changed(self, agent_id: str, conditions: Collection[NodeCondition]) -> None:
        """Takes in the conditions of the node."""
        assert agent_id == AGENT
        self._conditions = tuple(conditions)

    async def quarantined(self, agent_id: str, rejected: Rejected, pause: float) -> None:
        """Takes note of a quarantine."""
        assert agent_id == AGENT
        self.quarantines.append((rejected.reason, pause))

    async def following_changed(self, agent_id: str, why: str) -> None:
        """Takes note of an agent that does not answer, or does again."""
        assert agent_id == AGENT
        self.following.append(why)
