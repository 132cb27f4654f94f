"""What happens to sessions is read from the journal as it was written, and what cannot be read costs itself only."""

from __future__ import annotations

import datetime as dt
import uuid

import orjson
import pytest

from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.attempts import AttemptPause, FailingStep, LayerReport, Step
from retinue.manager.domain.session.events import (
    KINDS,
    AccessMethod,
    Condition,
    EventBody,
    FailingKernel,
    ImagePulled,
    KernelAccess,
    KernelMoved,
    PulledBytes,
    ReasonChanged,
    SessionCreated,
    SessionMoved,
    SessionUpdated,
    UnreadableEvent,
    parse_conditions,
    parse_event,
    parse_pulled_bytes,
    stored_creation,
    with_failing_steps,
    with_memory_kills,
    with_pause,
)
from retinue.manager.domain.session.images import SeenImage
from retinue.manager.domain.session.new_session import NewKernel, NewSession
from retinue.manager.domain.session.service_ports import ServicePortSpec
from retinue.manager.domain.session.spec import SessionSpec
from retinue.manager.domain.session.spec_codec import Encoder, UnreadableSpec
from retinue.manager.domain.session.states import KernelState, Result, SessionState, SessionType
from retinue.manager.store.postgres.recordset import recordset

ID, NOW = uuid.UUID(int=7), dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
SESSION = NewSession(ID, "n", "ada", "p", "g", "BATCH", "SINGLE_NODE", 1, 10, "")
SPEC = SessionSpec("n", "p", "g", SessionType.BATCH, labels={"a": "b"})
IMAGE = SeenImage("sha256:1", "sha256:2", (ServicePortSpec("web", "http", (80, 443)),))
MOVED = (KernelState.RUNNING, KernelState.TERMINATED)
HAPPENED: tuple[EventBody, ...] = (
    SessionCreated(SESSION, SPEC, (NewKernel(ID, ID, "main", 1, 0, "main1", {"cpu": 1000}),), "QUEUED", "it waits"),
    SessionMoved(SessionState.RUNNING, SessionState.TERMINATING, Result.FAILED, 3, "X", "ends", 2, "BRIDGE"),
    KernelMoved(ID, "main1", *MOVED, "n1", 2, "10.1.0.2", 3, "EXITED", IMAGE, NOW),
    ImagePulled(ID, "main1", "n1", 1, "busybox", PulledBytes(1, 2), (LayerReport("a", 1, 2, False),)),
    KernelAccess(AccessMethod.PORT, "main1", "ada", ID, 8080),
    SessionUpdated("n", 20, True, "ada"),
    ReasonChanged("X", "m", (Condition("AGENT_LOST", "gone", NOW, "n1"),), ("AGENT_LOST",)),
)


@pytest.mark.parametrize("body", HAPPENED, ids=lambda body: type(body).__name__)
def test_an_entry_is_read_as_it_was_written(body: EventBody) -> None:
    written = stored_creation(body, Encoder()) if isinstance(body, SessionCreated) else body
    stored = orjson.dumps(orjson.loads(recordset([written]))[0]).decode()
    assert parse_event(KINDS[type(body)], stored) == body


def test_a_session_with_an_unreadable_spec_was_created_all_the_same() -> None:
    stored = orjson.loads(recordset([stored_creation(HAPPENED[0], Encoder())]))[0]  # type: ignore[arg-type]
    stored["spec"]["version"] = 10**6
    read = parse_event("CREATED", orjson.dumps(stored).decode())
    assert isinstance(read, SessionCreated)
    assert isinstance(read.spec, UnreadableSpec)
    assert (read.session, read.spec.known) == (SESSION, SPEC)


def test_every_kind_is_tried() -> None:
    assert {type(body) for body in HAPPENED} == set(KINDS)


@pytest.mark.parametrize("kind", [*KINDS.values(), "SOMETHING_NEW", ""])
@pytest.mark.parametrize(
    "stored", ["{}", "[]", "null", '{"from_state": "ASLEEP"}', '{"reason": 7, "session": []}', "{"]
)
def test_what_cannot_be_read_is_said_to_be_unreadable(kind: str, stored: str) -> None:
    read = parse_event(kind, stored)
    assert isinstance(read, UnreadableEvent)
    assert read.kind == kind


