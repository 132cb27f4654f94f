"""Builds the request for a session from plain Python values."""

from __future__ import annotations

# The declared types are also checked when the program runs.
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

from retinue.client import app_catalogue, enum_names
from retinue.client.errors import UsageError
from retinue.client.typed_options import Amount, amount_texts, check_options
from retinue.client.words import (
    AgentChoice,
    ClusterMode,
    Isolation,
    PullPolicy,
    ReplicaPlacement,
    SessionType,
    Span,
    seconds_of,
)
from retinue.manager.v1 import session_pb2
from retinue.types.v1 import isolation_pb2, port_pb2, pull_policy_pb2


class SessionOptions(TypedDict, total=False):
    """The options of a session; everything but `type` and, for batch, `command` has a default.

    `type`: `batch`, `interactive`, …. `name`, `project`, `resource_group`: by name. `cluster_mode`: `single-node` or
    `multi-node`. `priority`: 0 to 100. `command`: argument vector of `main1`. `environment`, `slots`, `image`: of every
    kernel; slots are amounts, such as `{"cpu": 2, "mem": "4g"}`. `shared_memory`: size of /dev/shm, such as
    `1g`, a part of `mem`. `working_directory`: where the command starts, an absolute path in the kernel. `isolation`:
    `process`, `container` or `vm`. The same with `main_` and `sub_` in front: of
    one role, in place of the above. `labels`: free. `description`: for people.
    `mounts`: directories of the nodes as source, target and whether it
    is writable. `ports`: of `main1` that clients reach, each a name, `tcp` or `http`,
    a number and, where an HTTP program is to see it through the gateway in place of the browser's host, `localhost`;
    `preopen_ports`: first and last number of ranges; `apps`: programs to be started on demand, as
    messages, or by their names in `retinue.client.app_catalogue`. Lengths of time are seconds or a timedelta:
    `termination_grace`, `time_limit`, `retry_backoff`. `stop_signal`: in place of `TERM`. `time_warning`: a signal
    for the command, and how long before the time limit. `agents`: to run on, `agent_choice`: `preferred` or
    `strict`.
    `architecture`: that the agents must have. `endpoint`: that it is a replica of,
    `replica_placement`: `spread` or `pack`. `preemptible`: may be preempted by sessions of higher priority.
    `authorized_keys`, `max_file_bytes` and `umask`: of a system session, public keys that are let in, the maximum size
    of a file, and permissions that new files do not get, such as `002`. `hold`: wait until `Sessions.update` takes that
    away.
    `bootstrap_script`: what every kernel runs before its command. Batch only: `earliest_start_time`, not before then,
    a datetime with its zone, or seconds since 1970; `depends_on`, ids, numbers or names of sessions or arrays that must
    succeed first,
    `runs_after`, that must only have ended, `runs_after_failure`, that must fail; `runs_after_label`, the key of a
    label of which earlier sessions with the same value must have ended; `max_attempts`, `retry_on_failure` and
    `retry_backoff`, to run it again.
    `template`: name or id of a template that all the above overrides, `template_version` by default the newest;
    then nothing else is required.
    """

    type: SessionType
    name: str
    project: str
    resource_group: str
    cluster_size: int
    cluster_mode: ClusterMode
    priority: int
    image: str
    command: Sequence[str]
    environment: Mapping[str, str]
    slots: Mapping[str, Amount]
    shared_memory: str
    working_directory: str
    isolation: Isolation
    pull_policy: PullPolicy
    main_image: str
    main_isolation: Isolation
    main_environment: Mapping[str, str]
    main_slots: Mapping[str, Amount]
    sub_image: str
    sub_isolation: Isolation
    sub_command: Sequence[str]
    sub_environment: Mapping[str, str]
    sub_slots: Mapping[str, Amount]
    labels: Mapping[str, str]
    description: str
    mounts: Sequence[tuple[str, str, bool]]
    ports: Sequence[tuple[str, str, int] | tuple[str, str, int, str]]
    preopen_ports: Sequence[tuple[int, int]]
    apps: Sequence[session_pb2.AppDefinition | str]
    termination_grace: Span
    stop_signal: str
    time_warning: tuple[str, Span]
    agents: Sequence[str]
    agent_choice: AgentChoice
    architecture: str
    endpoint: str
    replica_placement: ReplicaPlacement
    time_limit: Span
    preemptible: bool
    authorized_keys: Sequence[str]
    max_file_bytes: int
    umask: str
    bootstrap_script: str
    earliest_start_time: float | dt.datetime
    hold: bool
    depends_on: Sequence[str]
    runs_after: Sequence[str]
    runs_after_failure: Sequence[str]
    runs_after_label: str
    max_attempts: int
    retry_on_failure: bool
    retry_backoff: Span
    template: str
    template_version: int


def session_spec(**options: Unpack[SessionOptions]) -> session_pb2.SessionSpec:
    """Returns the request for a session. Raises UsageError on values that no request can hold; the server checks
    everything else.
    """
    if isinstance(options.get("command"), str):
        raise UsageError("a command is a list of arguments, not one text; for a shell write ['sh', '-c', …]")
    check_options(options, SessionOptions)
    try:
        return _spec(options)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"an option is out of range: {error}") from error


