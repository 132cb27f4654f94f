"""Admission of session requests: pure checks that name every wrong field, and the defaults."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.manager.domain.session.apps import MAX_ALLOWED, MAX_APPS, AppSpec
from retinue.manager.domain.session.image_references import wrong_reference
from retinue.manager.domain.session.isolation import Isolation
from retinue.manager.domain.session.isolation_policy import IsolationPolicy
from retinue.manager.domain.session.mounts import check_mounts
from retinue.manager.domain.session.service_ports import PORT_NAME, SFTP, SFTP_PORT, ServicePortSpec, check_ports
from retinue.manager.domain.session.spec import (
    DEFAULT_SLOTS,
    DEFAULT_SYSTEM_SLOTS,
    MAIN,
    KernelSpec,
    MountSpec,
    RetryPolicy,
    SessionSpec,
    SftpSpec,
    WebhookSpec,
)
from retinue.manager.domain.session.ssh_keys import parse_public_key
from retinue.manager.domain.session.states import SessionType
from retinue.manager.domain.session.usage import CUDA
from retinue.manager.domain.webhooks.rules import wrong_secret, wrong_url
from retinue.rpc.core.amounts import DISK, MEMORY, AmountError, format_amount, parse_amount, parse_asked
from retinue.rpc.core.names import NAME_RULE, is_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_CLUSTER_SIZE = 1024
MAX_ROLES = 32
MAX_PRIORITY = 100
MAX_GRACE_SECONDS = 86_400.0
# Others wait for its room meanwhile.
MAX_PREEMPTIBLE_GRACE_SECONDS = 300.0
SIGNALS = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "WINCH", "KILL")
MAX_ARGUMENTS, MAX_ARGUMENT_BYTES = 1024, 64 * 1024
MAX_ENVIRONMENT, MAX_ENVIRONMENT_BYTES = 512, 128 * 1024
MAX_PATH_BYTES = 4096
MAX_SLOTS = 32
MAX_LABELS, MAX_LABEL_VALUE = 64, 256
MAX_AGENTS = 64
MAX_DESCRIPTION = 1024
SHORTEST_TIME_LIMIT, LONGEST_TIME_LIMIT = 1.0, 365 * 86400.0
MAX_SCRIPT_BYTES = 64 * 1024
MAX_DEPENDENCIES = 1000
MAX_ATTEMPTS = 100
MAX_WEBHOOKS = 4
MAX_BACKOFF_SECONDS, MAX_MAX_BACKOFF_SECONDS = 3600.0, 86_400.0
RESERVED_PREFIXES = ("BACKENDAI_", "RETINUE_")

_UMASK = re.compile(r"[0-7]{3}")
# A session of an array.
_ELEMENT = re.compile(r"[1-9][0-9]{0,17}_[0-9]{1,9}")
# Hostnames inside sessions are not names of sessions: they would be ambiguous in every command.
_HOSTNAME = re.compile(r"(?:main|sub)\d+")
# A number at the end would make hostnames ambiguous.
_ROLE = re.compile(r"[a-z](?:[a-z0-9-]{0,30}[a-z])?")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,125}[A-Za-z0-9])?")
_ARCHITECTURE = re.compile(r"[a-z0-9](?:[a-z0-9_.-]{0,61}[a-z0-9])?")

_MUCH_MEMORY = "8192t"
_ANY_IMAGE = "image"
MAX_SYSTEM_KEYS, MAX_SYSTEM_KERNELS = 16, 16
MAX_SYSTEM_SLOTS: Mapping[str, str] = {"cpu": "1", MEMORY: "512m", DISK: "1g"}
_SFTP_PORT = ServicePortSpec(SFTP, ports=(SFTP_PORT,))

Violations = list[tuple[str, str]]


def wrong_name(name: str) -> Violations:
    """Returns what is wrong with the name of a session."""
    if not is_name(name):
        return [("spec.name", f"must be {NAME_RULE}")]
    if _HOSTNAME.fullmatch(name):
        return [("spec.name", "must not look like the hostname of a kernel")]
    return []


def admit(spec: SessionSpec) -> tuple[SessionSpec, Violations]:
    """Returns a request with defaults filled in and amounts in canonical form, and what is wrong with it:
    (field path, description).
    """
    violations = wrong_name(spec.name)
    if not 1 <= spec.cluster_size <= MAX_CLUSTER_SIZE:
        violations.append(("spec.cluster_size", f"must be from 1 to {MAX_CLUSTER_SIZE}"))
    if not 0 <= spec.priority <= MAX_PRIORITY:
        violations.append(("spec.priority", f"must be from 0 to {MAX_PRIORITY}"))
    if not 0 <= spec.grace_seconds <= MAX_GRACE_SECONDS:
        violations.append(("spec.termination_grace", "must be from 0 to 24 hours"))
    elif spec.preemptible and spec.grace_seconds > MAX_PREEMPTIBLE_GRACE_SECONDS:
        most = f"{MAX_PREEMPTIBLE_GRACE_SECONDS:.0f} s"
        violations.append(("spec.termination_grace", f"must be at most {most} for a preemptible session"))
    if spec.stop_signal and spec.stop_signal not in SIGNALS:
        violations.append(("spec.stop_signal", f"must be one of {', '.join(SIGNALS)}"))
    if len(spec.description) > MAX_DESCRIPTION or not spec.description.isprintable():
        violations.append(("spec.description", f"must be at most {MAX_DESCRIPTION} printable characters"))
    _check_time_warning(spec, violations)
    _check_roles(spec, violations)
    _check_labels(spec.labels, violations)
    _check_placement(spec, violations)
    if spec.time_limit_seconds is not None and not SHORTEST_TIME_LIMIT <= spec.time_limit_seconds <= LONGEST_TIME_LIMIT:
        violations.append(("spec.time_limit", "must be from 1 s to 365 days"))
    _check_script(spec.bootstrap_script, violations)
    _check_dependencies(spec, violations)
    check_mounts(spec.mounts, "spec.mounts", violations)
    _check_webhooks(spec.webhooks, violations)
    check_ports(spec.service_ports, spec.preopen_ports, violations)
    _check_apps(spec, violations)
    if spec.retry is not None:
        _check_retry(spec.retry, violations)
    is_sftp = spec.type is SessionType.SYSTEM and not is_other_system(spec)
    defaults = DEFAULT_SYSTEM_SLOTS if is_sftp else DEFAULT_SLOTS
    kernel = _admit_kernel(replace(spec.kernel, slots={**defaults, **spec.kernel.slots}), "spec.kernel", violations)
    roles = {}
    for position, (role, role_kernel) in enumerate(spec.roles.items()):
        roles[role] = _admit_kernel(role_kernel, f"spec.roles[{position}].kernel", violations)
    admitted = _admit_system(replace(spec, kernel=kernel, roles=roles), violations)
    _check_shared_memory(admitted, violations)
    if admitted.sftp is None:
        # Whether its group allows them is decided once it is accepted.
        violations += IsolationPolicy().violations(admitted, admitted.resource_group)
        admitted = replace(admitted, isolations=IsolationPolicy().resolve(admitted))
    main = admitted.of_role(MAIN)
    if spec.type is SessionType.BATCH and not main.command and not main.image:
        violations.append(("spec.kernel.command", "is required for a batch session without an image"))
    if spec.kernel.pull_policy is not None and not any(admitted.of_role(role).image for role, _ in admitted.layout):
        violations.append(("spec.kernel.pull_policy", "needs an image"))
    return admitted, violations


def _check_time_warning(spec: SessionSpec, violations: Violations) -> None:
    if (warning := spec.time_warning) is None:
        return
    if warning.signal not in SIGNALS:
        violations.append(("spec.time_warning.signal", f"must be one of {', '.join(SIGNALS)}"))
    if warning.before_seconds <= 0:
        violations.append(("spec.time_warning.before", "must be longer than 0"))
    elif spec.time_limit_seconds is None:
        violations.append(("spec.time_warning", "needs a time limit"))
    elif warning.before_seconds >= spec.time_limit_seconds:
        violations.append(("spec.time_warning.before", "must be shorter than the time limit"))


def is_other_system(spec: SessionSpec) -> bool:
    """Returns whether a request is for a system session of another kind than SFTP:
    one that runs a program of its own.
    """
    programs = (spec.kernel, *spec.roles.values())
    return (
        spec.type is SessionType.SYSTEM
        and spec.sftp is None
        and any(kernel.image or kernel.command for kernel in programs)
    )


def _admit_system(spec: SessionSpec, violations: Violations) -> SessionSpec:
    """Returns a request with what a system session has by itself, and keys in canonical form;
    other requests are returned as they are.
    """
    if spec.type is not SessionType.SYSTEM or is_other_system(spec):
        return spec
    if not spec.mounts:
        violations.append(("spec.mounts", "is required for a system session: it serves them"))
    kernels = [("spec.kernel", spec.kernel)]
    kernels += [(f"spec.roles[{position}].kernel", kernel) for position, kernel in enumerate(spec.roles.values())]
    for path, kernel in kernels:
        for field in (
            "image",
            "command",
            "environment",
            "shared_memory",
            "isolation",
            "working_directory",
            "pull_policy",
        ):
            if getattr(kernel, field):
                violations.append((f"{path}.{field}", "must be empty for a system session: it runs nothing of yours"))
    for field, allowed in (("service_ports", (_SFTP_PORT,)), ("preopen_ports", ())):
        if getattr(spec, field) not in ((), allowed):
            violations.append((f"spec.{field}", f"must be empty for a system session: it has the port {SFTP}"))
    if spec.cluster_size > MAX_SYSTEM_KERNELS:
        violations.append(("spec.cluster_size", f"must be at most {MAX_SYSTEM_KERNELS} for a system session"))
    for path, kernel in kernels:
        violations += _beyond_system(kernel.slots, f"{path}.slots")
    sftp = spec.sftp or SftpSpec()
    if sftp.max_file_bytes < 0:
        violations.append(("spec.system.sftp.max_file_bytes", "must not be negative"))
    if sftp.umask and not _UMASK.fullmatch(sftp.umask):
        violations.append(("spec.system.sftp.umask", "must be three octal digits, as 002, or empty"))
    sftp = replace(sftp, authorized_keys=_admit_keys(sftp.authorized_keys, violations))
    return replace(spec, sftp=sftp, service_ports=(_SFTP_PORT,), preopen_ports=())


def _beyond_system(slots: Mapping[str, str], path: str) -> Violations:
    """Returns the amounts that no kernel of a system session may have: quotas do not count them."""
    found: Violations = []
    for slot, amount in slots.items():
        most = MAX_SYSTEM_SLOTS.get(slot)
        if most is None:
            found.append((f"{path}[{slot[:64]!r}]", "is not for a system session"))
        elif parse_amount(slot, amount) > parse_amount(slot, most):
            found.append((f"{path}[{slot[:64]!r}]", f"must be at most {most} for a system session"))
    return found


def _admit_keys(keys: tuple[str, ...], violations: Violations) -> tuple[str, ...]:
    path = "spec.system.sftp.authorized_keys"
    if len(keys) > MAX_SYSTEM_KEYS:
        violations.append((path, f"must be at most {MAX_SYSTEM_KEYS}"))
        return ()
    lines = []
    for position, key in enumerate(keys):
        try:
            lines.append(parse_public_key(key).line)
        except ValueError as error:
            violations.append((f"{path}[{position}]", str(error)))
    return tuple(lines)


def completed(spec: SessionSpec) -> SessionSpec:
    """Fills fields that others need in a partial request, so that `admit` reports only what is given."""
    kernel, retry = spec.kernel, spec.retry
    if spec.type is SessionType.BATCH and not kernel.command:
        kernel = replace(kernel, command=("true",))
    if MEMORY not in kernel.slots:
        # Not less than any shared memory.
        kernel = replace(kernel, slots={**kernel.slots, MEMORY: _MUCH_MEMORY})
    if retry is not None and retry.max_attempts == 0:
        retry = replace(retry, max_attempts=1)
    kernel = _with_image(kernel)
    roles = {role: _with_image(own) for role, own in spec.roles.items()}
    mounts = spec.mounts
    if spec.type is SessionType.SYSTEM and not mounts:
        mounts = (MountSpec("/srv", "/data"),)
    limit = spec.time_limit_seconds
    if limit is None and spec.time_warning is not None:
        limit = LONGEST_TIME_LIMIT
    return replace(
        spec,
        time_limit_seconds=limit,
        kernel=kernel,
        roles=roles,
        retry=retry,
        mounts=mounts,
        agents_strict=spec.agents_strict and bool(spec.agents),
        replica_placement=spec.replica_placement if spec.endpoint else "",
    )


def _with_image(kernel: KernelSpec) -> KernelSpec:
    """Returns a kernel with some image where it names none and only a container can have what it asks for."""
    if kernel.isolation is Isolation.CONTAINER or (kernel.isolation is None and CUDA in kernel.slots):
        return replace(kernel, image=kernel.image or _ANY_IMAGE)
    return kernel


def _check_roles(spec: SessionSpec, violations: Violations) -> None:
    """Checks names and counts of roles, and that counts and size agree."""
    if len(spec.roles) > MAX_ROLES:
        violations.append(("spec.roles", f"must be at most {MAX_ROLES}"))
        return
    counts = dict(spec.counts)
    sound = True
    for position, role in enumerate(spec.roles):
        path = f"spec.roles[{position}]"
        if not _ROLE.fullmatch(role):
            violations.append(
                (f"{path}.role", "must be 1-32 characters a-z, 0-9 and -, first a letter, last no digit and no dash")
            )
        count = counts.get(role, 1)
        lowest, highest = (1, 1) if role == MAIN else (0, MAX_CLUSTER_SIZE - 1)
        if not lowest <= count <= highest:
            sound = False
            needed = "1, and there is no other" if role == MAIN else f"from 0 to {MAX_CLUSTER_SIZE - 1}"
            violations.append((f"{path}.count", f"must be {needed}"))
    if sound and counts and sum(counts.values()) != spec.cluster_size <= MAX_CLUSTER_SIZE:
        violations.append(
            ("spec.cluster_size", f"must be {sum(counts.values())}, as the counts of the roles say, or left out")
        )


def _check_script(script: str, violations: Violations) -> None:
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        violations.append(("spec.bootstrap_script", f"must be at most {MAX_SCRIPT_BYTES} bytes"))
    elif "\0" in script:
        violations.append(("spec.bootstrap_script", "must not hold NUL"))
    elif script.startswith("\ufeff"):
        violations.append(("spec.bootstrap_script", "must not begin with a byte order mark: save it as plain UTF-8"))
    elif script.partition("\n")[0].endswith("\r"):
        violations.append(
            ("spec.bootstrap_script", "must not have DOS line ends (\\r\\n): convert them, as by dos2unix")
        )


def _check_webhooks(webhooks: Sequence[WebhookSpec], violations: Violations) -> None:
    if len(webhooks) > MAX_WEBHOOKS:
        violations.append(("spec.webhooks", f"must be at most {MAX_WEBHOOKS}"))
    for position, webhook in enumerate(webhooks[:MAX_WEBHOOKS]):
        path = f"spec.webhooks[{position}]"
        if wrong := wrong_url(webhook.url):
            violations.append((f"{path}.url", wrong))
        if len(set(webhook.events)) < len(webhook.events):
            violations.append((f"{path}.events", "holds one twice"))
        if wrong := wrong_secret(webhook.secret):
            violations.append((f"{path}.secret", wrong))


def _check_apps(spec: SessionSpec, violations: Violations) -> None:
    if len(spec.apps) > MAX_APPS:
        violations.append(("spec.apps", f"must be at most {MAX_APPS}"))
        return
    ports = {port.name for port in spec.service_ports}
    for position, app in enumerate(spec.apps):
        path = f"spec.apps[{position}]"
        if any(app.name == other.name for other in spec.apps[:position]):
            violations.append((f"{path}.name", "is given twice"))
        # An image may declare the port: that is known once it is on a node.
        elif not PORT_NAME.fullmatch(app.name) or (app.name not in ports and not spec.of_role(MAIN).image):
            violations.append((f"{path}.name", "is not the name of a service port"))
        _check_app(app, path, violations)


def _check_app(app: AppSpec, path: str, violations: Violations) -> None:
    if not app.command:
        violations.append((f"{path}.command", "is required"))
    violations += wrong_command(app.command, f"{path}.command")
    violations += wrong_environment(app.environment, f"{path}.environment")
    violations += wrong_directory(app.working_directory, f"{path}.working_directory")
    if len(app.allowed_arguments) > MAX_ALLOWED or any(
        not argument or "\0" in argument or "=" in argument for argument in app.allowed_arguments
    ):
        violations.append((f"{path}.allowed_arguments", f"must be at most {MAX_ALLOWED} names without ="))
    if len(app.allowed_environment) > MAX_ALLOWED or wrong_environment(dict.fromkeys(app.allowed_environment, ""), ""):
        violations.append((f"{path}.allowed_environment", f"must be at most {MAX_ALLOWED} names of variables"))


def _check_retry(retry: RetryPolicy, violations: Violations) -> None:
    if not 1 <= retry.max_attempts <= MAX_ATTEMPTS:
        violations.append(("spec.retry.max_attempts", f"must be from 1 to {MAX_ATTEMPTS}"))
    if not 0 <= retry.backoff_seconds <= MAX_BACKOFF_SECONDS:
        violations.append(("spec.retry.backoff", "must be from 0 to 1 hour"))
    if not 0 <= retry.max_backoff_seconds <= MAX_MAX_BACKOFF_SECONDS:
        violations.append(("spec.retry.max_backoff", "must be from 0 to 24 hours"))


def _check_dependencies(spec: SessionSpec, violations: Violations) -> None:
    """Checks what does not depend on other sessions."""
    lists = {field: getattr(spec, field) for field in ("depends_on", "runs_after", "runs_after_failure")}
    if sum(map(len, lists.values())) > MAX_DEPENDENCIES:
        longest = max(lists, key=lambda field: len(lists[field]))
        violations.append((f"spec.{longest}", f"must be at most {MAX_DEPENDENCIES} sessions"))
        return
    for field, references in lists.items():
        _check_references(spec.name, f"spec.{field}", references, violations)
    for position, reference in enumerate(spec.runs_after_failure):
        if reference in spec.depends_on:
            violations.append(
                (f"spec.runs_after_failure[{position}]", "is in depends_on, too: it cannot end both ways")
            )
    if spec.runs_after_label and spec.runs_after_label not in spec.labels:
        violations.append(("spec.runs_after_label", "is not the key of a label of the session"))


def _check_references(name: str, field: str, references: Sequence[str], violations: Violations) -> None:
    seen = set()
    for position, reference in enumerate(references):
        path = f"{field}[{position}]"
        if not (is_name(reference) or _ELEMENT.fullmatch(reference)):
            # Ids and numbers have the shape of names too.
            violations.append((path, "is neither an id nor a name of a session"))
        elif reference == name:
            violations.append((path, "is the session itself"))
        elif reference in seen:
            violations.append((path, "is given twice"))
        seen.add(reference)


def _admit_kernel(kernel: KernelSpec, path: str, violations: Violations) -> KernelSpec:
    if kernel.image and (wrong := wrong_reference(kernel.image)):
        violations.append((f"{path}.image", wrong))
    violations += wrong_command(kernel.command, f"{path}.command")
    if kernel.command and kernel.command[0].startswith("-"):
        why = "is an option and no program: the entry point of an image is not used, so name the program first"
        violations.append((f"{path}.command[0]", why))
    violations += wrong_environment(kernel.environment, f"{path}.environment")
    violations += wrong_directory(kernel.working_directory, f"{path}.working_directory")
    shared = kernel.shared_memory
    if shared:
        try:
            shared = format_amount(MEMORY, parse_amount(MEMORY, shared))
        except AmountError as error:
            violations.append((f"{path}.shared_memory", str(error)))
            shared = ""
    return replace(kernel, slots=_admit_slots(kernel.slots, f"{path}.slots", violations), shared_memory=shared)


def _check_shared_memory(spec: SessionSpec, violations: Violations) -> None:
    """Checks that shared memory, which is part of the kernel's memory, leaves some of it."""
    for role, _ in spec.layout:
        kernel = spec.of_role(role)
        memory = kernel.slots.get(MEMORY)
        if (
            kernel.shared_memory
            and memory
            and parse_amount(MEMORY, kernel.shared_memory) >= parse_amount(MEMORY, memory)
        ):
            path = "spec.kernel"
            if role in spec.roles and spec.roles[role].shared_memory:
                path = f"spec.roles[{list(spec.roles).index(role)}].kernel"
            violations.append((f"{path}.shared_memory", f"must be less than mem, which is {memory}"))
            return


