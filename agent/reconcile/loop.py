"""Applies plans: one worker per attempt or network at a time, so that a slow one holds up no other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import Gauge

from retinue.agent.attempts import FailingStep, Phase, Step
from retinue.agent.conditions import Conditions
from retinue.agent.errors import KernelRuntimeError
from retinue.agent.network.core.topology import LOCALHOST, hosts_text
from retinue.agent.network.errors import NetworkError
from retinue.agent.network.paths import NO_PATHS
from retinue.agent.reconcile.core.plan import (
    Attach,
    Authorize,
    Create,
    Decline,
    Desired,
    EnsureNetwork,
    Identify,
    Kill,
    Observed,
    Release,
    Remove,
    RemoveNetwork,
    Stop,
    plan,
)
from retinue.agent.reconcile.networks import (
    INTERVAL,
    Egress,
    InspectEgress,
    Inspections,
    InspectNetwork,
    Links,
    NoPaths,
    Paths,
    Publisher,
)
from retinue.rpc.core.reasons import AgentConditionReason, AgentConditionType, AttemptReason
from retinue.rpc.core.retries import Retries, after_failure
from retinue.rpc.retrying import AGAIN_SECONDS

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from retinue.agent.attempts import AttemptSpec, DesiredAttempt, ObservedAttempt
    from retinue.agent.fencing.lease import Fence
    from retinue.agent.network.core.topology import Network
    from retinue.agent.network.namespaces import NetworkNamespace
    from retinue.agent.network.paths import PathReport
    from retinue.agent.reconcile.core.plan import Action
    from retinue.agent.runtime.contract import Runtime

_log = logging.getLogger(__name__)

_ATTEMPTS = Gauge("retinue_agent_attempts", "Attempts that there is a record of, by phase.", ["phase"])

PARALLEL_CREATES = 4
FIRST_DELAY, LONGEST_DELAY = 0.1, 10.0
"""Seconds before a failed step is tried again: the first time, and at the most."""
STOP_TIMEOUT = 3.0
"""Seconds that steps in progress get when the agent stops."""


REPORTED_FAILURES = 2
"""Failures in a row of one step from which on a manager is told: most steps that fail once succeed the next time."""


Inspection: TypeAlias = InspectNetwork | InspectEgress


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failures in a row of a step, and the times of the next try and of the last line in the log (monotonic)."""

    step: Step
    retries: Retries
    again_at: float
    logged_at: float


