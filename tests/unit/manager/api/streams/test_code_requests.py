"""Steps of ExecuteCode that make no sense, each with the field that is wrong."""

from __future__ import annotations

import uuid

import pytest

from retinue.manager.api.streams.code import MAX_CODE_BYTES, MAX_TEXT_BYTES, wrong_input
from retinue.types.v1 import code_pb2

ID = str(uuid.uuid4())


def timed(seconds: int) -> code_pb2.CodeRun:
    run = code_pb2.CodeRun(code="x")
    run.timeout.seconds = seconds
    return run


@pytest.mark.parametrize(
    ("step", "fields"),
    [
        (code_pb2.CodeInput(), ["step"]),
        (code_pb2.CodeInput(run=code_pb2.CodeRun()), ["run.program"]),
        (code_pb2.CodeInput(run=code_pb2.CodeRun(run_id="../x", code="x")), ["run.run_id"]),
        (code_pb2.CodeInput(run=code_pb2.CodeRun(code="x" * (MAX_CODE_BYTES + 1))), ["run.code"]),
        (code_pb2.CodeInput(run=code_pb2.CodeRun(batch=code_pb2.CodeBatch())), ["run.batch"]),
        (code_pb2.CodeInput(run=code_pb2.CodeRun(batch=code_pb2.CodeBatch(exec="a\0"))), ["run.batch.exec"]),
        (
            code_pb2.CodeInput(run=code_pb2.CodeRun(batch=code_pb2.CodeBatch(build="x" * (MAX_TEXT_BYTES + 1)))),
            ["run.batch.build"],
        ),
        (code_pb2.CodeInput(run=timed(0)), ["run.timeout"]),
        (code_pb2.CodeInput(run=timed(-1)), ["run.timeout"]),
        (code_pb2.CodeInput(run=timed(10**9)), ["run.timeout"]),
        (
            code_pb2.CodeInput(resume=code_pb2.CodeResume(run_id="", offset=-1)),
            ["resume.run_id", "resume.offset"],
        ),
        (
            code_pb2.CodeInput(answer=code_pb2.CodeAnswer(run_id="x", value="x" * (MAX_TEXT_BYTES + 1))),
            ["answer.run_id", "answer.value"],
        ),
        (code_pb2.CodeInput(interrupt=code_pb2.CodeInterrupt(run_id=ID[:-1])), ["interrupt.run_id"]),
        (code_pb2.CodeInput(complete=code_pb2.CodeCompletionQuery(code="x", cursor=2)), ["complete.cursor"]),
        (code_pb2.CodeInput(complete=code_pb2.CodeCompletionQuery(code="x", cursor=-1)), ["complete.cursor"]),
    ],
)
def test_wrong_steps(step: code_pb2.CodeInput, fields: list[str]) -> None:
    assert [path for path, _ in wrong_input(step)] == [f"input.{field}" for field in fields]


def test_right_steps() -> None:
    for step in (
        code_pb2.CodeInput(run=code_pb2.CodeRun(code="")),
        code_pb2.CodeInput(run=code_pb2.CodeRun(run_id=ID, batch=code_pb2.CodeBatch(exec="*"))),
        code_pb2.CodeInput(run=timed(1)),
        code_pb2.CodeInput(resume=code_pb2.CodeResume(run_id=ID)),
        code_pb2.CodeInput(interrupt=code_pb2.CodeInterrupt(force=True)),
        code_pb2.CodeInput(complete=code_pb2.CodeCompletionQuery(code="x", cursor=1)),
    ):
        assert wrong_input(step) == []
