"""What agents send becomes values, or is rejected; nothing else can happen."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest
from google.protobuf import timestamp_pb2

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch import convert
from retinue.manager.dispatch.convert import Rejected, Unknown, parse
from retinue.manager.domain.session.attempts import NodeFacts, NodeReport, RuntimeStatus
from retinue.manager.domain.session.service_ports import ServicePortSpec
from retinue.rpc.core.amounts import MAX_AMOUNT
from retinue.types.v1 import port_pb2, runtime_pb2
from retinue.types.v1.layer_progress_pb2 import LayerProgress
from tests.support.fuzz import Fuzz

AGENT = "n1"
SESSION = "00000000-0000-0000-0000-000000000001"
MESSAGES = 10_000


def sound_welcome() -> pb.SyncResponse:
    """What an agent sends that has nothing wrong with it."""
    return pb.SyncResponse(
        welcome=pb.Welcome(
            agent_id=AGENT,
            instance="0123",
            boot_id="b",
            version="1.0",
            architecture="x86_64",
            capacity={"cpu": 4000, "mem": 8 << 30, "cuda.device": 2000},
            available_runtimes=["process", "docker"],
            underlay_address="192.0.2.1",
            underlay_mtu=1500,
            reachable_networks=["10.128.0.0/20", "192.0.2.53"],
            runtimes=[runtime_pb2.RuntimeStatus(name="vm", message="QEMU is missing")],
            attempts=[sound_status()],
            network_session_ids=[SESSION],
            node_conditions=pb.NodeConditions(
                conditions=[pb.NodeCondition(type=pb.NODE_CONDITION_TYPE_DISK_FULL, message="m")]
            ),
        )
    )


def sound_status() -> pb.AttemptStatus:
    """An attempt with all that there can be of it."""
    return pb.AttemptStatus(
        attempt_id=f"{SESSION}.1",
        state=pb.ATTEMPT_STATE_EXITED,
        exit_code=0,
        reason="EXITED",
        message="m",
        end_time=timestamp_pb2.Timestamp(seconds=1_800_000_000),
        log_size=10,
        image=pb.ImageFacts(
            identity=pb.ImageIdentity(digest="sha256:" + "0" * 64),
            service_ports=[port_pb2.ServicePort(name="web", protocol="http", ports=[80])],
        ),
        layers=[LayerProgress(id="l", bytes=1, total_bytes=2)],
    )


def sound_messages() -> list[pb.SyncResponse]:
    """One of each kind."""
    usage = pb.AttemptUsage(attempt_id=f"{SESSION}.1", memory_bytes=1)
    usage.clock.seconds = usage.cpu_time.seconds = 1
    return [
        sound_welcome(),
        pb.SyncResponse(report=pb.Report(sequence=1, attempts=[sound_status()], removed_network_session_ids=[SESSION])),
        pb.SyncResponse(heartbeat=pb.Heartbeat(number=1)),
        pb.SyncResponse(usage=pb.Usage(attempts=[usage])),
        pb.SyncResponse(node_conditions=sound_welcome().welcome.node_conditions),
    ]


def leaves(value: Any) -> Iterator[Any]:
    """All plain values in one."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for item in value.items():
            yield from leaves(item)
    elif isinstance(value, list | tuple | frozenset):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def check(value: Any) -> None:
    """Whatever is in it can be stored, added up and shown."""
    for leaf in leaves(value):
        match leaf:
            case str():
                assert leaf.isprintable()
                assert len(leaf.encode()) <= 1024
            case bool() | None | uuid.UUID():
                pass
            case int():
                assert -(2**31) <= leaf < 2**63
            case float():
                assert 0 <= leaf <= 1e12
            case dt.datetime():
                orjson.dumps(leaf)
            case _:
                raise AssertionError(f"{leaf!r} is no plain value")
    if isinstance(value, NodeFacts):
        assert sum(value.capacity.values()) * 100_000 < 2**78
        assert all(epoch < 2**31 for report in value.attempts for epoch in report.key[1:])
    if isinstance(value, NodeFacts | NodeReport):
        for report in value.attempts:
            assert sum(layer.total for layer in report.layers) < 2**63


def test_any_message_is_values_or_rejected() -> None:
    fuzz, outcomes = Fuzz(1), dict[str, int]()
    sound = sound_messages()
    for number in range(MESSAGES):
        odd = number % 2
        message = fuzz.corrupt(sound[number % len(sound)]) if odd else fuzz.message(pb.SyncResponse)
        parsed = parse(AGENT, message)
        check(parsed)
        kind = type(parsed).__name__
        outcomes[kind] = outcomes.get(kind, 0) + 1
    # Of each kind enough for it to mean something.
    assert min(outcomes.values()) > 100, outcomes
    assert set(outcomes) == {"NodeFacts", "NodeReport", "Usage", "Heartbeat", "Conditions", "Unknown", "Rejected"}


def test_bytes_that_a_later_version_sends_are_ignored() -> None:
    message = pb.SyncResponse()
    # Field 100, a string.
    message.MergeFromString(b"\xa2\x06\x01x")
    assert parse(AGENT, message) == Unknown()


def test_sound_messages_lose_nothing() -> None:
    facts = parse(AGENT, sound_welcome())
    assert isinstance(facts, NodeFacts)
    # One that says nothing of its disk bounds nothing there.
    assert facts.capacity == {"cpu": 4000, "mem": 8 << 30, "cuda.device": 2000, "disk": MAX_AMOUNT}
    assert facts.network_session_ids == {uuid.UUID(SESSION)}
    assert facts.runtimes == (RuntimeStatus("vm", available=False, message="QEMU is missing"),)
    (attempt,) = facts.attempts
    assert attempt.key == (uuid.UUID(SESSION), 1)
    assert (attempt.state, attempt.exit_code, attempt.log_size) == ("EXITED", 0, 10)
    assert attempt.end_time == dt.datetime.fromtimestamp(1_800_000_000, dt.UTC)
    assert attempt.image.service_ports == (ServicePortSpec("web", "http", (80,)),)
    for message in sound_messages():
        assert not isinstance(parse(AGENT, message), Rejected)


