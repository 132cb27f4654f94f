"""Which ports are reachable, by what a request and an image declare."""

from __future__ import annotations

import uuid

import pytest

from retinue.manager.domain.session.service_ports import (
    HTTP,
    TCP,
    PortRange,
    Reachable,
    ServicePortSpec,
    Violations,
    check_ports,
    local_address,
    port_variables,
    reachable,
)
from retinue.manager.gateway.core.rules import Address

IMAGE = [
    ServicePortSpec("jupyter", "http", (8888,)),
    ServicePortSpec("web", "http", (80, 443)),
    ServicePortSpec("ssh", "tcp", (2200,)),
]
WEB, RANGE = ServicePortSpec("web", "http", (8080, 8081)), PortRange(2190, 2210)


def test_programs_know_the_addresses_of_ports_that_speak_http() -> None:
    ports = [
        ServicePortSpec("web-ui.2", HTTP, (8000, 8001)),
        ServicePortSpec("raw", TCP, (8002,)),
        ServicePortSpec("local", HTTP, (8003,), "localhost"),
    ]
    session_id = uuid.UUID(int=7)
    of = Address("apps.example.org", 8443, secure=True).public
    host = f"p8000-{session_id.hex}.apps.example.org"
    assert port_variables(ports, session_id, of) == {
        "RETINUE_PORT_WEB_UI_2_HOST": host,
        "RETINUE_PORT_WEB_UI_2_URL": f"https://{host}:8443/",
        "RETINUE_PORT_LOCAL_HOST": host.replace("8000", "8003"),
        "RETINUE_PORT_LOCAL_URL": f"https://{host.replace('8000', '8003')}:8443/",
    }
    assert port_variables(ports[:1], session_id, local_address)["RETINUE_PORT_WEB_UI_2_URL"] == "http://localhost:8000/"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("jupyter", 8888),
        ("web", 8080),
        ("8081", 8081),
        ("8888", 8888),
        # The request's name comes before the image's, whose port is not declared any more.
        ("80", None),
        ("ssh", None),
        ("2200", None),
        ("2190", 2190),
        ("2210", 2210),
        ("2211", None),
        ("02190", None),
        ("", None),
    ],
)
def test_what_is_found(wanted: str, expected: int | None) -> None:
    assert reachable([WEB], [RANGE], IMAGE).find(wanted) == expected


def test_sessions_without_ports() -> None:
    assert reachable([], [], []) == Reachable(())
    assert reachable([], [], IMAGE).find("web") == 80


@pytest.mark.parametrize(
    ("protocol", "host", "good"),
    [("http", "", True), ("http", "localhost", True), ("tcp", "localhost", False), ("http", "other", False)],
)
def test_a_program_sees_the_browsers_host_or_localhost(protocol: str, host: str, good: bool) -> None:
    violations: Violations = []
    declared = ServicePortSpec("web", protocol, (8000,), host)
    check_ports([declared], [], violations)
    assert [path for path, _ in violations] == ([] if good else ["spec.service_ports[0].host"])


def test_words() -> None:
    ports = Reachable((ServicePortSpec("a", "tcp", (8000, 8001)),), (PortRange(9000, 9000), PortRange(9001, 9002)))
    assert list(ports.words()) == ["a (8000, 8001)", "9000", "9001-9002"]
