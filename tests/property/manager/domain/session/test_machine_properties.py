"""Whatever agents say in whatever order: moves stay in the tables, ends are final,
and a session can always be brought to an end.
"""

from __future__ import annotations

import copy
import itertools
import uuid
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from retinue.manager.domain.session.attempts import AttemptStatus
from retinue.manager.domain.session.events import KernelMoved, SessionMoved
from retinue.manager.domain.session.spec import RetryPolicy, kernel_plans
from retinue.manager.domain.session.state_machine import (
    Kernel,
    Session,
    SessionMachine,
)
from retinue.manager.domain.session.states import (
    ENDED_SESSION_STATES,
    KERNEL_MOVES,
    SESSION_MOVES,
    Goal,
    KernelState,
    Observed,
    Result,
    SessionState,
    SessionType,
)

observations = st.builds(
    AttemptStatus,
    st.just((uuid.UUID(int=0), 0)),
    st.sampled_from([state for state in Observed if state]),
    st.one_of(st.none(), st.sampled_from([0, 1, 137])),
    st.sampled_from(["", "EXITED", "STOPPED", "OOM_KILLED", "START_FAILED"]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("observe"), st.integers(0, 3), st.integers(0, 3), observations),
        st.just(("terminate",)),
        st.just(("roll_back",)),
        st.just(("exceed_time_limit",)),
        st.just(("give_up_waiting",)),
        st.tuples(st.just("preempt"), st.booleans()),
        st.tuples(st.just("strand"), st.integers(0, 3), st.booleans()),
        st.just(("place",)),
    ),
    max_size=25,
)


retries = st.one_of(st.none(), st.builds(RetryPolicy, st.integers(1, 3), st.booleans()))


def gang(size: int, session_type: SessionType, retry: RetryPolicy | None = None) -> SessionMachine:
    kernels = [
        Kernel(plan.id, plan.role, plan.hostname, KernelState.SCHEDULED, agent_id="n", epoch=1, attempt_ended=False)
        for plan in kernel_plans(uuid.UUID(int=7), [("main", 1), ("sub", size - 1)])
    ]
    return SessionMachine(Session(uuid.UUID(int=7), session_type, SessionState.SCHEDULED, kernels, retry=retry))


def apply(machine: SessionMachine, step: tuple[object, ...]) -> None:
    match step:
        case ("observe", int(rank), int(epoch), AttemptStatus() as status):
            kernel = machine.session.kernels[rank % len(machine.session.kernels)]
            machine.observe(replace(status, key=(kernel.id, epoch)))
        case ("strand", int(rank), bool(revoked)):
            kernel = machine.session.kernels[rank % len(machine.session.kernels)]
            machine.strand(kernel.id, kernel.epoch, "n", revoked=revoked)
            kept = machine.session.state is SessionState.RUNNING and not revoked and kernel.goal is not Goal.STOPPED
            assert kernel.attempt_ended or kept
        case ("place",):
            place(machine)
        case ("terminate",):
            machine.terminate("TERMINATED_BY_USER")
        case ("roll_back",):
            machine.time_out_start()
        case ("exceed_time_limit",):
            machine.exceed_time_limit()
        case ("give_up_waiting",):
            machine.give_up_waiting()
        case ("preempt", bool(requeue)):
            machine.preempt("another", requeue=requeue)


def place(machine: SessionMachine) -> None:
    """As the scheduler does it: only what waits, once nothing of an earlier try is left."""
    session = machine.session
    if session.state is not SessionState.PENDING or not all(kernel.attempt_ended for kernel in session.kernels):
        return
    for kernel in session.kernels:
        kernel.epoch += 1
        kernel.state, kernel.goal, kernel.observed = KernelState.SCHEDULED, Goal.HELD, Observed.UNKNOWN
        kernel.attempt_ended, kernel.exit_code, kernel.agent_id = False, None, "n"
        machine.moves.append(
            KernelMoved(
                kernel.id,
                "",
                KernelState.PENDING,
                KernelState.SCHEDULED,
                "n",
                kernel.epoch,
            )
        )
    session.state = SessionState.SCHEDULED
    machine.moves.append(SessionMoved(SessionState.PENDING, SessionState.SCHEDULED, session.result, session.exit_code))


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.integers(1, 4), st.sampled_from([SessionType.BATCH, SessionType.INTERACTIVE]), retries, steps)
def test_any_history(
    size: int, session_type: SessionType, retry: RetryPolicy | None, history: list[tuple[object, ...]]
) -> None:
    machine = gang(size, session_type, retry if session_type is SessionType.BATCH else None)
    for step in history:
        before = copy.deepcopy(machine.session)
        apply(machine, step)
        session = machine.session
        if before.state in ENDED_SESSION_STATES:
            assert (session.state, session.result, session.reason) == (before.state, before.result, before.reason)
        if before.result is not Result.UNDEFINED:
            assert session.result is before.result
        assert session.retries < (session.retry.max_attempts if session.retry is not None else 1)
        # Nothing is released before all are held, and nothing runs on in a session that has terminated.
        released = {kernel.id for kernel in session.kernels if kernel.goal is Goal.RUNNING}
        if released - {kernel.id for kernel in before.kernels if kernel.goal is Goal.RUNNING}:
            assert all(
                kernel.observed in (Observed.HELD, Observed.RUNNING, Observed.EXITED) for kernel in session.kernels
            )
        if session.state in (
            SessionState.CANCELLED,
            SessionState.TERMINATED,
            SessionState.TERMINATING,
            SessionState.PENDING,
        ):
            assert all(kernel.goal is Goal.STOPPED or kernel.attempt_ended for kernel in session.kernels)
    sessions = [move for move in machine.moves if isinstance(move, SessionMoved)]
    for earlier, later in itertools.pairwise(sessions):
        assert earlier.to_state is later.from_state
    assert all(move.to_state in SESSION_MOVES[move.from_state] for move in sessions)
    assert all(
        move.to_state in KERNEL_MOVES[move.from_state] for move in machine.moves if isinstance(move, KernelMoved)
    )
    # The exit: its owner ends it and every attempt stops.
    machine.terminate("TERMINATED_BY_USER")
    for kernel in machine.session.kernels:
        machine.observe(AttemptStatus((kernel.id, kernel.epoch), Observed.EXITED, 143, "STOPPED"))
    assert machine.session.state in ENDED_SESSION_STATES
    assert all(kernel.attempt_ended for kernel in machine.session.kernels)
