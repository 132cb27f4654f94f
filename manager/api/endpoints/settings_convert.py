"""What is asked for of endpoints, from messages: checked, with defaults filled in; every wrong field is named."""

from __future__ import annotations

import datetime as dt
import ipaddress
import re
from decimal import Decimal
from typing import TYPE_CHECKING

from cryptography import x509

from retinue.manager.domain.endpoints import measures
from retinue.manager.domain.endpoints.model import (
    AccessMode,
    AccessPolicy,
    Affinity,
    Algorithm,
    AppProtocol,
    Cors,
    HashSource,
    RequestRate,
    RoutingPolicy,
)
from retinue.manager.domain.endpoints.rollout import (
    AbortOn,
    Amount,
    BlueGreen,
    Canary,
    CanaryStep,
    Rolling,
    RolloutPolicy,
    Strategy,
)
from retinue.manager.domain.endpoints.scaling import Metric, MetricKind, Rate, ScalingPolicy
from retinue.manager.domain.endpoints.schedules import Schedule, parse_cron, parse_zone
from retinue.manager.domain.endpoints.spec import MAX_REPLICAS, EndpointSettings, ReplicaSpec
from retinue.manager.domain.session.admission import MAX_LABEL_VALUE, MAX_LABELS
from retinue.manager.domain.session.probes import Probe, ProbeKind
from retinue.manager.domain.session.usage import CUDA
from retinue.manager.v1 import endpoint_pb2 as pb
from retinue.rpc.core.amounts import CPU, MEMORY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.duration_pb2 import Duration

    from retinue.manager.server.fields import Violations
    from retinue.types.v1 import cors_pb2, probe_pb2

MAX_CORS = 64
_MAX_NUMBER, _MAX_COMMAND, _MAX_PEM = 32, 8_192, 65_536
MAX_METRICS, MAX_SCHEDULES, MAX_HOSTS, MAX_RANGES, MAX_STEPS = 8, 16, 16, 64, 16
_MAX_PORT, _MAX_CONCURRENCY, _MAX_QUEUE, _MAX_HELD = 65_535, 10_000, 100_000, 10_000
_QUANTILES = {0.5: "0.5", 0.9: "0.9", 0.95: "0.95", 0.99: "0.99"}
_MAX_PERCENT, _MAX_QUERY = 1_000, 4_096
# Slots whose use agents report.
MEASURED_SLOTS = (CPU, MEMORY, CUDA)
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,127}")
_AMOUNT = re.compile(r"(\d{1,4})(%?)")
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)+")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\[\]:-]{1,253}")
# Not with a mask or a zone, which are no networks to the engine.
_NETWORK = re.compile(r"[0-9A-Fa-f:.]+(?:/[0-9]{1,3})?")
_HEALTH = re.compile(r"/[!-~]{0,1023}")


