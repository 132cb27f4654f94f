"""Users beside each other: what one measures while another makes calls as fast as it can; peer: the same alone, in
turns. And what a write costs: processor time of the manager's process; peer: a bare echo call and a bare INSERT.

One node, one manager with an embedded database in its durable settings. Both users are ordinary ones, each in a
process of its own. The other creates, reads, lists and ends sessions, one at a time and in bulk, at 64 calls at a time,
and makes each that is refused again at once. What its sessions ask for no node has, so that they wait.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from retinue.client.aio import Client
from retinue.client.errors import CallError
from retinue.client.spec import session_spec
from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench import end_politely, report
from tests.bench.console_viewers import cpu_seconds
from tests.bench.submission import appears, child, prepare_echo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from retinue.client.sessions import Session

AT_ONCE = 64
SLOTS = {"cpu": "0.1", "mem": "32m"}
WAITING = {"cpu": "1000", "mem": "32m"}
_METHOD = "/bench.Echo/Call"


async def flood(endpoint: str, token: str, ca: str) -> None:
    """Makes calls until it is ended."""
    mine: list[Session] = []

    async def one(client: Client, number: int) -> None:
        match number % 8:
            case 0 | 1 | 2:
                mine.append(await client.sessions.create(type="interactive", command=["true"], slots=WAITING))
            case 3 | 4:
                await client.sessions.get(mine[number % len(mine)].id)
            case 5:
                [session async for session in client.sessions.list(limit=100)]
            case 6:
                await mine.pop().terminate()
            case _:
                spec = session_spec(type="batch", command=["true"], slots=WAITING)
                made = await client.sessions.create_many([spec] * 20)
                await client.sessions.terminate_many([each.accepted.id for each in made.results])

    async def repeat(client: Client, first: int) -> None:
        number = first
        while True:
            number += 1
            with contextlib.suppress(CallError, IndexError, ZeroDivisionError):
                await one(client, number)

    async with Client.connect(endpoint, token=token, ca=ca) as client:
        await asyncio.gather(*(repeat(client, first) for first in range(AT_ONCE)))


async def measure(client: Client, known: Session, gets: int, starts: int) -> tuple[list[float], list[float]]:
    """Seconds of single reads, one after the other, and of sessions from their request until they run."""
    reads, whole = [], []
    for number in range(starts):
        for _ in range(gets // starts):
            began = time.perf_counter()
            await client.sessions.get(known.id)
            reads.append(time.perf_counter() - began)
        began = time.perf_counter()
        session = await client.sessions.create(
            type="interactive", name=f"s{number}", slots=SLOTS, termination_grace=0, command=["sleep", "1000"]
        )
        await session.wait("RUNNING", timeout=60)
        whole.append(time.perf_counter() - began)
        await session.terminate(force=True)
        await session.wait_ended(60)
    return reads, whole


def share(values: list[float], part: float) -> float:
    """The value, in milliseconds, that so large a part of all is below."""
    return 1000 * sorted(values)[min(len(values) - 1, int(part * len(values)))]


async def beside(cluster: Cluster, client: Client, token: str, gets: int, starts: int, rounds: int) -> None:
    """Prints the figures of one user beside another."""
    known = await client.sessions.create(type="interactive", command=["true"], slots=WAITING)
    await measure(client, known, 20, 2)
    alone: tuple[list[float], list[float]] = ([], [])
    among: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for into, loud in ((alone, False), (among, True)):
            with contextlib.ExitStack() as stack:
                if loud:
                    arguments = (cluster.settings.endpoint, token, cluster.settings.ca)
                    stack.enter_context(child(Path(__file__), "--flood", *map(str, arguments)))
                    # It has spent by then what it may spend at once.
                    await asyncio.sleep(5)
                reads, whole = await measure(client, known, gets, starts)
            into[0].extend(reads)
            into[1].extend(whole)
    report("neighbour-get-p50", share(among[0], 0.5), "ms", share(alone[0], 0.5))
    report("neighbour-get-p99", share(among[0], 0.99), "ms", share(alone[0], 0.99))
    report("neighbour-new-session-p50", share(among[1], 0.5), "ms", share(alone[1], 0.5))


@contextlib.contextmanager
def table(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a table with rows like those of a session."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE bench_row (id uuid PRIMARY KEY, spec jsonb, at timestamptz DEFAULT now())")
        try:
            yield connection
        finally:
            connection.execute("DROP TABLE bench_row")


async def cost(pid: int, work: Callable[[int], Awaitable[object]], number: int) -> float:
    """Milliseconds of a process's time for each of a number of calls, eight at a time, and for what follows on them."""
    at_once = asyncio.Semaphore(8)

    async def one(position: int) -> None:
        async with at_once:
            await work(position)

    before = cpu_seconds(pid)
    await asyncio.gather(*map(one, range(number)))
    await asyncio.sleep(0.5)
    return 1000 * (cpu_seconds(pid) - before) / number


