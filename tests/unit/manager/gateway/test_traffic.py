"""Reports of bytes, whatever the messages call their fields."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as pb
from opentelemetry.proto.metrics.v1 import metrics_pb2

from retinue.manager.gateway.core.connections import kernel_name
from retinue.manager.gateway.traffic import TrafficReceiver

pytestmark = pytest.mark.asyncio

BUSY, IDLE = b"\x01" * 32, b"\x02" * 32


async def test_an_access_that_carried_bytes_is_in_use() -> None:
    used: list[bytes] = []
    connected: list[bytes] = []
    request = pb.ExportMetricsServiceRequest()
    [scopes] = [
        field
        for field in metrics_pb2.ResourceMetrics.DESCRIPTOR.fields
        if field.number == 2  # its name differs between versions
    ]
    metrics = getattr(request.resource_metrics.add(), scopes.name).add().metrics
    for key, count in ((BUSY, 7), (IDLE, 0)):
        metric = metrics.add(name=f"cluster.{kernel_name(key)}.upstream_cx_rx_bytes_total")
        metric.sum.data_points.add(as_int=count)
    metrics.add(name="something.else").gauge.data_points.add(as_int=5)
    for key, count in ((BUSY, 0), (IDLE, 1)):
        metrics.add(name=f"cluster.{kernel_name(key)}.upstream_cx_active").gauge.data_points.add(as_int=count)
    await TrafficReceiver(used.append, connected.append)._export(request, None)  # noqa: SLF001  # as the engine calls it
    assert used == [BUSY]
    # An idle connection is no use of the session, and keeps the access that it belongs to.
    assert connected == [IDLE]
