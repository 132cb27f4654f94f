"""What sessions of each type may ask for: the table of the documentation, cell by cell."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from retinue.manager.api.sessions.spec_convert import to_requests
from retinue.manager.domain.errors import InvalidRequest
from retinue.manager.domain.preconditions import FeatureUnavailable
from retinue.manager.domain.session.features import FEATURES, Feature
from retinue.manager.domain.session.refusals import Refused
from retinue.manager.domain.session.states import SessionType
from retinue.manager.identity.principal import Kind, Membership, Principal
from retinue.manager.session.drafts import Draft, prepare
from retinue.manager.v1 import session_pb2

ANN = Principal(Kind.USER, "ann", "USER", (Membership("default", "MEMBER"),), uuid.uuid4())
ADMIN = Principal(Kind.USER, "root", "ADMIN", (Membership("default", "MEMBER"),), uuid.uuid4())
INTERACTIVE, BATCH, INFERENCE, SYSTEM = "INTERACTIVE", "BATCH", "INFERENCE", "SYSTEM"
TYPES = (INTERACTIVE, BATCH, INFERENCE, SYSTEM)
MOUNT = [session_pb2.Mount(source="/srv", target="/data")]


def drafted(kind: str, caller: Principal = ANN, **given: Any) -> Draft | Refused:
    spec = session_pb2.SessionSpec(project="default", resource_group="default", mounts=MOUNT, **given)
    spec.type = session_pb2.SessionType.Value(f"SESSION_TYPE_{kind}")
    if kind == BATCH:
        spec.kernel.command.append("true")
    (made,) = prepare(to_requests([spec], caller), caller)
    return made


def later() -> Any:
    spec = session_pb2.SessionSpec()
    spec.earliest_start_time.FromSeconds(4_000_000_000)
    return spec.earliest_start_time


APP = session_pb2.AppDefinition(name="web", command=["web"])
PORT = {"name": "web", "ports": [8000]}
ASKED: dict[Feature, tuple[dict[str, Any], tuple[str, ...]]] = {
    Feature.DEPENDENCIES: ({"depends_on": ["other"]}, (BATCH,)),
    Feature.START_TIME: ({"earliest_start_time": later()}, (BATCH,)),
    Feature.RETRIES: ({"retry": session_pb2.RetryPolicy(max_attempts=2)}, (BATCH,)),
    Feature.CLUSTERING: ({"cluster_size": 2}, TYPES),
    Feature.BOOTSTRAP: ({"bootstrap_script": "true"}, (INTERACTIVE, BATCH, INFERENCE)),
    Feature.APPS: ({"apps": [APP], "service_ports": [PORT]}, (INTERACTIVE, BATCH, INFERENCE)),
    Feature.SFTP: ({"system": session_pb2.SystemSpec(sftp=session_pb2.SftpSpec())}, (SYSTEM,)),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("feature", ASKED)
def test_what_a_request_may_ask_for(kind: str, feature: Feature) -> None:
    given, types = ASKED[feature]
    made = drafted(kind, **given)
    if kind in types:
        assert isinstance(made, Draft), made
    else:
        assert isinstance(made, Refused)
        # Ports of its own are wrong in a system session before the apps behind them are.
        ports = kind == SYSTEM and feature is Feature.APPS
        assert isinstance(made.error, InvalidRequest if ports else FeatureUnavailable), made
        if not ports:
            assert made.error == FeatureUnavailable.of_type(SessionType(kind), feature)


def test_service_ports() -> None:
    for kind in (INTERACTIVE, BATCH, INFERENCE):
        assert isinstance(drafted(kind, service_ports=[PORT]), Draft)
    system = drafted(SYSTEM)
    assert isinstance(system, Draft)
    assert [(port.name, port.ports) for port in system.spec.service_ports] == [("sftp", (2022,))]
    assert isinstance(drafted(SYSTEM, service_ports=[PORT]), Refused)


def test_the_table_of_calls() -> None:
    called = {
        Feature.CODE_EXECUTION: {SessionType.INTERACTIVE},
        Feature.RESULT: {SessionType.BATCH},
        Feature.ATTACH: {SessionType.INTERACTIVE, SessionType.BATCH, SessionType.INFERENCE},
        Feature.FILES: {SessionType.INTERACTIVE, SessionType.BATCH, SessionType.INFERENCE},
        Feature.SERVICE_PORTS: set(SessionType),
    }
    for feature, types in called.items():
        assert {kind for kind in SessionType if feature in FEATURES[kind]} == types
    assert set(ASKED) | set(called) == set(Feature), "every feature is in one of the tables"


@pytest.mark.parametrize(
    ("slots", "cluster_size", "field"),
    [
        ({"cpu": "1", "mem": "512m"}, 16, ""),
        ({"cpu": "1.001"}, 1, "spec.kernel.slots['cpu']"),
        ({"mem": "513m"}, 1, "spec.kernel.slots['mem']"),
        ({"cuda.device": "1"}, 1, "spec.kernel.slots['cuda.device']"),
        ({}, 17, "spec.cluster_size"),
    ],
)
def test_amounts_that_quotas_do_not_count_are_bounded(slots: dict[str, str], cluster_size: int, field: str) -> None:
    made = drafted(SYSTEM, kernel=session_pb2.KernelSpec(slots=slots), cluster_size=cluster_size)
    if field:
        assert isinstance(made, Refused)
        assert isinstance(made.error, InvalidRequest)
        assert [path for path, _ in made.error.violations] == [field]
    else:
        assert isinstance(made, Draft)
    roles = [session_pb2.RoleSpec(role="sub", kernel=session_pb2.KernelSpec(slots=slots))]
    assert isinstance(drafted(SYSTEM, roles=roles, cluster_size=2), Refused if slots and field else Draft)


def test_programs_in_system_sessions_are_for_administrators() -> None:
    for kernel in (session_pb2.KernelSpec(command=["serve"]), session_pb2.KernelSpec(image="server")):
        refused, made = drafted(SYSTEM, kernel=kernel), drafted(SYSTEM, ADMIN, kernel=kernel, service_ports=[PORT])
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, InvalidRequest)
        assert isinstance(made, Draft)
        assert (made.spec.sftp, [port.name for port in made.spec.service_ports]) == (None, ["web"])
        both = drafted(SYSTEM, ADMIN, kernel=kernel, system=session_pb2.SystemSpec(sftp=session_pb2.SftpSpec()))
        assert isinstance(both, Refused)


def test_a_maximum_of_files_is_no_negative_number() -> None:
    for size, kind in ((-1, Refused), (0, Draft), (1 << 60, Draft)):
        sftp = session_pb2.SftpSpec(max_file_bytes=size)
        assert isinstance(drafted(SYSTEM, system=session_pb2.SystemSpec(sftp=sftp)), kind)
