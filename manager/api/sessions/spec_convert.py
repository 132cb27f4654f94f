"""Between requests for sessions as messages and as plain values, both ways."""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING

from retinue.manager.api.sessions.isolation_convert import ISOLATIONS, isolation_number
from retinue.manager.api.sessions.pull_policy_convert import PULL_POLICIES, pull_policy_number
from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.domain.session.apps import AppSpec
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.domain.session.service_ports import TCP, PortRange, ServicePortSpec
from retinue.manager.domain.session.spec import (
    DEFAULT_GRACE_SECONDS,
    DEFAULT_PRIORITY,
    ROLES,
    KernelSpec,
    MountSpec,
    RetryPolicy,
    SessionSpec,
    SftpSpec,
    TemplateOrigin,
    TimeWarning,
    WebhookSpec,
    role_counts,
)
from retinue.manager.domain.session.spec_views import SpecView, names_only
from retinue.manager.domain.session.states import SessionType
from retinue.manager.session.drafts import Request
from retinue.manager.v1 import session_pb2 as pb
from retinue.rpc import times
from retinue.rpc.times import timestamp
from retinue.types.v1 import port_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.duration_pb2 import Duration

    from retinue.manager.identity.principal import Principal

# Of one request as a message: an answer with the whole session fits in what clients take.
MAX_SPEC_BYTES = 512 * 1024
# Ten thousand names of eight random digits would be likely to hold one twice.
MAX_SIGNIFICANT_DIGITS = 16


def to_requests(
    messages: Sequence[pb.SessionSpec | Refused], caller: Principal, *, digits: int = MAX_SIGNIFICANT_DIGITS
) -> list[Request | Refused]:
    """Returns requests as plain values, each by itself; those that differ in nothing but their names share a spec.

    A name that is missing becomes `s-` and so many random `digits`; a missing project becomes
    the only one of the caller.
    """
    default_project = caller.projects[0] if len(caller.projects) == 1 else ""
    requests: list[Request | Refused] = []
    # Most of very many differ in nothing but their names.
    known: dict[bytes, SessionSpec] = {}
    for message in messages:
        if isinstance(message, Refused):
            requests.append(message)
            continue
        if message.ByteSize() > MAX_SPEC_BYTES:
            requests.append(Refused(message.name, _wrong("spec", f"must be at most {MAX_SPEC_BYTES} bytes")))
            continue
        key = _nameless(message)
        try:
            spec = known.get(key) or to_spec(message, default_name="", default_project=default_project)
        except ValueError as error:
            requests.append(Refused(message.name, _wrong(error.args[0], error.args[1])))
            continue
        known[key] = spec
        requests.append(Request(message.name or f"s-{secrets.token_hex(digits // 2)}", spec))
    return requests


def _wrong(path: str, text: str) -> InvalidRequest:
    return InvalidRequest(((path, text),))


def _nameless(message: pb.SessionSpec) -> bytes:
    """Returns what two requests have in common that differ in nothing but their names."""
    bare = pb.SessionSpec()
    bare.CopyFrom(message)
    bare.ClearField("name")
    return bare.SerializeToString(deterministic=True)


