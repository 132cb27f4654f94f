"""What Jupyter kernels say as events, runs and their bounds, and the usual commands of batch runs."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.agent.api.code_messages import to_completions, to_events
from retinue.agent.code.core import batch, messages
from retinue.agent.code.core.events import (
    Batch,
    Event,
    Finished,
    Media,
    Notice,
    NumberedEvent,
    Phase,
    RunRequest,
    Text,
    size,
)
from retinue.agent.code.inside import LARGEST_ANSWER, parse_answer
from retinue.agent.code.runs import MAX_BYTES, OffsetPastEndError, Run
from retinue.agent.errors import KernelRuntimeError
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
    sent = to_events("r", [NumberedEvent(offset, event) for offset, event in enumerate(found)])
    assert {event.run_id for event in sent.events} == {"r"}
    assert all(event.WhichOneof("event") for event in sent.events)
    assert pb.CodeEvents.FromString(sent.SerializeToString()) == sent
    for event, message in zip(found, sent.events, strict=True):
        assert size(event) <= message.ByteSize()
    assert to_completions(1, messages.completions(content)).query_id == 1


@pytest.mark.parametrize("answer", [b"", b"\xff", b"[]", b"7", b'{"a"', b"[" * LARGEST_ANSWER, b'{"a":' * 9_000])
def test_an_answer_of_the_launcher_that_makes_no_sense(answer: bytes) -> None:
    with pytest.raises(KernelRuntimeError, match="makes no sense"):
        parse_answer(answer)


def test_streams_and_media() -> None:
    assert list(messages.events_of("stream", {"name": "stderr", "text": "x"})) == [Text("x", errors=True)]
    picture = {"image/png": base64.b64encode(b"\x89PNG").decode(), "text/html": "<b>", "application/json": {"a": 1}}
    (event,) = messages.events_of("display_data", {"data": picture, "transient": {"display_id": "d"}})
    assert isinstance(event, Media)
    forms = {form.mime_type: form.data for form in event.forms}
    assert forms == {"image/png": b"\x89PNG", "text/html": b"<b>", "application/json": b'{"a": 1}'}
    assert (event.display_id, event.result, event.update) == ("d", False, False)


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
    assert isinstance(event, Media)
    assert [form.data for form in event.forms] == [data]


def test_what_is_too_large_is_reported_and_not_sent() -> None:
    huge = {"text/plain": "small", "image/png": base64.b64encode(bytes(messages.LARGEST_MEDIA + 1)).decode()}
    event, shown = messages.events_of("execute_result", {"data": huge})
    assert isinstance(event, Notice)
    assert "too large" in event.message
    assert isinstance(shown, Media)
    assert [form.mime_type for form in shown.forms] == ["text/plain"]
    pieces = list(messages.events_of("stream", {"name": "stdout", "text": "x" * (3 << 20)}))
    assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == "x" * (3 << 20)
    assert max(map(size, pieces)) < 1 << 20


async def test_events_are_read_from_any_offset_while_more_come() -> None:
    run = Run(RunRequest("r"))
    for number in range(3):
        run.append(Text(str(number)))

    async def follow() -> list[tuple[int, Event]]:
        return [(item.offset, item.event) async for events in run.read(1) for item in events]

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    run.append(Text("3"))
    run.append(Finished())
    run.append(Text("nothing comes after the end"))
    assert await following == [(1, Text("1")), (2, Text("2")), (3, Text("3")), (4, Finished())]
    with pytest.raises(OffsetPastEndError):
        await anext(run.read(6))


async def test_the_oldest_events_go_first_and_that_is_reported() -> None:
    run = Run(RunRequest("r"))
    for _ in range(10):
        run.append(Text("x" * (MAX_BYTES // 4)))
    run.append(Finished())
    first, *rest = [event async for events in run.read(0) for event in events]
    assert isinstance(first.event, Notice)
    assert "not kept" in first.event.message
    assert [event.offset for event in rest] == list(range(11 - len(rest), 11))
    assert sum(size(item.event) for item in rest) <= MAX_BYTES


def test_usual_commands() -> None:
    found = batch.steps(Batch("rm x", "*", "*"), "c")
    assert [phase for phase, _ in found] == [Phase.CLEAN, Phase.BUILD, Phase.EXECUTE]
    assert found[0][1] == "rm x"
    assert "make" in found[1][1]
    assert "cc" in found[1][1]
    assert "./main" in found[2][1]
    assert batch.steps(Batch(execute="x"), "python") == [(Phase.EXECUTE, "x")]


def test_characters_in_pieces_and_half_of_one_at_the_end() -> None:
    printer = batch.Printer()
    first, second = "é".encode()
    assert printer.events(bytes([65, first]), errors=False) == [Text("A")]
    assert printer.events(b"x", errors=True) == [Text("x", errors=True)]
    assert printer.events(bytes([second]), errors=False) == [Text("é")]
    assert printer.events(bytes([first]), errors=True) == []
    assert printer.rest() == [Text("�", errors=True)]