@pytest.mark.parametrize("stored", [None, 7, "text", {}, [None], [{"type": 7}], [{"message": "m"}]])
def test_a_condition_that_cannot_be_read_stands_in_its_place(stored: object) -> None:
    assert [condition.type for condition in parse_conditions(stored)] == [ConditionType.UNREADABLE]


@pytest.mark.parametrize("stored", [None, {}, [], {"bytes": 1}, {"bytes": "x", "total": 1}, 7])
def test_progress_that_cannot_be_read_is_none(stored: object) -> None:
    assert parse_pulled_bytes(stored) is None


def test_each_kernel_has_one_condition_of_its_memory() -> None:
    lost = Condition("AGENT_LOST", "gone", NOW, "n1")
    first = with_memory_kills((lost,), "main1", 1, NOW)
    assert [item.message for item in first] == ["gone", "main1: 1 process was killed, as its memory was used up"]
    both = with_memory_kills(first, "main11", 4, NOW)
    more = with_memory_kills(both, "main1", 2, NOW)
    assert [item.message for item in more] == [
        "gone",
        "main11: 4 processes or more were killed, as its memory was used up",
        "main1: 2 processes or more were killed, as its memory was used up",
    ]
    assert with_memory_kills(more, "main1", 2, NOW) is more


SINCE = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC)


def test_what_an_agent_tries_again_is_a_condition_until_it_succeeds() -> None:
    lost = Condition(ConditionType.AGENT_LOST, "it is away", None, "n1")
    network = FailingStep(Step.NETWORK, "no bridge", 4, SINCE)
    create = FailingStep(Step.CREATE, "no engine", 2, SINCE)
    found = with_failing_steps((lost,), FailingKernel("n1", "main1", (network, create)))
    assert found == (
        lost,
        Condition(
            ConditionType.NETWORK_DEGRADED,
            "its network on agent n1 cannot be made or mended: no bridge; failed 4 times or more since "
            "2026-03-04 05:06:07 UTC, and is tried again",
            SINCE,
            "n1",
        ),
        Condition(
            ConditionType.RETRYING,
            "main1: it cannot be created on agent n1: no engine; failed 2 times or more since "
            "2026-03-04 05:06:07 UTC, and is tried again",
            SINCE,
            "n1",
        ),
    )
    # The network of a session on an agent is said once, also by two kernels; kernels and agents are told apart.
    assert with_failing_steps(found, FailingKernel("n1", "main1", (network, create))) is found
    both = with_failing_steps(found, FailingKernel("n1", "sub1", (network, create)))
    assert [item.type for item in both].count(ConditionType.NETWORK_DEGRADED) == 1
    assert [item.type for item in both].count(ConditionType.RETRYING) == 2
    elsewhere = with_failing_steps(both, FailingKernel("n2", "sub2", (network,)))
    assert len(elsewhere) == len(both) + 1
    # One that ended says nothing of the network of those that did not; one that runs says that it is mended.
    ended = with_failing_steps(both, FailingKernel("n1", "sub1", (), survived=True))
    assert set(ended) == set(found)
    assert with_failing_steps(found, FailingKernel("n1", "main1", ())) == (lost,)


def test_each_kernel_has_one_condition_of_its_pause() -> None:
    lost = Condition("AGENT_LOST", "gone", NOW, "n1")
    first = with_pause((lost,), "main1", AttemptPause("frozen", NOW))
    assert first == (lost, Condition("PAUSED", "main1: paused: frozen", NOW))
    assert with_pause(first, "main1", AttemptPause("frozen", NOW)) is first
    both = with_pause(first, "main11", AttemptPause("stopped"))
    assert [item.message for item in both[1:]] == ["main1: paused: frozen", "main11: paused: stopped"]
    assert with_pause(both, "main1", None) == (lost, Condition("PAUSED", "main11: paused: stopped"))
    assert with_pause((lost,), "main1", None) == (lost,)