def wrong_command(command: Sequence[str], path: str) -> Violations:
    """Returns what is wrong with an argument vector; an empty one is valid."""
    violations: Violations = []
    if len(command) > MAX_ARGUMENTS or sum(len(text.encode()) for text in command) > MAX_ARGUMENT_BYTES:
        violations.append((path, f"must be at most {MAX_ARGUMENTS} arguments of {MAX_ARGUMENT_BYTES} bytes in all"))
    if any("\0" in text for text in command):
        violations.append((path, "must not hold NUL"))
    if command and not command[0]:
        violations.append((f"{path}[0]", "must not be empty"))
    return violations


def wrong_directory(directory: str, path: str) -> Violations:
    """Returns what is wrong with the directory that a program starts in; an empty one is valid."""
    if not directory or (
        directory.startswith("/") and "\0" not in directory and len(directory.encode()) <= MAX_PATH_BYTES
    ):
        return []
    return [(path, f"must be an absolute path of at most {MAX_PATH_BYTES} bytes")]


def _admit_slots(slots: Mapping[str, str], path: str, violations: Violations) -> dict[str, str]:
    if len(slots) > MAX_SLOTS:
        violations.append((path, f"must be at most {MAX_SLOTS} entries"))
        return {}
    admitted = {}
    for slot, amount in sorted(slots.items()):
        try:
            admitted[slot] = format_amount(slot, parse_asked(slot, amount))
        except AmountError as error:
            violations.append((f"{path}[{slot[:64]!r}]", str(error)))
    return admitted


