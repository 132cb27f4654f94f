"""Between sessions as stored and sessions as messages, both ways."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from retinue.manager.api.sessions.unreadable import missing_kernels, readable_part
from retinue.manager.scheduler.preview import Preview
from retinue.manager.server.etags import etag
from retinue.manager.session.core.apps import ServiceSpec
from retinue.manager.session.core.service_ports import TCP, PortRange, ServicePortSpec
from retinue.manager.session.core.spec import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_PRIORITY,
    ROLES,
    KernelSpec,
    MountSpec,
    RetryPolicy,
    SessionSpec,
    TemplateOrigin,
    WebhookSpec,
    role_counts,
)
from retinue.manager.session.core.spec_views import SpecView, names_only
from retinue.manager.session.core.states import SessionType
from retinue.manager.store.journal import Head
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.rpc.core.amounts import format_amount
from retinue.types.v1 import port_pb2


def spec_from_message(message: pb.SessionSpec, *, default_name: str, default_project: str) -> SessionSpec:
    """The request as plain values with what was left out filled in; nothing is checked but what the values' types need.

    Raises ValueError with a field path and a description.
    """
    if message.type not in (
        pb.SESSION_TYPE_INTERACTIVE,
        pb.SESSION_TYPE_BATCH,
        pb.SESSION_TYPE_INFERENCE,
        pb.SESSION_TYPE_SYSTEM,
    ):
        raise ValueError("spec.type", "is required and must be a known type")
    if message.cluster_mode not in pb.ClusterMode.values():
        raise ValueError("spec.cluster_mode", "must be a known mode")
    if message.agent_choice not in pb.AgentChoice.values():
        raise ValueError("spec.agent_choice", "must be a known choice")
    if message.replica_placement not in pb.ReplicaPlacement.values():
        raise ValueError("spec.replica_placement", "must be a known placement")
    roles: dict[str, KernelSpec] = {}
    for position, role in enumerate(message.roles):
        if role.role in roles:
            raise ValueError(f"spec.roles[{position}].role", "is given twice")
        roles[role.role] = _kernel_spec(role.kernel)
    try:
        message.earliest_start_time.ToJsonString()
    except ValueError:
        raise ValueError("spec.earliest_start_time", "is not a valid time") from None
    counts = role_counts([(role.role, role.count if role.HasField("count") else None) for role in message.roles])
    return SessionSpec(
        name=message.name or default_name,
        project=message.project or default_project,
        resource_group=message.resource_group or "default",
        type=SessionType(pb.SessionType.Name(message.type).removeprefix("SESSION_TYPE_")),
        single_node=message.cluster_mode != pb.CLUSTER_MODE_MULTI_NODE,
        cluster_size=message.cluster_size or sum(count for _, count in counts) or 1,
        priority=message.priority if message.HasField("priority") else DEFAULT_PRIORITY,
        kernel=_kernel_spec(message.kernel),
        roles=roles,
        counts=counts,
        template=_origin(message),
        labels=dict(message.labels),
        grace_seconds=_seconds("spec.termination_grace", message.termination_grace)
        if message.HasField("termination_grace")
        else DEFAULT_GRACE_SECONDS,
        agents=tuple(message.agents),
        agents_strict=message.agent_choice == pb.AGENT_CHOICE_STRICT,
        architecture=message.architecture,
        endpoint=message.endpoint,
        replica_placement=pb.ReplicaPlacement.Name(message.replica_placement).removeprefix("REPLICA_PLACEMENT_")
        if message.replica_placement
        else "",
        time_limit_seconds=_seconds("spec.time_limit", message.time_limit) if message.HasField("time_limit") else None,
        preemptible=message.preemptible,
        bootstrap_script=message.bootstrap_script,
        earliest_start_time=message.earliest_start_time.ToNanoseconds() / 1e9
        if message.HasField("earliest_start_time")
        else None,
        depends_on=tuple(message.depends_on),
        mounts=tuple(MountSpec(mount.source, mount.target, mount.writable) for mount in message.mounts),
        retry=_retry_policy(message.retry) if message.HasField("retry") else None,
        webhooks=tuple(_webhook(place, webhook) for place, webhook in enumerate(message.webhooks)),
        service_ports=tuple(
            ServicePortSpec(port.name, port.protocol or TCP, tuple(port.ports)) for port in message.service_ports
        ),
        preopen_ports=tuple(PortRange(ports.first, ports.last or ports.first) for ports in message.preopen_ports),
        services=tuple(
            ServiceSpec(
                service.name,
                tuple(service.command),
                dict(service.environment),
                service.working_directory,
                tuple(service.allowed_arguments),
                tuple(service.allowed_environment),
            )
            for service in message.services
        ),
    )


def _webhook(place: int, message: pb.Webhook) -> WebhookSpec:
    for event in message.events:
        if event not in pb.WebhookEvent.values() or event == pb.WEBHOOK_EVENT_UNSPECIFIED:
            raise ValueError(f"spec.webhooks[{place}].events", "must be known events")
    events = tuple(pb.WebhookEvent.Name(event).removeprefix("WEBHOOK_EVENT_") for event in message.events)
    return WebhookSpec(message.url, events, message.secret)


def _retry_policy(message: pb.RetryPolicy) -> RetryPolicy:
    given = {
        f"{name}_seconds": _seconds(f"spec.retry.{name}", getattr(message, name))
        for name in ("backoff", "max_backoff")
        if message.HasField(name)
    }
    return RetryPolicy(message.max_attempts, message.on_failure, **given)


def _retry_message(retry: RetryPolicy) -> pb.RetryPolicy:
    return pb.RetryPolicy(
        max_attempts=retry.max_attempts,
        on_failure=retry.on_failure,
        backoff=_duration(retry.backoff_seconds),
        max_backoff=_duration(retry.max_backoff_seconds),
    )


def _seconds(path: str, duration: Duration) -> float:
    try:
        # Also refuses nanoseconds out of range, and signs that differ.
        duration.ToJsonString()
    except ValueError:
        raise ValueError(path, "is not a valid duration") from None
    return duration.seconds + duration.nanos / 1e9


def _kernel_spec(message: pb.KernelSpec) -> KernelSpec:
    return KernelSpec(
        message.image, tuple(message.command), dict(message.environment), dict(message.slots), message.shared_memory
    )


def _spec_message(stored: Mapping[str, Any], view: SpecView) -> pb.SessionSpec:
    spec = SessionSpec.from_json(stored)
    agent_choice = pb.AGENT_CHOICE_STRICT if spec.agents_strict else pb.AGENT_CHOICE_PREFERRED
    limit = spec.time_limit_seconds
    return pb.SessionSpec(
        name=spec.name,
        project=spec.project,
        resource_group=spec.resource_group,
        type=pb.SessionType.Value(f"SESSION_TYPE_{spec.type}"),
        cluster_mode=pb.CLUSTER_MODE_SINGLE_NODE if spec.single_node else pb.CLUSTER_MODE_MULTI_NODE,
        cluster_size=spec.cluster_size,
        priority=spec.priority,
        kernel=_kernel_spec_message(spec.kernel, view),
        roles=_role_messages(spec, view),
        template=_reference(spec.template),
        labels=spec.labels,
        termination_grace=_duration(spec.grace_seconds),
        agents=spec.agents,
        agent_choice=agent_choice if spec.agents else pb.AGENT_CHOICE_UNSPECIFIED,
        architecture=spec.architecture,
        endpoint=spec.endpoint,
        replica_placement=pb.ReplicaPlacement.Value(f"REPLICA_PLACEMENT_{spec.replica_placement or 'UNSPECIFIED'}"),
        time_limit=None if limit is None else _duration(limit),
        preemptible=spec.preemptible,
        bootstrap_script="" if view is SpecView.BASIC else spec.bootstrap_script,
        earliest_start_time=time_message(
            None if spec.earliest_start_time is None else dt.datetime.fromtimestamp(spec.earliest_start_time, dt.UTC)
        ),
        depends_on=spec.depends_on,
        retry=None if spec.retry is None else _retry_message(spec.retry),
        mounts=[pb.Mount(source=mount.source, target=mount.target, writable=mount.writable) for mount in spec.mounts],
        webhooks=[
            pb.Webhook(
                url=webhook.url, events=[pb.WebhookEvent.Value(f"WEBHOOK_EVENT_{event}") for event in webhook.events]
            )
            for webhook in spec.webhooks
        ],
        service_ports=[
            port_pb2.ServicePort(name=port.name, protocol=port.protocol, ports=port.ports)
            for port in spec.service_ports
        ],
        preopen_ports=[pb.PortRange(first=ports.first, last=ports.last) for ports in spec.preopen_ports],
        services=[
            pb.ServiceDefinition(**{**asdict(service), "environment": _variables(service.environment, view)})
            for service in spec.services
        ],
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromTimedelta(dt.timedelta(seconds=seconds))
    return duration


def _origin(message: pb.SessionSpec) -> TemplateOrigin | None:
    if not message.HasField("template"):
        return None
    made_from = message.template
    return TemplateOrigin(made_from.id, made_from.name, made_from.project, made_from.version)


def _reference(origin: TemplateOrigin | None) -> pb.TemplateReference | None:
    if origin is None:
        return None
    return pb.TemplateReference(id=origin.id, name=origin.name, project=origin.project, version=origin.version)


def _role_messages(spec: SessionSpec, view: SpecView) -> list[pb.RoleSpec]:
    """Roles in the order of their kernels: what is stored has lost that of the request."""
    counts = dict(spec.counts)
    order = [role for role in counts or ROLES if role in spec.roles]
    return [
        pb.RoleSpec(role=role, kernel=_kernel_spec_message(spec.roles[role], view), count=counts.get(role))
        for role in order
    ]


def _kernel_spec_message(spec: KernelSpec, view: SpecView) -> pb.KernelSpec:
    return pb.KernelSpec(
        image=spec.image,
        command=spec.command,
        environment=_variables(spec.environment, view),
        slots=spec.slots,
        shared_memory=spec.shared_memory,
    )


def _variables(environment: Mapping[str, str], view: SpecView) -> Mapping[str, str]:
    if view is SpecView.FULL:
        return environment
    return names_only(environment) if view is SpecView.NAMES else {}


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


def _session_message(
    row: Mapping[str, Any],
    kernels: Sequence[Mapping[str, Any]],
    parents: Sequence[Mapping[str, Any]],
    view: SpecView,
) -> pb.Session:
    message = pb.Session(
        id=str(row["id"]),
        spec=_spec_message(row["spec"], view),
        owner=row["owner"],
        state=session_state(row["state"]),
        result=result(row["result"]),
        reason=row["reason"],
        message=row["message"],
        kernels=[_kernel_message(kernel) for kernel in kernels],
        conditions=conditions(row.get("conditions") or []),
        etag=etag(row["version"]),
        create_time=time_message(row.get("create_time")),
        schedule_time=time_message(row.get("schedule_time")),
        start_time=time_message(row.get("start_time")),
        end_time=time_message(row.get("end_time")),
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
            start_time=time_message(row["start_time"]),
            end_time=time_message(row["end_time"]),
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
    if (evaluated := time_message(row["evaluate_time"])) is not None:
        message.evaluate_time.CopyFrom(evaluated)
    if (next_try := time_message(row["next_try_time"])) is not None:
        message.next_try_time.CopyFrom(next_try)
    return message


def conditions(stored: Sequence[Mapping[str, Any]]) -> list[pb.Condition]:
    """Returns the conditions of a session."""
    return [
        pb.Condition(
            type=item["type"],
            message=item["message"],
            since_time=time_message(dt.datetime.fromisoformat(item["since"])),
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


def time_message(value: dt.datetime | None) -> Timestamp | None:
    """Returns the time as a message."""
    if value is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(value)
    return stamp
