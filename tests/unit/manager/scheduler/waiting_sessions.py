"""Two agents of a group, and sessions that wait for them."""

from __future__ import annotations

import json
import uuid

from retinue.manager.domain.scheduling.records import AgentRecord, AgentState, PendingSession

AGENTS = [
    AgentRecord(
        id=f"n{number}",
        resource_group="g",
        state=AgentState.ALIVE,
        drained=False,
        revoked=False,
        blocked=False,
        architecture="x86_64",
        backends=["process"],
        capacity={"cpu": 2000, "mem": 1024},
        underlay_address="192.0.2.1",
        underlay_mtu=1500,
    )
    for number in range(2)
]


def waiting(owner: str, project: str = "p", **slots: int) -> PendingSession:
    return PendingSession(
        id=uuid.uuid4(),
        owner=owner,
        project=project,
        resource_group="g",
        system=False,
        priority=10,
        sequence=1,
        cluster_mode="SINGLE_NODE",
        cluster_size=1,
        created=0.0,
        earliest_start_time=None,
        hold=False,
        endpoint="",
        agents=(),
        agents_strict=False,
        architecture="",
        replica_placement="",
        time_limit_seconds=None,
        sftp=False,
        open_dependencies=0,
        waits_for=[],
        kernels=json.dumps(
            [{"hostname": "main1", "image": False, "isolation": "PROCESS", "slots": slots or {"cpu": 1000}}]
        ),
    )
