"""Takes the engine's reports of bytes: they pass no part of the manager,
and count as use of their session all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as pb

from retinue.manager.gateway.core.connections import parse_counter, parse_gauge

if TYPE_CHECKING:
    from collections.abc import Callable

_SERVICE = pb.DESCRIPTOR.services_by_name["MetricsService"].full_name


# Of `ResourceMetrics`: its name differs between versions of the messages, and what is sent does not.
_SCOPES = 2


class TrafficReceiver:
    """The service that the engine reports to; belongs on one event loop."""

    def __init__(self, used: Callable[[bytes], None], connected: Callable[[bytes], None]) -> None:
        """`used` gets the hash of each access that carried bytes since the last report,
        `connected` of each with a connection now.
        """
        self._used = used
        self._connected = connected

    def add_to(self, server: grpc.aio.Server) -> None:
        """Has a server serve it."""
        method = grpc.unary_unary_rpc_method_handler(
            self._export,
            request_deserializer=pb.ExportMetricsServiceRequest.FromString,
            response_serializer=pb.ExportMetricsServiceResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": method}),))

    async def _export(self, request: Any, _context: Any) -> Any:
        for resource in request.resource_metrics:
            for metrics in _metrics(resource):
                for metric in metrics:
                    key = parse_counter(metric.name)
                    if key is not None and any(point.as_int > 0 for point in metric.sum.data_points):
                        self._used(key)
                    key = parse_gauge(metric.name)
                    if key is not None and any(point.as_int > 0 for point in metric.gauge.data_points):
                        self._connected(key)
        return pb.ExportMetricsServiceResponse()


def _metrics(resource: Any) -> list[Any]:
    """Returns the lists of metrics of a resource."""
    return [scope.metrics for field, scopes in resource.ListFields() if field.number == _SCOPES for scope in scopes]
