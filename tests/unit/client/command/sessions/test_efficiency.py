"""What `retinue get` says of kernels that have ended: what they had used of what they asked for."""

from __future__ import annotations

import pytest

from retinue.client.command.sessions.session_views import cpu_used, memory_used, print_session
from retinue.manager.v1 import session_pb2 as pb


def ended(seconds: float | None, peak: int | None, **slots: str) -> tuple[pb.Session, pb.Kernel]:
    session = pb.Session(kernels=[pb.Kernel(hostname="main1", slots=slots)])
    session.start_time.FromSeconds(1000)
    kernel = session.kernels[0]
    kernel.end_time.FromSeconds(1060)
    if seconds is not None:
        kernel.usage.cpu_time.FromMilliseconds(round(seconds * 1000))
    if peak is not None:
        kernel.usage.memory_peak_bytes = peak
    return session, kernel


@pytest.mark.parametrize(
    ("seconds", "slots", "shown"),
    [
        (90.0, {"cpu": "2"}, "1m30s (75%)"),
        (0.25, {"cpu": "0.5"}, "0.2s (1%)"),
        (0.0, {"cpu": "1"}, "0.0s (0%)"),
        (12.0, {}, "12s"),
        (12.0, {"cpu": "many"}, "12s"),
        (None, {"cpu": "1"}, "-"),
    ],
)
def test_processor_time(seconds: float | None, slots: dict[str, str], shown: str) -> None:
    assert cpu_used(*ended(seconds, None, **slots)) == shown


def test_a_kernel_without_times_has_no_part() -> None:
    session, kernel = ended(12.0, None, cpu="1")
    session.ClearField("start_time")
    assert cpu_used(session, kernel) == "12s"
    session.start_time.CopyFrom(kernel.end_time)
    assert cpu_used(session, kernel) == "12s"


@pytest.mark.parametrize(
    ("peak", "slots", "shown"),
    [(2**29, {"mem": "2g"}, "512m (25%)"), (5, {}, "5"), (None, {"mem": "1g"}, "-"), (0, {"mem": "1g"}, "0 (0%)")],
)
def test_memory(peak: int | None, slots: dict[str, str], shown: str) -> None:
    _, kernel = ended(None, peak, **slots)
    assert memory_used(kernel) == shown


def test_columns_are_there_once_something_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    print_session("table", ended(90.0, 2**29, cpu="2", mem="2g")[0])
    assert "1m30s (75%)" in capsys.readouterr().out
    session, kernel = ended(None, None, cpu="2")
    kernel.ClearField("usage")
    print_session("table", session)
    assert "CPU TIME" not in capsys.readouterr().out
