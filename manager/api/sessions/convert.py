"""Sessions as stored, as messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.api.sessions.isolation_convert import isolation_number
from retinue.manager.api.sessions.spec_convert import spec_message
from retinue.manager.api.sessions.unreadable import missing_kernels, readable_part
from retinue.manager.domain.reasons import ConditionType
from retinue.manager.domain.session.spec_codec import UnreadableSpec
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.domain.session.states import STARTING_SESSION_STATES, KernelState, SessionState
from retinue.manager.server.etags import etag
from retinue.manager.store.sessions.session_records import KernelRecord, SessionRecord, created_kernels, created_session
from retinue.manager.v1 import session_pb2 as pb
from retinue.manager.v1 import session_service_pb2 as service_pb
from retinue.rpc.core.amounts import format_amount
from retinue.rpc.times import timestamp
from retinue.types.v1 import port_pb2, usage_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from retinue.manager.domain.session.events import Condition
    from retinue.manager.domain.session.explanation import StoredExplanation
    from retinue.manager.domain.session.final_usage import FinalUsage
    from retinue.manager.domain.session.service_ports import ServicePortSpec
    from retinue.manager.scheduler.preview import Preview
    from retinue.manager.scheduling.what_if import Change
    from retinue.manager.session.submit import Accepted
    from retinue.manager.store.sessions.dependencies import GraphNode, ParentRecord


def session_message(
    session: SessionRecord,
    kernels: Sequence[KernelRecord],
    parents: Sequence[ParentRecord] = (),
    *,
    view: SpecView,
) -> pb.Session:
    """Returns a session with so much of its request; `parents` are those it depends on.
    Of one that cannot be read, what can be.
    """
    try:
        return _session_message(session, kernels, parents, view)
    except Exception as error:  # noqa: BLE001  # said in the message
        return readable_part(session, kernels, _kernel_message, error)


def accepted_message(accepted: Accepted, parents: Sequence[ParentRecord]) -> pb.Session:
    """Returns a session that was just accepted, for its owner."""
    session = created_session(accepted.created, accepted.create_time)
    return session_message(session, created_kernels(accepted.created), parents, view=SpecView.FULL)


def _session_message(
    session: SessionRecord, kernels: Sequence[KernelRecord], parents: Sequence[ParentRecord], view: SpecView
) -> pb.Session:
    if isinstance(session.spec, UnreadableSpec):
        raise ValueError(session.spec.error)  # what is stored, whatever its type
    message = pb.Session(
        id=str(session.id),
        number=session.number,
        spec=spec_message(session.spec, view),
        owner=session.owner,
        state=session_state(session.state),
        result=result(session.result),
        reason=session.reason,
        message=session.message,
        kernels=[_kernel_message(kernel) for kernel in kernels],
        conditions=conditions(session.conditions),
        etag=etag(session.version),
        create_time=timestamp(session.create_time),
        schedule_time=timestamp(session.schedule_time),
        start_time=timestamp(session.start_time),
        end_time=timestamp(session.end_time),
        network=network(session.network),
        retries=session.retries,
        dependencies=[_dependency(parent) for parent in parents],
        exit_code=session.exit_code,
    )
    for record, kernel in zip(kernels, message.kernels, strict=True):
        kernel.isolation = isolation_number(session.spec.isolation_of(record.role))
    if lost := missing_kernels(message.spec.cluster_size, kernels):
        message.conditions.append(lost)
    return message


def _kernel_message(kernel: KernelRecord) -> pb.Kernel:
    if kernel.image is None:
        raise ValueError("the ports of its image cannot be read")
    message = pb.Kernel(
        id=str(kernel.id),
        role=kernel.role,
        index=kernel.role_index,
        local_rank=kernel.local_rank,
        hostname=kernel.hostname,
        state=kernel_state(kernel.state),
        agent=kernel.agent_id or "",
        attempt=kernel.epoch,
        address=kernel.address,
        slots={slot: format_amount(slot, amount) for slot, amount in kernel.slots.items()},
        reason=kernel.reason,
        image_digest=kernel.image.shown,
        service_ports=service_ports(kernel.image.service_ports),
        exit_code=kernel.exit_code,
    )
    if kernel.state is KernelState.TERMINATED and kernel.end_time is not None:
        message.end_time.FromDatetime(kernel.end_time)
    if kernel.attempt_ended and kernel.usage is not None:
        message.usage.CopyFrom(_usage(kernel.usage))
    if kernel.pull:
        message.pull.bytes, message.pull.total_bytes = kernel.pull.bytes, kernel.pull.total
    return message


def _usage(usage: FinalUsage) -> usage_pb2.ResourceUsage:
    message = usage_pb2.ResourceUsage(
        sample_time=timestamp(usage.time),
        memory_peak_bytes=usage.memory_peak,
        read_bytes=usage.read,
        written_bytes=usage.written,
    )
    if usage.cpu is not None:
        message.cpu_time.FromNanoseconds(usage.cpu)
    return message


def service_ports(ports: Iterable[ServicePortSpec]) -> list[port_pb2.ServicePort]:
    """Returns the ports of an image's services."""
    return [port_pb2.ServicePort(name=port.name, protocol=port.protocol, ports=port.ports) for port in ports]


