"""Steps of ExecuteCode that make no sense, each with the field that is wrong."""

from __future__ import annotations

import uuid

import pytest

from retinue.manager.api.streams.code import MAX_CODE_BYTES, MAX_TEXT_BYTES, wrong_step
from retinue.manager.v1 import kernel_service_pb2 as pb
from retinue.types.v1 import code_pb2

ID = str(uuid.uuid4())


def timed(seconds: int) -> code_pb2.CodeRun:
    run = code_pb2.CodeRun(code="x")
    run.timeout.seconds = seconds
    return run


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        (pb.ExecuteCodeRequest(), ["step"]),
        (pb.ExecuteCodeRequest(open=pb.CodeOpen(session="x")), ["open"]),
        (pb.ExecuteCodeRequest(run=code_pb2.CodeRun()), ["run.program"]),
        (pb.ExecuteCodeRequest(run=code_pb2.CodeRun(run_id="../x", code="x")), ["run.run_id"]),
        (pb.ExecuteCodeRequest(run=code_pb2.CodeRun(code="x" * (MAX_CODE_BYTES + 1))), ["run.code"]),
        (pb.ExecuteCodeRequest(run=code_pb2.CodeRun(batch=code_pb2.CodeBatch())), ["run.batch"]),
        (pb.ExecuteCodeRequest(run=code_pb2.CodeRun(batch=code_pb2.CodeBatch(exec="a\0"))), ["run.batch.exec"]),
        (
            pb.ExecuteCodeRequest(run=code_pb2.CodeRun(batch=code_pb2.CodeBatch(build="x" * (MAX_TEXT_BYTES + 1)))),
            ["run.batch.build"],
        ),
        (pb.ExecuteCodeRequest(run=timed(0)), ["run.timeout"]),
        (pb.ExecuteCodeRequest(run=timed(-1)), ["run.timeout"]),
        (pb.ExecuteCodeRequest(run=timed(10**9)), ["run.timeout"]),
        (
            pb.ExecuteCodeRequest(resume=code_pb2.CodeResume(run_id="", offset=-1)),
            ["resume.run_id", "resume.offset"],
        ),
        (
            pb.ExecuteCodeRequest(input=code_pb2.CodeInput(run_id="x", value="x" * (MAX_TEXT_BYTES + 1))),
            ["input.run_id", "input.value"],
        ),
        (pb.ExecuteCodeRequest(interrupt=code_pb2.CodeInterrupt(run_id=ID[:-1])), ["interrupt.run_id"]),
        (pb.ExecuteCodeRequest(complete=code_pb2.CodeCompletionQuery(code="x", cursor=2)), ["complete.cursor"]),
        (pb.ExecuteCodeRequest(complete=code_pb2.CodeCompletionQuery(code="x", cursor=-1)), ["complete.cursor"]),
    ],
)
def test_wrong_steps(step: pb.ExecuteCodeRequest, fields: list[str]) -> None:
    assert [path for path, _ in wrong_step(step)] == fields


def test_right_steps() -> None:
    for step in (
        pb.ExecuteCodeRequest(run=code_pb2.CodeRun(code="")),
        pb.ExecuteCodeRequest(run=code_pb2.CodeRun(run_id=ID, batch=code_pb2.CodeBatch(exec="*"))),
        pb.ExecuteCodeRequest(run=timed(1)),
        pb.ExecuteCodeRequest(resume=code_pb2.CodeResume(run_id=ID)),
        pb.ExecuteCodeRequest(interrupt=code_pb2.CodeInterrupt(force=True)),
        pb.ExecuteCodeRequest(complete=code_pb2.CodeCompletionQuery(code="x", cursor=1)),
    ):
        assert wrong_step(step) == []
