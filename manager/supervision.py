"""Parts of a leader, each run again by itself when it fails; only the end of the term ends them all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from retinue.manager.domain.errors import ReaderTooSlow
from retinue.manager.domain.session.attempts import ListenerBrokenError, TermOverError
from retinue.manager.store.leadership.leadership import NotLeader
from retinue.manager.store.postgres.database import StoreUnavailable
from retinue.rpc.cancellation import UnrequestedCancellationError, cancellable
from retinue.rpc.retrying import FAILING, Retrying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence

_log = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
SOUND_SECONDS = _LONGEST_PAUSE_SECONDS
"""A part that has failed is sound again once it has run for so long."""


async def supervise(name: str, part: Callable[[], Coroutine[Any, Any, None]], *, pause: float = _PAUSE_SECONDS) -> None:
    """Runs a part until cancelled, again after a pause whatever it failed with.
    What a part does is found again in the store.

    The pause is that given when the database was away or the journal was ahead; after other failures it doubles up to a
    minute, until the part has run for longer than that. Raises NotLeader when the part finds that another leads.

    While it fails, the metric `retinue_failing` has it, and the log a line a minute.
    """
    loop = asyncio.get_running_loop()
    clock, current = loop.time, pause
    passing = Retrying(f"{name} is interrupted", _log, part=name)
    failing = Retrying(f"{name} fails", _log, level=logging.ERROR, part=name)

    def succeed() -> None:
        passing.succeed()
        failing.succeed()

    try:
        while True:
            began = clock()
            sound = loop.call_later(SOUND_SECONDS, succeed) if passing.retries or failing.retries else None
            try:
                await cancellable(part)
                succeed()
            except Exception as error:  # logged; the other parts continue
                if ends_term(error):
                    raise NotLeader(f"{name} finds that the term has ended") from error
                if clock() - began > _LONGEST_PAUSE_SECONDS or will_pass(error):
                    current = pause
                if not will_pass(error):
                    failing.fail(repr(error), unforeseen=error)
                elif not _is_interruption(error):
                    passing.fail(repr(error))
            finally:
                if sound is not None:
                    sound.cancel()
            await asyncio.sleep(current)
            current = min(2 * current, _LONGEST_PAUSE_SECONDS)
    finally:
        # Of a term that has ended nothing fails any more.
        FAILING.labels(name).set(0)


class PartInterruptedError(Exception):
    """A part has to be run again from the start, and what made that necessary is dealt with:
    there is nothing to wait for.
    """


async def all_or_each(what: str, items: Sequence[T], step: Callable[[Sequence[T]], Awaitable[None]]) -> None:
    """Takes a step for all items at once or, when that fails, for each by itself:
    those for which it fails alone are logged.

    Raises what says that the term has ended or that the database is away.
    """
    try:
        await step(items)
    except Exception as error:
        if ends_term(error) or will_pass(error):
            raise
        if len(items) == 1:
            _log.exception("%s is left out: %r", what, items[0])
            return
        for item in items:
            await all_or_each(what, [item], step)


@contextlib.contextmanager
def for_links(what: str) -> Iterator[None]:
    """Translates failures of the store for links to agents, which know ListenerBrokenError and TermOverError only."""
    try:
        yield
    except NotLeader as error:
        raise TermOverError(str(error)) from error
    except StoreUnavailable as error:
        raise ListenerBrokenError(f"the database did not take {what}: {error}") from error


def ends_term(error: BaseException) -> bool:
    """Returns whether a failure says that another leads."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(ends_term, error.exceptions))
    return isinstance(error, NotLeader | TermOverError)


def _is_interruption(error: BaseException) -> bool:
    """Returns whether a failure says only that a part was interrupted, which it deals with itself."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_interruption, error.exceptions))
    return isinstance(error, PartInterruptedError)


def will_pass(error: BaseException) -> bool:
    """Returns whether a failure says only that the database was away, that the journal was too far ahead,
    or that a part was interrupted, or cancelled by nothing.
    """
    if isinstance(error, BaseExceptionGroup):
        return all(map(will_pass, error.exceptions))
    return isinstance(error, StoreUnavailable | ReaderTooSlow | PartInterruptedError | UnrequestedCancellationError)
