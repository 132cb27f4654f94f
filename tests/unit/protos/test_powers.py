"""No request of a user has a field for what no user may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.protobuf import descriptor_pool

# Loads the whole contract.
from retinue.manager.listeners import SERVICES
from retinue.manager.server.authorization import METHODS, Access

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, FieldDescriptor

# Powers of containers as engines and clusters name them, and whose a session is.
POWERS = {
    "privileged",
    "capabilities",
    "cap_add",
    "security_opt",
    "seccomp",
    "apparmor",
    "devices",
    "device_requests",
    "host_network",
    "network_mode",
    "host_pid",
    "pid_mode",
    "host_ipc",
    "ipc_mode",
    "userns_mode",
    "cgroup_parent",
    "sysctls",
    "run_as_user",
    "uid",
    "owner",
}


def fields(message: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    """The fields of a message and of those in it."""
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        yield field
        if field.message_type is not None:
            yield from fields(field.message_type, seen)


def requests(*allowed: Access) -> list[Descriptor]:
    pool = descriptor_pool.Default()
    found = []
    for method, access in METHODS.items():
        service, name = method[1:].split("/")
        if access in allowed and service in SERVICES and service.startswith("retinue."):
            found.append(pool.FindServiceByName(service).methods_by_name[name].input_type)
    return found


@pytest.mark.attack("powers-of-containers", "sessions-for-others")
def test_what_users_send_names_no_power_and_no_owner() -> None:
    # What a session is when it is shown, and what administrators set, has such fields: the look finds them.
    shown = descriptor_pool.Default().FindMessageTypeByName("retinue.manager.v1.Session")
    assert POWERS & {field.name for field in fields(shown, set())}
    assert POWERS & {field.name for request in requests(Access.ADMIN) for field in fields(request, set())}
    sent = [field.full_name for kind in requests(Access.USER) for field in fields(kind, set())]
    assert len(sent) > 300
    assert sorted({name for name in sent if name.rpartition(".")[2] in POWERS}) == []


@pytest.mark.attack("no-credentials")
def test_what_anyone_may_call_is_this() -> None:
    anyone = {method.rpartition(".")[2] for method, access in METHODS.items() if access is Access.ANYONE}
    # With a join token, and with the key of a certificate that has expired.
    enrolment = {f"EnrollmentService/{name}" for name in ("Enroll", "BeginRecovery", "RecoverCertificate")}
    assert anyone == {"Health/Check", "Health/List", "Health/Watch"} | enrolment
