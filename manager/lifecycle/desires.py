"""What each agent should have, read from the store: the one place where placements become orders."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from manager.fleet.desired import Desired, DesiredAttempt, DesiredMount, DesiredNetwork, NetworkMember
from manager.lifecycle.addressing import place
from manager.lifecycle.bootstrap import with_bootstrap
from manager.lifecycle.secrets import SessionSecrets
from manager.lifecycle.spec import KernelPlan, SessionSpec, cluster_environment
from manager.scheduling.amounts import parse_amount
from manager.store import attempts
from manager.store.database import Database

# Agents that a commit concerns, each with the sessions it is about; None means that it may be any.
Concerned: TypeAlias = Mapping[str, Collection[uuid.UUID] | None]


def attempt_id(kernel_id: object, epoch: int) -> str:
    """How an attempt is called between manager and agents."""
    return f"{kernel_id}.{epoch}"


async def read_desired(
    database: Database,
    agent_id: str,
    secrets: SessionSecrets,
    session_ids: Collection[uuid.UUID] | None = None,
    *,
    fence_seconds: float = 0.0,
) -> Desired:
    """All that an agent should have now; with `session_ids`, all of these sessions.

    What may be run elsewhere once the agent is lost is to be stopped by it after so many seconds without a manager.
    """
    async with database.transaction() as tx:
        wanted, members = await attempts.read_desired(tx, agent_id, session_ids)
    specs: dict[object, SessionSpec] = {}
    for row in wanted:
        if row["session_id"] not in specs:
            specs[row["session_id"]] = SessionSpec.from_json(row["spec"])
    built = [_attempt(row, specs[row["session_id"]], secrets, fence_seconds) for row in wanted]
    return Desired({attempt.id: attempt for attempt in built}, _networks(agent_id, members))


def _attempt(
    row: Mapping[str, Any], spec: SessionSpec, secrets: SessionSecrets, fence_seconds: float
) -> DesiredAttempt:
    plan = KernelPlan(row["kernel_id"], row["role"], row["role_index"], row["local_rank"], row["hostname"])
    kernel = spec.of_role(plan.role)
    command, environment = with_bootstrap(kernel.command, kernel.environment, spec.bootstrap_script)
    networked = row["cluster_size"] > 1
    return DesiredAttempt(
        id=attempt_id(row["kernel_id"], row["epoch"]),
        session_id=str(row["session_id"]),
        kernel_id=str(row["kernel_id"]),
        epoch=row["epoch"],
        goal=row["goal"],
        grace_seconds=0.0 if row["force"] else spec.grace_seconds,
        hostname=row["hostname"],
        image=kernel.image,
        command=command,
        environment={
            **environment,
            **cluster_environment(row["session_id"], spec, plan),
            # Grows with each try: what a kernel writes elsewhere can be told from what an earlier one wrote.
            "RETINUE_EPOCH": str(row["epoch"]),
        },
        slots=row["slots"],
        networked=networked,
        image_digest=row["image_digest"],
        image_id=row["image_id"],
        shared_memory=parse_amount("mem", kernel.shared_memory) if kernel.shared_memory else 0,
        fence_seconds=fence_seconds if spec.retry is not None and spec.retry.max_attempts > 1 else 0.0,
        egress=row["egress"] == "ALLOW",
        mounts=tuple(DesiredMount(mount.root, mount.below_root, mount.target, mount.writable) for mount in spec.mounts),
        session_secret=secrets.of(row["session_id"], row["epoch"]) if networked else b"",
    )


def _networks(agent_id: str, rows: Sequence[Any]) -> dict[str, DesiredNetwork]:
    members: dict[str, list[NetworkMember]] = {}
    facts: dict[str, Any] = {}
    for row in rows:
        session_id = str(row["session_id"])
        spot = place(row["subnet"], row["local_rank"])
        facts[session_id] = row
        members.setdefault(session_id, []).append(
            NetworkMember(
                kernel_id=str(row["kernel_id"]),
                hostname=row["hostname"],
                address=spot.address,
                mac=spot.mac,
                underlay_address=row["underlay_address"],
                local=row["agent_id"] == agent_id,
            )
        )
    return {
        session_id: DesiredNetwork(session_id, row["vni"], row["subnet"], row["mtu"], tuple(members[session_id]))
        for session_id, row in facts.items()
    }
