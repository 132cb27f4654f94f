"""Reports that wait share a commit; each is acknowledged after it, and one that cannot be
committed costs itself only.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from retinue.manager.dispatch.reports import ReportQueue
from retinue.manager.domain.session.attempts import AttemptStatus, ListenerBrokenError, NodeReport
from retinue.manager.domain.session.states import Observed
from retinue.manager.store.leadership.leadership import NotLeader
from retinue.manager.store.postgres.database import StoreUnavailable
from tests.link.virtual_time import run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence


def report(agent: str, *numbers: int) -> NodeReport:
    return NodeReport(agent, tuple(AttemptStatus((uuid.UUID(int=number), 1), Observed.RUNNING) for number in numbers))


def committed(
    commit: Callable[[Sequence[NodeReport]], Coroutine[Any, Any, None]], *reports: NodeReport
) -> tuple[list[BaseException | None], BaseException | None]:
    """Returns what the links of the reports are answered, and what the commit of all that waits raises."""

    async def wait() -> tuple[list[BaseException | None], BaseException | None]:
        queue = ReportQueue(commit)
        adding = [asyncio.create_task(queue.add(item)) for item in reports]
        await asyncio.sleep(0)
        (ended,) = await asyncio.gather(queue.commit_next(1.0), return_exceptions=True)
        return await asyncio.gather(*adding, return_exceptions=True), ended

    return run(wait())


def test_reports_that_wait_are_committed_together_and_acknowledged_after() -> None:
    commits: list[list[str]] = []

    async def commit(reports: Sequence[NodeReport]) -> None:
        commits.append([item.agent_id for item in reports])

    assert committed(commit, report("a", 1), report("b", 2)) == ([None, None], None)
    assert commits == [["a", "b"]]
    commits.clear()
    many = [report(str(number), number) for number in range(300)]

    async def add_all() -> None:
        queue = ReportQueue(commit)
        adding = [asyncio.create_task(queue.add(item)) for item in many]
        await asyncio.sleep(0)
        await queue.commit_next(1.0)
        await asyncio.wait(adding, return_when=asyncio.FIRST_COMPLETED)
        assert [task.done() for task in adding] == [True] * 256 + [False] * 44
        await queue.commit_next(1.0)
        await asyncio.gather(*adding)
        before = asyncio.get_running_loop().time()
        await queue.commit_next(1.0)
        assert asyncio.get_running_loop().time() == before + 1.0, "nothing waits"

    run(add_all())
    assert [len(batch) for batch in commits] == [256, 44]


def test_nothing_is_acknowledged_that_the_database_did_not_take() -> None:
    async def commit(_: Sequence[NodeReport]) -> None:
        raise StoreUnavailable("away")

    answers, ended = committed(commit, report("a", 1), report("b", 2))
    assert [type(answer) for answer in answers] == [ListenerBrokenError] * 2
    assert ended is None


@pytest.mark.parametrize("error", [NotLeader("another leads"), asyncio.CancelledError()])
def test_nothing_is_acknowledged_by_a_term_that_ends(error: BaseException) -> None:
    async def commit(_: Sequence[NodeReport]) -> None:
        raise error

    answers, ended = committed(commit, report("a", 1), report("b", 2))
    assert [type(answer) for answer in answers] == [ListenerBrokenError] * 2
    assert type(ended) is type(error)


def test_what_cannot_be_committed_is_left_out_and_everything_else_is_committed() -> None:
    taken: list[int] = []

    async def commit(reports: Sequence[NodeReport]) -> None:
        numbers = [status.key[0].int for item in reports for status in item.attempts]
        if 2 in numbers:
            raise ValueError("odd")
        taken.extend(numbers)

    assert committed(commit, report("a", 1, 2, 3), report("b", 4)) == ([None, None], None)
    assert sorted(taken) == [1, 3, 4]


def test_a_database_that_goes_away_in_the_middle_of_a_report_leaves_it_unacknowledged() -> None:
    async def commit(reports: Sequence[NodeReport]) -> None:
        if len(reports[0].attempts) != 1:
            raise ValueError("odd")
        raise StoreUnavailable("away")

    ((answer,), ended) = committed(commit, report("a", 1, 2))
    assert isinstance(answer, ListenerBrokenError)
    assert ended is None
