"""What names of the catalogue become in requests for sessions."""

from __future__ import annotations

import pytest

from retinue.client.app_catalogue import CATALOGUE, complete
from retinue.client.errors import UsageError
from retinue.client.manifest import read_specs
from retinue.client.spec import session_spec
from retinue.manager.domain.session.service_ports import PORT_NAME, PORTS
from retinue.manager.v1 import session_pb2


def test_a_name_stands_for_an_app_and_its_port() -> None:
    spec = session_spec(type="interactive", apps=["streamlit", "jupyterlab"])
    assert [app.command[0] for app in spec.apps] == ["streamlit", "jupyter"]
    assert [(port.name, port.protocol, list(port.ports), port.host) for port in spec.service_ports] == [
        ("streamlit", "http", [8501], ""),
        ("jupyterlab", "http", [8888], "localhost"),
    ]


def test_a_port_that_is_declared_counts() -> None:
    spec = session_spec(type="interactive", apps=["marimo"], ports=[("marimo", "http", 9000)])
    assert [list(port.ports) for port in spec.service_ports] == [[9000]]
    with pytest.raises(UsageError, match=r"port 2718, which is web: declare another with `--port marimo:http:NUMBER`"):
        session_spec(type="interactive", apps=["marimo"], ports=[("web", "http", 2718)])


def test_what_is_no_name_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"no app 'jupiter' in the catalogue, but code-server, gradio, jupyterlab"):
        session_spec(type="interactive", apps=["jupiter"])


def test_a_file_names_an_app_too_and_may_add_to_it() -> None:
    [(spec, _)] = read_specs("type: interactive\napps: [{name: gradio, workingDirectory: /srv}]\n", "file")
    [app] = spec.apps
    assert (app.command, app.working_directory, app.environment["GRADIO_SERVER_PORT"]) == (
        ["python3"],
        "/srv",
        "{port}",
    )
    assert [port.name for port in spec.service_ports] == ["gradio"]


def test_an_app_with_a_command_of_its_own_is_left_alone() -> None:
    own = session_pb2.SessionSpec(apps=[session_pb2.AppDefinition(name="mlflow", command=["mine"])])
    before = session_pb2.SessionSpec.FromString(own.SerializeToString())
    assert complete(own) == before


def test_all_entries_can_be_used_side_by_side() -> None:
    ports = [app.port for app in CATALOGUE.values()]
    assert len(set(ports)) == len(ports)
    assert all(port in PORTS for port in ports)
    for name, app in CATALOGUE.items():
        assert PORT_NAME.fullmatch(name)
        assert "{port}" in " ".join([*app.command, *app.environment.values()])
        assert name == app.name