def _dependency(parent: ParentRecord) -> pb.Dependency:
    message = pb.Dependency(session_id=str(parent.id), name=parent.name, number=parent.number)
    if not parent.is_purged:
        message.state, message.result = session_state(parent.state), _known_result(parent.result)
    return message


def node_message(node: GraphNode) -> service_pb.SessionNode:
    """Returns a session among those that are connected by dependencies."""
    return service_pb.SessionNode(
        id=str(node.id),
        number=node.number,
        name=node.name,
        state=session_state(node.state),
        result=_known_result(node.result),
        reason=node.reason,
        depends_on=[str(parent) for parent in node.depends_on],
        retries=node.retries,
        start_time=timestamp(node.start_time),
        end_time=timestamp(node.end_time),
    )


def _shortfalls(explanation: StoredExplanation) -> list[service_pb.Shortfall]:
    return [
        service_pb.Shortfall(
            hostname=shortfall.hostname,
            slot=shortfall.slot,
            requested=shortfall.requested,
            best_agent=shortfall.agent,
            free=shortfall.free,
            short=shortfall.short,
        )
        for shortfall in explanation.shortfalls
    ]


def preview_message(preview: Preview) -> service_pb.PlacementPreview:
    """Returns where a session would be placed, or why it would wait."""
    kernels = [service_pb.KernelPlacement(hostname=hostname, agent=agent) for hostname, agent in preview.agents.items()]
    if preview.explanation is None:
        return service_pb.PlacementPreview(kernels=kernels)
    return service_pb.PlacementPreview(
        reason=preview.reason,
        message=preview.message,
        tier=service_pb.ReasonTier.Value(f"REASON_TIER_{preview.explanation.tier.value}"),
        shortfalls=_shortfalls(preview.explanation),
        would_start_with=[
            *map(_change_message, preview.changes),
            *(
                service_pb.RequestChange(text=f"resource group {name}", resource_group=name)
                for name in preview.alternative_groups
            ),
        ],
    )


def _change_message(change: Change) -> service_pb.RequestChange:
    message = service_pb.RequestChange(text=change.text)
    if change.slot:
        message.slot.slot, message.slot.amount = change.slot, change.amount
    elif change.cluster_size:
        message.cluster_size = change.cluster_size
    elif change.multi_node:
        message.cluster_mode = pb.CLUSTER_MODE_MULTI_NODE
    return message


def show_unmade(session: pb.Session, preview: Preview) -> None:
    """Makes a session as it would be accepted one that is not there: without ids,
    and waiting for what the preview says, not for a pass.
    """
    for field in ("id", "number", "etag"):
        session.ClearField(field)
    for kernel in session.kernels:
        kernel.ClearField("id")
    session.reason, session.message = preview.reason, preview.message


# Sessions that advice is given on.
MAX_ADVISED = 3


def explanation_message(
    session: SessionRecord, position: int, parents: Sequence[ParentRecord]
) -> service_pb.ExplainSessionResponse:
    """Returns why a session waits, in the queue or for its agents; little for one that does not. `parents` are those
    it still waits for.
    """
    message = service_pb.ExplainSessionResponse(
        state=session_state(session.state), conditions=conditions(session.conditions)
    )
    message.advice.extend(advice_on(session.conditions))
    if session.state is SessionState.PENDING or session.state in STARTING_SESSION_STATES:
        message.reason, message.message = session.reason, session.message
    if session.state is not SessionState.PENDING:
        return message
    message.tier = service_pb.ReasonTier.Value(f"REASON_TIER_{session.explanation.tier.value}")
    message.queue_position, message.tries = position, session.tries
    message.waits_for.extend(_dependency(parent) for parent in parents)
    message.shortfalls.extend(_shortfalls(session.explanation))
    message.failed_agents.extend(session.failed_agents)
    message.failed_starts = session.failed_starts
    if (evaluated := timestamp(session.evaluate_time)) is not None:
        message.evaluate_time.CopyFrom(evaluated)
    if (next_try := timestamp(session.next_try_time)) is not None:
        message.next_try_time.CopyFrom(next_try)
    return message


