"""What Jupyter kernels say as events, runs and their bounds, and the usual commands of batch runs."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.code import batch, messages
from retinue.agent.code.inside import LARGEST_ANSWER, parse_answer
from retinue.agent.code.runs import MAX_BYTES, OffsetPastEndError, Run
from retinue.agent.errors import BackendError
from retinue.types.v1 import code_pb2 as pb

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = ("name", "text", "data", "transient", "display_id", "status", "ename", "evalue", "traceback", "prompt")
KINDS = ("stream", "display_data", "update_display_data", "execute_result", "clear_output", "other")


@given(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES) | st.text(), ANYTHING))
def test_whatever_a_kernel_says_becomes_events_that_can_be_sent(kind: str, content: dict[str, Any]) -> None:
    found = [*messages.events_of(kind, content), messages.input_request(content), messages.finished(content)]
    for event in found:
        assert pb.CodeEvent.FromString(event.SerializeToString()) == event
    assert messages.completions(1, content).query_id == 1


@pytest.mark.parametrize("answer", [b"", b"\xff", b"[]", b"7", b'{"a"', b"[" * LARGEST_ANSWER, b'{"a":' * 9_000])
def test_an_answer_of_the_launcher_that_makes_no_sense(answer: bytes) -> None:
    with pytest.raises(BackendError, match="makes no sense"):
        parse_answer(answer)


def test_streams_and_media() -> None:
    assert list(messages.events_of("stream", {"name": "stderr", "text": "x"})) == [pb.CodeEvent(stderr="x")]
    picture = {"image/png": base64.b64encode(b"\x89PNG").decode(), "text/html": "<b>", "application/json": {"a": 1}}
    (event,) = messages.events_of("display_data", {"data": picture, "transient": {"display_id": "d"}})
    forms = {form.mime_type: form.data for form in event.media.forms}
    assert forms == {"image/png": b"\x89PNG", "text/html": b"<b>", "application/json": b'{"a": 1}'}
    assert (event.media.display_id, event.media.result, event.media.update) == ("d", False, False)


@pytest.mark.parametrize(
    ("mime_type", "sent", "data"),
    [
        ("image/png", base64.encodebytes(bytes(range(256))).decode(), bytes(range(256))),
        ("application/pdf", base64.b64encode(b"%PDF").decode(), b"%PDF"),
        ("image/svg+xml", "<svg/>", b"<svg/>"),
        ("application/x-latex", "abcd", b"abcd"),
        ("application/vnd.x.v1+json", {"a": [1]}, b'{"a": [1]}'),
        ("image/png", "<no base64>", b"<no base64>"),
    ],
)
def test_only_what_is_no_text_is_in_base64(mime_type: str, sent: object, data: bytes) -> None:
    (event,) = messages.events_of("display_data", {"data": {mime_type: sent}})
    assert [form.data for form in event.media.forms] == [data]


def test_what_is_too_large_is_told_and_not_sent() -> None:
    huge = {"text/plain": "small", "image/png": base64.b64encode(bytes(messages.LARGEST_MEDIA + 1)).decode()}
    told, shown = messages.events_of("execute_result", {"data": huge})
    assert "too large" in told.log.message
    assert [form.mime_type for form in shown.media.forms] == ["text/plain"]
    pieces = list(messages.events_of("stream", {"name": "stdout", "text": "x" * (3 << 20)}))
    assert "".join(piece.stdout for piece in pieces) == "x" * (3 << 20)
    assert max(piece.ByteSize() for piece in pieces) < 1 << 20


async def test_events_are_read_from_any_offset_while_more_come() -> None:
    run = Run(pb.CodeRun(run_id="r"))
    for number in range(3):
        run.append(pb.CodeEvent(stdout=str(number)))

    async def follow() -> list[pb.CodeEvent]:
        return [event async for events in run.read(1) for event in events]

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    run.append(pb.CodeEvent(stdout="3"))
    run.append(pb.CodeEvent(finished=pb.CodeFinished()))
    run.append(pb.CodeEvent(stdout="nothing comes after the end"))
    events = await following
    assert [(event.offset, event.stdout) for event in events] == [(1, "1"), (2, "2"), (3, "3"), (4, "")]
    assert {event.run_id for event in events} == {"r"}
    with pytest.raises(OffsetPastEndError):
        await anext(run.read(6))


async def test_the_oldest_events_go_first_and_that_is_told() -> None:
    run = Run(pb.CodeRun(run_id="r"))
    for _ in range(10):
        run.append(pb.CodeEvent(stdout="x" * (MAX_BYTES // 4)))
    run.append(pb.CodeEvent(finished=pb.CodeFinished()))
    first, *rest = [event async for events in run.read(0) for event in events]
    assert "not kept" in first.log.message
    assert [event.offset for event in rest] == list(range(11 - len(rest), 11))
    assert sum(event.ByteSize() for event in rest) <= MAX_BYTES


def test_usual_commands() -> None:
    found = batch.steps(pb.CodeBatch(clean="rm x", build="*", exec="*"), "c")
    assert [phase for phase, _ in found] == [pb.CODE_PHASE_CLEAN, pb.CODE_PHASE_BUILD, pb.CODE_PHASE_EXEC]
    assert found[0][1] == "rm x"
    assert "make" in found[1][1]
    assert "cc" in found[1][1]
    assert "./main" in found[2][1]
    assert batch.steps(pb.CodeBatch(exec="x"), "python") == [(pb.CODE_PHASE_EXEC, "x")]


def test_characters_in_pieces_and_half_of_one_at_the_end() -> None:
    printer = batch.Printer()
    first, second = "é".encode()
    assert printer.events(bytes([65, first]), errors=False) == [pb.CodeEvent(stdout="A")]
    assert printer.events(b"x", errors=True) == [pb.CodeEvent(stderr="x")]
    assert printer.events(bytes([second]), errors=False) == [pb.CodeEvent(stdout="é")]
    assert printer.events(bytes([first]), errors=True) == []
    assert printer.rest() == [pb.CodeEvent(stderr="�")]
