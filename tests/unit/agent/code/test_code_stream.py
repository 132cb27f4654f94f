"""A stream of runs ends when all that happened in them was read, however slowly, and not before."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from retinue.agent.api.code import MAX_UNREAD, CodeService
from retinue.agent.code.core.events import Completions, Finished, InputRequest, RunRequest
from retinue.agent.code.runs import Run
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.rpc.core.errors import ApiError, Code
from retinue.types.v1 import code_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STREAMS = 300
"""Each ends at another moment; one in five lost its last events when the last to write
counted as the last to be read.
"""


class Workspaces:
    """One workspace, whose runs go by a random number of steps of the loop."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._running: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, attempt_id: str, language: str) -> AsyncIterator[Workspaces]:
        yield self

    async def add(self, request: RunRequest) -> Run:
        run = Run(request)
        task = asyncio.create_task(self._go(run, self._chance.choice([0, 1, 3, MAX_UNREAD + 10])))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return run

    async def complete(self, code: str, cursor: int) -> Completions:
        await steps(self._chance.randrange(4))
        return Completions()

    async def _go(self, run: Run, count: int) -> None:
        for number in range(count):
            await steps(self._chance.randrange(3))
            # One that is urgent is not kept back for the next.
            run.append(InputRequest(str(number)))
        await steps(self._chance.randrange(3))
        run.append(Finished())


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def asked(chance: random.Random, runs: int, *, wrong: bool = False) -> AsyncIterator[pb.ExecuteCodeRequest]:
    """Runs, then the end of the requests."""
    yield pb.ExecuteCodeRequest(open=pb.CodeOpen(attempt_id="a.1", language="python"))
    for number in range(runs):
        await steps(chance.randrange(5))
        yield pb.ExecuteCodeRequest(input=code_pb2.CodeInput(run=code_pb2.CodeRun(run_id=str(number))))
    query = code_pb2.CodeCompletionQuery(query_id=7)
    yield pb.ExecuteCodeRequest(input=code_pb2.CodeInput(complete=query))
    if wrong:
        yield pb.ExecuteCodeRequest(open=pb.CodeOpen(attempt_id="again"))


async def read(service: CodeService, requests: AsyncIterator[Any], pause: int) -> tuple[list[code_pb2.CodeEvent], int]:
    """All events and the number of completions, with so many steps of the loop between two responses."""
    events: list[code_pb2.CodeEvent] = []
    completions = 0
    async for response in service.serve(requests):
        await steps(pause)
        events += response.output.events.events
        completions += response.output.HasField("completions")
    return events, completions


@pytest.mark.parametrize("pause", [0, 1, 20], ids=["fast", "as fast", "slow"])
async def test_all_events_come_before_the_end(pause: int) -> None:
    for seed in range(STREAMS):
        chance = random.Random(seed)
        service: Any = CodeService(Workspaces(chance))  # type: ignore[arg-type]  # as much of one as is used
        runs = chance.randrange(1, 4)
        events, completions = await read(service, asked(chance, runs), pause)
        assert completions == 1, seed
        for number in range(runs):
            offsets = [event.offset for event in events if event.run_id == str(number)]
            assert offsets == list(range(len(offsets))), seed
            last = next((event for event in reversed(events) if event.run_id == str(number)), None)
            assert last is not None, seed
            assert last.HasField("finished"), seed


async def test_a_step_that_fails_ends_the_stream_behind_what_came_before_it() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        service: Any = CodeService(Workspaces(chance))  # type: ignore[arg-type]  # as much of one as is used
        with pytest.raises(ApiError) as caught:
            await read(service, asked(chance, 2, wrong=True), 20)
        assert caught.value.code is Code.INVALID_ARGUMENT
