"""Probes as the contract has them, for who asked for them and for agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.session.probes import ProbeKind
from retinue.rpc.times import milliseconds
from retinue.types.v1 import probe_pb2

if TYPE_CHECKING:
    from retinue.manager.domain.session.probes import Probe


def probe_message(probe: Probe) -> probe_pb2.Probe:
    """Returns a probe with the fields of its kind."""
    message = probe_pb2.Probe(
        period=milliseconds(probe.period),
        timeout=milliseconds(probe.timeout),
        failures=probe.failures,
        successes=probe.successes,
    )
    match probe.kind:
        case ProbeKind.HTTP:
            message.http.path, message.http.port = probe.path, probe.port
            message.http.min_status, message.http.max_status = probe.min_status, probe.max_status
        case ProbeKind.TCP:
            message.tcp.port = probe.port
        case ProbeKind.GRPC:
            message.grpc.service = probe.service
        case ProbeKind.EXEC:
            message.exec.CopyFrom(probe_pb2.ExecProbe(command=probe.command))
    return message