class Reader:
    """Reads messages below one path."""

    def __init__(self, violations: Violations, *, prometheus: bool = False) -> None:
        """`prometheus`: the manager can ask queries."""
        self.violations = violations
        self.prometheus = prometheus

    def settings(self, message: pb.EndpointSpec, path: str) -> EndpointSettings:
        """Returns all that may change without a new revision."""
        scaling = self.scaling(message.scaling, f"{path}.scaling")
        schedules = self.schedules(message.scaling, f"{path}.scaling")
        self.labels(message.labels, f"{path}.labels")
        return EndpointSettings(
            scaling,
            not message.scaling.metrics,
            schedules,
            self.routing(message.routing, f"{path}.routing"),
            self.access(message.access, f"{path}.access"),
            self.rollout(message.rollout, f"{path}.rollout"),
            dict(message.labels),
        )

    def replica(self, message: pb.RevisionSpec, path: str) -> ReplicaSpec:
        """Returns what routers and agents know of a revision's replicas."""
        defaults = ReplicaSpec(1)
        protocol = self.violations.enum(
            f"{path}.protocol", message.protocol, pb.AppProtocol.DESCRIPTOR, unspecified=True
        )
        if message.metrics_path and not _HEALTH.fullmatch(message.metrics_path):
            self.violations.add(f"{path}.metrics_path", "must be a path")
        return ReplicaSpec(
            port=self.violations.integer(f"{path}.port", message.port, 1, _MAX_PORT),
            protocol=AppProtocol(_name(pb.AppProtocol, protocol or 1, "APP_PROTOCOL_")),
            startup=self.probe(message.startup, f"{path}.startup") if message.HasField("startup") else None,
            readiness=self.probe(message.readiness, f"{path}.readiness") if message.HasField("readiness") else None,
            liveness=self.probe(message.liveness, f"{path}.liveness", failures=10)
            if message.HasField("liveness")
            else None,
            max_concurrency=self.violations.integer(
                f"{path}.max_concurrency", message.max_concurrency, 0, _MAX_CONCURRENCY
            ),
            queue=self.violations.integer(f"{path}.queue", message.queue or defaults.queue, 1, _MAX_QUEUE),
            start_timeout=self.span(message, "start_timeout", path, 1, 86_400, defaults.start_timeout),
            drain_timeout=self.span(message, "drain_timeout", path, 0, 86_400, defaults.drain_timeout),
            metrics_path=message.metrics_path,
        )

    def probe(self, message: probe_pb2.Probe, path: str, *, failures: int = 3) -> Probe:
        """Returns a probe."""
        kind = message.WhichOneof("check")
        if kind is None:
            self.violations.add(path, "needs one of http, tcp, grpc and exec")
            return Probe(ProbeKind.TCP)
        http = message.http
        if kind == "http":
            if http.path and not _HEALTH.fullmatch(http.path):
                self.violations.add(f"{path}.http.path", "must begin with / and hold no spaces")
            self.violations.integer(f"{path}.http.min_status", http.min_status or 200, 100, 599)
            self.violations.integer(f"{path}.http.max_status", http.max_status or 399, http.min_status or 200, 599)
        command = message.exec.command
        if kind == "exec" and not command:
            self.violations.add(f"{path}.exec.command", "is required")
        if sum(map(len, command)) > _MAX_COMMAND:
            self.violations.add(f"{path}.exec.command", f"must be at most {_MAX_COMMAND} characters")
        port = http.port if kind == "http" else message.tcp.port if kind == "tcp" else 0
        return Probe(
            ProbeKind(kind.upper()),
            http.path or "/",
            self.violations.integer(f"{path}.{kind}.port", port, 0, _MAX_PORT),
            http.min_status or 200,
            http.max_status or 399,
            self.violations.text(f"{path}.grpc.service", message.grpc.service, 256),
            tuple(command),
            self.span(message, "period", path, 1, 3_600, 10_000),
            self.span(message, "timeout", path, 1, 300, 5_000),
            self.violations.integer(f"{path}.failures", message.failures or failures, 1, 1_000),
            self.violations.integer(f"{path}.successes", message.successes or 1, 1, 100),
        )

    def scaling(self, message: pb.ScalingPolicy, path: str) -> ScalingPolicy:
        """Returns a scaling policy."""
        defaults = ScalingPolicy()
        check = self.violations
        least = check.integer(f"{path}.min", message.min if message.HasField("min") else 1, 0, MAX_REPLICAS)
        most = check.integer(f"{path}.max", message.max or max(1, least), max(1, least), MAX_REPLICAS)
        if len(message.metrics) > MAX_METRICS:
            check.add(f"{path}.metrics", f"must be at most {MAX_METRICS}")
        metrics = [self.metric(item, f"{path}.metrics[{n}]") for n, item in enumerate(message.metrics[:MAX_METRICS])]
        if len({item.name for item in metrics}) < len(metrics):
            check.add(f"{path}.metrics", "holds one twice")
        tolerance = message.tolerance_percent if message.HasField("tolerance_percent") else defaults.tolerance_percent
        return ScalingPolicy(
            min=least,
            max=most,
            metrics=tuple(metrics) or defaults.metrics,
            stable=self.span(message, "stable_window", path, 2, 600, defaults.stable),
            burst=self.span(message, "burst_window", path, 2, 60, defaults.burst),
            hold_up=self.span(message, "hold_up", path, 0, 3_600, defaults.hold_up),
            hold_down=self.span(message, "hold_down", path, 0, 3_600, defaults.hold_down),
            idle_after=self.span(message, "idle_after", path, 10, 86_400, defaults.idle_after),
            burst_percent=check.integer(
                f"{path}.burst_percent", message.burst_percent or defaults.burst_percent, 101, 10_000
            ),
            tolerance_percent=check.integer(f"{path}.tolerance_percent", tolerance, 0, _MAX_PERCENT),
            up=self.rate(message.up, f"{path}.up", defaults.up, _MAX_PERCENT),
            down=self.rate(message.down, f"{path}.down", defaults.down, 100),
            fallback=check.integer(f"{path}.fallback_replicas", message.fallback_replicas, 0, MAX_REPLICAS),
        )

    def rate(self, message: pb.ScalingRate, path: str, default: Rate, most: int) -> Rate:
        """Returns a bound on changes."""
        return Rate(
            self.violations.integer(f"{path}.percent", message.percent or default.percent, 0, most),
            self.violations.integer(f"{path}.step", message.step or default.step, 1, MAX_REPLICAS),
            self.span(message, "period", path, 1, 3_600, default.period),
        )

    def metric(self, message: pb.ScalingMetric, path: str) -> Metric:
        """Returns a metric."""
        source = message.WhichOneof("source")
        name: str = source or ""
        kind = MetricKind.TOTAL
        if source is None:
            self.violations.add(path, "needs a source")
        elif source == "latency":
            quantile = _QUANTILES.get(round(message.latency.quantile or 0.95, 3))
            if quantile is None:
                self.violations.add(f"{path}.latency.quantile", "must be 0.5, 0.9, 0.95 or 0.99")
            name, kind = f"{measures.LATENCY}:{quantile}", MetricKind.PRESSURE
        elif source == measures.UTILIZATION:
            if (slot := message.utilization.slot) not in MEASURED_SLOTS:
                self.violations.add(f"{path}.utilization.slot", f"must be one of {', '.join(MEASURED_SLOTS)}")
            name, kind = f"{measures.UTILIZATION}:{slot}", MetricKind.MEAN
        elif source == measures.CUSTOM:
            if not _METRIC.fullmatch(message.custom.name):
                self.violations.add(f"{path}.custom.name", "must be a name of the Prometheus text format")
            name, kind = f"{measures.CUSTOM}:{message.custom.name}", MetricKind.MEAN
        elif source == measures.PROMETHEUS:
            name = f"{measures.PROMETHEUS}:{self.query(message.prometheus.query, f'{path}.prometheus.query')}"
        return Metric(name, self.thousandths(message.target, f"{path}.target"), kind)

    def shown(self, settings: EndpointSettings, replica: ReplicaSpec, path: str) -> None:
        """Checks that replicas show what the endpoint is scaled by."""
        for number, metric in enumerate(() if replica.metrics_path else settings.scaling.metrics):
            if metric.name.startswith(f"{measures.CUSTOM}:"):
                self.violations.add(f"{path}.metrics[{number}].custom", "needs a metrics_path of the revision")

    def query(self, text: str, path: str) -> str:
        """Returns a query."""
        if not text.strip():
            self.violations.add(path, "is required")
        if not self.prometheus:
            self.violations.add(path, "is not answered: the manager was given no Prometheus server (--prometheus-url)")
        if len(text) > _MAX_QUERY or not text.replace("\n", " ").isprintable():
            self.violations.add(path, f"must be at most {_MAX_QUERY} printable characters")
        return text

    def thousandths(self, text: str, path: str) -> int:
        """Reads a decimal number above 0 with up to three digits after the point."""
        try:
            value = Decimal(text[:_MAX_NUMBER]) * 1_000
            sound = len(text) <= _MAX_NUMBER and value == value.to_integral_value() and 0 < value <= 10**15
        except ArithmeticError:
            sound = False
        if not sound:
            self.violations.add(path, "must be a decimal number above 0, with at most three digits after the point")
            return 1_000
        return int(value)

    def schedules(self, message: pb.ScalingPolicy, path: str) -> tuple[Schedule, ...]:
        """Returns the schedules of a policy."""
        if len(message.schedules) > MAX_SCHEDULES:
            self.violations.add(f"{path}.schedules", f"must be at most {MAX_SCHEDULES}")
            return ()
        found: list[Schedule] = []
        for number, item in enumerate(message.schedules):
            where = f"{path}.schedules[{number}]"
            for field, parse in (("cron", parse_cron), ("time_zone", parse_zone)):
                value = item.cron if field == "cron" else item.time_zone or "UTC"
                try:
                    parse(value)
                except ValueError as error:
                    self.violations.add(f"{where}.{field}", str(error))
            found.append(
                Schedule(
                    item.cron,
                    self.span(item, "duration", where, 60, 7 * 86_400, 0),
                    self.violations.integer(f"{where}.replicas", item.replicas, 1, MAX_REPLICAS),
                    item.time_zone or "UTC",
                )
            )
            if not item.HasField("duration"):
                self.violations.add(f"{where}.duration", "is required")
        return tuple(found)

    def routing(self, message: pb.RoutingPolicy, path: str) -> RoutingPolicy:
        """Returns a routing policy."""
        defaults = RoutingPolicy()
        check = self.violations
        number = check.enum(f"{path}.algorithm", message.algorithm, pb.RoutingAlgorithm.DESCRIPTOR, unspecified=True)
        algorithm = Algorithm(_name(pb.RoutingAlgorithm, number or 1, "ROUTING_ALGORITHM_"))
        source, name = HashSource.CLIENT_ADDRESS, ""
        if (key := message.hash_key.WhichOneof("source")) in ("header", "cookie"):
            source, name = HashSource(key.upper()), getattr(message.hash_key, key)
            if not _TOKEN.fullmatch(name):
                check.add(f"{path}.hash_key.{key}", "must be a name")
        if message.HasField("hash_key") and algorithm is not Algorithm.HASH:
            check.add(f"{path}.hash_key", "is for ROUTING_ALGORITHM_HASH")
        if algorithm is Algorithm.PICKER:
            check.address(f"{path}.picker.address", message.picker.address)
        if message.picker.ca and not _is_authority(message.picker.ca):
            check.add(f"{path}.picker.ca", f"must be certificates in PEM, at most {_MAX_PEM} characters")
        if len(message.hosts) > MAX_HOSTS:
            check.add(f"{path}.hosts", f"must be at most {MAX_HOSTS}")
        for place, host in enumerate(message.hosts[:MAX_HOSTS]):
            if not _HOST.fullmatch(host):
                check.add(f"{path}.hosts[{place}]", "must be a host name in small letters")
        return RoutingPolicy(
            algorithm,
            source,
            name,
            message.picker.address,
            message.picker.ca,
            self.span(message, "request_timeout", path, 0, 86_400, 0),
            self.span(message, "idle_timeout", path, 1, 86_400, defaults.idle_timeout_ms),
            self.span(message, "hold_timeout", path, 0, 3_600, defaults.hold_timeout_ms),
            check.integer(f"{path}.hold_limit", message.hold_limit or defaults.hold_limit, 1, _MAX_HELD),
            message.retry_idempotent,
            self.affinity(message.affinity, f"{path}.affinity") if message.HasField("affinity") else None,
            self.cors(message.cors, f"{path}.cors") if message.HasField("cors") else None,
            tuple(message.hosts),
        )

    def affinity(self, message: pb.Affinity, path: str) -> Affinity:
        """Returns how clients stay with a replica."""
        if not _TOKEN.fullmatch(message.cookie):
            self.violations.add(f"{path}.cookie", "must be the name of a cookie")
        return Affinity(message.cookie, self.span(message, "lifetime", path, 1, 30 * 86_400, 3_600_000))

    def cors(self, message: cors_pb2.Cors, path: str) -> Cors:
        """Returns what pages of other origins may do."""
        defaults = Cors(())
        for field in ("origins", "methods", "headers"):
            if len(getattr(message, field)) > MAX_CORS:
                self.violations.add(f"{path}.{field}", f"must be at most {MAX_CORS}")
        for place, origin in enumerate(message.origins[:MAX_CORS]):
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                self.violations.add(f"{path}.origins[{place}]", "must be * or like https://example.test")
        if not message.origins:
            self.violations.add(f"{path}.origins", "is required")
        if message.credentials and "*" in message.origins:
            self.violations.add(f"{path}.credentials", "must not be set for all origins")
        for field in ("methods", "headers"):
            if not all(_TOKEN.fullmatch(item) for item in getattr(message, field)):
                self.violations.add(f"{path}.{field}", "must be names")
        return Cors(
            tuple(message.origins),
            tuple(message.methods) or defaults.methods,
            tuple(message.headers),
            message.credentials,
            self.span(message, "max_age", path, 0, 86_400, defaults.max_age_ms),
        )

    def access(self, message: pb.AccessPolicy, path: str) -> AccessPolicy:
        """Returns an access policy."""
        number = self.violations.enum(f"{path}.mode", message.mode, pb.AccessMode.DESCRIPTOR, unspecified=True)
        rate = None
        if message.HasField("per_token"):
            rate = RequestRate(
                self.violations.integer(f"{path}.per_token.requests", message.per_token.requests, 1, 1_000_000),
                self.span(message.per_token, "period", f"{path}.per_token", 1, 86_400, 1_000),
            )
        if len(message.source_ranges) > MAX_RANGES:
            self.violations.add(f"{path}.source_ranges", f"must be at most {MAX_RANGES}")
        for place, network in enumerate(message.source_ranges[:MAX_RANGES]):
            if not _is_network(network):
                self.violations.add(f"{path}.source_ranges[{place}]", "must be a network in CIDR notation")
        mode = AccessMode.PUBLIC if number == pb.ACCESS_MODE_PUBLIC else AccessMode.TOKEN
        return AccessPolicy(mode, rate, tuple(message.source_ranges))

    def rollout(self, message: pb.RolloutSpec, path: str) -> RolloutPolicy:
        """Returns how a revision takes over."""
        strategy: Strategy
        match message.WhichOneof("strategy"):
            case "blue_green":
                where = f"{path}.blue_green"
                keep = self.span(message.blue_green, "keep_old", where, 0, 86_400, BlueGreen().keep_old)
                strategy = BlueGreen(keep, message.blue_green.automatic)
            case "canary":
                strategy = Canary(self.steps(message.canary, f"{path}.canary"))
            case _:
                strategy = Rolling(
                    self.amount(message.rolling.max_surge or "1", f"{path}.rolling.max_surge"),
                    self.amount(message.rolling.max_unavailable or "0", f"{path}.rolling.max_unavailable"),
                )
                if strategy == Rolling(Amount(), Amount()):
                    self.violations.add(f"{path}.rolling.max_surge", "must not be 0 beside max_unavailable 0")
        abort_on = None
        if message.HasField("abort_on"):
            abort_on = AbortOn(
                self.violations.integer(f"{path}.abort_on.error_percent", message.abort_on.error_percent, 1, 100),
                self.violations.integer(
                    f"{path}.abort_on.min_requests", message.abort_on.min_requests or 100, 1, 1_000_000
                ),
            )
        timeout = self.span(message, "progress_timeout", path, 60, 7 * 86_400, RolloutPolicy().progress_timeout)
        return RolloutPolicy(strategy, abort_on, timeout)

    def steps(self, message: pb.CanaryRollout, path: str) -> tuple[CanaryStep, ...]:
        """Returns the steps of a canary, which rise."""
        if not 1 <= len(message.steps) <= MAX_STEPS:
            self.violations.add(f"{path}.steps", f"must be from 1 to {MAX_STEPS}")
            return ()
        steps, before = [], 0
        for number, item in enumerate(message.steps):
            where = f"{path}.steps[{number}]"
            if not before < item.percent <= 99:  # noqa: PLR2004  # the whole comes last by itself
                self.violations.add(f"{where}.percent", "must be from 1 to 99, and more than in the step before")
            before = item.percent
            hold = self.span(item, "hold", where, 0, 7 * 86_400, 0) if item.HasField("hold") else None
            steps.append(CanaryStep(item.percent, hold))
        return tuple(steps)

    def amount(self, text: str, path: str) -> Amount:
        """Reads a number of replicas or a percentage."""
        match = _AMOUNT.fullmatch(text)
        if match is None:
            self.violations.add(path, "must be a number, or a percentage as 25%")
            return Amount(1)
        return Amount(percent=int(match[1])) if match[2] else Amount(int(match[1]))

    def labels(self, labels: Mapping[str, str], path: str) -> None:
        """Checks labels."""
        self.violations.mapping(path, labels, MAX_LABELS)
        for key, value in sorted(labels.items()):
            self.violations.text(f"{path}[{key[:64]!r}]", value, MAX_LABEL_VALUE)

    def span(  # noqa: PLR0917  # a field, its bounds and its default
        self, message: object, field: str, path: str, lowest: int, highest: int, default: int
    ) -> int:
        """Returns a duration in milliseconds between bounds in seconds;
        the default, in milliseconds, when it is not given.
        """
        if not message.HasField(field):  # type: ignore[attr-defined]  # any message with the field
            return default
        value: Duration = getattr(message, field)
        bounds = dt.timedelta(seconds=lowest), dt.timedelta(seconds=highest)
        return self.violations.duration(f"{path}.{field}", value, *bounds) // dt.timedelta(milliseconds=1)


def _is_network(text: str) -> bool:
    try:
        return _NETWORK.fullmatch(text) is not None and bool(ipaddress.ip_network(text))
    except ValueError:
        return False


def _is_authority(text: str) -> bool:
    """Returns whether a text is one certificate or more in PEM, and nothing that the engine would refuse."""
    try:
        return len(text) <= _MAX_PEM and bool(x509.load_pem_x509_certificates(text.encode()))
    except (ValueError, x509.InvalidVersion):
        return False


def _name(enum: object, number: int, prefix: str) -> str:
    names: Mapping[int, str] = {value: name for name, value in enum.items()}  # type: ignore[attr-defined]  # of a generated enum
    return names.get(number, names[1]).removeprefix(prefix)