def to_spec(message: pb.SessionSpec, *, default_name: str, default_project: str) -> SessionSpec:
    """Returns a request as plain values with defaults filled in; checks only what the types of the values need.

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
        roles[role.role] = _kernel_spec(role.kernel, f"spec.roles[{position}].kernel")
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
        kernel=_kernel_spec(message.kernel, "spec.kernel"),
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
        hold=message.hold,
        depends_on=tuple(message.depends_on),
        runs_after=tuple(message.runs_after),
        runs_after_failure=tuple(message.runs_after_failure),
        runs_after_label=message.runs_after_label,
        description=message.description,
        stop_signal=_signal(message.stop_signal),
        time_warning=TimeWarning(
            _signal(message.time_warning.signal),
            _seconds("spec.time_warning.before", message.time_warning.before),
            message.time_warning.started_only,
        )
        if message.HasField("time_warning")
        else None,
        mounts=tuple(MountSpec(mount.source, mount.target, mount.writable) for mount in message.mounts),
        retry=_retry_policy(message.retry) if message.HasField("retry") else None,
        webhooks=tuple(_webhook(position, webhook) for position, webhook in enumerate(message.webhooks)),
        service_ports=tuple(
            ServicePortSpec(port.name, port.protocol or TCP, tuple(port.ports), port.host)
            for port in message.service_ports
        ),
        preopen_ports=tuple(PortRange(ports.first, ports.last or ports.first) for ports in message.preopen_ports),
        apps=tuple(
            AppSpec(
                app.name,
                tuple(app.command),
                dict(app.environment),
                app.working_directory,
                tuple(app.allowed_arguments),
                tuple(app.allowed_environment),
            )
            for app in message.apps
        ),
        sftp=SftpSpec(
            tuple(message.system.sftp.authorized_keys), message.system.sftp.max_file_bytes, message.system.sftp.umask
        )
        if message.HasField("system")
        else None,
    )


def _webhook(position: int, message: pb.Webhook) -> WebhookSpec:
    for event in message.events:
        if event not in pb.WebhookEvent.values() or event == pb.WEBHOOK_EVENT_UNSPECIFIED:
            raise ValueError(f"spec.webhooks[{position}].events", "must be known events")
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
        backoff=times.duration(retry.backoff_seconds),
        max_backoff=times.duration(retry.max_backoff_seconds),
    )


def _seconds(path: str, message: Duration) -> float:
    if not times.is_valid(message):
        raise ValueError(path, "is not a valid duration")
    return times.seconds(message)


def _signal(name: str) -> str:
    return name.upper().removeprefix("SIG")


def _kernel_spec(message: pb.KernelSpec, path: str) -> KernelSpec:
    if message.isolation and message.isolation not in ISOLATIONS:
        raise ValueError(f"{path}.isolation", "must be a known isolation")
    if message.pull_policy and message.pull_policy not in PULL_POLICIES:
        raise ValueError(f"{path}.pull_policy", "must be a known pull policy")
    return KernelSpec(
        message.image,
        tuple(message.command),
        dict(message.environment),
        dict(message.slots),
        message.shared_memory,
        ISOLATIONS.get(message.isolation),
        message.working_directory,
        PULL_POLICIES.get(message.pull_policy),
    )


def spec_message(spec: SessionSpec, view: SpecView) -> pb.SessionSpec:
    """Returns so much of a spec as a view shows. Raises ValueError."""
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
        termination_grace=times.duration(spec.grace_seconds),
        agents=spec.agents,
        agent_choice=agent_choice if spec.agents else pb.AGENT_CHOICE_UNSPECIFIED,
        architecture=spec.architecture,
        endpoint=spec.endpoint,
        replica_placement=pb.ReplicaPlacement.Value(f"REPLICA_PLACEMENT_{spec.replica_placement or 'UNSPECIFIED'}"),
        time_limit=None if limit is None else times.duration(limit),
        preemptible=spec.preemptible,
        bootstrap_script="" if view is SpecView.BASIC else spec.bootstrap_script,
        earliest_start_time=timestamp(
            None if spec.earliest_start_time is None else dt.datetime.fromtimestamp(spec.earliest_start_time, dt.UTC)
        ),
        hold=spec.hold,
        depends_on=spec.depends_on,
        runs_after=spec.runs_after,
        runs_after_failure=spec.runs_after_failure,
        runs_after_label=spec.runs_after_label,
        description=spec.description,
        stop_signal=spec.stop_signal,
        time_warning=None
        if (warning := spec.time_warning) is None
        else pb.TimeWarning(
            signal=warning.signal, before=times.duration(warning.before_seconds), started_only=warning.started_only
        ),
        retry=None if spec.retry is None else _retry_message(spec.retry),
        mounts=[pb.Mount(source=mount.source, target=mount.target, writable=mount.writable) for mount in spec.mounts],
        webhooks=[
            pb.Webhook(
                url=webhook.url, events=[pb.WebhookEvent.Value(f"WEBHOOK_EVENT_{event}") for event in webhook.events]
            )
            for webhook in spec.webhooks
        ],
        service_ports=[
            port_pb2.ServicePort(name=port.name, protocol=port.protocol, ports=port.ports, host=port.host)
            for port in spec.service_ports
        ],
        preopen_ports=[pb.PortRange(first=ports.first, last=ports.last) for ports in spec.preopen_ports],
        apps=[
            pb.AppDefinition(**{**asdict(app), "environment": _variables(app.environment, view)}) for app in spec.apps
        ],
        system=None if spec.sftp is None else pb.SystemSpec(sftp=pb.SftpSpec(**asdict(spec.sftp))),
    )


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
        isolation=isolation_number(spec.isolation),
        working_directory=spec.working_directory,
        pull_policy=pull_policy_number(spec.pull_policy),
    )


def _variables(environment: Mapping[str, str], view: SpecView) -> Mapping[str, str]:
    if view is SpecView.FULL:
        return environment
    return names_only(environment) if view is SpecView.NAMES else {}