def _spec(options: SessionOptions) -> session_pb2.SessionSpec:
    template = options.get("template", "")
    spec = session_pb2.SessionSpec(
        name=options.get("name", ""),
        project=options.get("project", ""),
        resource_group=options.get("resource_group", ""),
        cluster_size=options.get("cluster_size", 0 if template else 1),
        kernel=_kernel(options.get("image"), options.get("command"), options.get("environment"), options.get("slots")),
        labels=options.get("labels", {}),
        mounts=[
            session_pb2.Mount(source=source, target=target, writable=writable)
            for source, target, writable in options.get("mounts", ())
        ],
        service_ports=[
            port_pb2.ServicePort(name=name, protocol=protocol, ports=[number], host=host[0] if host else "")
            for name, protocol, number, *host in options.get("ports", ())
        ],
        preopen_ports=[
            session_pb2.PortRange(first=first, last=last) for first, last in options.get("preopen_ports", ())
        ],
        apps=[app_catalogue.named(app) if isinstance(app, str) else app for app in options.get("apps", ())],
        agents=options.get("agents", ()),
        architecture=options.get("architecture", ""),
        endpoint=options.get("endpoint", ""),
        preemptible=options.get("preemptible", False),
        hold=options.get("hold", False),
        bootstrap_script=options.get("bootstrap_script", ""),
        depends_on=options.get("depends_on", ()),
        runs_after=options.get("runs_after", ()),
        runs_after_failure=options.get("runs_after_failure", ()),
        runs_after_label=options.get("runs_after_label", ""),
        system=session_pb2.SystemSpec(
            sftp=session_pb2.SftpSpec(
                authorized_keys=options.get("authorized_keys", ()),
                max_file_bytes=options.get("max_file_bytes", 0),
                umask=options.get("umask", ""),
            )
        )
        if options.get("authorized_keys") or options.get("max_file_bytes") or options.get("umask")
        else None,
    )
    spec.kernel.shared_memory = options.get("shared_memory", "")
    spec.kernel.working_directory = options.get("working_directory", "")
    spec.kernel.isolation = _isolation(options.get("isolation", ""))
    spec.kernel.pull_policy = _pull_policy(options.get("pull_policy", ""))
    if (tries := options.get("max_attempts")) is not None:
        spec.retry.max_attempts, spec.retry.on_failure = tries, options.get("retry_on_failure", False)
        if (pause := options.get("retry_backoff")) is not None:
            spec.retry.backoff.FromNanoseconds(round(seconds_of(pause) * 1e9))
    if (begin := options.get("earliest_start_time")) is not None:
        moment = begin.timestamp() if isinstance(begin, dt.datetime) else begin
        spec.earliest_start_time.FromNanoseconds(round(moment * 1e9))
    _refer(spec, template, options.get("template_version", 0))
    spec.type = _session_type(options.get("type", ""), optional=bool(template))
    if mode := options.get("cluster_mode"):
        spec.cluster_mode = session_pb2.ClusterMode.ValueType(enum_names.number(enum_names.CLUSTER_MODE, mode))
    if (priority := options.get("priority")) is not None:
        spec.priority = priority
    if (grace := options.get("termination_grace")) is not None:
        spec.termination_grace.FromNanoseconds(round(seconds_of(grace) * 1e9))
    spec.stop_signal = options.get("stop_signal", "")
    spec.description = options.get("description", "")
    if (warning := options.get("time_warning")) is not None:
        spec.time_warning.signal = warning[0]
        spec.time_warning.before.FromNanoseconds(round(seconds_of(warning[1]) * 1e9))
    if choice := options.get("agent_choice"):
        spec.agent_choice = session_pb2.AgentChoice.ValueType(enum_names.number(enum_names.AGENT_CHOICE, choice))
    if placement := options.get("replica_placement"):
        spec.replica_placement = session_pb2.ReplicaPlacement.ValueType(
            enum_names.number(enum_names.REPLICA_PLACEMENT, placement)
        )
    if (limit := options.get("time_limit")) is not None:
        spec.time_limit.FromNanoseconds(round(seconds_of(limit) * 1e9))
    main = _kernel(options.get("main_image"), None, options.get("main_environment"), options.get("main_slots"))
    sub = _kernel(
        options.get("sub_image"), options.get("sub_command"), options.get("sub_environment"), options.get("sub_slots")
    )
    main.isolation, sub.isolation = (
        _isolation(options.get("main_isolation", "")),
        _isolation(options.get("sub_isolation", "")),
    )
    for role, kernel in (("main", main), ("sub", sub)):
        if kernel.ByteSize():
            spec.roles.add(role=role).kernel.CopyFrom(kernel)
    return app_catalogue.complete(spec)


def _session_type(text: str, *, optional: bool) -> session_pb2.SessionType.ValueType:
    if optional and not text:
        return session_pb2.SESSION_TYPE_UNSPECIFIED
    return session_pb2.SessionType.ValueType(enum_names.number(enum_names.SESSION_TYPE, text))


def _pull_policy(text: str) -> pull_policy_pb2.PullPolicy.ValueType:
    return pull_policy_pb2.PullPolicy.ValueType(enum_names.number(enum_names.PULL_POLICY, text) if text else 0)


def _isolation(text: str) -> isolation_pb2.Isolation.ValueType:
    return isolation_pb2.Isolation.ValueType(enum_names.number(enum_names.ISOLATION, text) if text else 0)


def _refer(spec: session_pb2.SessionSpec, template: str, version: int) -> None:
    if template:
        spec.template.name, spec.template.version = template, version


def _kernel(
    image: str | None,
    command: Sequence[str] | None,
    environment: Mapping[str, str] | None,
    slots: Mapping[str, Amount] | None,
) -> session_pb2.KernelSpec:
    return session_pb2.KernelSpec(
        image=image or "", command=command or (), environment=environment or {}, slots=amount_texts(slots or {})
    )
