"""Probes the attempts with a published port that run, and keeps what is known of each: its health,
and where routers reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from retinue.agent.attempts import Phase
from retinue.agent.errors import KernelRuntimeError, UnknownAttemptError
from retinue.agent.network.errors import NetworkError
from retinue.agent.probes.core.machine import Answer, HealthState, ProbeMachine, Role
from retinue.agent.probes.questions import ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retinue.agent.attempts import DesiredAttempt, ObservedAttempt, Probe, PublishedPort
    from retinue.agent.network.egress import Egress
    from retinue.agent.network.publisher import Publisher
    from retinue.agent.runtime.contract import Runtime
    from retinue.agent.runtime.kernel import Kernel

_log = logging.getLogger(__name__)

RETRY_INTERVAL = 5.0
"""Seconds until what failed is tried again, at the least."""
Ask: TypeAlias = Callable[["Kernel", "Probe", int, str], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Health:
    """What the probes of an attempt say; `since` is in seconds since the epoch."""

    state: HealthState
    since: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class RoutedStatus:
    """What routers have to know of an attempt: its health, and the address and the port where they reach it."""

    health: Health | None = None
    location: tuple[str, int] | None = None


NOT_ROUTED = RoutedStatus()


class Prober:
    """The probes of all attempts. All methods belong on one event loop."""

    def __init__(
        self,
        runtime: Runtime,
        egress: Egress,
        publisher: Publisher,
        desired: Callable[[], Mapping[str, DesiredAttempt]],
        changed: Callable[[], None],
        *,
        ask: Ask = ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called when the health of an attempt changed; `clock` is monotonic."""
        self._runtime = runtime
        self._egress = egress
        self._publisher = publisher
        self._desired = desired
        self._changed = changed
        self._ask = ask
        self._clock = clock
        self._health: dict[str, Health] = {}
        self._machines: dict[str, ProbeMachine] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Says that attempts, or what is desired of them, may have changed."""
        self._wake.set()

    def answered(self, attempt_ids: Iterable[str]) -> None:
        """Notes that routers had answers from attempts."""
        for attempt_id in attempt_ids:
            if (machine := self._machines.get(attempt_id)) is not None:
                machine.answers(self._clock())

    def status(self, attempt_id: str, attempt: ObservedAttempt | None) -> RoutedStatus:
        """Returns what routers have to know: nothing of an attempt without a published port,
        and health of one that runs only.
        """
        location = self._publisher.location(attempt_id)
        wanted = self._desired().get(attempt_id)
        health = None
        if (
            wanted is not None
            and wanted.spec.published is not None
            and attempt is not None
            and attempt.phase is Phase.RUNNING
        ):
            first = Health(HealthState.STARTING, attempt.start_time or time.time())
            health = self._health.setdefault(attempt_id, first)
        return NOT_ROUTED if location is None and health is None else RoutedStatus(health, location)

    async def run(self) -> None:
        """Probes until cancelled."""
        try:
            while True:
                self._wake.clear()
                await self._follow()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_INTERVAL):
                        await self._wake.wait()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _follow(self) -> None:
        """Begins and ends probes as attempts run and end; withdraws published ports of ended ones,
        and leased ports in time.
        """
        observed = dict(self._runtime.observe())
        running = {
            key: wanted.spec.published
            for key, wanted in self._desired().items()
            if wanted.spec.published is not None and key in observed and observed[key].phase is Phase.RUNNING
        }
        for attempt_id in [key for key, task in self._tasks.items() if key not in running or task.done()]:
            self._tasks.pop(attempt_id).cancel()
        for attempt_id in self._health.keys() - running.keys():
            del self._health[attempt_id]
        for attempt_id, published in running.items():
            if attempt_id not in self._tasks:
                task = asyncio.create_task(self._probe(attempt_id, published), name=f"probes of {attempt_id}")
                self._tasks[attempt_id] = task
        ended = {key for key in self._publisher.attempts() if key not in observed or observed[key].phase.ended}
        try:
            await self._publisher.withdraw(ended)
            await self._publisher.expire()
        except NetworkError:
            _log.exception("ports of ended attempts, or with ended leases, are not withdrawn")

    async def _probe(self, attempt_id: str, published: PublishedPort) -> None:
        try:
            address = (await self._egress.addresses([attempt_id])).get(attempt_id, "")
            if self._publisher.location(attempt_id) is None and address:
                # The numbers were lost.
                await self._publisher.publish(
                    attempt_id, published.port, closed=not self._desired()[attempt_id].spec.egress
                )
                self._changed()
            await self._ask_always(attempt_id, published, address)
        except (NetworkError, UnknownAttemptError, KeyError) as error:
            _log.warning("attempt %s is not probed now: %r", attempt_id, error)

    async def _ask_always(self, attempt_id: str, published: PublishedPort, address: str) -> None:
        """Asks until the attempt is dead, or this is cancelled; a slow answer to one probe holds up no other."""
        machine = self._machines[attempt_id] = ProbeMachine(published, self._clock())
        kernel = self._runtime.kernel(attempt_id)
        asking: dict[asyncio.Task[Answer], Role] = {}

        async def answer(probe: Probe) -> Answer:
            try:
                return await self._ask(kernel, probe, published.port, address or "127.0.0.1")
            except Exception:  # noqa: BLE001  # logged; it costs this answer only
                _log.exception("a probe of attempt %s failed here", attempt_id)
                return Answer(success=False, message="the agent cannot ask; see its log")

        try:
            while not machine.dead:
                for role, probe in machine.due(self._clock()):
                    asking[asyncio.create_task(answer(probe), name=f"{role.value} of {attempt_id}")] = role
                due = machine.next_due()
                pause = None if due is None else max(0.0, due - self._clock())
                if asking:
                    done, _ = await asyncio.wait(asking, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(pause or 0.0)
                    done = set()
                for task in done:
                    machine.answered(asking.pop(task), task.result(), self._clock())
                self._note(attempt_id, machine)
            _log.warning("attempt %s is stopped: %s", attempt_id, machine.dead)
            await self._stop(attempt_id)
        finally:
            if self._machines.get(attempt_id) is machine:
                del self._machines[attempt_id]
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    def _note(self, attempt_id: str, machine: ProbeMachine) -> None:
        state, message = machine.state, machine.dead or machine.message
        if machine.dead:
            state = HealthState.UNREADY
        known = self._health.get(attempt_id)
        if known is not None and (known.state, known.message) == (state, message):
            return
        since = known.since if known is not None and known.state is state else time.time()
        self._health[attempt_id] = Health(state, since, message)
        self._changed()

    async def _stop(self, attempt_id: str) -> None:
        wanted = self._desired().get(attempt_id)
        with contextlib.suppress(KernelRuntimeError):
            await self._runtime.stop(attempt_id, 0.0 if wanted is None else wanted.stop_grace)
