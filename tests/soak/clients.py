"""Clients that create, wait, attach, tunnel, run code and go away at random moments."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.client.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    DeadlineExceeded,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    SessionEnded,
    Unavailable,
)
from tests.support.eventually import NEVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from retinue.client.aio import Client
    from retinue.client.kernel.port import PortConnection
    from retinue.client.sessions import Session
    from retinue.devtools.cluster import Cluster

# What a client has to expect while managers, agents and databases are killed. Anything else is a defect.
_EXPECTED = (Unavailable, DeadlineExceeded, Aborted, ResourceExhausted, SessionEnded, TimeoutError)
# A session may end or restart under a stream: its kernel is then gone, or not there yet.
_EXPECTED_OF_STREAMS = (*_EXPECTED, FailedPrecondition, NotFound)
_SLOTS = {"cpu": "0.1", "mem": "96m"}
_SERVER = (
    "import http.server as h; h.ThreadingHTTPServer(('127.0.0.1', 8000), h.SimpleHTTPRequestHandler).serve_forever()"
)


@dataclass(slots=True)
class Record:
    """What all clients did and saw: sessions that were acknowledged, how often each act ran,
    and what must never be seen.
    """

    batches: dict[str, int] = field(default_factory=dict)
    """Exit code that each acknowledged batch session has to end with, by id."""
    acts: collections.Counter[str] = field(default_factory=collections.Counter)
    interrupted: collections.Counter[str] = field(default_factory=collections.Counter)
    defects: list[str] = field(default_factory=list)


class ImpatientClient:
    """One client with a connection of its own, which it drops now and then with everything on it."""

    def __init__(self, cluster: Cluster, record: Record, seed: int) -> None:
        self._cluster = cluster
        self._record = record
        self._random = random.Random(seed)
        self._client: Client | None = None
        self._session: Session | None = None
        self._name = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Acts at random until `stop` is set; what it made is ended by `end_all`."""
        acts: list[tuple[Callable[[Client], Awaitable[None]], int]] = [
            (self._batch, 30),
            (self._cluster_batch, 6),
            (self._attach, 12),
            (self._tunnel, 10),
            (self._code, 8),
            (self._logs, 8),
            (self._watch, 8),
            (self._list, 8),
            (self._copy, 5),
            (self._renew, 5),
            (self._leave, 4),
        ]
        try:
            while not stop.is_set():
                act = self._random.choices([act for act, _ in acts], [weight for _, weight in acts])[0]
                await self._try(act)
        finally:
            await self._leave(await self._connected())

    async def _try(self, act: Callable[[Client], Awaitable[None]]) -> None:
        name = act.__name__.lstrip("_")
        self._record.acts[name] += 1
        # Half of all acts are cut off at a random moment, wherever they are then.
        seconds = self._random.choice([self._random.expovariate(2.0), NEVER])
        try:
            async with asyncio.timeout(seconds):
                await act(await self._connected())
        except _EXPECTED_OF_STREAMS as error:
            reason = getattr(error, "reason", "")
            self._record.interrupted[f"{name} {type(error).__name__} {reason}".rstrip()] += 1
            if isinstance(error, TimeoutError) and seconds == NEVER:
                self._record.defects.append(f"{name} did not end within {seconds:.0f} s")
            if isinstance(error, NotFound | FailedPrecondition):
                self._session = None
            if isinstance(error, Unavailable | ResourceExhausted):
                await asyncio.sleep(self._random.uniform(0.1, 1.0))
        except CallError as error:
            self._record.defects.append(f"{name}: {type(error).__name__}: {error}")

    async def _connected(self) -> Client:
        if self._client is None:
            self._client = self._cluster.client()
        return self._client

    async def _leave(self, client: Client) -> None:
        """Closes the connection with all calls on it."""
        self._client = None
        await client.close()

    async def _running(self, client: Client) -> Session:
        """The client's own interactive session, which it makes when there is none."""
        if self._session is None:
            # The name stays until the session is known: a call that was cut off may have made it.
            self._name = self._name or f"soak-{uuid.UUID(int=self._random.getrandbits(128), version=4)}"
            try:
                session = await client.sessions.create(
                    name=self._name,
                    type="interactive",
                    command=["python3", "-c", _SERVER],
                    slots=_SLOTS,
                    termination_grace=1,
                    ports=[("web", "tcp", 8000)],
                )
            except AlreadyExists:
                session = await client.sessions.get(self._name)
            self._session, self._name = session, ""
        session = await client.sessions.get(self._session.id)
        if session.is_ended:
            self._session = None
            return await self._running(client)
        if session.state != "RUNNING":
            await session.wait("RUNNING", timeout=NEVER)
        return session

    async def _batch(self, client: Client) -> None:
        await self._run_batch(client, 1)

    async def _cluster_batch(self, client: Client) -> None:
        await self._run_batch(client, self._random.choice([2, 3]))

    async def _run_batch(self, client: Client, size: int) -> None:
        code = self._random.choice([0, 0, 0, 3])
        pause = self._random.choice([0, 0, 0.3, 2])
        session = await client.sessions.create(
            type="batch",
            command=["sh", "-c", f"sleep {pause}; exit {code}"],
            cluster_size=size,
            cluster_mode="multi-node",
            slots=_SLOTS,
        )
        self._record.batches[session.id] = code
        await session.wait_ended(NEVER)
        if session.exit_code != code:
            self._record.defects.append(f"{session.id} ended with {session.exit_code} and not {code}: {session.view}")

    async def _attach(self, client: Client) -> None:
        session = await self._running(client)
        count = self._random.choice([5, 2000])
        async with session.attach(["sh", "-c", f"seq {count}; cat >/dev/null; echo end; exit 4"]) as command:
            await command.write(b"x" * 1000)
            await command.end_input()
            out = b"".join([piece.data async for piece in command])
            wanted = "".join(f"{number}\n" for number in range(1, count + 1)) + "end\n"
            if command.exit_code == 4 and out != wanted.encode():
                self._record.defects.append(f"attach lost output: {len(out)} of {len(wanted)} bytes")

    async def _tunnel(self, client: Client) -> None:
        session = await self._running(client)
        async with contextlib.AsyncExitStack() as stack:
            connections = [
                await stack.enter_async_context(await _opened(session)) for _ in range(self._random.randint(1, 4))
            ]
            for connection in connections:
                await connection.write(b"GET /usr/bin/python3 HTTP/1.0\r\n\r\n")
            # The others stay unread, and end with the block.
            async for _ in connections[0]:
                pass

    async def _code(self, client: Client) -> None:
        session = await self._running(client)
        async with session.code() as code:
            result = await code.execute("for n in range(200): print(n)\n6 * 7")
            if result.status == "ok" and (result.value != "42" or len(result.stdout.split()) != 200):
                self._record.defects.append(f"code lost output: {result}")

    async def _logs(self, client: Client) -> None:
        session = await self._running(client)
        # Those that follow end with the session only.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0.1, 5)):
                async for _ in session.logs(follow=self._random.random() < 0.3, tail=100):
                    pass

    async def _watch(self, client: Client) -> None:
        # It never ends by itself.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0.1, 5)):
                async for _ in client.sessions.watch():
                    pass

    async def _list(self, client: Client) -> None:
        async for _ in client.sessions.list(show_ended=True, limit=200):
            pass

    async def _copy(self, client: Client) -> None:
        session = await self._running(client)
        async with session.attach(["sh", "-c", "head -c 3000000 /dev/zero; exit 5"]) as command:
            size = 0
            async for piece in command:
                size += len(piece.data)
            if command.exit_code == 5 and size != 3_000_000:
                self._record.defects.append(f"attach lost output: {size} of 3000000 bytes")

    async def _renew(self, client: Client) -> None:
        """Ends the interactive session; the next act makes another one."""
        if self._session is not None:
            session, self._session = self._session, None
            await client.sessions.terminate(session.id, force=self._random.random() < 0.3)


