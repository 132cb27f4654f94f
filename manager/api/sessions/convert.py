"""Sessions as stored, as messages."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from retinue.manager.api.sessions.spec_convert import spec_message
from retinue.manager.api.sessions.unreadable import missing_kernels, readable_part
from retinue.manager.scheduler.preview import Preview
from retinue.manager.server.etags import etag
from retinue.manager.server.times import timestamp
from retinue.manager.session.core.spec_views import SpecView
from retinue.manager.session.submit import Accepted, recorded, recorded_kernels
from retinue.manager.store.journal import Head
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.rpc.core.amounts import format_amount
from retinue.types.v1 import port_pb2


def session_message(
    row: Mapping[str, Any],
    kernels: Sequence[Mapping[str, Any]],
    parents: Sequence[Mapping[str, Any]] = (),
    *,
    view: SpecView,
) -> pb.Session:
    """A session as it is stored, with so much of its request; `parents` are those it depends on. Of one that cannot be read, what can be."""
    try:
        return _session_message(row, kernels, parents, view)
    except Exception as error:  # noqa: BLE001  # said in the message
        return readable_part(row, kernels, _kernel_message, error)


def accepted_message(accepted: Accepted, parents: Sequence[Mapping[str, Any]]) -> pb.Session:
    """Returns a session that was just accepted, for its owner."""
    session = {
        **recorded(accepted.draft.session, accepted.draft.session.spec),
        "create_time": accepted.create_time,
    }
    return session_message(session, recorded_kernels(accepted.draft.kernels), parents, view=SpecView.FULL)


def _session_message(
    row: Mapping[str, Any],
    kernels: Sequence[Mapping[str, Any]],
    parents: Sequence[Mapping[str, Any]],
    view: SpecView,
) -> pb.Session:
    message = pb.Session(
        id=str(row["id"]),
        spec=spec_message(row["spec"], view),
        owner=row["owner"],
        state=session_state(row["state"]),
        result=result(row["result"]),
        reason=row["reason"],
        message=row["message"],
        kernels=[_kernel_message(kernel) for kernel in kernels],
        conditions=conditions(row.get("conditions") or []),
        etag=etag(row["version"]),
        create_time=timestamp(row.get("create_time")),
        schedule_time=timestamp(row.get("schedule_time")),
        start_time=timestamp(row.get("start_time")),
        end_time=timestamp(row.get("end_time")),
        network=network(row.get("network") or ""),
        retries=row.get("retries") or 0,
        dependencies=[_dependency(parent) for parent in parents],
    )
    if row.get("exit_code") is not None:
        message.exit_code = row["exit_code"]
    if lost := missing_kernels(message.spec.cluster_size, kernels):
        message.conditions.append(lost)
    return message


def _kernel_message(row: Mapping[str, Any]) -> pb.Kernel:
    message = pb.Kernel(
        id=str(row["id"]),
        role=row["role"],
        index=row["role_index"],
        local_rank=row["local_rank"],
        hostname=row["hostname"],
        state=kernel_state(row["state"]),
        agent=row.get("agent_id") or "",
        epoch=row.get("epoch") or 0,
        address=row.get("address") or "",
        slots={slot: format_amount(slot, amount) for slot, amount in row["slots"].items()},
        reason=row.get("reason") or "",
        image_digest=row.get("image_digest") or row.get("image_id") or "",
        service_ports=service_ports(row.get("service_ports") or ()),
    )
    if row.get("exit_code") is not None:
        message.exit_code = row["exit_code"]
    if pull := row.get("pull"):
        message.pull.bytes, message.pull.total_bytes = pull["bytes"], pull["total"]
    return message


def service_ports(stored: Iterable[Mapping[str, Any]]) -> list[port_pb2.ServicePort]:
    """Returns the ports of an image's services."""
    return [port_pb2.ServicePort(name=port["name"], protocol=port["protocol"], ports=port["ports"]) for port in stored]


def _dependency(row: Mapping[str, Any]) -> pb.Dependency:
    message = pb.Dependency(session_id=str(row["parent_id"]), name=row["name"])
    if row["state"]:
        message.state, message.result = session_state(row["state"]), result(row["result"])
    return message


