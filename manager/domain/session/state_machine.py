"""The state machine of one session: a pure machine over the session, its kernels and their newest attempts.

It is fed what happened (`observe`, `terminate`, `roll_back`, `strand`), moves kernels and session along the tables of
`retinue.manager.domain.session.states`, and collects the moves and the changed goals of attempts. It knows no clock, no
database and no agent: the caller loads the values, applies what is collected in one commit, and notifies the agents.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.manager.domain.reasons import ConditionType, SessionReason
from retinue.manager.domain.session import bootstrap
from retinue.manager.domain.session.attempts import AttemptPause, AttemptStatus
from retinue.manager.domain.session.events import (
    RETRIED,
    Condition,
    FailingKernel,
    KernelMoved,
    SessionMoved,
    with_faulty_paths,
)
from retinue.manager.domain.session.final_usage import FinalUsage
from retinue.manager.domain.session.images import MOVED, PERMANENT_REASONS, SeenImage
from retinue.manager.domain.session.spec import RetryPolicy
from retinue.manager.domain.session.states import (
    ENDED_KERNEL_STATES,
    ENDED_OBSERVATIONS,
    ENDED_SESSION_STATES,
    KERNEL_MOVES,
    SESSION_MOVES,
    STARTING_KERNEL_STATES,
    STARTING_SESSION_STATES,
    Goal,
    KernelState,
    Observed,
    Result,
    SessionState,
    SessionType,
)
from retinue.rpc.core.reasons import AttemptReason

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

# A session whose placement failed this often ends instead of waiting for another.
MAX_FAILED_STARTS = 5
# A directory of a node cannot be given to a kernel: the next try would fail as well.
MOUNT_REFUSED = AttemptReason.MOUNT_REFUSED
# The command has not failed: what it ran on was taken from it.
_TAKEN = frozenset({AttemptReason.EVICTED, AttemptReason.ENGINE_STOPPED})


# Kernels that the message of a late start names, and its characters.
MAX_NAMED, MAX_MESSAGE = 3, 2048
# What a kernel that is not ready was waiting for.
_PHASES = {
    Observed.UNKNOWN: "was not begun",
    Observed.ACCEPTED: "was not begun",
    Observed.PULLING: "was waiting for its image",
    Observed.CREATING: "was being created, or joined to its network",
    Observed.HELD: "was waiting for its command to be started",
}
NO_DIRECTORY = 214
"""Exit code of a kernel whose command was not started, as it could not enter its working directory."""


_WAITS_FOR_PATHS = "waits for packets between its nodes: "
_PATHS_LATE = "packets between its nodes did not come in time"
_MAX_PATHS_TOLD = 3


class IllegalMoveError(Exception):
    """A move that the tables do not have: a bug of the caller."""


@dataclass(slots=True)
class Kernel:
    """A kernel and its newest attempt. `observed` and `goal` belong to the attempt;
    without one (`epoch` 0) they mean nothing.
    """

    id: uuid.UUID
    role: str
    hostname: str
    state: KernelState
    agent_id: str | None = None
    epoch: int = 0
    address: str = ""
    exit_code: int | None = None
    reason: str = ""
    goal: Goal = Goal.HELD
    observed: Observed = Observed.UNKNOWN
    attempt_ended: bool = True
    # When the attempt ended: as its agent observed it, as far as that is known.
    end_time: dt.datetime | None = None
    # What it had used then, if it was measured.
    usage: FinalUsage | None = None
    # The reference asked for, and the image it was found to be: by any kernel of the session, in any try.
    image: str = ""
    found_image: SeenImage = field(default_factory=SeenImage)
    # Where its command is asked to start; empty when it is not.
    working_directory: str = ""


@dataclass(slots=True)
class Session:
    """A session with its kernels, ordered by local rank: `main1` first."""

    id: uuid.UUID
    type: SessionType
    state: SessionState
    kernels: list[Kernel]
    result: Result = Result.UNDEFINED
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    failed_starts: int = 0
    failed_agents: list[str] = field(default_factory=list)
    # Whether its kernels run a script before their command.
    bootstraps: bool = False
    retry: RetryPolicy | None = None
    retries: int = 0
    # Whether it may have to make way for another session, and then run again.
    preemptible: bool = False
    network: str = ""
    conditions: tuple[Condition, ...] = ()
    # Seconds to wait before it is placed again; set by a retry.
    pause: float | None = None


_OBSERVED_KERNEL_STATE = {
    Observed.PULLING: KernelState.PULLING,
    Observed.CREATING: KernelState.CREATING,
    Observed.HELD: KernelState.CREATING,
    Observed.RUNNING: KernelState.RUNNING,
}
_OVER_KERNEL_STATES = (KernelState.TERMINATING, KernelState.TERMINATED)
_KERNEL_PROGRESS = {state: rank for rank, state in enumerate(KernelState)}


class SessionMachine:
    """Moves one session. `moves` are the moves made, in order; `session` holds the values after them.

    `memory_kills` is what was said of processes that were killed for want of memory, `failing` what agents fail at
    again and again, and `pauses` of kernels that something keeps from running: all move nothing.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.moves: list[SessionMoved | KernelMoved] = []
        # Hostname, number, and time of the first.
        self.memory_kills: list[tuple[str, int, dt.datetime | None]] = []
        self.failing: list[FailingKernel] = []
        # By hostname; None where nothing does.
        self.pauses: dict[str, AttemptPause | None] = {}

    def observe(self, status: AttemptStatus) -> None:
        """Takes in the status of an attempt; that of an older attempt, or of one that has ended, changes nothing."""
        kernel_id, epoch = status.key
        kernel = next((kernel for kernel in self.session.kernels if kernel.id == kernel_id), None)
        if kernel is None or kernel.epoch != epoch or kernel.attempt_ended:
            return
        kernel.observed = status.state
        if status.memory_kills and kernel.state not in ENDED_KERNEL_STATES:
            self.memory_kills.append((kernel.hostname, status.memory_kills, status.memory_kill_time))
        self._note_failing(kernel, status)
        self.pauses[kernel.hostname] = None if status.state in ENDED_OBSERVATIONS else status.pause
        if status.image:
            self._find_image(kernel, status.image)
        if status.state in ENDED_OBSERVATIONS:
            kernel.end_time, kernel.usage = status.end_time, status.usage
            self._attempt_ended(kernel, status)
        elif (state := _OBSERVED_KERNEL_STATE.get(status.state)) is not None:
            self._advance(kernel, state)
        self._note_obstacle(kernel, status.message)
        if status.state not in ENDED_OBSERVATIONS and kernel.agent_id:
            self._note_paths(kernel.agent_id, status)
        self._settle()

    def _note_failing(self, kernel: Kernel, status: AttemptStatus) -> None:
        if kernel.agent_id is None:
            return
        steps, survived = status.failing_steps, False
        if status.state in ENDED_OBSERVATIONS:
            steps = ()
            survived = any(
                other is not kernel and other.agent_id == kernel.agent_id and not other.attempt_ended
                for other in self.session.kernels
            )
        self.failing.append(FailingKernel(kernel.agent_id, kernel.hostname, steps, survived))

    def _note_obstacle(self, kernel: Kernel, message: str) -> None:
        """Keeps what an agent says of a kernel that it has not begun to create, until it has."""
        session = self.session
        if session.state not in STARTING_SESSION_STATES:
            return
        # The same for all kernels of the session there.
        prefix = f"agent {kernel.agent_id}: "
        if kernel.state is not KernelState.SCHEDULED:
            session.message = "" if session.message.startswith(prefix) else session.message
        elif message:
            session.message = prefix + message

    def _note_paths(self, agent_id: str, status: AttemptStatus) -> None:
        """Keeps what an agent says of the paths to its node; a session that starts waits for them."""
        session = self.session
        session.conditions = with_faulty_paths(session.conditions, agent_id, status.faulty_paths)
        if session.state not in STARTING_SESSION_STATES:
            return
        if broken := self._broken_paths():
            session.message = _WAITS_FOR_PATHS + "; ".join(item.message for item in broken[:_MAX_PATHS_TOLD])
        elif session.message.startswith(_WAITS_FOR_PATHS):
            session.message = ""

    def _broken_paths(self) -> list[Condition]:
        return [item for item in self.session.conditions if item.type == ConditionType.PATH_BROKEN]

    def terminate(self, reason: str, message: str = "") -> None:
        """Ends the session on request; one that has ended or is ending stays as it is."""
        session = self.session
        if session.state in ENDED_SESSION_STATES or session.state is SessionState.TERMINATING:
            return
        if session.state in (SessionState.PENDING, SessionState.SCHEDULED):
            # Nothing of it was prepared as far as we know; attempts under way are stopped on their own.
            self._cancel(reason, message)
        else:
            self._stop(reason, message)

    def give_up_waiting(self) -> None:
        """Cancels a session that has waited as long as its group allows; one that is placed by now stays."""
        if self.session.state is SessionState.PENDING:
            self._cancel(SessionReason.PENDING_TIMEOUT, "it waited for a place as long as its resource group allows")

    def exceed_time_limit(self) -> None:
        """Ends a running session whose time limit has passed; a batch session has failed."""
        self.end_by_policy(SessionReason.TIME_LIMIT_EXCEEDED, "it ran as long as its time limit allows")

    def end_by_policy(self, reason: str, message: str) -> None:
        """Ends a running session that may run no longer; a batch session has failed."""
        session = self.session
        if session.state is not SessionState.RUNNING:
            return
        if session.type is SessionType.BATCH:
            session.result = Result.FAILED
        self._stop(reason, message)

    def preempt(self, winner: str, *, requeue: bool) -> None:
        """Makes a placed session give way to `winner`: ends it, or with `requeue` puts it back into the queue, to run
        again from its beginning under a higher epoch. One with a kernel that has ended for good is ended:
        it could not run again as it was.
        """
        session = self.session
        if session.state not in STARTING_SESSION_STATES and session.state is not SessionState.RUNNING:
            return
        message = f"made way for session {winner}, which has a higher priority"
        self._leave_place(SessionReason.PREEMPTED, message, requeue=requeue)

    def restart(self, message: str) -> None:
        """Puts a placed session back into the queue, to run again from its beginning under a higher epoch and with all
        its tries. Any other stays as it is, and so does one with a kernel that has ended for good.
        """
        session = self.session
        placed = session.state in STARTING_SESSION_STATES or session.state is SessionState.RUNNING
        if not placed or any(kernel.state in ENDED_KERNEL_STATES for kernel in session.kernels):
            return
        session.retries = session.failed_starts = 0
        session.failed_agents = []
        self._leave_place(SessionReason.RESTARTED, message, requeue=True)

    def evict(self, agent_id: str) -> None:
        """Takes a placed session off an agent that is drained: one that may be run again, or that no program of ran
        yet, goes back into the queue; any other ends. A session without a live attempt there stays as it is.
        """
        session = self.session
        placed = session.state in STARTING_SESSION_STATES or session.state is SessionState.RUNNING
        if not placed or not any(k.agent_id == agent_id and not k.attempt_ended for k in session.kernels):
            return
        requeue = session.retry is not None or not self._is_released()
        message = f"agent {agent_id} was drained, and the deadline has passed"
        self._leave_place(SessionReason.AGENT_DRAINED, message, requeue=requeue)

    def _leave_place(self, reason: str, message: str, *, requeue: bool) -> None:
        session = self.session
        if not requeue or any(kernel.state in ENDED_KERNEL_STATES for kernel in session.kernels):
            self.terminate(reason, message)
            return
        for kernel in session.kernels:
            if not kernel.attempt_ended:
                kernel.goal = Goal.STOPPED
            kernel.exit_code = None
            self._move_kernel(kernel, KernelState.PENDING, reason)
        session.exit_code = None
        self._move_session(SessionState.PENDING, reason, message)

    def _is_released(self) -> bool:
        """Returns whether a program of the session may have run."""
        return any(k.goal is Goal.RUNNING or k.state not in STARTING_KERNEL_STATES for k in self.session.kernels)

    def roll_back(self, reason: str, message: str = "", *, failed_agents: Sequence[str | None] = ()) -> None:
        """Takes a placed session back to PENDING as a whole, or ends it when that has happened too often.
        It avoids the agents that failed.
        """
        session = self.session
        if session.state not in STARTING_SESSION_STATES:
            return
        session.failed_starts += 1
        for agent_id in failed_agents:
            if agent_id is not None and agent_id not in session.failed_agents:
                session.failed_agents.append(agent_id)
        released = self._is_released()
        if released and session.failed_starts < MAX_FAILED_STARTS and self._may_retry():
            self._run_again(reason, message)
            return
        if released or session.failed_starts >= MAX_FAILED_STARTS:
            # User code of some kernel may have run: another try would not be the first.
            if session.type is SessionType.BATCH:
                session.result = Result.FAILED
            self._stop(reason, message)
            return
        for kernel in session.kernels:
            if not kernel.attempt_ended:
                kernel.goal = Goal.STOPPED
            self._move_kernel(kernel, KernelState.PENDING, reason)
        self._move_session(SessionState.PENDING, reason, message)

    def time_out_start(
        self, conditions: Sequence[Condition] = (), *, failing: Collection[str] | None = None
    ) -> list[tuple[str, AttemptStatus]]:
        """Takes a placed session back whose kernels were not all ready in time. `conditions` are those of the session;
        with `failing`, agents that have failed at a step for too long, only kernels on these are late.

        Returns those that were not ready, by agent, as the failures that they are: their agents may never report one.
        """
        if self.session.state not in STARTING_SESSION_STATES:
            return []
        ready = {Observed.RUNNING} if self._is_released() else {Observed.HELD, Observed.RUNNING}
        kernels = [
            kernel
            for kernel in self.session.kernels
            if kernel.agent_id is not None
            and not kernel.attempt_ended
            and (kernel.observed not in ready if failing is None else kernel.agent_id in failing)
        ]
        broken = {item.agent: item.message for item in reversed(self._broken_paths())}
        if kernels and all(kernel.agent_id in broken for kernel in kernels):
            return self._time_out_paths(broken)
        # A node that waits for packets of one that is not ready has done its part.
        kernels = [kernel for kernel in kernels if kernel.agent_id not in broken] or kernels
        why = {
            kernel.agent_id: "; ".join(
                item.message for item in conditions if item.type in RETRIED and item.agent == kernel.agent_id
            )
            for kernel in kernels
        }
        late = [(kernel.agent_id or "", _late_start(kernel, why[kernel.agent_id])) for kernel in kernels]
        agents = list(dict.fromkeys(agent_id for agent_id, _ in late))
        where = f": not on {', '.join(agents)}" if agents else ""
        details = [f"{kernel.hostname} {_PHASES.get(kernel.observed, 'was not ready')}" for kernel in kernels]
        more = f" and {len(details) - MAX_NAMED} more" if len(details) > MAX_NAMED else ""
        words = [", ".join(details[:MAX_NAMED]) + more, *filter(None, why.values())]
        message = "; ".join(filter(None, [f"not every kernel was ready in time{where}", *words]))
        self.roll_back(SessionReason.START_TIMEOUT, message[:MAX_MESSAGE], failed_agents=agents)
        return late

    def _time_out_paths(self, broken: Mapping[str, str]) -> list[tuple[str, AttemptStatus]]:
        """Takes back a session whose nodes do not reach each other; `broken` says by agent what does not come there.

        Who is at fault is not known of two: first it is taken for the one that gets nothing, as firewalls drop what
        comes in, then for the other. Of more, it is the fewer: the one that gets nothing from all, or that nobody gets
        anything from.
        """
        session = self.session
        kernels = [(kernel.agent_id, kernel) for kernel in session.kernels if kernel.agent_id is not None]
        agents = list(dict.fromkeys(agent_id for agent_id, _ in kernels))
        receivers = [agent_id for agent_id in agents if agent_id in broken]
        senders = [agent_id for agent_id in agents if agent_id not in broken]
        second = len(receivers) == len(senders) and session.failed_starts % 2 == 1
        blamed = senders if senders and (len(senders) < len(receivers) or second) else receivers
        text = "; ".join(list(broken.values())[:_MAX_PATHS_TOLD])
        failures = [
            (
                agent_id,
                AttemptStatus((kernel.id, kernel.epoch), Observed.FAILED, None, AttemptReason.START_FAILED, text),
            )
            for agent_id, kernel in kernels
            if agent_id in blamed and not kernel.attempt_ended
        ]
        self.roll_back(SessionReason.START_TIMEOUT, f"{_PATHS_LATE}: {text}", failed_agents=blamed)
        return failures

    def strand(self, kernel_id: uuid.UUID, epoch: int, agent_id: str, *, revoked: bool) -> None:
        """Gives up an attempt whose agent is lost: by now the agent has stopped by itself what may be run again.

        A session that is starting goes back to PENDING, a running one is run again if it may be, and ends if the agent
        was revoked; else the attempt is kept for the agent's return, unless it is to be stopped.
        """
        session = self.session
        reason, what = (SessionReason.AGENT_REVOKED, "revoked") if revoked else (SessionReason.AGENT_LOST, "lost")
        self.roll_back(reason, f"agent {agent_id} was {what}", failed_agents=[agent_id])
        kernel = next((kernel for kernel in session.kernels if kernel.id == kernel_id), None)
        if kernel is None or kernel.epoch != epoch:
            return
        if session.state is SessionState.RUNNING:
            if self._may_retry():
                kernel.goal = Goal.STOPPED
                if agent_id not in session.failed_agents:
                    session.failed_agents.append(agent_id)
            elif not revoked and kernel.goal is not Goal.STOPPED:
                return
        self.observe(AttemptStatus((kernel_id, epoch), Observed.EXITED, None, reason, f"its agent was {what}"))

    def withdraw(self, kernel_id: uuid.UUID, epoch: int, agent_id: str) -> None:
        """Gives up an attempt of which its agent, which answers heartbeats and does nothing else, has said nothing; a
        session that is starting goes back to PENDING.

        No program of it runs, nor will: an agent starts none before it has said that the kernel is ready and was told
        to go on. Should the agent have made the kernel all the same, it removes it once it follows.
        """
        kernel = next((kernel for kernel in self.session.kernels if kernel.id == kernel_id), None)
        if kernel is None or kernel.epoch != epoch or kernel.attempt_ended or kernel.observed is not Observed.UNKNOWN:
            return
        message = f"agent {agent_id} has not answered"
        self.roll_back(SessionReason.START_TIMEOUT, message, failed_agents=[agent_id])
        ended = AttemptStatus((kernel_id, epoch), Observed.EXITED, None, SessionReason.START_TIMEOUT, message)
        self.observe(ended)

    def _find_image(self, kernel: Kernel, image: SeenImage) -> None:
        """Binds a reference to the image that an agent first found it to be;
        a kernel with another one is not released.
        """
        if not kernel.found_image:
            for other in self.session.kernels:
                if other.image == kernel.image and not other.found_image:
                    other.found_image = image
        elif not kernel.found_image.is_same(image):
            there = f"{image.shown} on agent {kernel.agent_id}, and {kernel.found_image.shown} on other agents of the session"
            self.roll_back(MOVED, f"image {kernel.image} is {there}")

    def _may_retry(self) -> bool:
        """Returns whether a lost try may be followed by another."""
        session = self.session
        return session.retry is not None and session.retries + 1 < session.retry.max_attempts

    def _run_again(self, reason: str, message: str) -> None:
        """Puts the session back into the queue as a whole, to be run from its beginning after a pause."""
        session = self.session
        assert session.retry is not None  # noqa: S101  # asked by `_may_retry`
        session.retries += 1
        session.failed_starts = 0
        session.pause = session.retry.pause(session.retries)
        for kernel in session.kernels:
            if not kernel.attempt_ended:
                kernel.goal = Goal.STOPPED
            kernel.exit_code = None
            self._move_kernel(kernel, KernelState.PENDING, reason)
        session.exit_code = None
        message = f"{message}; try {session.retries + 1} of {session.retry.max_attempts} follows"
        self._move_session(SessionState.PENDING, reason, message)

    def _attempt_ended(self, kernel: Kernel, status: AttemptStatus) -> None:
        session = self.session
        kernel.attempt_ended = True
        if status.reason == AttemptReason.STOPPED and kernel.goal is not Goal.STOPPED and session.retry is not None:
            # The manager did not ask for that: its agent was cut off, and stopped what may be run on another agent.
            status = AttemptStatus(
                status.key, status.state, None, SessionReason.FENCED, "its agent was cut off, and stopped it"
            )
        if kernel.state in ENDED_KERNEL_STATES or kernel.state is KernelState.PENDING:
            return
        if session.state in STARTING_SESSION_STATES and status.exit_code is None:
            if status.reason in PERMANENT_REASONS | {MOUNT_REFUSED}:
                session.failed_starts = MAX_FAILED_STARTS
            self.roll_back(status.reason or AttemptReason.START_FAILED, status.message, failed_agents=[kernel.agent_id])
            return
        kernel.exit_code = status.exit_code
        if status.reason in _TAKEN and kernel.agent_id and kernel.agent_id not in session.failed_agents:
            session.failed_agents.append(kernel.agent_id)
        if kernel.state in STARTING_KERNEL_STATES:
            # It was released and has ended already, or it ends with a session that is being stopped.
            self._move_kernel(
                kernel, KernelState.RUNNING if status.exit_code is not None else KernelState.TERMINATING, ""
            )
        if session.state is not SessionState.TERMINATING and (self._may_retry() or session.preemptible):
            # It waits for what becomes of the session: what has ended for good cannot run again with the others.
            if kernel.state is not KernelState.TERMINATING:
                self._move_kernel(kernel, KernelState.TERMINATING, status.reason)
        else:
            self._move_kernel(kernel, KernelState.TERMINATED, status.reason)
        if kernel is session.kernels[0] and status.exit_code is not None:
            session.exit_code = status.exit_code

    def _advance(self, kernel: Kernel, state: KernelState) -> None:
        if kernel.state in ENDED_KERNEL_STATES or kernel.state in (KernelState.PENDING, KernelState.TERMINATING):
            return
        if _KERNEL_PROGRESS[state] > _KERNEL_PROGRESS[kernel.state]:
            self._move_kernel(kernel, state, "")

    def _settle(self) -> None:
        """Moves the session as far as its kernels allow."""
        session = self.session
        kernels = session.kernels
        if session.state is SessionState.SCHEDULED and any(k.state is not KernelState.SCHEDULED for k in kernels):
            # Another agent may have said it.
            self._move_session(SessionState.PREPARING, "", session.message)
        if session.state is SessionState.PREPARING:
            ready = (Observed.HELD, Observed.RUNNING, Observed.EXITED)
            if all(kernel.observed in ready for kernel in kernels):
                for kernel in kernels:
                    if kernel.goal is Goal.HELD:
                        kernel.goal = Goal.RUNNING
            if all(kernel.state not in STARTING_KERNEL_STATES for kernel in kernels):
                self._move_session(SessionState.RUNNING, "", "")
        if session.state is SessionState.RUNNING:
            self._settle_running()
        if session.state is SessionState.TERMINATING and all(k.state in ENDED_KERNEL_STATES for k in kernels):
            self._move_session(SessionState.TERMINATED, session.reason, session.message)

    def _settle_running(self) -> None:
        session = self.session
        main = session.kernels[0]
        over = [k for k in session.kernels if k.attempt_ended and k.state in _OVER_KERNEL_STATES]
        failed = [k for k in over if k.exit_code != 0]
        first = main if main in failed else next(iter(failed), None)
        # Once main has succeeded, it does not matter how the others end.
        if first is not None and (first is main or main not in over) and self._may_retry():
            # The exit code of a command that its node has ended is that of the signal.
            lost = any(kernel.exit_code is None or kernel.reason in _TAKEN for kernel in failed)
            if lost or (session.retry is not None and session.retry.on_failure):
                reason = self._never_began(first) or (first.reason if lost else _why_it_ended(first))
                self._run_again(reason, f"{first.hostname} {_how_it_ended(first)}")
                return
        if main in over:
            if session.type is SessionType.BATCH:
                session.result = Result.SUCCESS if main.exit_code == 0 else Result.FAILED
            self._stop(self._never_began(main) or _why_it_ended(main), f"{main.hostname} {_how_it_ended(main)}")
        elif failed:
            if session.type is SessionType.BATCH:
                session.result = Result.FAILED
            reason = self._never_began(failed[0]) or _why_it_ended(failed[0])
            self._stop(reason, f"{failed[0].hostname} {_how_it_ended(failed[0])}")

    def _never_began(self, kernel: Kernel) -> str:
        """Returns the reason for which the command of a kernel that has ended was not started; empty if it was."""
        if self.session.bootstraps and kernel.exit_code == bootstrap.FAILED_EXIT_CODE:
            return bootstrap.REASON
        return SessionReason.WORKING_DIRECTORY_REFUSED if _has_no_directory(kernel) else ""

    def _stop(self, reason: str, message: str) -> None:
        self._move_session(SessionState.TERMINATING, reason, message)
        for kernel in self.session.kernels:
            if kernel.state in ENDED_KERNEL_STATES:
                continue
            if kernel.state is KernelState.PENDING:
                self._move_kernel(kernel, KernelState.CANCELLED, reason)
                continue
            if kernel.attempt_ended:
                # One that waited for what becomes of the session keeps its own reason.
                why = kernel.reason if kernel.state is KernelState.TERMINATING else reason
                if kernel.state is not KernelState.TERMINATING:
                    self._move_kernel(kernel, KernelState.TERMINATING, why)
                self._move_kernel(kernel, KernelState.TERMINATED, why)
                continue
            kernel.goal = Goal.STOPPED
            if kernel.state is not KernelState.TERMINATING:
                self._move_kernel(kernel, KernelState.TERMINATING, reason)
        self._settle()

    def _cancel(self, reason: str, message: str) -> None:
        for kernel in self.session.kernels:
            if not kernel.attempt_ended:
                kernel.goal = Goal.STOPPED
            self._move_kernel(kernel, KernelState.CANCELLED, reason)
        self._move_session(SessionState.CANCELLED, reason, message)

    def _move_session(self, to_state: SessionState, reason: str, message: str) -> None:
        session = self.session
        if to_state not in SESSION_MOVES[session.state]:
            raise IllegalMoveError(f"session {session.id}: {session.state} to {to_state}")
        from_state, session.state = session.state, to_state
        session.reason, session.message = reason, message
        if to_state is SessionState.PENDING:
            session.network = ""
        self.moves.append(
            SessionMoved(
                from_state,
                to_state,
                session.result,
                session.exit_code,
                reason,
                message,
                session.retries,
                session.network,
            )
        )

    def _move_kernel(self, kernel: Kernel, to_state: KernelState, reason: str) -> None:
        if to_state not in KERNEL_MOVES[kernel.state]:
            raise IllegalMoveError(f"kernel {kernel.id}: {kernel.state} to {to_state}")
        from_state, kernel.state = kernel.state, to_state
        kernel.reason = reason
        if to_state is KernelState.PENDING:
            kernel.address = ""
        self.moves.append(
            KernelMoved(
                kernel.id,
                kernel.hostname,
                from_state,
                to_state,
                kernel.agent_id,
                kernel.epoch,
                kernel.address,
                kernel.exit_code,
                reason,
                kernel.found_image,
                kernel.end_time if to_state is KernelState.TERMINATED else None,
            )
        )
        if to_state is KernelState.PENDING:
            kernel.agent_id = None


