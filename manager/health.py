"""The command `retinue-manager health`; also `python -m retinue.manager.health`, which takes a tenth of the time since it loads nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from retinue.manager import options
from retinue.manager.server.health import is_serving


@click.command("health")
@options.data_directory
@options.listen
def health(data_dir: Path, listen: str) -> None:
    """End with 0 if the manager of this machine serves, for health checks of containers and of service managers."""
    port = listen.rpartition(":")[2]
    if not port.isdecimal():
        raise click.UsageError(f"{listen!r} is not HOST:PORT")
    try:
        certificate = (data_dir / "ca.pem").read_bytes()
    except OSError as error:
        raise click.ClickException(f"cannot read {data_dir / 'ca.pem'}: {error.strerror}") from error
    endpoint = f"127.0.0.1:{port}"
    if not asyncio.run(is_serving(endpoint, certificate)):
        raise click.ClickException(
            f"no manager serves at {endpoint}: give its port with --listen or RETINUE_MANAGER_LISTEN"
        )


if __name__ == "__main__":
    health()
