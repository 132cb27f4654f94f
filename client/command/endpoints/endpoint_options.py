"""Options that say what an endpoint is, in place of a file or on top of one."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeVar

import click

from retinue.client import enum_names
from retinue.client.command.shell import completed_names, options
from retinue.client.command.shell.text_files import read_file
from retinue.client.command.shell.variables import env_options
from retinue.client.errors import UsageError
from retinue.client.manifest import read_manifest
from retinue.client.spec import session_spec
from retinue.manager.v1 import endpoint_pb2 as epb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

file_option = click.option("-f", "--file", "file", metavar="FILE", help="YAML or JSON; - is standard input.")
name_argument = click.argument("endpoint", metavar="NAME")
command_argument = click.argument("command", nargs=-1, metavar="[-- COMMAND…]", type=click.UNPROCESSED)
_Command = TypeVar("_Command", bound="Callable[..., Any]")
_PLAIN_METRICS = ("concurrency", "requests_per_second", "latency", "queue")


def targets(_context: click.Context, parameter: click.Parameter, values: Iterable[str]) -> list[epb.ScalingMetric]:
    """Returns `METRIC=AMOUNT` options as metrics; usage errors for anything else."""
    found = []
    for value in values:
        name, _, amount = value.rpartition("=")
        source, _, detail = name.partition(":")
        source = source.replace("-", "_")
        metric = epb.ScalingMetric(target=amount)
        if source in _PLAIN_METRICS and not detail:
            getattr(metric, source).SetInParent()
        elif source == "utilization" and detail:
            metric.utilization.slot = detail
        elif source == "custom" and detail:
            metric.custom.name = detail
        elif source == "prometheus" and detail:
            metric.prometheus.query = detail
        else:
            known = ", ".join([*_PLAIN_METRICS, "utilization:SLOT", "custom:NAME", "prometheus:QUERY"])
            raise click.BadParameter(f"{value!r} is not METRIC=AMOUNT; metrics are {known}", param=parameter)
        if not _is_amount(amount):
            raise click.BadParameter(f"{amount!r} is not an amount above 0", param=parameter)
        found.append(metric)
    return found


def _is_amount(text: str) -> bool:
    try:
        return Decimal(text) > 0
    except InvalidOperation:
        return False


_REVISION = (
    click.option("--image", help="Image of kernels.  [default: the agent's own host, read-only]"),
    click.option("--isolation", type=options.ISOLATIONS, help="Isolation of kernels."),
    click.option("--pull", type=options.PULL_POLICIES, help="When to pull the image."),
    click.option(
        "--slots", multiple=True, callback=options.slots, metavar="cpu=2,mem=1g", help="Slots of each kernel."
    ),
    env_options,
    click.option(
        "--mount",
        multiple=True,
        callback=options.mounts,
        metavar="SRC:DST[:rw]",
        help="Mount a directory of the nodes; read-only unless `rw`.",
    ),
    click.option("--port", type=click.IntRange(1, 65_535), help="Port of the program, on 0.0.0.0."),
    click.option(
        "--protocol", type=click.Choice(["http1", "http2", "grpc"]), help="Protocol of the port.  [default: http1]"
    ),
    click.option(
        "--readiness",
        metavar="PATH",
        help="Path that answers 200-399 once a replica is ready.  [default: the port is open]",
    ),
    click.option("--max-concurrency", type=click.IntRange(0, 10_000), help="Most concurrent requests of a replica."),
    click.option("--metrics-path", metavar="PATH", help="Path of a replica's own metrics."),
    click.option(
        "--replicas",
        type=click.Choice(["spread", "pack"]),
        help="Spread replicas over agents, or pack them.  [default: spread]",
    ),
)
_ENDPOINT = (
    click.option("--min", "least", type=click.IntRange(0, 1000), help="Fewest replicas; 0 lets the endpoint sleep."),
    click.option("--max", "most", type=click.IntRange(1, 1000), help="Most replicas."),
    click.option(
        "--target",
        "metrics",
        multiple=True,
        callback=targets,
        metavar="METRIC=AMOUNT",
        help="Load of each replica to scale to, as concurrency=8, utilization:cpu=60 or custom:depth=5.",
    ),
    click.option("--public", is_flag=True, help="Answer requests without a token."),
    click.option("--group", default="", shell_complete=completed_names.groups, help="Resource group."),
    click.option("--project", default="", help="Project."),
)


def revision_options(command: _Command) -> _Command:
    """Adds the options that say what a revision is."""
    for option in reversed(_REVISION):
        command = option(command)
    return command


def endpoint_options(command: _Command) -> _Command:
    """Adds the options that say what an endpoint is besides its revision."""
    for option in reversed(_ENDPOINT):
        command = option(command)
    return command


def spec_in(file: str) -> epb.EndpointSpec:
    """Returns the one endpoint in a file. Raises UsageError."""
    source, text = read_file(file)
    found = read_manifest(text, source, default="endpoint").endpoints
    if len(found) != 1:
        raise UsageError(f"{source}: there must be one endpoint in it")
    return found[0][0]


def set_revision(revision: epb.RevisionSpec, given: Mapping[str, Any]) -> None:
    """Does to a revision what its options say; what they do not name stays. Raises UsageError."""
    session = session_spec(
        type="inference",
        image=given["image"] or "",
        isolation=options.chosen_word(given["isolation"]),
        pull_policy=options.chosen_word(given["pull"]),
        command=given["command"],
        environment=given["env"],
        slots=given["slots"],
        mounts=given["mount"],
        replica_placement=options.chosen_word(given["replicas"]),
    )
    session.ClearField("type")
    if session.kernel.command:
        revision.session.kernel.ClearField("command")
    if session.mounts:
        revision.session.ClearField("mounts")
    if revision.session.cluster_size:
        session.ClearField("cluster_size")
    revision.session.MergeFrom(session)
    for field in ("port", "max_concurrency", "metrics_path"):
        if given[field] is not None:
            setattr(revision, field, given[field])
    if given["protocol"]:
        number = enum_names.number(epb.AppProtocol.DESCRIPTOR, given["protocol"])
        revision.protocol = epb.AppProtocol.ValueType(number)
    if given["readiness"]:
        revision.readiness.http.path = given["readiness"]


def set_endpoint(spec: epb.EndpointSpec, given: Mapping[str, Any]) -> None:
    """Does to an endpoint what its options say; what they do not name stays. Raises UsageError."""
    set_revision(spec.revision, given)
    if given["least"] is not None:
        spec.scaling.min = given["least"]
    if given["most"] is not None:
        spec.scaling.max = given["most"]
    if given["metrics"]:
        spec.scaling.ClearField("metrics")
        spec.scaling.metrics.extend(given["metrics"])
    if given["public"]:
        spec.access.mode = epb.ACCESS_MODE_PUBLIC
    if given["group"]:
        spec.revision.session.resource_group = given["group"]
    if given["project"]:
        spec.project = given["project"]