async def _opened(session: Session) -> PortConnection:
    """Waits until the program in the kernel listens, which it may do only some time after its start."""
    while True:
        try:
            async with session.open_port("web"):
                return session.open_port("web")
        except FailedPrecondition as error:
            if error.reason != "PORT_CLOSED":
                raise
        await asyncio.sleep(0.3)


async def end_all(client: Client, record: Record) -> None:
    """Ends all that lives, waits for it, and notes acknowledged sessions that are lost or have another outcome."""
    async with asyncio.timeout(NEVER):
        # Batch sessions end by themselves: only then they have an outcome to compare.
        while any([session.id in record.batches async for session in client.sessions.list()]):
            await asyncio.sleep(0.3)
        while live := [session async for session in client.sessions.list()]:
            for session in live:
                with contextlib.suppress(FailedPrecondition, NotFound):
                    await session.terminate(force=True)
            await asyncio.sleep(0.3)
    for session_id, code in record.batches.items():
        try:
            session = await client.sessions.get(session_id)
        except NotFound:
            record.defects.append(f"acknowledged session {session_id} is lost")
            continue
        if session.exit_code != code:
            record.defects.append(
                f"{session_id} is {session.state} with {session.exit_code} and not {code}: {session.view.reason}"
            )
    record.batches.clear()
