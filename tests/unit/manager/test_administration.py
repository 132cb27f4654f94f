"""What commands of administrators say of files and managers that are not there."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from retinue.manager.health import find_fault
from retinue.manager.identity.authority import Authority
from retinue.manager.main import main

if TYPE_CHECKING:
    from pathlib import Path


def test_the_directory_of_a_backup_has_to_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "backups"
    result = CliRunner().invoke(main, ["admin", "backup", str(missing / "today"), "--data-dir", str(tmp_path)])
    assert result.exit_code != 0
    assert f"there is no directory {missing}: make it first" in result.output


@pytest.mark.parametrize("command", ["verify", "restore"])
def test_a_backup_that_is_read_has_to_be_there(command: str, tmp_path: Path) -> None:
    missing = tmp_path / "backup"
    result = CliRunner().invoke(main, ["admin", command, str(missing)])
    assert result.exit_code != 0
    assert f"File '{missing}' does not exist" in result.output


def test_health_says_where_it_asked(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    result = CliRunner().invoke(main, ["health", "--data-dir", str(tmp_path), "--listen", "0.0.0.0:1"])
    assert result.exit_code != 0
    assert "no manager serves at 127.0.0.1:1: give its address with --listen or RETINUE_MANAGER_LISTEN" in result.output


async def test_health_says_why_a_manager_is_not_ready(tmp_path: Path) -> None:
    for name in ("ours", "other"):
        (tmp_path / name).mkdir()
    ours, other = (Authority.load(tmp_path / name, lambda: dt.datetime.now(dt.UTC)) for name in ("ours", "other"))
    certificate = ours.issue_server(["127.0.0.1"])
    servicer = HealthServicer()
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_secure_port(
        "127.0.0.1:0", grpc.ssl_server_credentials([(certificate.key, certificate.certificate)])
    )
    await server.start()
    address = f"127.0.0.1:{port}"
    try:
        await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        assert not await find_fault(address, ours.certificate)
        assert "no manager with a certificate of this CA answers" in await find_fault(address, other.certificate)
        await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert "is not ready" in await find_fault(address, ours.certificate)
    finally:
        await server.stop(0)


def test_health_asks_where_the_manager_listens(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for listen, asked in (("127.0.0.2:1,127.0.0.3:1", "127.0.0.2:1"), ("[::]:1", "[::1]:1"), (":1", "127.0.0.1:1")):
        result = CliRunner().invoke(main, ["health", "--data-dir", str(tmp_path), "--listen", listen])
        assert result.exit_code == 1
        assert f"at {asked}:" in result.output
    result = CliRunner().invoke(main, ["health", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:65536"])
    assert (result.exit_code, "'127.0.0.1:65536' is not HOST:PORT" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("option", "addresses", "said"),
    [
        ("--listen", "127.0.0.1:1,", "--listen: '' is not host:port"),
        ("--listen", "127.0.0.1:1, [::1]:2", ""),
        ("--agent-listen", "127.0.0.1:1,127.0.0.2:65536", "--agent-listen: '127.0.0.2:65536' is not host:port"),
        ("--agent-listen", "127.0.0.1:1,127.0.0.2:2", "--agent-listen: the port must be the same at all addresses"),
        ("--agent-listen", "127.0.0.1:1,127.0.0.2:1", ""),
    ],
)
def test_addresses_to_listen_at_are_checked(option: str, addresses: str, said: str) -> None:
    result = CliRunner().invoke(main, ["config", "check", option, addresses])
    assert (result.exit_code, said in result.output) == (2 if said else 0, True)
