"""The progress of a pull is written once a second at most, and its last state is never lost."""

from __future__ import annotations

import uuid

from retinue.manager.domain.agents.pull_progress import PROGRESS_SECONDS, Progress, PullProgress
from retinue.manager.domain.session.attempts import LayerReport

KEY, OTHER = (uuid.UUID(int=1), 1), (uuid.UUID(int=2), 1)


def progress(at: int, key: tuple[uuid.UUID, int] = KEY) -> Progress:
    return Progress(uuid.UUID(int=9), key, (LayerReport("a", at, 100, False),))


def test_what_comes_too_soon_is_written_later_and_only_the_last_of_it() -> None:
    bound = PullProgress()
    assert bound.offer(progress(1), 10.0)
    assert not bound.offer(progress(2), 10.0 + PROGRESS_SECONDS / 4)
    assert not bound.offer(progress(3), 10.0 + PROGRESS_SECONDS / 2)
    # Each attempt has a bound of its own.
    assert bound.offer(progress(1, OTHER), 10.0 + PROGRESS_SECONDS / 2)
    assert bound.due(10.0 + PROGRESS_SECONDS / 2) == []
    assert bound.due(10.0 + PROGRESS_SECONDS) == [progress(3)]
    # It counts as written: what follows waits once more.
    assert not bound.offer(progress(4), 10.0 + PROGRESS_SECONDS * 1.5)
    assert bound.due(10.0 + PROGRESS_SECONDS * 2) == [progress(4)]
    assert bound.due(10.0 + PROGRESS_SECONDS * 9) == []


def test_what_has_ended_is_not_written_later() -> None:
    bound = PullProgress()
    assert bound.offer(progress(1), 0.0)
    assert not bound.offer(progress(2), PROGRESS_SECONDS / 2)
    bound.end(KEY)
    assert bound.due(PROGRESS_SECONDS * 9) == []
