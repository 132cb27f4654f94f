"""Failpoints: steps at which a process in development mode fails when a file says so.

Every step that talks to something outside of the process (a statement, a message, a record, a link, a call of an
engine) passes a point. The name of a point is its layer and step, and after `@` the function that takes it where many
do. Points are always compiled in: while they are switched off, as they are unless a daemon was started with
`--failpoints`, passing one costs a look at a variable of this module.

`--failpoints DIRECTORY` switches them on. A file `DIRECTORY/armed/POINT=ACTION` arms a point once: the first process
that passes it moves the file into `DIRECTORY/fired` and then does what it says. `DIRECTORY/reached` gets a file for
each point that was passed. Several processes may share a directory, and any of them may be started again.

The actions are those of fail(9) in FreeBSD and of fail-rs, and what a caller sees of a lost answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

_log = logging.getLogger(__name__)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

DELAY_SECONDS = 1.5
"""Seconds that the action `delay` takes."""
_PACKAGE = "retinue."
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")


class Action(enum.StrEnum):
    """What happens at a point, before the step or after it.

    `lost` does the step and fails as `error` does, as if its answer were lost; `kill-after` kills the process with
    SIGKILL once the step is done. `cancel` cancels the task; a point of a thread knows no cancellation.
    """

    KILL = "kill"
    ERROR = "error"
    DELAY = "delay"
    CANCEL = "cancel"
    LOST = "lost"
    KILL_AFTER = "kill-after"


THREAD_ACTIONS = tuple(action for action in Action if action is not Action.CANCEL)
"""The actions at points that block."""

Raised = Callable[[str], BaseException]
"""Makes the layer's own error of a text."""


class Failpoints:
    """The points of one process, armed by files. Methods may be called in any thread."""

    def __init__(self, directory: Path, delay: float = DELAY_SECONDS) -> None:
        """Makes the directories. Raises OSError."""
        self._armed, self._fired, self._reached = (directory / name for name in ("armed", "fired", "reached"))
        for made in (self._armed, self._fired, self._reached):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._delay = delay
        self._passed: set[str] = set()

    def take(self, point: str, actions: tuple[Action, ...] = tuple(Action)) -> Action | None:
        """Returns what a point is armed with, and disarms it; None for nothing."""
        if point not in self._passed:
            self._passed.add(point)
            # The directory may be gone.
            with contextlib.suppress(OSError):
                (self._reached / point).touch()
        for action in actions:
            name = f"{point}={action}"
            try:
                # Of all that pass the point, one succeeds.
                (self._armed / name).rename(self._fired / name)
            except OSError:
                continue
            _log.warning("failpoint %s: %s", point, action)
            return action
        return None

    async def awaited(self, point: str, step: Callable[[], Awaitable[Result]], error: Raised) -> Result:
        """Awaits a step, or fails as the point is armed."""
        action = self.take(point)
        if action is Action.DELAY:
            await asyncio.sleep(self._delay)
        elif action is Action.CANCEL:
            # The step itself is interrupted where it waits first, as by a caller that is gone.
            task = asyncio.current_task()
            assert task is not None  # noqa: S101  # coroutines run in tasks
            task.cancel()
        else:
            _fail_before(action, point, error)
        result = await step()
        _fail_after(action, point, error)
        return result

    def blocking(self, point: str, step: Callable[[], Result], error: Raised) -> Result:
        """Does a step that blocks, or fails as the point is armed."""
        action = self.take(point, THREAD_ACTIONS)
        if action is Action.DELAY:
            time.sleep(self._delay)
        _fail_before(action, point, error)
        result = step()
        _fail_after(action, point, error)
        return result


active: Failpoints | None = None
"""The points of this process; None while they are switched off."""


def switch_on(directory: Path | None) -> None:
    """Switches on the points of this process, for good; None leaves them off. Raises OSError."""
    global active  # noqa: PLW0603  # a variable of the module is all that a point looks at
    if directory is not None:
        active = Failpoints(directory)
        _log.warning("failpoints are switched on: this process fails as %s says", directory)


async def reach(point: str, error: Raised) -> None:
    """Passes a point by itself: one between steps of a stream."""
    if active is not None:
        await active.awaited(point, functools.partial(asyncio.sleep, 0), error)


def awaited(
    layer: str, error: Raised, *, sites: bool = False
) -> Callable[[Callable[Parameters, Coroutine[Any, Any, Result]]], Callable[Parameters, Coroutine[Any, Any, Result]]]:
    """Makes a point of a function that is awaited: `LAYER.FUNCTION`, with `sites` one for each function that calls it.

    `error` makes the error of a text that a caller would get when the step fails.
    """

    def decorate(
        function: Callable[Parameters, Coroutine[Any, Any, Result]],
    ) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
        name = f"{layer}.{function.__name__.strip('_')}"

        # What calls a function for others asks what kind it is.
        @functools.wraps(function)
        async def step(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if active is None:
                return await function(*args, **kwargs)
            point = f"{name}@{site(sys._getframe(1))}" if sites else name  # noqa: SLF001  # the frame of who awaits it
            return await active.awaited(point, functools.partial(function, *args, **kwargs), error)

        return step

    return decorate


def blocking(
    layer: str, error: Raised, *, sites: bool = False
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Makes a point of a function that blocks, as `awaited` does."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        name = f"{layer}.{function.__name__.strip('_')}"

        @functools.wraps(function)
        def step(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            if active is None:
                return function(*args, **kwargs)
            point = f"{name}@{site(sys._getframe(1))}" if sites else name  # noqa: SLF001  # the caller's frame
            return active.blocking(point, functools.partial(function, *args, **kwargs), error)

        return step

    return decorate


def site(frame: FrameType | None) -> str:
    """Returns the function of a frame as `module.function`, without the name of the package; comprehensions and lambdas
    belong to the function around them.
    """
    if frame is None:
        return ""
    name = frame.f_code.co_qualname
    while name.endswith(_COMPREHENSIONS):
        name = name.rpartition(".<locals>.")[0] or "<module>"
    return f"{str(frame.f_globals.get('__name__', '')).removeprefix(_PACKAGE)}.{name}"


def disk_error(text: str) -> OSError:
    """Returns the error of a disk that fails."""
    return OSError(5, f"Input/output error: {text}")


def _fail_before(action: Action | None, point: str, error: Raised) -> None:
    if action is Action.KILL:
        _kill()
    if action is Action.ERROR:
        raise error(f"failpoint {point}")


def _fail_after(action: Action | None, point: str, error: Raised) -> None:
    if action is Action.KILL_AFTER:
        _kill()
    if action is Action.LOST:
        raise error(f"failpoint {point}: done, and its answer lost")


def _kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    # Linux ends all threads before any of them goes on.
    raise AssertionError