def graph_message(
    rows: Sequence[Mapping[str, Any]], session_id: uuid.UUID, at: Head, *, truncated: bool
) -> service_pb.GetSessionGraphResponse:
    """Sessions that hang together by dependencies."""
    nodes = [
        service_pb.SessionNode(
            id=str(row["id"]),
            name=row["name"],
            state=session_state(row["state"]),
            result=result(row["result"]),
            reason=row["reason"],
            depends_on=[str(parent) for parent in row["depends_on"]],
            retries=row["retries"],
            start_time=timestamp(row["start_time"]),
            end_time=timestamp(row["end_time"]),
        )
        for row in rows
    ]
    return service_pb.GetSessionGraphResponse(
        nodes=nodes,
        truncated=truncated,
        revision=at.revision,
        incarnation=at.incarnation,
        session_id=str(session_id),
    )


def _shortfalls(explanation: Mapping[str, Any]) -> list[service_pb.Shortfall]:
    return [
        service_pb.Shortfall(
            hostname=shortfall["hostname"],
            slot=shortfall["slot"],
            requested=shortfall["requested"],
            best_agent=shortfall["agent"],
            free=shortfall["free"],
            short=shortfall["short"],
        )
        for shortfall in explanation.get("shortfalls", [])
    ]


def preview_message(preview: Preview) -> service_pb.PlacementPreview:
    """Where a session would go, or why it would wait."""
    kernels = [service_pb.KernelPlacement(hostname=hostname, agent=agent) for hostname, agent in preview.agents.items()]
    if preview.explanation is None:
        return service_pb.PlacementPreview(kernels=kernels)
    return service_pb.PlacementPreview(
        reason=preview.reason,
        message=preview.message,
        tier=service_pb.ReasonTier.Value(f"REASON_TIER_{preview.explanation['tier']}"),
        shortfalls=_shortfalls(preview.explanation),
    )


def show_unmade(session: pb.Session, preview: Preview) -> None:
    """Makes a session as it would be accepted one that is not there: without ids, and waiting for what the preview says, not for a pass."""
    session.ClearField("id")
    session.ClearField("etag")
    for kernel in session.kernels:
        kernel.ClearField("id")
    session.reason, session.message = preview.reason, preview.message


def explanation_message(
    row: Mapping[str, Any], position: int, parents: Sequence[Mapping[str, Any]]
) -> service_pb.ExplainSessionResponse:
    """Why a session waits; little for one that does not. `parents` are those it still waits for."""
    message = service_pb.ExplainSessionResponse(state=session_state(row["state"]))
    if row["state"] != "PENDING":
        return message
    explanation = row["explanation"]
    message.reason, message.message = row["reason"], row["message"]
    message.tier = service_pb.ReasonTier.Value(f"REASON_TIER_{explanation.get('tier', 'SYSTEM')}")
    message.queue_position, message.tries = position, row["tries"]
    message.waits_for.extend(_dependency(parent) for parent in parents)
    message.shortfalls.extend(_shortfalls(explanation))
    message.failed_agents.extend(row["failed_agents"])
    message.failed_starts = row["failed_starts"]
    if (evaluated := timestamp(row["evaluate_time"])) is not None:
        message.evaluate_time.CopyFrom(evaluated)
    if (next_try := timestamp(row["next_try_time"])) is not None:
        message.next_try_time.CopyFrom(next_try)
    return message


def conditions(stored: Sequence[Mapping[str, Any]]) -> list[pb.Condition]:
    """Returns the conditions of a session."""
    return [
        pb.Condition(
            type=item["type"],
            message=item["message"],
            since_time=timestamp(dt.datetime.fromisoformat(item["since"])),
        )
        for item in stored
    ]


def session_state(name: str) -> pb.SessionState.ValueType:
    """Returns the state; one that only another version knows is unspecified."""
    return _SESSION_STATES.get(name, pb.SESSION_STATE_UNSPECIFIED)


_SESSION_STATES = {name.removeprefix("SESSION_STATE_"): number for name, number in pb.SessionState.items()}


def kernel_state(name: str) -> pb.KernelState.ValueType:
    """Returns the state of a kernel. Raises ValueError."""
    return pb.KernelState.Value(f"KERNEL_STATE_{name}")


def result(name: str) -> pb.SessionResult.ValueType:
    """Returns the result of a session. Raises ValueError."""
    return pb.SessionResult.Value(f"SESSION_RESULT_{name}")


def network(name: str) -> pb.NetworkKind.ValueType:
    """Returns the kind of a network, of which the empty name is none. Raises ValueError."""
    return pb.NetworkKind.Value(f"NETWORK_KIND_{name}") if name else pb.NETWORK_KIND_UNSPECIFIED
