"""Reads the options that the daemons of nodes share."""

from __future__ import annotations

from pathlib import Path

import click

metrics = click.option(
    "--metrics",
    default="",
    metavar="HOST:PORT",
    help="Serves metrics to Prometheus there, at /metrics, without TLS and credentials.",
)


def managers(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Returns the addresses of managers; a usage error for anything else."""
    from retinue.rpc.enrollment.managers import parse_managers  # noqa: PLC0415 - kept out of `--help`

    try:
        return parse_managers(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def secret(value: str | None) -> str:
    """Returns a secret, or the content of the file of that name. Raises ClickException when it cannot be read."""
    if not value:
        return ""
    path = Path(value)
    try:
        return path.read_text().strip() if path.is_file() else value
    except OSError as error:
        raise click.ClickException(f"cannot read {value}: {error.strerror}") from error
