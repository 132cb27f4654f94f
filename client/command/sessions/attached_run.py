"""A session that lasts as long as the command attached to it: `retinue run -i` and `-t`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from rich.console import Console

from retinue.client.command.inside.exec import run_attached
from retinue.client.command.shell.exit_codes import ExitCode
from retinue.client.command.shell.printable import safe
from retinue.client.command.shell.signals import ENDING, handled
from retinue.client.command.show.session_follower import SessionFollower
from retinue.client.errors import CallError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retinue.client.sessions import Session, Sessions
    from retinue.manager.v1 import session_pb2


class AttachedRun:
    """Creates an interactive session, runs a command in its `main1`, and ends the session; call it once."""

    def __init__(
        self, sessions: Sessions, spec: session_pb2.SessionSpec, *, fail_fast: bool, keep: bool, quiet: bool = False
    ) -> None:
        """`fail_fast` gives up what can never fit; with `keep` a session that came to run is not ended; `quiet` says
        only what is wrong.
        """
        self._sessions = sessions
        self._spec = spec
        self._fail_fast = fail_fast
        self._keep = keep
        self._quiet = quiet
        self._runs = False
        self._console = Console(stderr=True)

    async def __call__(self, command: Sequence[str], *, interactive: bool, tty: bool) -> int:
        """Returns the exit code of the command, or 130 after an interrupt: whenever one comes, the session ends.
        Raises CallError.
        """
        work = asyncio.create_task(self._work(command, interactive=interactive, tty=tty))
        with handled(dict.fromkeys(ENDING, work.cancel)):
            try:
                return await work
            except asyncio.CancelledError:
                return ExitCode.INTERRUPTED

    async def _work(self, command: Sequence[str], *, interactive: bool, tty: bool) -> int:
        session = await self._create()
        try:
            if not self._quiet:
                self._say(f"{safe(session.name)}: {session.id}")
            follower = SessionFollower(
                session, self._console, fail_fast=self._fail_fast, is_attached=True, quiet=self._quiet
            )
            code = await follower.follow()
            if session.state != "RUNNING":
                return code or ExitCode.FAILURE
            self._runs = True
            return await run_attached(self._sessions, session.id, command, interactive=interactive, tty=tty)
        finally:
            if not self._keep or not self._runs:
                await self._end(session)

    async def _create(self) -> Session:
        """Asks for the session. An interrupt waits for the answer: only then is it known what to end."""
        creating = asyncio.create_task(self._sessions.create_from(self._spec))
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            self._say("waiting for the manager's answer, to end the session; press Ctrl-C again to give up")
            await self._end(await creating)
            raise

    async def _end(self, session: Session) -> None:
        """Ends the session unless it has ended. It takes two interrupts in all to give up the manager's answer."""
        if session.is_ended:
            return
        me = asyncio.current_task()
        ending = asyncio.create_task(session.terminate())
        try:
            if me is not None and me.cancelling():
                self._say(f"ending session {safe(session.name)}; press Ctrl-C again to leave that to the manager")
            else:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.shield(ending)
            await ending
        except CallError as error:
            self._say(f"session {safe(session.name)} could not be ended: {safe(error.message)}")

    def _say(self, text: str) -> None:
        # A terminal that was closed takes no text, and the session is ended all the same.
        with contextlib.suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
