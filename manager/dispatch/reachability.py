"""Looks again and again whether the leader can connect to one agent's port, and has what it finds recorded.

A stream that is open says nothing of that: rules of a firewall keep new connections away and leave those that there are
alone, so that an agent is heard whose kernels nobody can enter. While the stream is open, a connection without a
handshake tells; else whatever answers at the address shows its certificate.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Protocol

from retinue.manager.domain.session.attempts import ListenerBrokenError, TermOverError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.manager.agent_rpc.dialer import Dialer
    from retinue.manager.agent_rpc.reach import NotReached

_log = logging.getLogger(__name__)

FAILURES = 2
"""Probes that fail one after the other before an agent counts as not reached: one that restarts is soon back."""
_MIN_JITTER, _MAX_JITTER = 0.75, 1.25


class ProbedLink(Protocol):
    """The link of the agent: whether its stream is open and, if it was refused by either side though the connection was
    made, why.
    """

    agent_id: str
    address: str
    connected: bool
    refusal: NotReached | None


class Reachability:
    """The probes of one agent. `record` takes the agent, its address and why it is not reached, or None; it raises
    ListenerBrokenError and TermOverError.
    """

    def __init__(
        self,
        link: ProbedLink,
        dialer: Dialer,
        record: Callable[[str, str, NotReached | None], Awaitable[None]],
        *,
        interval: float,
        retry: float,
        delay: float = 0.0,
        turn: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Probes every `interval` seconds, and every `retry` while the agent is not reached; at first after `delay`
        seconds, or sooner if its stream fails. Probes that look at certificates wait for their `turn` among those of
        other agents.
        """
        self._delay = delay
        self._turn_comes = turn
        self._link = link
        self._dialer = dialer
        self._record = record
        self._interval, self._retry = interval, retry
        self._wanted = asyncio.Event()
        self._failures = 0
        # Whether the stream has opened since the last look: a connection was made just now.
        self._opened = False
        # What is recorded; False when that is not known.
        self._recorded: NotReached | bool | None = False

    def wake(self) -> None:
        """Has the next probe made at once if that may say something else than the last one. One that failed is
        repeated in its time, unless the stream is open now.
        """
        if self._link.connected or not self._failures:
            self._wanted.set()

    def turn(self) -> None:
        """Takes note that the stream has opened, or broke or did not open."""
        self._opened = self._link.connected
        self.wake()

    async def run(self) -> None:
        """Probes until cancelled. Ends with TermOverError only."""
        # A new leader has many agents, whose streams open at this moment.
        await self._wait(2 * self._delay + random.uniform(0.0, self._retry))  # noqa: S311  # no secret
        while True:
            self._wanted.clear()
            pause = self._retry
            try:
                if await self._look():
                    pause = self._interval
            except TermOverError:
                raise
            except Exception as error:  # noqa: BLE001  # logged, and done again with the next probe
                known = isinstance(error, ListenerBrokenError)
                _log.warning(
                    "agent %s: whether it is reached is not recorded: %r",
                    self._link.agent_id,
                    error,
                    exc_info=not known,
                )
            if await self._wait(pause * random.uniform(_MIN_JITTER, _MAX_JITTER)) and not self._opened:  # noqa: S311  # as above
                # Failures come in crowds.
                await asyncio.sleep(min(1.0, self._retry))

    async def _wait(self, seconds: float) -> bool:
        """Waits until it is woken, at most so long; returns whether it was."""
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            return False
        return True

    async def _look(self) -> bool:
        """Probes once; returns whether the agent is reached."""
        link = self._link
        found: NotReached | None = None
        if not link.connected and self._turn_comes is not None:
            await self._turn_comes()
        if self._opened:
            self._opened = False
        else:
            found = await self._dialer.probe(link.agent_id, link.address, whole=not link.connected)
        if found is None and not link.connected:
            found = link.refusal
        self._failures = 0 if found is None else self._failures + 1
        if found is not None and self._failures < FAILURES:
            return False
        if found is None or found is not link.refusal:
            # What refuses a stream of the leader may answer the calls of all managers.
            self._dialer.note(link.agent_id, link.address, found)
        if found != self._recorded:
            await self._record(link.agent_id, link.address, found)
            self._recorded = found
        return found is None