class Reconciler:
    """Brings what runs on the node to what a manager wants, and says what there is.

    All methods belong on one event loop.
    """

    def __init__(
        self,
        runtime: Runtime,
        links: Links,
        egress: Egress,
        publisher: Publisher,
        *,
        clock: Callable[[], float],
        random_numbers: random.Random,
        wall_clock: Callable[[], float] = time.time,
        fence: Fence | None = None,
        conditions: Conditions | None = None,
        parallel_creates: int = PARALLEL_CREATES,
        inspection_interval: float = INTERVAL,
        waits_for: Callable[[AttemptSpec], str] = lambda _: "",
        paths: Paths | None = None,
    ) -> None:
        """`clock` is monotonic, `wall_clock` in seconds since the epoch; so many kernels are created at once.

        Without a `fence`, no attempt is guarded. `waits_for` returns why an attempt cannot be created yet, in words,
        and nothing when it can: `changed` is called when that changes. `paths` are proved while networks exist.
        """
        self._runtime = runtime
        self._links = links
        self._egress = egress
        self._publisher = publisher
        self._paths = paths or NoPaths()
        self._clock = clock
        self._wall_clock = wall_clock
        self._random = random_numbers
        self._parallel_creates = parallel_creates
        self.fence = fence
        self.conditions = conditions or Conditions()
        self._inspections = Inspections(self.conditions, inspection_interval)
        self._waits_for = waits_for
        self._waiting: dict[str, str] = {}
        self._attempts: dict[str, DesiredAttempt] = {}
        self._networks: dict[str, Network] = {}
        self._complete = False
        self._absence_removes = True
        self._removed: set[str] = set()
        self._removed_networks: set[str] = set()
        self._existing: set[str] = set()
        self._ready: set[str] = set()
        self._settled: set[str] = set()
        # What this process has seen to: after a restart, all of it is done once more.
        self._authorized: dict[str, tuple[str, ...]] = {}
        self._busy: dict[str, Action | Inspection] = {}
        self._troubles: dict[str, _Failure] = {}
        self._wake = asyncio.Event()
        self._listeners: set[Callable[[], None]] = set()

    def set_desired(
        self,
        attempts: Iterable[DesiredAttempt],
        networks: Iterable[Network],
        removed_attempts: Iterable[str] = (),
        removed_networks: Iterable[str] = (),
        *,
        absence_removes: bool = True,
    ) -> None:
        """Replaces the whole desired set; `removed_attempts` and `removed_networks` are those
        that the manager names as no longer desired.

        Without `absence_removes`, only what the manager names, now or in a later change, is ended and removed.
        """
        self._attempts = {attempt.spec.id: attempt for attempt in attempts}
        self._guard()
        self._networks = {network.session_id: network for network in networks}
        self._removed = set(removed_attempts) - self._attempts.keys()
        self._removed_networks = set(removed_networks) - self._networks.keys()
        self._absence_removes = absence_removes
        self._complete = True
        self.changed()

    def change_desired(
        self,
        attempts: Iterable[DesiredAttempt],
        removed_attempts: Iterable[str],
        networks: Iterable[Network],
        removed_networks: Iterable[str],
    ) -> None:
        """Takes a difference to the desired set, as one."""
        for attempt_id in removed_attempts:
            self._attempts.pop(attempt_id, None)
            self._removed.add(attempt_id)
        for session_id in removed_networks:
            self._networks.pop(session_id, None)
            self._removed_networks.add(session_id)
        self._attempts |= {attempt.spec.id: attempt for attempt in attempts}
        self._removed -= self._attempts.keys()
        self._guard()
        self._networks |= {network.session_id: network for network in networks}
        self._removed_networks -= self._networks.keys()
        self.changed()

    def _guard(self) -> None:
        if self.fence is not None:
            self.fence.guard(self._attempts.values())

    def settle(self, attempt_ids: Iterable[str]) -> None:
        """Takes note that a manager has recorded the end of these attempts."""
        self._settled |= set(attempt_ids)
        self.changed()

    @property
    def settled(self) -> frozenset[str]:
        """Returns the ended attempts of which a manager has recorded the end."""
        return frozenset(self._settled)

    def attempts(self) -> Mapping[str, ObservedAttempt | None]:
        """Returns the observed state of each attempt; None for one that is desired and was not begun yet."""
        return dict.fromkeys(self._attempts) | dict(self._runtime.observe())

    def desired(self) -> Mapping[str, DesiredAttempt]:
        """Returns the desired attempts by id."""
        return self._attempts

    def networks(self) -> frozenset[str]:
        """Sessions of which anything of a network exists here."""
        return frozenset(self._existing)

    def trouble(self, attempt_id: str) -> str:
        """Returns why an attempt makes no progress, in words; empty when it waits for nothing and nothing failed."""
        failures = (trouble.retries.error for trouble in self._troubles_of(attempt_id))
        return "; ".join(failures) or self._waiting.get(attempt_id, "")

    def failing_steps(self, attempt_id: str) -> tuple[FailingStep, ...]:
        """Returns the steps for an attempt, and for its session's network, that fail again and again."""
        return tuple(
            FailingStep(trouble.step, trouble.retries.rounded)
            for trouble in self._troubles_of(attempt_id)
            if trouble.retries.tries >= REPORTED_FAILURES
        )

    def _troubles_of(self, attempt_id: str) -> list[_Failure]:
        if not self._troubles:
            return []
        wanted = self._attempts.get(attempt_id)
        keys = [attempt_id] if wanted is None else [attempt_id, wanted.spec.session_id]
        return [self._troubles[key] for key in keys if key in self._troubles]

    def paths(self, attempt: ObservedAttempt | None) -> PathReport:
        """Returns what is known of the paths to this node in the network of an attempt's session."""
        return NO_PATHS if attempt is None or not attempt.networked else self._paths.report(attempt.session_id)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has `listener` called at each change; the result ends that."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    def changed(self) -> None:
        """Says that something changed on the node or in what is desired."""
        self._wake.set()
        for listener in list(self._listeners):
            listener()

    async def run(self, stopping: asyncio.Event) -> None:
        """Works until `stopping` is set; steps in progress then get a little time to end."""
        self._existing = set(await self._links.observed())
        tasks: set[asyncio.Task[None]] = set()
        stop = asyncio.create_task(self._wake_when(stopping), name="stopping")
        try:
            while not stopping.is_set():
                self._wake.clear()
                now = self._clock()
                for action in self._due(now):
                    task = asyncio.create_task(self._work(action), name=str(action))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._pause(now)):
                        await self._wake.wait()
            if tasks:
                await asyncio.wait(tasks, timeout=STOP_TIMEOUT)
        finally:
            for task in (stop, *tasks):
                task.cancel()
            await asyncio.gather(stop, *tasks, return_exceptions=True)

    async def _wake_when(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._wake.set()

    def _due(self, now: float) -> list[Action | Inspection]:
        """Returns the steps to start now; they count as in progress from here on."""
        observed = self._observe()
        phases = Counter(attempt.phase for attempt in observed.attempts.values())
        for phase in Phase:
            _ATTEMPTS.labels(phase.name).set(phases[phase])
        self._settled &= observed.attempts.keys()
        for attempt_id in self._authorized.keys() - observed.attempts.keys():
            del self._authorized[attempt_id]
        # One that is being created is not observed yet.
        self._removed &= observed.attempts.keys() | self._busy.keys()
        self._removed_networks &= self._existing
        if self.fence is not None:
            self.fence.forget(observed.attempts.keys() | self._attempts.keys())
            observed = replace(observed, fenced=self.fence.due())
        due: list[Action | Inspection] = []
        waiting: dict[str, str] = {}
        creates = sum(isinstance(action, Create) for action in self._busy.values())
        desired = Desired(
            self._attempts,
            self._networks.keys(),
            self._complete,
            self._absence_removes,
            self._removed,
            self._removed_networks,
        )
        actions = plan(desired, observed, now)
        self._report_unknown(observed)
        current = self._busy.keys() | self._inspections.degraded | {_key(action) for action in actions}
        for key in self._troubles.keys() - current:
            del self._troubles[key]
        for action in actions:
            key = _key(action)
            if key in self._busy or ((trouble := self._troubles.get(key)) is not None and trouble.again_at > now):
                continue
            if isinstance(action, RemoveNetwork) and self._is_joined(action.session_id):
                continue
            if isinstance(action, Create):
                why = self._waits_for(self._attempts[action.attempt_id].spec)
                if why:
                    waiting[action.attempt_id] = why
                if why or creates == self._parallel_creates:
                    continue
                creates += 1
            self._busy[key] = action
            due.append(action)
        if (inspection := self._next_inspection(now, observed)) is not None:
            self._busy[_key(inspection)] = inspection
            due.append(inspection)
        self._report_waiting(waiting)
        return due

    def _next_inspection(self, now: float, observed: Observed) -> Inspection | None:
        outgoing = {
            key
            for key, attempt in observed.attempts.items()
            if attempt.egress and attempt.attached and not attempt.phase.ended
        }
        self._inspections.follow(self._ready | outgoing, self._existing | outgoing, now)
        if any(isinstance(action, InspectNetwork | InspectEgress) for action in self._busy.values()):
            return None
        paused = {key for key, trouble in self._troubles.items() if trouble.again_at > now}
        ready = (self._ready & self._networks.keys()) | outgoing
        key = self._inspections.next(ready - self._busy.keys() - paused, now)
        if key is None:
            return None
        return InspectEgress(key) if key in outgoing else InspectNetwork(key)

    def _report_unknown(self, observed: Observed) -> None:
        """Keeps the conditions of kernels whose record was lost, and of those that the
        manager neither desires nor names.
        """
        running = {key: attempt for key, attempt in observed.attempts.items() if not attempt.phase.ended}
        rebuilt = sorted(key for key, attempt in running.items() if attempt.rebuilt)
        message = f"running with a record that was lost and rebuilt: {', '.join(rebuilt)}"
        self.conditions.update(
            AgentConditionType.STATE_DAMAGED, message if rebuilt else "", AgentConditionReason.RECORDS_REBUILT
        )
        unknown = sorted(running.keys() - self._attempts.keys() - self._removed) if self._complete else []
        message = f"running although the manager does not know them, and left alone: {', '.join(unknown)}"
        self.conditions.update(
            AgentConditionType.OTHER, message if unknown else "", AgentConditionReason.UNKNOWN_KERNELS
        )

    def _report_waiting(self, waiting: dict[str, str]) -> None:
        if waiting != self._waiting:
            self._waiting = waiting
            for listener in list(self._listeners):
                listener()

    def _is_joined(self, session_id: str) -> bool:
        """Returns whether an attempt of the session is being created: it may not be among what is observed yet."""
        return any(
            isinstance(action, Create)
            and (wanted := self._attempts.get(action.attempt_id)) is not None
            and wanted.spec.session_id == session_id
            for action in self._busy.values()
        )

    def _observe(self) -> Observed:
        return Observed(
            self._runtime.observe(), self._existing, self._ready, self._settled, authorized=self._authorized
        )

    def _pause(self, now: float) -> float | None:
        """Returns the seconds until time alone makes for something to do; None for no such time.

        What was due by `now` is in progress, or waits for something that is.
        """
        times = [trouble.again_at for trouble in self._troubles.values()]
        times += [attempt.kill_at for attempt in self._runtime.observe().values() if attempt.kill_at is not None]
        pauses = [time - now for time in times if time > now]
        if self.fence is not None and (pause := self.fence.wait()) is not None:
            pauses.append(pause)
        if (pause := self._inspections.wait(now)) is not None:
            pauses.append(pause)
        return min(pauses, default=None)

    async def _work(self, action: Action | Inspection) -> None:
        key = _key(action)
        try:
            await self._apply(action)
        except Exception as error:  # noqa: BLE001  # logged below
            # Whatever it was, the other attempts continue, and this one is tried again.
            self._fail(action, error)
        else:
            # A degraded network is as it should be only once its kernels' links were looked at.
            if key not in self._inspections.degraded and (trouble := self._troubles.pop(key, None)) is not None:
                _log.info("no longer so: %s failed (%d times)", action, trouble.retries.tries)
        finally:
            del self._busy[key]
            self.changed()

    def _fail(self, action: Action | Inspection, error: Exception) -> None:
        key, step = _key(action), _STEPS.get(type(action), Step.OTHER)
        before = self._troubles.get(key)
        known = before.retries if before is not None and before.step is step else None
        retries = after_failure(known, error, self._wall_clock())
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(retries.tries - 1, 16)) * self._random.uniform(0.5, 1.0)
        now = self._clock()
        quiet = known is not None and before is not None and now - before.logged_at < AGAIN_SECONDS
        self._troubles[key] = _Failure(step, retries, now + delay, before.logged_at if quiet and before else now)
        if isinstance(action, EnsureNetwork) and retries.tries >= REPORTED_FAILURES:
            self._inspections.fail(action.session_id, str(error))
        if quiet:
            _log.debug("%s failed for the %d. time, to be tried again in %.1f s", action, retries.tries, delay)
            return
        expected = isinstance(error, NetworkError | KernelRuntimeError | OSError)
        _log.warning(
            "%s failed, to be tried again in %.1f s: %s", action, delay, error, exc_info=None if expected else error
        )

    async def _apply(self, action: Action | Inspection) -> None:  # noqa: PLR0912  # one case per kind of step
        match action:
            case EnsureNetwork(session_id):
                if (network := self._networks.get(session_id)) is not None:
                    self._existing.add(session_id)
                    await self._paths.release(session_id)
                    await self._links.ensure(network)
                    await self._paths.follow(network)
                    self._ready.add(session_id)
                    self._inspections.expedite(session_id, self._clock())
            case InspectNetwork(session_id):
                if (network := self._networks.get(session_id)) is not None:
                    await self._inspect(network)
            case InspectEgress(attempt_id):
                await self._inspect_egress(attempt_id)
            case RemoveNetwork(session_id):
                self._ready.discard(session_id)
                self._paths.forget(session_id)
                await self._links.remove(session_id)
                self._existing.discard(session_id)
            case Identify(attempt_id):
                if (wanted := self._attempts.get(attempt_id)) is not None:
                    await self._runtime.identify(wanted.spec)
            case Create(attempt_id):
                if (wanted := self._attempts.get(attempt_id)) is not None:
                    await self._runtime.prepare(wanted.spec, self._hosts_of(wanted))
            case Decline(attempt_id):
                if (wanted := self._attempts.get(attempt_id)) is not None:
                    message = "it was to be stopped before it was created"
                    await self._runtime.decline(wanted.spec, Phase.EXITED, AttemptReason.STOPPED, message)
            case Attach(attempt_id):
                if (wanted := self._attempts.get(attempt_id)) is not None:
                    await self._attach(wanted.spec, self._runtime.kernel(attempt_id).network_attachment())
                    await self._runtime.mark_attached(attempt_id)
            case Release(attempt_id):
                if self.fence is not None:
                    await self.fence.pin(attempt_id, self._runtime.kernel(attempt_id).fence_target())
                await self._runtime.start(attempt_id)
            case Authorize(attempt_id):
                if (wanted := self._attempts.get(attempt_id)) is not None and wanted.spec.sftp is not None:
                    keys = wanted.spec.sftp.authorized_keys
                    await self._runtime.authorize(attempt_id, keys)
                    self._authorized[attempt_id] = keys
            case Stop(attempt_id, grace):
                await self._runtime.stop(attempt_id, grace)
            case Kill(attempt_id):
                await self._runtime.kill(attempt_id)
            case Remove(attempt_id):
                # The record comes last: as long as it is there, this is tried again.
                if self._runtime.observe()[attempt_id].egress:
                    await self._egress.remove(attempt_id)
                await self._runtime.remove(attempt_id)

    async def _inspect(self, network: Network) -> None:
        session_id = network.session_id
        try:
            await self._paths.release(session_id)
            steps = await self._links.ensure(network)
            await self._paths.follow(network)
            for attempt in list(self._runtime.observe().values()):
                if (
                    attempt.session_id == session_id
                    and attempt.networked
                    and attempt.attached
                    and not attempt.phase.ended
                ):
                    steps += await self._attach_again(network, attempt)
        except Exception as error:
            # It is made again like one that was never there.
            self._ready.discard(session_id)
            self._inspections.fail(session_id, str(error))
            raise
        self._inspections.pass_(session_id)
        if steps:
            _log.warning("the network of session %s was not as planned; it was repaired in %d steps", session_id, steps)

    async def _attach_again(self, network: Network, attempt: ObservedAttempt) -> int:
        try:
            namespace = self._runtime.kernel(attempt.id).network_attachment()
            steps = await self._links.attach(network, attempt.kernel_id, namespace)
            if steps:
                # A virtual machine has to be joined to what was made again.
                await self._runtime.mark_attached(attempt.id)
        except Exception as error:
            # A kernel that is about to end has no namespace any more.
            if self._inspections.detach(attempt.id):
                raise
            _log.info("kernel of attempt %s cannot be attached now: %s", attempt.id, error)
            return 0
        self._inspections.attach(attempt.id)
        return steps

    async def _inspect_egress(self, attempt_id: str) -> None:
        attempt = self._runtime.observe().get(attempt_id)
        if attempt is None or attempt.phase.ended:
            return
        try:
            steps = await self._egress_again(attempt)
        except Exception as error:
            # A kernel that is about to end has no namespace any more.
            if not self._inspections.detach(attempt_id):
                _log.info("the egress link of attempt %s cannot be looked after now: %s", attempt_id, error)
                return
            self._inspections.fail(attempt_id, str(error))
            self._inspections.expedite(attempt_id, self._clock())
            raise
        self._inspections.attach(attempt_id)
        self._inspections.pass_(attempt_id)
        if steps:
            _log.warning("the egress link of attempt %s was not as planned; repaired in %d steps", attempt_id, steps)

    async def _egress_again(self, attempt: ObservedAttempt) -> int:
        namespace = self._runtime.kernel(attempt.id).network_attachment()
        session_address = ""
        if attempt.networked:
            if (network := self._networks.get(attempt.session_id)) is None:
                return 0
            session_address = network.member(attempt.kernel_id).address
        steps = await self._egress.attach(attempt.id, namespace, session_address)
        await self._publisher.refresh(attempt.id, namespace)
        if steps:
            # A virtual machine has to be joined to what was made again.
            await self._runtime.mark_attached(attempt.id)
        return steps

    async def _attach(self, spec: AttemptSpec, namespace: NetworkNamespace) -> None:
        """Joins a kernel to its session and to the outside, both at once: neither needs the other's link."""
        steps: list[Awaitable[object]] = []
        session_address = ""
        if spec.networked:
            network = self._networks[spec.session_id]
            session_address = network.member(spec.kernel_id).address
            steps.append(self._links.attach(network, spec.kernel_id, namespace))
        if spec.has_egress_link:
            steps.append(self._egress.attach(spec.id, namespace, session_address))
        # None continues while the attempt is tried again, or ended.
        for outcome in await asyncio.gather(*steps, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        if spec.published is not None:
            # Before the command goes: without egress, it is kept from the outside by its publication.
            await self._publisher.publish(spec.id, spec.published.port, closed=not spec.egress)

    def _hosts_of(self, wanted: DesiredAttempt) -> str:
        if wanted.spec.networked:
            return hosts_text(self._networks[wanted.spec.session_id])
        return f"{LOCALHOST}127.0.0.1\t{wanted.spec.hostname}\n"


_STEPS: dict[type[Action | Inspection], Step] = {
    EnsureNetwork: Step.NETWORK,
    InspectNetwork: Step.NETWORK,
    InspectEgress: Step.ATTACH,
    Create: Step.CREATE,
    Decline: Step.CREATE,
    Attach: Step.ATTACH,
    Release: Step.START,
    Stop: Step.STOP,
    Kill: Step.STOP,
}


def _key(action: Action | Inspection) -> str:
    """Returns the object that a step acts on: steps on one object follow one another."""
    return (
        action.session_id if isinstance(action, EnsureNetwork | RemoveNetwork | InspectNetwork) else action.attempt_id
    )
