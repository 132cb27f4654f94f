"""The command `retinue-manager health`. It loads little: it is called every few seconds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from retinue.manager import options

if TYPE_CHECKING:
    from pathlib import Path

_SECONDS = 4.0
_HIGHEST_PORT = 65535


async def find_fault(address: str, ca: bytes) -> str:
    """Returns why the manager at `address`, with a certificate of the CA in PEM, cannot do its work now;
    empty when it can.
    """
    import grpc  # noqa: PLC0415
    import grpc.aio  # noqa: PLC0415  # kept out of `--help`
    from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: PLC0415

    from retinue.manager.identity.authority import MANAGER_DNS  # noqa: PLC0415

    host, port = address.rpartition(":")[::2]
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return f"no manager serves at {address}: give its address with --listen or RETINUE_MANAGER_LISTEN"
    except (OSError, TimeoutError) as error:
        return f"no manager answers at {address}: {error.strerror if isinstance(error, OSError) and error.strerror else 'time out'}"
    writer.close()
    channel_options = (("grpc.ssl_target_name_override", MANAGER_DNS), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca), channel_options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            return f"no manager with a certificate of this CA answers at {address}: {error.details()}"
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return ""
        reason = "it starts or stops, or does not reach its database; its log says which"
        try:
            await stub.Check(health_pb2.HealthCheckRequest(service=options.DATABASE_SERVICE), timeout=_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and error.details():
                reason = str(error.details())
    return f"the manager at {address} is not ready: {reason}"


@click.command("health")
@options.some_config
@options.data_directory
@options.listen
def health(data_dir: Path, listen: str) -> None:
    """Say whether the manager of this machine is ready, and end with 0 if it is:
    for health checks of containers and of service managers.
    """
    address = options.listen_addresses(listen)[0]
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > _HIGHEST_PORT:
        raise click.UsageError(f"{address!r} is not HOST:PORT")
    try:
        certificate = (data_dir / "ca.pem").read_bytes()
    except OSError as error:
        raise click.ClickException(f"cannot read {data_dir / 'ca.pem'}: {error.strerror}") from error
    endpoint = f"{options.LOCAL_HOSTS.get(host, host)}:{port}"
    if fault := asyncio.run(find_fault(endpoint, certificate)):
        raise click.ClickException(fault)
    click.echo(f"ready: {endpoint}")
