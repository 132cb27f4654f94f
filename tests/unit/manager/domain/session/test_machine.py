"""How one session moves, case by case."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest

from retinue.manager.domain.reasons import ConditionType, SessionReason
from retinue.manager.domain.session.attempts import AttemptPause, AttemptStatus, FailingStep, Step
from retinue.manager.domain.session.events import Condition, FailingKernel
from retinue.manager.domain.session.images import PERMANENT_REASONS, SeenImage
from retinue.manager.domain.session.spec import RetryPolicy, kernel_plans
from retinue.manager.domain.session.state_machine import (
    MAX_FAILED_STARTS,
    Kernel,
    Session,
    SessionMachine,
)
from retinue.manager.domain.session.states import Goal, KernelState, Observed, Result, SessionState, SessionType


def placed(size: int = 3, session_type: SessionType = SessionType.BATCH) -> SessionMachine:
    session_id = uuid.UUID(int=1)
    kernels = [
        Kernel(
            plan.id,
            plan.role,
            plan.hostname,
            KernelState.SCHEDULED,
            agent_id=f"n{plan.local_rank % 2}",
            epoch=1,
            attempt_ended=False,
        )
        for plan in kernel_plans(session_id, [("main", 1), ("sub", size - 1)])
    ]
    return SessionMachine(Session(session_id, session_type, SessionState.SCHEDULED, kernels))


def report(machine: SessionMachine, rank: int, state: Observed, exit_code: int | None = None, reason: str = "") -> None:
    kernel = machine.session.kernels[rank]
    machine.observe(AttemptStatus((kernel.id, kernel.epoch), state, exit_code, reason))


def running(size: int = 3, session_type: SessionType = SessionType.BATCH) -> SessionMachine:
    machine = placed(size, session_type)
    for rank in range(size):
        report(machine, rank, Observed.HELD)
    for rank in range(size):
        report(machine, rank, Observed.RUNNING)
    assert machine.session.state is SessionState.RUNNING
    return machine


def goals(machine: SessionMachine) -> list[Goal]:
    return [kernel.goal for kernel in machine.session.kernels]


def test_nothing_is_released_before_every_kernel_is_held() -> None:
    machine = placed()
    report(machine, 0, Observed.CREATING)
    assert machine.session.state is SessionState.PREPARING
    report(machine, 0, Observed.HELD)
    report(machine, 1, Observed.HELD)
    assert goals(machine) == [Goal.HELD] * 3
    report(machine, 2, Observed.HELD)
    assert goals(machine) == [Goal.RUNNING] * 3
    assert machine.session.state is SessionState.PREPARING


def test_what_keeps_an_agent_from_creating_a_kernel_is_said_until_it_does() -> None:
    machine = placed()
    for rank, message in ((0, "it builds ssh"), (1, "no address"), (2, "it builds ssh")):
        kernel = machine.session.kernels[rank]
        machine.observe(AttemptStatus((kernel.id, kernel.epoch), Observed.ACCEPTED, message=message))
    assert (machine.session.state, machine.session.message) == (SessionState.SCHEDULED, "agent n0: it builds ssh")
    # The other agent is no further.
    report(machine, 1, Observed.CREATING)
    assert (machine.session.state, machine.session.message) == (SessionState.PREPARING, "agent n0: it builds ssh")
    report(machine, 0, Observed.CREATING)
    assert machine.session.message == ""
    kernel = machine.session.kernels[0]
    machine.observe(AttemptStatus((kernel.id, kernel.epoch), Observed.CREATING, message="said of one that it creates"))
    assert machine.session.message == ""


def test_main_exit_decides_result_and_stops_subs() -> None:
    machine = running()
    report(machine, 0, Observed.EXITED, 0, "EXITED")
    assert (machine.session.state, machine.session.result, machine.session.exit_code) == (
        SessionState.TERMINATING,
        Result.SUCCESS,
        0,
    )
    assert goals(machine)[1:] == [Goal.STOPPED] * 2
    report(machine, 1, Observed.EXITED, 143, "STOPPED")
    report(machine, 2, Observed.EXITED, 143, "STOPPED")
    assert (machine.session.state, machine.session.result, machine.session.reason) == (
        SessionState.TERMINATED,
        Result.SUCCESS,
        "COMMAND_ENDED",
    )


def test_main_failure_keeps_its_exit_code() -> None:
    machine = running(1)
    report(machine, 0, Observed.EXITED, 3, "EXITED")
    session = machine.session
    assert (session.state, session.result, session.exit_code) == (SessionState.TERMINATED, Result.FAILED, 3)
    assert (session.reason, session.message) == ("COMMAND_FAILED", "main1 exited with 3")


def test_a_kernel_without_its_working_directory_says_so() -> None:
    machine = running(2)
    machine.session.kernels[1].working_directory = "/data"
    report(machine, 1, Observed.EXITED, 214, "EXITED")
    session = machine.session
    assert (session.result, session.reason) == (Result.FAILED, "WORKING_DIRECTORY_REFUSED")
    assert session.message == "sub1 has no directory /data that its user may enter (214)"
    # Without one that was asked for, it is the command's own exit code.
    other = running(1)
    report(other, 0, Observed.EXITED, 214, "EXITED")
    assert (other.session.reason, other.session.message) == ("COMMAND_FAILED", "main1 exited with 214")


def test_exit_straight_after_the_gate_counts_as_having_run() -> None:
    machine = placed(2)
    report(machine, 0, Observed.HELD)
    report(machine, 1, Observed.HELD)
    report(machine, 0, Observed.EXITED, 0, "EXITED")
    assert machine.session.state is SessionState.PREPARING
    report(machine, 1, Observed.RUNNING)
    assert (machine.session.state, machine.session.result) == (SessionState.TERMINATING, Result.SUCCESS)
    report(machine, 1, Observed.EXITED, 143, "STOPPED")
    assert machine.session.state is SessionState.TERMINATED


def test_sub_exiting_with_zero_leaves_the_session_running() -> None:
    machine = running()
    report(machine, 1, Observed.EXITED, 0, "EXITED")
    assert machine.session.state is SessionState.RUNNING
    assert machine.session.kernels[1].state is KernelState.TERMINATED


@pytest.mark.parametrize("session_type", [SessionType.BATCH, SessionType.INTERACTIVE])
@pytest.mark.parametrize(
    ("exit_code", "why", "reason"),
    [
        (9, "EXITED", "COMMAND_FAILED"),
        (137, "OOM_KILLED", "OOM_KILLED"),
        (None, "", "KERNEL_FAILED"),
        (None, "RECORD_LOST", "RECORD_LOST"),
    ],
)
def test_failing_sub_ends_the_session(session_type: SessionType, exit_code: int | None, why: str, reason: str) -> None:
    machine = running(session_type=session_type)
    report(machine, 2, Observed.EXITED, exit_code, why)
    assert machine.session.state is SessionState.TERMINATING
    assert machine.session.reason == reason
    assert machine.session.result is (Result.FAILED if session_type is SessionType.BATCH else Result.UNDEFINED)


def test_failed_start_rolls_the_whole_gang_back() -> None:
    machine = placed()
    report(machine, 0, Observed.HELD)
    report(machine, 1, Observed.FAILED, None, "START_FAILED")
    session = machine.session
    assert session.state is SessionState.PENDING
    assert (session.failed_starts, session.failed_agents, session.reason) == (1, ["n1"], "START_FAILED")
    assert [kernel.state for kernel in session.kernels] == [KernelState.PENDING] * 3
    assert [(kernel.goal, kernel.attempt_ended) for kernel in session.kernels] == [
        (Goal.STOPPED, False),
        (Goal.HELD, True),
        (Goal.STOPPED, False),
    ]
    # The others' ends change nothing but their attempts.
    report(machine, 0, Observed.EXITED, None, "STOPPED")
    assert session.state is SessionState.PENDING
    assert session.kernels[0].attempt_ended


def test_too_many_failed_starts_end_the_session() -> None:
    machine = placed()
    machine.session.failed_starts = MAX_FAILED_STARTS - 1
    report(machine, 0, Observed.FAILED, None, "START_FAILED")
    assert (machine.session.state, machine.session.result) == (SessionState.TERMINATING, Result.FAILED)


def test_gang_that_may_have_been_released_is_not_tried_again() -> None:
    machine = placed(2)
    report(machine, 0, Observed.HELD)
    report(machine, 1, Observed.HELD)
    report(machine, 1, Observed.RUNNING)
    agent = machine.session.kernels[0].agent_id
    assert [where for where, _ in machine.time_out_start()] == [agent]
    assert (machine.session.state, machine.session.result) == (SessionState.TERMINATING, Result.FAILED)


def test_agents_that_are_late_are_avoided_and_have_failed() -> None:
    machine = placed(4)
    report(machine, 0, Observed.HELD)
    report(machine, 1, Observed.PULLING)
    report(machine, 2, Observed.CREATING)
    agents = [kernel.agent_id for kernel in machine.session.kernels]
    late = machine.time_out_start()
    assert [(agent, status.reason) for agent, status in late] == [
        (agents[1], "IMAGE_PULL_FAILED"),
        (agents[2], "START_FAILED"),
        (agents[3], "START_FAILED"),
    ]
    assert (machine.session.state, machine.session.reason) == (SessionState.PENDING, "START_TIMEOUT")
    assert machine.session.failed_agents == ["n1", "n0"]
    assert machine.time_out_start() == []


def test_termination_while_pending_or_placed_cancels() -> None:
    machine = placed()
    machine.terminate("TERMINATED_BY_USER")
    assert machine.session.state is SessionState.CANCELLED
    assert goals(machine) == [Goal.STOPPED] * 3
    assert {kernel.state for kernel in machine.session.kernels} == {KernelState.CANCELLED}


def test_termination_is_idempotent() -> None:
    machine = running()
    machine.terminate("TERMINATED_BY_USER")
    moves = len(machine.moves)
    machine.terminate("TERMINATED_BY_USER")
    assert len(machine.moves) == moves
    assert machine.session.state is SessionState.TERMINATING


def test_words_on_older_attempts_and_unknown_kernels_change_nothing() -> None:
    machine = placed()
    kernel = machine.session.kernels[0]
    machine.observe(AttemptStatus((kernel.id, 0), Observed.EXITED, 1))
    machine.observe(AttemptStatus((uuid.UUID(int=99), 1), Observed.EXITED, 1))
    assert machine.moves == []


def test_lost_agent_lets_a_terminating_session_end() -> None:
    machine = running()
    machine.terminate("TERMINATED_BY_USER")
    for kernel in machine.session.kernels:
        machine.strand(kernel.id, kernel.epoch, "n0", revoked=False)
    assert machine.session.state is SessionState.TERMINATED
    assert machine.session.kernels[0].reason == "AGENT_LOST"


def test_a_running_session_waits_for_a_lost_agent_and_not_for_a_revoked_one() -> None:
    machine = running(2)
    kernel = machine.session.kernels[1]
    machine.strand(kernel.id, kernel.epoch, "n0", revoked=False)
    assert machine.session.state is SessionState.RUNNING
    assert not kernel.attempt_ended
    machine.strand(kernel.id, kernel.epoch, "n0", revoked=True)
    assert machine.session.state is SessionState.TERMINATING
    assert (kernel.state, kernel.reason, kernel.attempt_ended) == (KernelState.TERMINATED, "AGENT_REVOKED", True)
    assert machine.session.kernels[0].goal is Goal.STOPPED
    assert "AGENT_REVOKED" in machine.session.message


def test_a_revoked_agent_takes_a_batch_with_it() -> None:
    machine = running(1)
    machine.strand(machine.session.kernels[0].id, 1, "n0", revoked=True)
    assert (machine.session.state, machine.session.result, machine.session.reason) == (
        SessionState.TERMINATED,
        Result.FAILED,
        "AGENT_REVOKED",
    )


def test_reboot_of_a_node_fails_a_batch() -> None:
    machine = running(1)
    report(machine, 0, Observed.EXITED, None, "NODE_REBOOTED")
    assert (machine.session.state, machine.session.result, machine.session.reason) == (
        SessionState.TERMINATED,
        Result.FAILED,
        "NODE_REBOOTED",
    )


def test_a_session_gives_up_waiting_only_while_it_waits() -> None:
    for there in (placed(), running(1)):
        moves = list(there.moves)
        there.give_up_waiting()
        assert there.moves == moves
    waiting = placed()
    waiting.roll_back("START_TIMEOUT")
    waiting.give_up_waiting()
    session = waiting.session
    assert (session.state, session.result, session.reason) == (
        SessionState.CANCELLED,
        Result.UNDEFINED,
        "PENDING_TIMEOUT",
    )
    assert {(kernel.state, kernel.goal) for kernel in session.kernels} == {(KernelState.CANCELLED, Goal.STOPPED)}


def test_a_time_limit_ends_a_running_session_and_fails_a_batch() -> None:
    starting = placed()
    starting.exceed_time_limit()
    assert starting.moves == []
    for session_type, result in ((SessionType.BATCH, Result.FAILED), (SessionType.INTERACTIVE, Result.UNDEFINED)):
        machine = running(2, session_type)
        machine.exceed_time_limit()
        assert machine.session.state is SessionState.TERMINATING
        report(machine, 0, Observed.EXITED, 0)
        report(machine, 1, Observed.EXITED, 143)
        session = machine.session
        assert (session.state, session.result) == (SessionState.TERMINATED, result)
        assert session.reason == "TIME_LIMIT_EXCEEDED"


def test_a_preempted_session_ends_or_waits_again() -> None:
    ended = running(2)
    ended.preempt("w", requeue=False)
    assert (ended.session.state, ended.session.reason) == (SessionState.TERMINATING, "PREEMPTED")
    assert "session w" in ended.session.message
    again = running(2)
    again.preempt("w", requeue=True)
    session = again.session
    assert (session.state, session.result, session.failed_starts) == (SessionState.PENDING, Result.UNDEFINED, 0)
    assert [kernel.state for kernel in session.kernels] == [KernelState.PENDING] * 2
    assert goals(again) == [Goal.STOPPED] * 2
    report(again, 0, Observed.EXITED, 143)
    assert session.state is SessionState.PENDING
    assert session.exit_code is None
    starting = placed(2)
    starting.preempt("w", requeue=True)
    assert starting.session.state is SessionState.PENDING


def test_a_preemptible_gang_of_which_a_kernel_has_ended_runs_again() -> None:
    machine = running(3)
    machine.session.preemptible = True
    report(machine, 1, Observed.EXITED, 0, "EXITED")
    sub = machine.session.kernels[1]
    assert (machine.session.state, sub.state, sub.exit_code) == (SessionState.RUNNING, KernelState.TERMINATING, 0)
    machine.preempt("w", requeue=True)
    session = machine.session
    assert (session.state, session.reason) == (SessionState.PENDING, "PREEMPTED")
    assert [(kernel.state, kernel.exit_code) for kernel in session.kernels] == [(KernelState.PENDING, None)] * 3


def test_a_preemptible_gang_of_which_a_kernel_has_ended_ends_as_any_other() -> None:
    machine = running(2)
    machine.session.preemptible = True
    report(machine, 1, Observed.EXITED, 0, "EXITED")
    report(machine, 0, Observed.EXITED, 0, "EXITED")
    session = machine.session
    assert (session.state, session.result, session.reason) == (SessionState.TERMINATED, Result.SUCCESS, "COMMAND_ENDED")
    assert [(kernel.state, kernel.exit_code) for kernel in session.kernels] == [(KernelState.TERMINATED, 0)] * 2


def test_a_restarted_session_waits_again_with_all_its_tries() -> None:
    for machine in (running(2), placed(2)):
        machine.session.failed_starts, machine.session.retries = 3, 2
        machine.session.failed_agents = ["n7"]
        machine.restart("restarted by ada")
        session = machine.session
        assert (session.state, session.reason, session.message) == (
            SessionState.PENDING,
            "RESTARTED",
            "restarted by ada",
        )
        assert (session.failed_starts, session.retries, session.failed_agents) == (0, 0, [])
        assert goals(machine) == [Goal.STOPPED] * 2
        moves = list(machine.moves)
        machine.restart("once more")
        assert machine.moves == moves


def test_what_has_partly_ended_or_ends_is_not_restarted() -> None:
    partly, ending = running(2), running(2)
    report(partly, 1, Observed.EXITED, 0)
    ending.terminate("TERMINATED_BY_USER")
    for machine in (partly, ending):
        moves = list(machine.moves)
        machine.restart("restarted by ada")
        assert machine.moves == moves


def test_what_has_partly_ended_does_not_run_again() -> None:
    machine = running(2)
    report(machine, 1, Observed.EXITED, 0)
    machine.preempt("w", requeue=True)
    assert (machine.session.state, machine.session.reason) == (SessionState.TERMINATING, "PREEMPTED")


def test_an_evicted_session_waits_again_if_it_may_and_ends_if_not() -> None:
    ended = running(2)
    ended.session.kernels[1].agent_id = "drained"
    ended.evict("another")
    assert ended.session.state is SessionState.RUNNING
    ended.evict("drained")
    assert (ended.session.state, ended.session.reason) == (SessionState.TERMINATING, "AGENT_DRAINED")
    assert "agent drained was drained" in ended.session.message
    again = running(2)
    again.session.kernels[1].agent_id = "drained"
    again.session.retry = RetryPolicy(2)
    again.evict("drained")
    session = again.session
    assert (session.state, session.reason, session.retries) == (SessionState.PENDING, "AGENT_DRAINED", 0)
    assert [kernel.goal for kernel in session.kernels] == [Goal.STOPPED] * 2


def test_an_eviction_puts_back_what_no_program_of_has_run() -> None:
    machine = placed(2)
    machine.session.kernels[0].agent_id = "drained"
    machine.evict("drained")
    assert (machine.session.state, machine.session.reason) == (SessionState.PENDING, "AGENT_DRAINED")


ONE, OTHER = SeenImage("sha256:1", "sha256:a"), SeenImage("sha256:2", "sha256:b")


def find(machine: SessionMachine, rank: int, image: SeenImage, state: Observed = Observed.HELD) -> None:
    kernel = machine.session.kernels[rank]
    machine.observe(AttemptStatus((kernel.id, kernel.epoch), state, image=image))


def test_first_word_on_an_image_holds_for_the_session() -> None:
    machine = placed()
    machine.session.kernels[0].image = "main:1"
    machine.session.kernels[1].image = machine.session.kernels[2].image = "sub:1"
    find(machine, 1, ONE)
    assert [kernel.found_image for kernel in machine.session.kernels] == [SeenImage(), ONE, ONE]
    find(machine, 0, OTHER)
    # The same content, loaded without a registry, or for another architecture.
    find(machine, 2, SeenImage("", "sha256:a"))
    assert [kernel.found_image for kernel in machine.session.kernels] == [OTHER, ONE, ONE]
    assert goals(machine) == [Goal.RUNNING] * 3


@pytest.mark.attack("moved-tags")
def test_kernels_never_run_different_images_under_one_reference() -> None:
    machine = placed()
    find(machine, 0, ONE)
    find(machine, 1, OTHER)
    assert (machine.session.state, machine.session.reason) == (SessionState.PENDING, "IMAGE_MOVED")
    assert goals(machine) == [Goal.STOPPED] * 3
    # The next try is for what was found first, wherever it is placed.
    assert [kernel.found_image for kernel in machine.session.kernels] == [ONE] * 3


@pytest.mark.parametrize("reason", sorted(PERMANENT_REASONS))
def test_what_no_other_try_changes_is_not_tried_again(reason: str) -> None:
    machine = placed()
    report(machine, 0, Observed.PULLING)
    report(machine, 1, Observed.FAILED, None, reason)
    session = machine.session
    assert (session.state, session.result, session.reason) == (SessionState.TERMINATING, Result.FAILED, reason)
    assert session.kernels[0].goal is Goal.STOPPED


def test_trouble_that_may_pass_is_tried_again() -> None:
    machine = placed()
    report(machine, 0, Observed.FAILED, None, "IMAGE_PULL_FAILED")
    assert machine.session.state is SessionState.PENDING


def repeated(size: int, **policy: object) -> SessionMachine:
    machine = running(size)
    machine.session.retry = RetryPolicy(**{"max_attempts": 3, "backoff_seconds": 4.0, **policy})  # type: ignore[arg-type]
    return machine


def test_a_lost_try_is_followed_by_another_as_a_whole() -> None:
    machine = repeated(3)
    report(machine, 1, Observed.EXITED, 0, "EXITED")
    assert machine.session.kernels[1].state is KernelState.TERMINATING
    machine.strand(machine.session.kernels[2].id, 1, "n0", revoked=False)
    session = machine.session
    assert (session.state, session.result, session.retries, session.pause) == (
        SessionState.PENDING,
        Result.UNDEFINED,
        1,
        4.0,
    )
    assert (session.reason, session.failed_agents) == ("AGENT_LOST", ["n0"])
    assert {kernel.state for kernel in session.kernels} == {KernelState.PENDING}
    assert goals(machine)[0] is Goal.STOPPED
    assert session.kernels[2].attempt_ended
    # What is still heard of the first try changes nothing but its own end.
    report(machine, 0, Observed.EXITED, 143, "STOPPED")
    assert (session.state, session.kernels[0].attempt_ended) == (SessionState.PENDING, True)


@pytest.mark.parametrize("exit_code", [None, 1, 137, 143])
@pytest.mark.parametrize(
    ("reason", "how"),
    [("EVICTED", "was evicted"), ("ENGINE_STOPPED", "was stopped by the container engine of its node")],
)
def test_a_try_that_its_node_ends_is_lost_and_runs_elsewhere(reason: str, how: str, exit_code: int | None) -> None:
    machine = repeated(2)
    report(machine, 1, Observed.EXITED, exit_code, reason)
    session = machine.session
    assert (session.state, session.result, session.retries) == (SessionState.PENDING, Result.UNDEFINED, 1)
    assert (session.reason, session.message) == (reason, f"sub1 {how}; try 2 of 3 follows")
    assert session.failed_agents == ["n1"]


def test_eviction_of_the_last_try_fails_a_batch() -> None:
    for machine in (repeated(1, max_attempts=1), running(1)):
        report(machine, 0, Observed.EXITED, 143, "EVICTED")
        session = machine.session
        assert (session.state, session.result, session.exit_code) == (SessionState.TERMINATED, Result.FAILED, 143)
        assert (session.reason, session.message) == ("EVICTED", "main1 was evicted")


def test_an_engine_that_stops_the_last_try_fails_a_batch_and_ends_any_other() -> None:
    for machine, result in (
        (repeated(1, max_attempts=1), Result.FAILED),
        (running(1), Result.FAILED),
        (running(1, SessionType.INTERACTIVE), Result.UNDEFINED),
    ):
        report(machine, 0, Observed.EXITED, 143, "ENGINE_STOPPED")
        session = machine.session
        assert (session.state, session.result, session.exit_code) == (SessionState.TERMINATED, result, 143)
        assert session.reason == session.kernels[0].reason == "ENGINE_STOPPED"
        assert session.message == "main1 was stopped by the container engine of its node"


def test_a_pause_is_known_until_it_ends() -> None:
    machine = running(2)
    kernel = machine.session.kernels[1]
    key, pause = (kernel.id, kernel.epoch), AttemptPause("frozen", dt.datetime.now(dt.UTC))
    machine.observe(AttemptStatus(key, Observed.RUNNING, pause=pause))
    assert machine.pauses == {"main1": None, "sub1": pause}
    assert machine.session.state is SessionState.RUNNING
    machine.observe(AttemptStatus(key, Observed.EXITED, 0, pause=pause))
    assert machine.pauses["sub1"] is None


def test_an_eviction_before_the_release_is_a_failed_start() -> None:
    machine = placed(2)
    report(machine, 0, Observed.HELD)
    report(machine, 1, Observed.FAILED, None, "EVICTED")
    session = machine.session
    assert (session.state, session.reason, session.failed_agents) == (SessionState.PENDING, "EVICTED", ["n1"])


def test_a_failure_is_final_unless_asked_otherwise() -> None:
    machine = repeated(1)
    report(machine, 0, Observed.EXITED, 3, "EXITED")
    assert (machine.session.state, machine.session.result) == (SessionState.TERMINATED, Result.FAILED)
    machine = repeated(1, on_failure=True)
    report(machine, 0, Observed.EXITED, 3, "EXITED")
    session = machine.session
    assert (session.state, session.reason, session.exit_code) == (SessionState.PENDING, "COMMAND_FAILED", None)
    assert session.message == "main1 exited with 3; try 2 of 3 follows"


def test_the_last_try_decides() -> None:
    machine = repeated(1, on_failure=True)
    machine.session.retries = 2
    report(machine, 0, Observed.EXITED, 3, "EXITED")
    session = machine.session
    assert (session.state, session.result, session.exit_code) == (SessionState.TERMINATED, Result.FAILED, 3)


def test_what_an_agent_stopped_by_itself_was_lost() -> None:
    machine = repeated(1)
    report(machine, 0, Observed.EXITED, 137, "STOPPED")
    # A reason of the closed set: a literal of the same letters is not documented anywhere.
    assert (machine.session.state, machine.session.reason) == (SessionState.PENDING, SessionReason.FENCED)
    assert {move.reason for move in machine.moves if move.reason} == {SessionReason.FENCED}


def test_what_its_owner_ends_is_not_run_again() -> None:
    machine = repeated(2, on_failure=True)
    report(machine, 1, Observed.EXITED, 0, "EXITED")
    machine.terminate("TERMINATED_BY_USER")
    report(machine, 0, Observed.EXITED, 143, "STOPPED")
    assert (machine.session.state, machine.session.retries) == (SessionState.TERMINATED, 0)
    assert [kernel.state for kernel in machine.session.kernels] == [KernelState.TERMINATED] * 2


def test_success_of_main_counts_whatever_the_others_did() -> None:
    machine = repeated(2, on_failure=True)
    report(machine, 0, Observed.EXITED, 0, "EXITED")
    report(machine, 1, Observed.EXITED, 143, "STOPPED")
    assert (machine.session.state, machine.session.result) == (SessionState.TERMINATED, Result.SUCCESS)


def test_pauses_double_up_to_the_longest() -> None:
    policy = RetryPolicy(10, backoff_seconds=10.0, max_backoff_seconds=60.0)
    assert [policy.pause(number) for number in range(1, 6)] == [10.0, 20.0, 40.0, 60.0, 60.0]


def test_a_start_that_is_given_up_names_what_each_kernel_waits_for_and_the_last_errors() -> None:
    machine = placed()
    report(machine, 0, Observed.HELD)
    report(machine, 1, Observed.PULLING)
    report(machine, 2, Observed.CREATING)
    conditions = [
        Condition(ConditionType.NETWORK_DEGRADED, "no bridge", None, "n1"),
        Condition(ConditionType.AGENT_LOST, "it is away", None, "n1"),
    ]
    late = machine.time_out_start(conditions)
    assert machine.session.message == (
        "not every kernel was ready in time: not on n1, n0; sub1 was waiting for its image, "
        "sub2 was being created, or joined to its network; no bridge"
    )
    assert [(agent, status.message) for agent, status in late] == [
        ("n1", "its image was not fetched in time: no bridge"),
        ("n0", "it was not ready in time"),
    ]


def test_only_agents_that_fail_for_too_long_are_late() -> None:
    machine = placed()
    failing = Condition(ConditionType.RETRYING, "sub1: no engine", None, "n1")
    assert [agent for agent, _ in machine.time_out_start([failing], failing={"n1"})] == ["n1"]
    session = machine.session
    assert (session.state, session.failed_agents, session.failed_starts) == (SessionState.PENDING, ["n1"], 1)
    assert session.message.endswith("sub1 was not begun; sub1: no engine")


def test_what_an_agent_fails_at_is_kept_for_the_conditions() -> None:
    machine = running()
    main, sub = machine.session.kernels[0], machine.session.kernels[2]
    step = FailingStep(Step.NETWORK, "no bridge", 2)
    machine.observe(AttemptStatus((main.id, main.epoch), Observed.RUNNING, failing_steps=(step,)))
    assert machine.failing[-1] == FailingKernel("n0", "main1", (step,))
    # The network is still there for the kernel beside it.
    machine.observe(AttemptStatus((sub.id, sub.epoch), Observed.EXITED, 0, failing_steps=(step,)))
    assert machine.failing[-1] == FailingKernel("n0", "sub2", (), survived=True)
