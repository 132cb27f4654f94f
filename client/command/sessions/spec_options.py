"""Fields of a request as the options that were typed: `spec.kernel.slots['cpu']` is `--slots cpu=two`. Pure."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from retinue.client.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from retinue.manager.v1 import session_pb2

# By path, without what is in brackets. A path within one of them is of the same option.
_OPTIONS = {
    "name": "--name",
    "type": "--type",
    "project": "--project",
    "resource_group": "--group",
    "cluster_size": "--size",
    "cluster_mode": "--mode",
    "kernel.image": "--image",
    "kernel.command": "COMMAND",
    "kernel.environment": "--env",
    "kernel.slots": "--slots",
    "kernel.shared_memory": "--shared-memory",
    "kernel.isolation": "--isolation",
    "kernel.working_directory": "--workdir",
    "kernel.pull_policy": "--pull",
    "labels": "--label",
    "mounts": "--mount",
    "service_ports": "--port",
    "preopen_ports": "--preopen",
    "apps": "--app",
    "priority": "--priority",
    "agents": "--agent",
    "architecture": "--arch",
    "endpoint": "--endpoint",
    "replica_placement": "--replicas",
    "preemptible": "--preemptible",
    "hold": "--hold",
    "depends_on": "--depends-on",
    "runs_after": "--after",
    "runs_after_failure": "--after-failure",
    "runs_after_label": "--after-label",
    "earliest_start_time": "--earliest-start-time",
    "time_limit": "--time-limit",
    "termination_grace": "--grace",
    "stop_signal": "--stop-signal",
    "description": "--description",
    "time_warning": "--signal",
    "retry.max_attempts": "--retry",
    "retry.on_failure": "--retry-on-failure",
    "retry.backoff": "--retry-backoff",
    "bootstrap_script": "--bootstrap",
    "system.sftp.authorized_keys": "--authorized-keys",
    "system.sftp.max_file_bytes": "--max-file-size",
    "system.sftp.umask": "--umask",
    "template": "--template",
}
_ROLE_OPTIONS = {"slots": "--{role}-slots", "isolation": "--{role}-isolation", "command": "--{role}-command"}
_IN_BRACKETS = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|(\d+))\]")


def option_of(path: str, spec: session_pb2.SessionSpec) -> str:
    """Returns what was typed for a field of a request, where it is known; else its path."""
    found = re.fullmatch(r"(?:specs?(?:\[\d+\])?\.)?(.+)", path)
    rest = path if found is None else found[1]
    if (role := re.match(r"roles\[(?:(\d+)|'([^']+)')\]\.kernel\.(\w+)", rest)) is not None:
        name = role[2] or (spec.roles[int(role[1])].role if int(role[1]) < len(spec.roles) else "")
        option = _ROLE_OPTIONS.get(role[3], "") if name in ("main", "sub") else ""
        kernel = next((item.kernel for item in spec.roles if item.role == name), None)
        return f"{option.format(role=name)}{_value(role[3], rest, kernel)}" if option else path
    plain = _IN_BRACKETS.sub("", rest)
    known = max((name for name in _OPTIONS if plain == name or plain.startswith(f"{name}.")), key=len, default="")
    if not known:
        return path
    holder, _, field = known.rpartition(".")
    return _OPTIONS[known] + _value(field, rest, spec.kernel if holder == "kernel" else spec)


def _value(field: str, path: str, holder: object) -> str:
    """Returns ` NAME=VALUE` or ` VALUE` of an option, empty where an option has none that can be shown."""
    content = getattr(holder, field, None)
    key = _IN_BRACKETS.search(path.partition(field)[2])
    if isinstance(content, str):
        return f" {content!r}" if not content or " " in content else f" {content}"
    if key is None or content is None:
        return ""
    name = key[1] or key[2] or key[3]
    if field in ("slots", "labels", "environment"):
        # Values of variables may be secrets.
        return f" {name}={content[name]}" if field != "environment" and name in content else f" {name}"
    if (
        field in ("agents", "depends_on", "runs_after", "runs_after_failure")
        and name.isdecimal()
        and int(name) < len(content)
    ):
        return f" {content[int(name)]}"
    return ""


@contextlib.contextmanager
def named_options(spec: session_pb2.SessionSpec) -> Iterator[None]:
    """Names options in place of fields in what a manager says of a request that is wrong."""
    try:
        yield
    except InvalidRequest as error:
        for item in error.violations:
            error.message = error.message.replace(item.field, option_of(item.field, spec))
        error.violations = tuple(replace(item, field=option_of(item.field, spec)) for item in error.violations)
        raise
