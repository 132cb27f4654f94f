"""What the agent's process lacks of its node: how it is answered, logged and shown."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from retinue.agent.api.errors import answer_of, not_running, unforeseen
from retinue.agent.conditions import Conditions
from retinue.agent.errors import KernelRuntimeError, NotRunningError, WorkDirectoryMissingError
from retinue.agent.node_faults import QUIET, NodeFaults, fault_of
from retinue.rpc.core.errors import Code, ServiceError
from retinue.rpc.core.reasons import AgentConditionReason, ErrorReason


def lacking(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/var/lib/x")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (lacking(errno.EMFILE), "LimitNOFILE="),
        (lacking(errno.ENFILE), "fs.file-max"),
        (lacking(errno.EROFS), "mount it writable"),
        (lacking(errno.ENOSPC), "free space"),
        (RuntimeError("can't start new thread"), "TasksMax="),
    ],
)
def test_a_lack_of_the_node_is_answered_with_what_to_do_and_is_no_defect(
    error: Exception, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    for found in (error, _behind(error)):
        answer = unforeseen(found)
        assert isinstance(answer, ServiceError)
        assert (answer.code, answer.reason) == (Code.UNAVAILABLE, ErrorReason.UNAVAILABLE)
        assert says in str(answer)
    assert not [record for record in caplog.records if record.exc_info]


def _behind(error: Exception) -> Exception:
    try:
        try:
            raise error
        except Exception as first:
            raise KernelRuntimeError("the helper cannot be started") from first
    except KernelRuntimeError as second:
        return second


def test_what_a_handler_says_is_completed_and_keeps_its_code() -> None:
    refused = ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, "the helper cannot be started")
    refused.__cause__ = _behind(lacking(errno.EMFILE))
    assert str(answer_of(refused)).startswith("the helper cannot be started: ")
    assert "LimitNOFILE=" in str(answer_of(refused))
    wrong = ServiceError(Code.RESOURCE_EXHAUSTED, ErrorReason.NO_SPACE, "no space", path="x")
    wrong.__cause__ = lacking(errno.ENOSPC)
    assert answer_of(wrong) is wrong
    plain = ServiceError(Code.UNAVAILABLE, ErrorReason.UNAVAILABLE, "the agent is stopping")
    assert answer_of(plain) is plain


@pytest.mark.parametrize(
    "error", [lacking(errno.ENOENT), lacking(errno.EIO), ValueError("x"), BlockingIOError(11, "x")]
)
def test_other_errors_are_defects(error: Exception) -> None:
    assert fault_of(error) is None
    assert unforeseen(error).reason == ErrorReason.INTERNAL


def test_watches_of_files_are_no_disk_that_is_full() -> None:
    assert fault_of(OSError(errno.ENOSPC, "inotify_add_watch /x: No space left on device")) is None


def test_a_kernel_that_only_lost_its_directory_has_not_ended() -> None:
    lost = not_running("k.1", WorkDirectoryMissingError())
    assert isinstance(lost, ServiceError)
    assert lost.code is Code.FAILED_PRECONDITION
    assert lost.metadata == {}
    assert "started again" in str(lost)
    assert not_running("k.1", NotRunningError("x")).metadata["kind"] == "attempt"


class Written(logging.Handler):
    """Keeps the lines that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert not record.exc_info
        self.lines.append(record.getMessage())


def test_of_a_lack_the_log_has_a_line_a_minute_and_the_node_a_condition_until_it_has_ended() -> None:
    now = [1000.0]
    conditions = Conditions(lambda: now[0])
    faults = NodeFaults(conditions, lambda: now[0])
    logger, handler = logging.getLogger("retinue.agent"), Written()
    handler.addFilter(faults)
    logger.addHandler(handler)
    try:
        for number in range(120):
            now[0] += 1
            try:
                raise lacking(errno.EMFILE)
            except OSError as error:
                logger.exception("something failed")
                logger.error("start of k%d failed, to be tried again: %s", number, error)
            faults.look()
        assert len(handler.lines) == 2
        assert all("LimitNOFILE=" in line for line in handler.lines)
        (condition,) = conditions.all()
        assert condition.reason == AgentConditionReason.LIMIT_REACHED
        assert "LimitNOFILE=" in condition.message
        logger.error("another line: %s", ValueError("x"))
        assert handler.lines[-1] == "another line: x"
        now[0] += QUIET
        faults.look()
        assert conditions.all() == ()
        assert "no longer so" in handler.lines[-1]
    finally:
        logger.removeHandler(handler)
