"""What users do on a small cluster while steps of it fail: sessions, a gang, a command, an endpoint; what an
administrator does there; and what has to have come of it.
"""

from __future__ import annotations

import asyncio
import traceback
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from retinue.client.errors import (
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    SessionEnded,
    Unavailable,
)
from tests.integration.sessions.replicas import manifest
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.client.aio import Client
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

Value = TypeVar("Value")

INTERRUPTIONS = (Unavailable, DeadlineExceeded, Aborted, ResourceExhausted, SessionEnded, TimeoutError)
"""What a caller has to expect while processes are killed and steps fail. Anything else is a defect."""
_SLOTS = {"cpu": "0.5", "mem": "64m"}
# More than half of a node, so that a gang of two is on both.
_LARGE = {"cpu": "5", "mem": "64m"}
ROUND_SECONDS = 2 * NEVER
"""Longer than a node is avoided whose agent was killed at three starts, five minutes: a gang waits for it."""


@dataclass(slots=True)
class Workload:
    """One round. Each session has a name of its own, and prints a line when it runs."""

    cluster: Cluster
    client: Client
    found: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Does everything at once; what should not have happened is in `found`."""
        async with asyncio.TaskGroup() as group:
            for act in (
                self._batch,
                self._failing_batch,
                self._gang,
                self._interactive,
                self._endpoint,
                self._administration,
            ):
                group.create_task(self._try(act))

    async def _try(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                await act()
        except (TimeoutError, AssertionError) as error:
            kind = act.__name__.strip("_")
            self.found.append(f"{kind} did not end: {str(error) or 'in time'}, {_place(error)}{await self._seen(kind)}")
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what was looked for
            self.found.append(f"{act.__name__.strip('_')}: {type(error).__name__}: {error}")

    async def _seen(self, kind: str) -> str:
        """Returns in words how the sessions of an act are, and why."""

        async def look() -> list[str]:
            return [
                f"; {view.spec.name} is {view.state}: {view.reason} {view.message}"
                for name in self.names
                if name.startswith(f"{kind.partition('_')[0]}-")
                async for session in self.client.sessions.list(filter=f'name = "{name}"', show_ended=True)
                if (view := session.view)
            ]

        return "".join(await self._again(look))

    async def _again(self, call: Callable[[], Awaitable[Value]]) -> Value:
        """Does what may be done again until it succeeds."""

        async def look() -> tuple[Value]:
            async with asyncio.timeout(20):
                return (await call(),)

        return (await eventually(look, ignoring=INTERRUPTIONS))[0]

    async def _create(self, kind: str, command: str, *, size: int = 1, slots: dict[str, str] | None = None) -> Session:
        name, request = f"{kind}-{uuid.uuid4().hex[:12]}", str(uuid.uuid4())
        self.names.append(name)

        async def create() -> Session:
            return await self.client.sessions.create(
                request_id=request,
                name=name,
                type="interactive" if kind == "interactive" else "batch",
                command=["sh", "-c", command],
                cluster_size=size,
                cluster_mode="multi-node",
                slots=slots or _SLOTS,
                termination_grace=1,
            )

        return await self._again(create)

    async def _ended(self, session: Session) -> Session:
        async def look() -> Session:
            return await self.client.sessions.get(session.id)

        return await eventually(
            lambda: self._again(look), lambda found: found.is_ended, seconds=ROUND_SECONDS, ignoring=INTERRUPTIONS
        )

    async def _batch(self) -> None:
        await self._expect("batch", 0)

    async def _failing_batch(self) -> None:
        await self._expect("failing", 3)

    async def _expect(self, kind: str, code: int) -> None:
        session = await self._ended(await self._create(kind, f"echo ran; exit {code}"))
        if session.exit_code != code or session.result != ("FAILED" if code else "SUCCESS"):
            self.found.append(f"{kind} ended with {session.result} {session.exit_code} and not {code}: {session.view}")
            return
        await self._check_output(session, b"ran\n")

    async def _check_output(self, session: Session, expected: bytes) -> None:
        async def read() -> bytes:
            return b"".join([chunk.data async for chunk in self.client.sessions.logs(session.id)])

        output = await self._again(read)
        if output != expected:
            self.found.append(f"{session.view.spec.name} printed {output!r} and not {expected!r}")

    async def _gang(self) -> None:
        session = await self._ended(await self._create("gang", "echo ran", size=2, slots=_LARGE))
        if session.result != "SUCCESS":
            self.found.append(f"the gang ended with {session.result}: {session.view}")

    async def _interactive(self) -> None:
        session = await self._create("interactive", "echo ran; sleep 600")

        async def running() -> Session:
            return await self.client.sessions.get(session.id)

        found = await eventually(
            lambda: self._again(running),
            lambda now: now.state == "RUNNING" or now.is_ended,
            seconds=ROUND_SECONDS,
            ignoring=INTERRUPTIONS,
        )
        if found.is_ended:
            self.found.append(f"the interactive session ended by itself: {found.view}")
            return

        async def execute() -> bytes:
            out = b""
            async with session.attach(["echo", "in it"]) as command:
                async for piece in command:
                    out += piece.data
            return out

        answer = await eventually(lambda: self._again(execute), ignoring=(*INTERRUPTIONS, FailedPrecondition, NotFound))
        if answer != b"in it\n":
            self.found.append(f"a command in a session printed {answer!r}")
        await self._check_output(session, b"ran\n")
        await self._again(session.terminate)
        await self._ended(session)

    async def _endpoint(self) -> None:
        name, request = f"e-{uuid.uuid4().hex[:12]}", str(uuid.uuid4())
        spec = manifest(name, name, scaling={"min": 1, "max": 1})
        endpoints = self.client.endpoints
        try:
            await self._again(lambda: endpoints.create(spec, request_id=request))
        except AlreadyExists:
            self.found.append(f"the endpoint {name} was made twice")
        await eventually(
            lambda: self._again(lambda: endpoints.get(name)),
            lambda found: any(replica.session_id for replica in found.replicas),
            seconds=ROUND_SECONDS,
            ignoring=INTERRUPTIONS,
        )

        async def delete() -> bool:
            try:
                await endpoints.delete(name)
                await endpoints.get(name)
            except NotFound:
                return True
            return False

        await eventually(lambda: self._again(delete), ignoring=INTERRUPTIONS)

    async def _administration(self) -> None:
        """Gives access to a user and takes it away; reads what tells how the cluster is."""
        name, request = f"u-{uuid.uuid4().hex[:12]}", str(uuid.uuid4())
        client, groups = self.client, self.client.resource_groups
        try:
            await self._again(lambda: client.users.create(name, projects={"default": "member"}, request_id=request))
        except AlreadyExists:
            self.found.append(f"the user {name} was made twice")
        token = await self._again(lambda: client.tokens.create(user=name))
        async with self.cluster.client(token.secret) as of_user:
            caller = await self._again(of_user.users.caller)
        if caller.name != name:
            self.found.append(f"the token of {name} is of {caller.name}")
        await self._again(lambda: client.agents.create_join_token(ttl=60))
        await self._again(lambda: client.agents.get(self.cluster.agents[0].id))
        # What they say is looked at when all is at rest.
        await self._again(lambda: groups.get("default"))
        await self._again(groups.verify)
        await self._again(groups.shares)

        async def delete() -> bool:
            try:
                await client.users.delete(name)
                await client.users.get(name)
            except NotFound:
                return True
            return False

        await eventually(lambda: self._again(delete), ignoring=INTERRUPTIONS)

    async def _end_all(self) -> None:
        for endpoint in [endpoint.id async for endpoint in self.client.endpoints.list()]:
            await self.client.endpoints.delete(endpoint)
        for session in [session async for session in self.client.sessions.list()]:
            await session.terminate()

    async def check(self) -> list[str]:
        """Waits until all is at rest, and returns what should not be."""
        if self.found:
            # What a failed act has left is no further finding.
            await self._again(self._end_all)

        async def alive() -> list[str]:
            return [session.view.spec.name async for session in self.client.sessions.list()]

        try:
            await eventually(lambda: self._again(alive), lambda found: not found, ignoring=INTERRUPTIONS)
        except AssertionError as error:
            self.found.append(f"sessions do not end: {error}")
        for name in self.names:

            async def named(name: str = name) -> list[str]:
                text = f'name = "{name}"'
                return [item.id async for item in self.client.sessions.list(filter=text, show_ended=True)]

            found = await self._again(named)
            if len(found) != 1:
                self.found.append(f"the session {name} is there {len(found)} times: {found}")

        async def ledger() -> list[str]:
            verified = await self.client.resource_groups.verify()
            return [str(mismatch) for mismatch in verified.mismatches]

        self.found += [f"ledger: {mismatch}" for mismatch in await self._again(ledger)]

        async def shares() -> list[str]:
            return [str(share) for share in await self.client.resource_groups.shares()]

        try:
            # The scheduler writes them down by its next pass.
            await eventually(lambda: self._again(shares), lambda found: not found)
        except AssertionError as error:
            self.found.append(f"shares at rest: {error}")
        left = await self.cluster.wait_clean(60)
        self.found += [f"left on {agent}: {leftovers}" for agent, leftovers in left.items()]
        return self.found


def _place(error: BaseException) -> str:
    """Returns where of this file an act was when its time was over."""
    frames = [
        frame
        for each in (error, error.__cause__)
        if each is not None
        for frame in traceback.extract_tb(each.__traceback__)
        if frame.filename == __file__
    ]
    return ", in ".join(f"line {frame.lineno}" for frame in frames) or "nowhere"