@pytest.mark.attack("impossible-capacity")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"agent_id": "n2"}, "WRONG_AGENT"),
        ({"network_session_ids": ["not-a-uuid"]}, "BAD_ID"),
        ({"network_session_ids": [SESSION.replace("-", "")]}, "BAD_ID"),
        ({"underlay_address": "not-an-address"}, "BAD_ADDRESS"),
        ({"underlay_address": "0.0.0.0"}, "BAD_ADDRESS"),  # noqa: S104  # to be refused
        ({"underlay_address": "224.0.0.1"}, "BAD_ADDRESS"),
        ({"underlay_address": "fe80::1%eth0"}, "BAD_ADDRESS"),
        ({"underlay_mtu": -1}, "BAD_ADDRESS"),
        ({"reachable_networks": ["10.0.0.1/8"]}, "BAD_ADDRESS"),
        ({"reachable_networks": ["10.0.0.0/8"] * 65}, "TOO_MANY"),
        ({"capacity": {"cpu": 10**15}}, "BAD_CAPACITY"),
        ({"capacity": {"mem": 2**62}}, "BAD_CAPACITY"),
        ({"capacity": {"cpu": -1}}, "BAD_CAPACITY"),
        ({"capacity": {"c\0pu": 1}}, "BAD_CAPACITY"),
        ({"capacity": {f"s{number}": 1 for number in range(65)}}, "TOO_MANY"),
        ({"architecture": "x86\0"}, "BAD_WORD"),
        ({"available_runtimes": ["\0"]}, "BAD_WORD"),
        ({"attempts": [pb.AttemptStatus()] * (convert.MAX_ATTEMPTS + 1)}, "TOO_MANY"),
    ],
)
def test_a_welcome_that_no_sound_agent_sends_is_rejected(change: dict[str, Any], reason: str) -> None:
    welcome = pb.Welcome(agent_id=AGENT, **{key: value for key, value in change.items() if key != "agent_id"})
    welcome.agent_id = change.get("agent_id", AGENT)
    parsed = parse(AGENT, pb.SyncResponse(welcome=welcome))
    assert isinstance(parsed, Rejected)
    assert parsed.reason == reason
    check(parsed)


def test_unknown_reasons_become_other_and_begin_the_message() -> None:
    status = pb.AttemptStatus(attempt_id=f"{SESSION}.1", reason="OF_A_LATER_VERSION", message="it ended")
    conditions = pb.NodeConditions(
        conditions=[
            pb.NodeCondition(type=pb.NODE_CONDITION_TYPE_UNKILLABLE, reason="VM", message="a machine"),
            pb.NodeCondition(type=pb.NODE_CONDITION_TYPE_UNKILLABLE, reason="DOCKER", message="a container"),
            pb.NodeCondition(type=pb.NODE_CONDITION_TYPE_DISK_FULL, message="full"),
        ]
    )
    welcome = parse(
        AGENT, pb.SyncResponse(welcome=pb.Welcome(agent_id=AGENT, attempts=[status], node_conditions=conditions))
    )
    assert isinstance(welcome, NodeFacts)
    assert [(one.reason, one.message) for one in welcome.attempts] == [("OTHER", "OF_A_LATER_VERSION: it ended")]
    assert [(one.reason, one.message) for one in welcome.conditions] == [
        ("OTHER", "VM: a machine"),
        ("DOCKER", "a container"),
        ("", "full"),
    ]


def test_runtimes_that_only_others_know_cost_nothing() -> None:
    old = sound_welcome()
    old.welcome.ClearField("runtimes")
    facts = parse(AGENT, old)
    assert isinstance(facts, NodeFacts)
    assert facts.runtimes == ()
    odd = sound_welcome()
    odd.welcome.available_runtimes.extend(["kata", "VM"])
    odd.welcome.runtimes.extend(
        runtime_pb2.RuntimeStatus(name="\0" * 99, available=True, message="\x1b[2J" * 9999) for _ in range(999)
    )
    facts = parse(AGENT, odd)
    assert isinstance(facts, NodeFacts)
    assert facts.backends == ("process", "docker", "kata", "VM")
    assert len(facts.runtimes) == 16
    assert all(status.message.isprintable() and len(status.message) <= 256 for status in facts.runtimes)
    check(facts)


@pytest.mark.attack("log-injection")
def test_what_is_only_shown_is_cleaned() -> None:
    status = pb.AttemptStatus(
        attempt_id=f"{SESSION}.1",
        state=pb.AttemptState.ValueType(99),
        reason="A\0B",
        message="é" * 2000,
        log_size=-1,
        layers=[LayerProgress(bytes=2**63 - 1)],
    )
    status.end_time.seconds = 2**62
    strange = pb.AttemptStatus(attempt_id="unreadable-1")
    report = parse(AGENT, pb.SyncResponse(report=pb.Report(sequence=1, attempts=[status, strange])))
    assert isinstance(report, NodeReport)
    (attempt,) = report.attempts
    assert (attempt.state, attempt.reason, attempt.log_size, attempt.end_time) == ("", "OTHER", 0, None)
    assert attempt.message == "A B: " + "é" * 509
    check(report)
