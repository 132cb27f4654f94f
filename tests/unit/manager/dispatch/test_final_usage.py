"""What agents report that an attempt had used."""

from __future__ import annotations

import datetime as dt
import uuid

from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.manager.dispatch import convert
from retinue.manager.domain.session.attempts import NodeReport
from retinue.manager.domain.session.final_usage import FinalUsage
from retinue.types.v1 import usage_pb2

KERNEL = uuid.UUID(int=7)


def reported(usage: usage_pb2.ResourceUsage | None) -> FinalUsage | None:
    status = pb.AttemptStatus(attempt_id=f"{KERNEL}.1", state=pb.ATTEMPT_STATE_EXITED, usage=usage)
    report = convert.parse("node", pb.SyncResponse(report=pb.Report(sequence=1, attempts=[status])))
    assert isinstance(report, NodeReport)
    (found,) = report.attempts
    return found.usage


def test_what_was_not_counted_is_not_zero() -> None:
    assert reported(None) is None
    assert reported(usage_pb2.ResourceUsage()) == FinalUsage(None)
    usage = usage_pb2.ResourceUsage(memory_peak_bytes=5, read_bytes=0)
    usage.sample_time.FromSeconds(1_800_000_000)
    usage.cpu_time.FromMilliseconds(1_500)
    assert reported(usage) == FinalUsage(
        dt.datetime.fromtimestamp(1_800_000_000, dt.UTC), cpu=1_500_000_000, memory_peak=5, read=0
    )


def test_numbers_that_no_node_has_are_brought_to_the_nearest() -> None:
    usage = usage_pb2.ResourceUsage(memory_peak_bytes=-5, written_bytes=2**63 - 1)
    usage.cpu_time.seconds, usage.cpu_time.nanos = 2**62, -1
    usage.sample_time.seconds = 2**62
    assert reported(usage) == FinalUsage(None, cpu=2**53, memory_peak=0, written=2**53)
    usage.cpu_time.seconds = -1
    found = reported(usage)
    assert found is not None
    assert found.cpu == 0
