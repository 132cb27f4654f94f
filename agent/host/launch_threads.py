"""Threads that start kernels: each is used once, because it becomes part of what it starts.

To put a running thread or process into a control group, Linux waits for a grace period of RCU, 10 to 20 ms on an idle
node, longer than all the rest of starting a kernel takes. In version 1 a thread can join by itself, and what it starts
is born inside; so some threads are kept waiting in groups that belong to no attempt yet, and get their name when they
are used. In version 2 only whole processes move, and each kernel's first process joins by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from retinue.agent.host.cgroups import Cgroups

Result = TypeVar("Result")

SPARE = "spare-"
"""The prefix of the names of spare groups; no attempt has such a name."""
TIMEOUT = 30.0
"""Seconds to wait for a spare thread."""
REMOVE_TIMEOUT = 5.0


class Task:
    """Something to be run in a thread of its own; whatever happens to the thread ends with it."""

    def __init__(self, name: str) -> None:
        """The thread is started at once and waits."""
        self.name = name
        self._action: Callable[[], None] | None = None
        self._go = threading.Event()
        self._prepared: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self, prepare: Callable[[], None]) -> None:
        """Has `prepare` run in the thread, which then waits."""
        self._prepare = prepare
        self._thread.start()

    def run(self, action: Callable[[], Result]) -> Result:
        """Runs `action` in the thread and waits for it; raises what it raised, or what preparing raised."""
        if (problem := self._prepared.get(timeout=TIMEOUT)) is not None:
            raise problem
        results: list[Result] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(action())
            except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
                errors.append(error)

        self._action = work
        self.end()
        if errors:
            raise errors[0]
        return results[0]

    def end(self) -> None:
        """Lets the thread end, and waits for that."""
        self._go.set()
        self._thread.join()

    def _main(self) -> None:
        try:
            self._prepare()
        except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
            self._prepared.put(error)
            return
        self._prepared.put(None)
        self._go.wait()
        if self._action is not None:
            self._action()


def in_own_thread(action: Callable[[], Result]) -> Result:
    """Runs something in a thread that is used for nothing else, and waits: it may change what it sees of the node."""
    task = Task("own thread")
    task.start(lambda: None)
    return task.run(action)


class Launchers:
    """Starts things inside control groups that are made for them."""

    def __init__(self, cgroups: Cgroups, spares: int) -> None:
        """`spares` threads are kept waiting."""
        self._cgroups = cgroups
        self._numbers = itertools.count()
        self._spares: queue.SimpleQueue[Task] = queue.SimpleQueue()
        if not cgroups.unified:
            for _ in range(spares):
                self.refill()

    def launch(self, attempt_id: str, action: Callable[[Sequence[str]], Result]) -> Result:
        """Makes the attempt's groups, without limits, and runs `action` so that what it starts is born, or goes,
        into them.

        `action` gets the start of an argument vector that what it starts has to begin with. Blocks; raises OSError and
        what `action` raises.
        """
        if self._cgroups.unified:
            self._cgroups.create(attempt_id)
            prefix = self._cgroups.joining_prefix(attempt_id)
            return in_own_thread(lambda: action(prefix))
        spare = self._spares.get(timeout=TIMEOUT)

        def inside() -> Result:
            self._cgroups.rename(spare.name, attempt_id)
            return action(())

        return spare.run(inside)

    def refill(self) -> None:
        """Starts one more spare thread, in place of one that was used; does not wait for it."""
        if self._cgroups.unified:
            return
        task = Task(f"{SPARE}{next(self._numbers)}")

        def prepare() -> None:
            self._cgroups.create(task.name)
            self._cgroups.join(task.name)

        task.start(prepare)
        self._spares.put(task)

    def close(self) -> None:
        """Ends the threads that were not used, and removes their groups."""
        with contextlib.suppress(queue.Empty):
            while True:
                spare = self._spares.get_nowait()
                spare.end()
                self._cgroups.remove(spare.name, REMOVE_TIMEOUT)
