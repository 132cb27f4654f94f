"""A stream of code keeps its session in use while it is being opened, and while any of its runs continues."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from retinue.manager.api.streams.code import RunningCode
from retinue.types.v1 import code_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_it_is_held_while_anything_continues() -> None:
    holds = 0

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        nonlocal holds
        holds += 1
        try:
            yield
        finally:
            holds -= 1

    def event(run_id: str, **what: object) -> pb.CodeEvents:
        return pb.CodeEvents(events=[pb.CodeEvent(run_id=run_id, **what)])  # type: ignore[arg-type]  # one of the events

    running = RunningCode(hold)
    with running:
        assert holds == 1, "the language is being started"
        running.opened()
        assert holds == 0
        running.note(event("a", queued=pb.CodeQueued()))
        running.note(event("b", started=pb.CodeStarted()))
        running.note(event("a", stdout="x"))
        assert holds == 1
        running.note(event("a", finished=pb.CodeFinished()))
        assert holds == 1, "the other continues"
        running.note(event("b", finished=pb.CodeFinished()))
        assert holds == 0
        running.note(event("c", started=pb.CodeStarted()))
        assert holds == 1
    assert holds == 0, "the stream has ended"
