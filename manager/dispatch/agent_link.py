"""One agent's Sync stream, kept open for as long as this manager leads."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc
from retinue.manager.agent_rpc.reach import NotReached
from retinue.manager.dispatch import convert
from retinue.manager.dispatch.convert import Conditions, Heartbeat, Rejected, Usage
from retinue.manager.dispatch.sent_state import DesiredState, SentState
from retinue.manager.domain.agents.following import PATIENCE, Following, Trials
from retinue.manager.domain.session.attempts import (
    AttemptStatus,
    AttemptUsage,
    CopyRefusedError,
    ListenerBrokenError,
    NodeCondition,
    NodeFacts,
    NodeReport,
    TermOverError,
    UsageWatch,
)
from retinue.rpc import failpoints
from retinue.rpc.bidi_call import BidiCall
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable
from retinue.rpc.core.reasons import AgentConditionReason
from retinue.rpc.errors import broken_stream

if TYPE_CHECKING:
    from retinue.manager.agent_rpc.dialer import Dialer

_log = logging.getLogger(__name__)

# Pauses before a stream is opened again: they double until one has lasted for longer than the longest of them. An agent
# that sends its welcome and closes at once costs a dial and a commit each time.
_MIN_BACKOFF, _MAX_BACKOFF = 0.1, 5.0
# Pauses after nonsense: they double until a stream has lasted for longer than the last one was.
_MIN_QUARANTINE, _MAX_QUARANTINE = 1.0, 300.0
# An agent reads what it is sent at once. One that does not would hold its link for ever:
# neither a stream nor a connection ends for that.
_WRITE_SECONDS = 60.0
# Messages of an agent that are read: some a second are usual, and several hundred at once when all its kernels change.
_MESSAGES_PER_SECOND, _MESSAGES_AT_ONCE = 100.0, 2000
# Between two log lines on an agent that sends more.
_SAYING_SECONDS = 60.0
# The kind of an agent whose kernels do nothing.
_NULL = "null"


# What is wanted on an agent: all of it, or all that belongs to some sessions. Raises ListenerBrokenError.
ReadDesired = Callable[[str, Collection[uuid.UUID] | None], Awaitable[DesiredState]]
# Which of the attempts that an agent has, and that are not desired there, it is to end and remove; called at each
# welcome. Raises ListenerBrokenError.
FindRemovable = Callable[[str, Sequence[AttemptStatus]], Awaitable[Collection[str]]]


class Pace:
    """How fast messages of one sender are read, with the time passed in: in any order, and on the whole no faster than
    a rate. A bucket of tokens (RFC 2697, of one colour): each message takes one, and waits for it when there is none.
    """

    def __init__(self, rate: float, burst: int) -> None:
        """`rate` are messages a second, `burst` those that may come at once."""
        self._rate = rate
        self._burst = burst
        self._left = float(burst)
        self._seen = float("-inf")

    def take(self, now: float) -> float:
        """Counts a message at `now` in seconds, and returns for how many seconds nothing should be read."""
        if self._left < self._burst:
            self._left = min(self._burst, self._left + (now - self._seen) * self._rate)
        self._seen = now
        self._left -= 1
        return max(0.0, -self._left / self._rate)


class GuardedStream:
    """A Sync stream. Checks before each message whether the lease is still valid:
    a process that was paused continues where it was.
    """

    def __init__(
        self, call: grpc.aio.StreamStreamCall[pb.SyncRequest, pb.SyncResponse], check_lease: Callable[[], None]
    ) -> None:
        """`check_lease` raises TermOverError when the lease has ended."""
        self._call = BidiCall(call)
        self._check_lease = check_lease

    async def write(self, message: pb.SyncRequest) -> None:
        """Sends a message. Raises TermOverError when the lease has ended, TimeoutError when the agent does not read,
        and what `BidiCall.write` raises when the agent has ended the stream.
        """
        self._check_lease()

        async def step() -> None:
            async with asyncio.timeout(_WRITE_SECONDS):
                await self._call.write(message)

        if failpoints.active is None:
            await step()
        else:
            await failpoints.active.awaited(f"link.write.{message.WhichOneof('step')}", step, broken_stream)

    async def read(self) -> pb.SyncResponse | None:
        """Returns the next message of the agent; None at the end. Raises AioRpcError with the agent's status."""
        message = await self._call.read()
        if failpoints.active is not None:
            kind = "end" if message is None else message.WhichOneof("step")
            await failpoints.reach(f"link.read.{kind}", broken_stream)
        return message

    def cancel(self) -> None:
        """Ends the stream."""
        self._call.cancel()


class ProtocolError(Exception):
    """The agent sent a message that makes no sense."""

    def __init__(self, rejected: Rejected) -> None:
        super().__init__(f"{rejected.reason}: {rejected.message}")
        self.rejected = rejected