async def bare(cluster: Cluster, number: int) -> float:
    """Milliseconds of processor time for an echo call at its server, and for an INSERT at its client."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate = prepare_echo(directory)
        echo = stack.enter_context(child(Path(__file__).with_name("submission.py"), "--echo", directory))
        port = await appears(directory / "echo.port")
        spec = session_spec(type="interactive", command=["true"], slots=WAITING).SerializeToString()
        async with grpc.aio.secure_channel(f"localhost:{port}", grpc.ssl_channel_credentials(certificate)) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_METHOD)
            await call(spec, metadata=(("size", str(len(spec))),))
            called = await cost(echo.pid, lambda _: call(spec, metadata=(("size", str(len(spec))),)), number)
        url = f"postgresql://postgres@/retinue?host={cluster.directory}/manager/postgres"
        connection = stack.enter_context(table(url))
        began = time.process_time()
        for _ in range(number):
            connection.execute("INSERT INTO bench_row (id, spec) VALUES (%s, '{}')", (str(uuid.uuid4()),))
        return called + 1000 * (time.process_time() - began) / number


async def writes(cluster: Cluster, client: Client, number: int, rounds: int) -> None:
    """Prints the figures of processor time."""
    pid = cluster.manager.pid
    assert pid is not None
    taken: dict[str, list[float]] = {"create": [], "update": [], "terminate": []}
    peers = []
    for turn in range(rounds):
        sessions: list[Session] = []

        async def create(_: int, into: list[Session] = sessions) -> None:
            into.append(await client.sessions.create(type="interactive", command=["true"], slots=WAITING))

        async def update(position: int, of: list[Session] = sessions, turn: int = turn) -> None:
            await of[position].update(name=f"u{turn}-{position}")

        async def terminate(position: int, of: list[Session] = sessions) -> None:
            await of[position].terminate()

        peers.append(await bare(cluster, number))
        for name, work in (("create", create), ("update", update), ("terminate", terminate)):
            taken[name].append(await cost(pid, work, number))
    for name, values in taken.items():
        report(f"write-cpu-{name}", statistics.median(values), "ms", statistics.median(peers), spread=values)


async def main(gets: int, starts: int, number: int, rounds: int) -> None:
    """Prints all figures."""
    options = ClusterOptions(agents=1, slots={"cpu": "4", "mem": "2g"}, prefix="rt-bench-")
    async with Cluster(options=options) as cluster:
        async with cluster.client() as admin:
            tokens = {}
            for name in ("quiet", "loud"):
                await admin.users.create(name, projects={"default": "member"})
                tokens[name] = (await admin.tokens.create(user=name)).secret
        async with cluster.client(tokens["quiet"]) as client:
            await writes(cluster, client, number, rounds)
            await beside(cluster, client, tokens["loud"], gets, starts, rounds)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gets", type=int, default=1000, help="reads in a round")
    parser.add_argument("--starts", type=int, default=20, help="sessions that are started in a round")
    parser.add_argument("--writes", type=int, default=300, help="writes of each kind in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small, for a look")
    parser.add_argument("--flood", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.quick:
        given.gets, given.starts, given.writes, given.rounds = 200, 5, 100, 1
    if given.flood:
        asyncio.run(flood(*given.flood))
    else:
        asyncio.run(main(given.gets, given.starts, given.writes, given.rounds))
