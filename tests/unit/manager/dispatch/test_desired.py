"""What is sent when a wish changes, and what a silence means."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch.desired_state import attempt
from retinue.manager.dispatch.sent_state import DesiredState, difference
from retinue.manager.domain.agents.liveness import verdict
from retinue.manager.domain.agents.timers import Timers
from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.domain.session.probes import PublishedPort
from retinue.manager.domain.session.secrets import SessionSecrets
from retinue.manager.domain.session.spec import SessionSpec
from retinue.manager.domain.session.states import SessionType
from retinue.manager.store.placement.attempts import DesiredAttemptRecord
from retinue.types.v1 import isolation_pb2

ATTEMPT = pb.Attempt(id="k.1", session_id="s", kernel_id="k", number=1, goal=pb.GOAL_HELD, slots={"cpu": 1000})
SPEC = SessionSpec("one", "p", "default", SessionType.BATCH)
NETWORK = pb.Network(session_id="s", vni=7, subnet="10.128.0.0/28", mtu=1450)


def changed(**fields: Any) -> pb.Attempt:
    attempt = pb.Attempt(**fields)
    found = pb.Attempt()
    found.CopyFrom(ATTEMPT)
    found.MergeFrom(attempt)
    return found


def test_nothing_changed_is_nothing_sent() -> None:
    wish = DesiredState({"k.1": ATTEMPT}, {"s": NETWORK})
    assert not difference(wish, DesiredState({"k.1": changed()}, dict(wish.networks)))


@pytest.mark.parametrize("isolation", Isolation)
def test_agents_are_sent_what_an_attempt_is(isolation: Isolation) -> None:
    kernel_id = uuid.UUID(int=7)
    row = DesiredAttemptRecord(
        kernel_id=kernel_id,
        epoch=3,
        session_id=kernel_id,
        goal="RUNNING",
        observed="",
        role="main",
        role_index=1,
        local_rank=0,
        hostname="main1",
        slots={"cpu": 1000},
        image_digest="",
        image_id="",
        spec=SPEC,
        number=1,
        cluster_size=1,
        force=False,
        egress="ALLOW",
        published=PublishedPort(8000),
    )
    message = attempt(row, replace(SPEC, isolations={"main": isolation}), SessionSecrets(bytes(32)), 0.0, None)
    assert isolation_pb2.Isolation.Name(message.isolation) == f"ISOLATION_{isolation}"
    assert (message.id, message.goal, message.egress) == (f"{kernel_id}.3", pb.GOAL_RUNNING, True)
    assert message.stop_grace.ToTimedelta().total_seconds() == SPEC.grace_seconds
    assert (dict(message.slots), message.published.port) == ({"cpu": 1000}, 8000)
    # Absent, and not 0: it means any time.
    assert not message.HasField("fence_timeout")
    assert not message.HasField("image_identity")


def test_a_server_of_the_same_attempt_is_sent_once_whatever_its_certificate() -> None:
    def server(certificate: str, *keys: str) -> DesiredState:
        sftp = pb.SftpServer(host_key=certificate.encode(), host_certificate=certificate, authorized_keys=keys)
        return DesiredState({"k.1": changed(sftp=sftp)})

    assert not difference(server("one", "a"), server("other", "a"))
    assert difference(server("one", "a"), server("other", "a", "b"))
    assert difference(DesiredState({"k.1": ATTEMPT}), server("one"))


def test_only_what_changed_is_sent() -> None:
    other, released = changed(id="o.1"), changed(goal=pb.GOAL_RUNNING)
    step = difference(DesiredState({"k.1": ATTEMPT, "o.1": other}, {"s": NETWORK}), DesiredState({"k.1": released}))
    assert (step.attempts, step.removed_attempts, step.networks, step.removed_networks) == (
        (released,),
        ("o.1",),
        (),
        ("s",),
    )


@pytest.mark.parametrize(
    ("silence", "state"),
    [(0, "ALIVE"), (19.9, "ALIVE"), (20, "SUSPECT"), (59.9, "SUSPECT"), (60, "LOST"), (1e6, "LOST")],
)
def test_verdicts(silence: float, state: str) -> None:
    assert verdict(silence, Timers()) == state