def _why_it_ended(kernel: Kernel) -> str:
    """Returns the reason of a session that ends as this kernel did."""
    if kernel.reason not in ("", AttemptReason.EXITED):
        return kernel.reason
    if kernel.exit_code is None:
        return SessionReason.KERNEL_FAILED
    return SessionReason.COMMAND_FAILED if kernel.exit_code else SessionReason.COMMAND_ENDED


def _how_it_ended(kernel: Kernel) -> str:
    if kernel.reason == AttemptReason.EVICTED:
        return "was evicted"
    if kernel.reason == AttemptReason.ENGINE_STOPPED:
        return "was stopped by the container engine of its node"
    if kernel.exit_code is None:
        return f"ended without an exit code ({kernel.reason or 'unknown'})"
    if _has_no_directory(kernel):
        return f"has no directory {kernel.working_directory} that its user may enter ({kernel.exit_code})"
    return f"exited with {kernel.exit_code}"


def _late_start(kernel: Kernel, why: str) -> AttemptStatus:
    """Returns the failure of an attempt that is not ready in time."""
    if kernel.observed is Observed.PULLING:
        reason, what = AttemptReason.IMAGE_PULL_FAILED, "its image was not fetched"
    else:
        reason, what = AttemptReason.START_FAILED, "it was not ready"
    return AttemptStatus((kernel.id, kernel.epoch), Observed.FAILED, None, reason, f"{what} in time{why and ': '}{why}")


def _has_no_directory(kernel: Kernel) -> bool:
    return bool(kernel.working_directory) and kernel.exit_code == NO_DIRECTORY