class Listener(Protocol):
    """Takes in what agents say; each call returns once it is committed.
    Raises ListenerBrokenError when it is not, and TermOverError.
    """

    async def connected(self, facts: NodeFacts) -> None:
        """A stream opened: the node's facts and all it observes."""

    async def reported(self, report: NodeReport) -> None:
        """Something changed on the node."""

    async def conditions_changed(self, agent_id: str, conditions: Collection[NodeCondition]) -> None:
        """Takes in the current conditions of the node."""

    async def quarantined(self, agent_id: str, rejected: Rejected, pause: float) -> None:
        """The agent sent nonsense: there is no stream to it for so many seconds. Passes with the next welcome."""

    async def following_changed(self, agent_id: str, why: str) -> None:
        """The agent does not answer what it is sent; without a `why`, it does again, or is tried again.
        Passes with the next welcome.
        """


class AgentLink:
    """Dials one agent until cancelled: sends it its desired state, takes in its reports,
    notes when it was last heard.
    """

    def __init__(
        self,
        agent_id: str,
        address: str,
        *,
        incarnation: str,
        term: int,
        dialer: Dialer,
        heartbeat: float,
        lost_after: float,
        desired: ReadDesired,
        protected: Callable[[], frozenset[str]],
        routers: Callable[[], frozenset[str]] = frozenset,
        removable: FindRemovable,
        listener: Listener,
        clock: Callable[[], float],
        null_kernels: bool = False,
        usage_watch: Callable[[], UsageWatch] = UsageWatch,
        used: Callable[[str, Iterable[AttemptUsage]], None] = lambda _agent, _samples: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        check_lease: Callable[[], None] = lambda: None,
        turned: Callable[[], None] = lambda: None,
        welcoming: asyncio.Semaphore | None = None,
        delay: float = 0.0,
    ) -> None:
        """Unless `null_kernels` are wanted, an agent whose kernels do nothing is refused. `turned` is called when a
        stream is open and when it is not any more, or does not open. `used` is called with the
        agent and what attempts use, as `usage_watch` says at the time. A stream on which the agent says nothing for
        `lost_after` seconds is given up. `check_lease` raises TermOverError when nothing may be sent any more. What the
        agent says at first is taken in while `welcoming` is held, which links share; the agent is dialled first after
        `delay` seconds.
        """
        self.agent_id = agent_id
        self.address = address
        # When the agent was last heard on this link, by the clock; None before the first time.
        self.heard: float | None = None
        self.opened = clock()
        self._incarnation = incarnation
        self._term = term
        self._dialer = dialer
        self._heartbeat = heartbeat
        self._lost_after = lost_after
        self._desired = desired
        self._protected = protected
        self._routers = routers
        self._removable = removable
        self._listener = listener
        self._clock = clock
        self._null_kernels = null_kernels
        self._usage_watch = usage_watch
        self._used = used
        self._sleep = sleep
        self._check_lease = check_lease
        self._turned = turned
        self._welcoming = welcoming or asyncio.Semaphore()
        self._delay = delay
        # When the stream that is open, or was open last, began as it should; None when it did not.
        self._welcomed: float | None = None
        # Whether the stream is open, and why the last one was refused though the connection was made.
        self.connected = False
        self.refusal: NotReached | None = None
        self._wanted = asyncio.Event()
        # Sessions of which the agent may not have been sent the newest state; None means any.
        self._changed: set[uuid.UUID] | None = set()
        # Attempts that routers had answers from, and that the agent does not know of yet.
        self._answering: set[str] = set()
        # What the agent of the stream has not answered, and when it is tried again if it does not follow.
        self._following, self._trials = Following(heartbeat), Trials()

    def answered(self, attempts: Collection[str]) -> None:
        """Lets the agent know that routers had answers from these attempts."""
        self._answering.update(attempts)
        self._wanted.set()

    def wake(self, session_ids: Collection[uuid.UUID] | None = None) -> None:
        """Notifies the link that the desired state of these sessions on the agent, by default of any,
        may have changed.
        """
        if session_ids is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.update(session_ids)
        self._wanted.set()

    async def run(self) -> None:
        """Keeps a stream open; a broken one is opened again after a growing pause.

        Ends with TermOverError only: whatever else goes wrong, with the agent, on the way or here,
        costs this agent only.
        """
        backoff, quarantine = _MIN_BACKOFF, _MIN_QUARANTINE
        if self._delay:
            await self._sleep(self._delay)
        while True:
            began, pause = self._clock(), 0.0
            self._welcomed = None
            refusal: NotReached | None = None
            try:
                await cancellable(self._stream)
                _log.info("agent %s ended its stream", self.agent_id)
            except TermOverError:
                raise
            except ListenerBrokenError as error:
                # The pause grows: the agent has nothing to do with it, and what it says again may fail again.
                self._welcomed = None
                if isinstance(error, CopyRefusedError):
                    refusal = NotReached(AgentConditionReason.COPY, str(error))
                _log.warning("link to agent %s: %s", self.agent_id, error)
            except (
                grpc.aio.AioRpcError,
                TimeoutError,
                grpc.aio.UsageError,
                asyncio.InvalidStateError,
                UnrequestedCancellationError,
            ) as error:
                level = logging.WARNING if self._welcomed is not None or _is_refusal(error) else logging.INFO
                if _is_refusal(error):
                    refusal = NotReached(AgentConditionReason.MANAGER_REFUSED, _described(error))
                _log.log(level, "link to agent %s: %s", self.agent_id, _described(error))
            except ProtocolError as error:
                if self._clock() - began > quarantine:
                    quarantine = _MIN_QUARANTINE
                pause, quarantine = quarantine, min(quarantine * 2, _MAX_QUARANTINE)
                _log.warning("agent %s is quarantined for %.0f s: %s", self.agent_id, pause, error)
                await self._quarantine(error.rejected, pause)
            except Exception:  # noqa: BLE001  # logged whole; the links to all other agents continue
                pause, quarantine = quarantine, min(quarantine * 2, _MAX_QUARANTINE)
                _log.exception("link to agent %s failed, and is opened again in %.0f s", self.agent_id, pause)
            self.connected, self.refusal = False, refusal
            self._turned()
            if not pause:
                stable = self._welcomed is not None and self._clock() - self._welcomed > _MAX_BACKOFF
                pause = backoff = _MIN_BACKOFF if stable else min(backoff * 2, _MAX_BACKOFF)
            await self._sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, not a secret

    async def _quarantine(self, rejected: Rejected, pause: float) -> None:
        self._welcomed = None
        try:
            await self._listener.quarantined(self.agent_id, rejected, pause)
        except TermOverError:
            raise
        except Exception as error:  # noqa: BLE001  # logged; it holds all the same
            _log.warning("the quarantine of agent %s is not recorded: %r", self.agent_id, error)

    async def _stream(self) -> None:
        """Opens a stream, and returns when the agent has ended it."""
        channel = self._dialer.open(self.agent_id, self.address)
        try:
            stub: pb_grpc.AgentServiceAsyncStub = pb_grpc.AgentServiceStub(channel)
            call = GuardedStream(stub.Sync(), self._check_lease)
            await call.write(convert.hello(self._incarnation, self._term, self.agent_id, self._heartbeat))
            async with asyncio.timeout(self._heartbeat * 4):
                first = await call.read()
            if first is None:
                return
            facts = self._parsed(first)
            if not isinstance(facts, NodeFacts):
                raise ProtocolError(Rejected(AgentConditionReason.NO_WELCOME, "it did not begin with a welcome"))
            if _NULL in facts.backends and not self._null_kernels:
                _log.error(
                    "agent %s runs nothing (null kernels): only a manager in development mode takes it", self.agent_id
                )
                return
            await self._converse(call, facts)
        finally:
            await channel.close()

    def _parsed(self, message: pb.SyncResponse) -> convert.Message:
        parsed = convert.parse(self.agent_id, message)
        if isinstance(parsed, Rejected):
            raise ProtocolError(parsed)
        return parsed

    async def _converse(self, call: GuardedStream, facts: NodeFacts) -> None:
        self._welcomed = self._clock()
        # Of many that come at once, all would wait for the same few connections to the database, and none get through.
        async with self._welcoming:
            await self._listener.connected(facts)
            # Not before: one whose welcome is refused, as a copy's is, is not heard however often it is dialled.
            self.heard = self._clock()
            self.connected, self.refusal = True, None
            self._turned()
            self._wanted.clear()
            self._changed = set()
            desired, protected, routers = await self._desired(self.agent_id, None), self._protected(), self._routers()
            # Named one by one: an agent ends nothing for being absent, as a restored database may know less than it
            # does.
            undesired = [report for report in facts.attempts if report.attempt_id not in desired.attempts]
            removed = await self._removable(self.agent_id, undesired)
        networks = frozenset(map(str, facts.network_session_ids)) - desired.networks.keys()
        if any(report.session_id is None for report in undesired):
            # The network of an attempt whose session its agent does not know may be any of them.
            networks = frozenset()
        await call.write(convert.snapshot(desired, protected, removed, networks, routers))
        # With a welcome, all is as at first: the agent may be another process.
        self._following = Following(self._heartbeat)
        self._trials.end(follows=False)
        self._following.sent(desired.attempts, self._clock())
        self._following.answered(report.attempt_id for report in facts.attempts)
        sent = SentState(desired, protected, routers)
        # One writer at a time: acks come from the reader, changes and heartbeats from the sender.
        writing = asyncio.Lock()
        reader = asyncio.create_task(self._listen(call, writing), name=f"listen {self.agent_id}")
        sender = asyncio.create_task(self._send(call, writing, sent), name=f"send to {self.agent_id}")
        try:
            done, _ = await asyncio.wait((reader, sender), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            call.cancel()
            reader.cancel()
            sender.cancel()
            await asyncio.gather(reader, sender, return_exceptions=True)

    async def _listen(self, call: GuardedStream, writing: asyncio.Lock) -> None:
        pace = Pace(_MESSAGES_PER_SECOND, _MESSAGES_AT_ONCE)
        said = float("-inf")
        while True:
            # An agent may have left the stream without ending it: it waits for another then.
            try:
                async with asyncio.timeout(self._lost_after) as silence:
                    message = await call.read()
            except TimeoutError:
                if silence.expired():
                    raise TimeoutError(f"it has said nothing for {self._lost_after:.0f} s") from None
                raise
            if message is None:
                return
            if (wait := pace.take(self._clock())) > 0:
                if self._clock() - said > _SAYING_SECONDS:
                    said = self._clock()
                    _log.warning("agent %s sends ever more messages: it is read more slowly", self.agent_id)
                await self._sleep(wait)
            parsed = self._parsed(message)
            self.heard = self._clock()
            match parsed:
                case NodeFacts():
                    raise ProtocolError(
                        Rejected(AgentConditionReason.SECOND_WELCOME, "it sent another welcome in the same stream")
                    )
                case NodeReport():
                    await self._note_answers(parsed)
                    await self._listener.reported(parsed)
                    async with writing:
                        await call.write(convert.ack(parsed.sequence))
                case Conditions(conditions):
                    await self._listener.conditions_changed(self.agent_id, conditions)
                case Usage(samples):
                    self._used(self.agent_id, samples)
                case Heartbeat(number):
                    await self._note_heartbeat()
                    # The agent goes by this, and not by what it hears: it says that the other direction works too.
                    async with writing:
                        await call.write(convert.heartbeat(number))

    async def _note_answers(self, report: NodeReport) -> None:
        self._following.answered(status.attempt_id for status in report.attempts)
        if self._trials.pending and (report.attempts or report.removed_attempts):
            await self._listener.following_changed(self.agent_id, "")
            self._trials.end(follows=True)

    async def _note_heartbeat(self) -> None:
        now = self._clock()
        overdue = self._following.heartbeat(now)
        if self._trials.is_due(now):
            # What was not answered is elsewhere by now, or ended: nothing else would show that it follows again.
            self._following.removed(overdue)
            await self._listener.following_changed(self.agent_id, "")
            self._trials.end(follows=False)
        elif overdue and not self._trials.pending:
            number = f"{len(overdue)} attempts" if len(overdue) > 1 else f"attempt {overdue[0]}"
            pause = self._trials.postpone(now)
            await self._listener.following_changed(
                self.agent_id,
                f"it sends heartbeats, and has not said for {PATIENCE:.0f} s that it has received {number}; it is tried"
                f" again after {pause / 60:.0f} min",
            )

    async def _send(self, call: GuardedStream, writing: asyncio.Lock, sent: SentState) -> None:
        watch = UsageWatch()
        while True:
            if watch != (watch := self._usage_watch()):
                async with writing:
                    await call.write(convert.watch_usage(watch))
            try:
                async with asyncio.timeout(self._heartbeat):
                    await self._wanted.wait()
            except TimeoutError:
                # A change of the fleet concerns every agent: it travels with what would be sent anyway,
                # and costs no query.
                step = sent.advance(DesiredState(), (), self._protected(), self._routers())
                async with writing:
                    await call.write(convert.change(step) if step else convert.heartbeat())
                continue
            self._wanted.clear()
            if self._answering:
                answering, self._answering = self._answering, set()
                async with writing:
                    await call.write(convert.answered(answering))
                if not self._changed and self._changed is not None:
                    continue
            changed, self._changed = self._changed, set()
            wanted = await self._desired(self.agent_id, changed)
            sessions = None if changed is None else map(str, changed)
            if step := sent.advance(wanted, sessions, self._protected(), self._routers()):
                async with writing:
                    await call.write(convert.change(step))
                self._following.sent((attempt.id for attempt in step.attempts), self._clock())
                self._following.removed(step.removed_attempts)


def _is_refusal(error: BaseException) -> bool:
    """Returns whether the agent follows another leader, or a later state of the database than this manager's."""
    return isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.FAILED_PRECONDITION


def _described(error: BaseException) -> str:
    if not isinstance(error, grpc.aio.AioRpcError):
        return repr(error)
    advice = ""
    if _is_refusal(error):
        advice = (
            " (a database that was brought back to an earlier time needs `retinue-manager admin begin-incarnation`)"
        )
    return f"{error.code().name}: {error.details()}{advice}"