def wrong_environment(environment: Mapping[str, str], path: str) -> Violations:
    """Returns what is wrong with environment variables of a request."""
    violations: Violations = []
    size = sum(len(name.encode()) + len(value.encode()) for name, value in environment.items())
    if len(environment) > MAX_ENVIRONMENT or size > MAX_ENVIRONMENT_BYTES:
        violations.append((path, f"must be at most {MAX_ENVIRONMENT} entries of {MAX_ENVIRONMENT_BYTES} bytes in all"))
        return violations
    for name, value in sorted(environment.items()):
        if not name or "=" in name or "\0" in name:
            violations.append(
                (f"{path}[{name[:64]!r}]", "is not the name of a variable: it must be there, without = and NUL")
            )
        elif name.startswith(RESERVED_PREFIXES):
            violations.append(
                (f"{path}[{name[:64]!r}]", f"the prefixes {' and '.join(RESERVED_PREFIXES)} are reserved")
            )
        elif "\0" in value:
            violations.append((f"{path}[{name[:64]!r}]", "must not hold NUL"))
    return violations


def _check_placement(spec: SessionSpec, violations: Violations) -> None:
    if len(spec.agents) > MAX_AGENTS:
        violations.append(("spec.agents", f"must be at most {MAX_AGENTS}"))
    for position, agent in enumerate(spec.agents[:MAX_AGENTS]):
        if not is_name(agent):
            violations.append((f"spec.agents[{position}]", "is not the id of an agent"))
        elif agent in spec.agents[:position]:
            violations.append((f"spec.agents[{position}]", "is given twice"))
    if spec.agents_strict and not spec.agents:
        violations.append(("spec.agent_choice", "needs agents to choose"))
    if spec.architecture and not _ARCHITECTURE.fullmatch(spec.architecture):
        violations.append(("spec.architecture", "is not the name of an architecture"))
    if spec.endpoint and not is_name(spec.endpoint):
        violations.append(("spec.endpoint", f"must be {NAME_RULE}"))
    if spec.replica_placement and not spec.endpoint:
        violations.append(("spec.replica_placement", "needs endpoint"))


def _check_labels(labels: Mapping[str, str], violations: Violations) -> None:
    if len(labels) > MAX_LABELS:
        violations.append(("spec.labels", f"must be at most {MAX_LABELS} entries"))
        return
    for key, value in sorted(labels.items()):
        if not _LABEL.fullmatch(key):
            violations.append((f"spec.labels[{key[:64]!r}]", "is not a label key"))
        elif len(value) > MAX_LABEL_VALUE or not value.isprintable():
            violations.append((f"spec.labels[{key[:64]!r}]", f"must be at most {MAX_LABEL_VALUE} printable characters"))