def advice_of(priority: int, group: str, parents: Sequence[ParentRecord], *, may_be_passed: bool) -> Iterable[str]:
    """Returns what can be done for a session of this priority, `may_be_passed` by others for as long as they find room;
    a session does not lend its priority to those that it waits for.
    """
    lower = [parent for parent in parents if parent.state is SessionState.PENDING and (parent.priority or 0) < priority]
    for parent in lower[:MAX_ADVISED]:
        yield (
            f"{parent.name}, which it waits for, waits itself, with priority {parent.priority}; to have it go as far "
            f"ahead as this one: retinue priority {parent.id} {priority}"
        )
    if may_be_passed:
        yield (
            "smaller sessions go ahead of it for as long as they find room; for a bound on that, an administrator has "
            f"room kept for what waits long: retinue groups update {group} --reserve-after 1h"
        )


_CONDITION_ADVICE: Mapping[str, str] = {
    ConditionType.PATH_BROKEN: "let UDP at the port of VXLAN (4789, or --vxlan-port) through the firewalls between the "
    "nodes that the message names, in both directions; where only small packets come, set --underlay-mtu of the agents",
    ConditionType.PATH_UNPROVED: "upgrade the agent that the message names; until then, look at whether UDP at the "
    "port of VXLAN (4789, or --vxlan-port) comes through the firewalls between the nodes",
    ConditionType.NETWORK_DEGRADED: "look at `retinue agents get AGENT` and `retinue doctor` on that node; the message "
    "has the error, and the agent goes on trying",
    ConditionType.RETRYING: "mend on that agent what the error names, such as its engine, its disk or a mount; the "
    "agent goes on trying",
    ConditionType.AGENT_NOT_REACHED: "let the managers reach the agent's port (TCP 7443 unless --listen says another): "
    "`retinue agents get AGENT` has the cause",
    ConditionType.AGENT_LOST: "bring the node back, or delete its agent with `retinue agents rm AGENT`, so that the "
    "session ends there; while the loss of many agents is held, `retinue agents confirm-lost` says that they are lost",
    ConditionType.OUTPUT_LOST: "free space on the agent's disk, or make it writable again",
    ConditionType.PAUSED: "let it run on where it was paused, as by `docker unpause`; `retinue rm` ends it as it is",
    ConditionType.OOM_KILLED: "ask for more memory (`mem`), or have fewer processes in a kernel",
}


def advice_on(found: Iterable[Condition]) -> Sequence[str]:
    """Returns what can be done about conditions, once for each type, which comes first."""
    types = dict.fromkeys(item.type for item in found)
    return [f"{kind}: {_CONDITION_ADVICE[kind]}" for kind in types if kind in _CONDITION_ADVICE]


def conditions(found: Iterable[Condition]) -> list[pb.Condition]:
    """Returns the conditions of a session."""
    return [pb.Condition(type=item.type, message=item.message, since_time=timestamp(item.since)) for item in found]


def session_state(state: str | None) -> pb.SessionState.ValueType:
    """Returns the state; one that only another version knows is unspecified."""
    return _SESSION_STATES.get(state or "", pb.SESSION_STATE_UNSPECIFIED)


_SESSION_STATES = {name.removeprefix("SESSION_STATE_"): number for name, number in pb.SessionState.items()}


def kernel_state(state: str | None) -> pb.KernelState.ValueType:
    """Returns the state of a kernel. Raises LookupError for one that only another version knows."""
    return _KERNEL_STATES[state or ""]


_KERNEL_STATES = {name.removeprefix("KERNEL_STATE_"): number for name, number in pb.KernelState.items()}


def result(name: str | None) -> pb.SessionResult.ValueType:
    """Returns the result of a session. Raises ValueError for one that only another version knows."""
    return pb.SessionResult.Value(f"SESSION_RESULT_{name}")


def _known_result(name: str | None) -> pb.SessionResult.ValueType:
    """Returns the result of a session that is shown beside another;
    UNSPECIFIED for one that only another version knows.
    """
    try:
        return result(name)
    except ValueError:
        return pb.SESSION_RESULT_UNSPECIFIED


def network(name: str) -> pb.NetworkKind.ValueType:
    """Returns the kind of a network, of which the empty name is none. Raises ValueError."""
    return pb.NetworkKind.Value(f"NETWORK_KIND_{name}") if name else pb.NETWORK_KIND_UNSPECIFIED
