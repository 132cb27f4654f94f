"""What is kept of the output of ended kernels: its tail, at its true offset."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING

import pytest

from retinue.client.errors import InvalidRequest
from tests.integration.sessions.inside import UNTIL_FINISHED, finish, shell
from tests.support.eventually import NEVER, eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEPT = 1024 * 1024


async def test_the_tail_of_a_long_output_is_kept_at_its_offset(client: Client) -> None:
    size = 3 * KEPT
    session = await client.sessions.create(
        type="batch",
        command=["sh", "-c", f"yes 0123456789abcde | head -c {size}; printf end"],
        slots={"cpu": "1", "mem": "64m"},
    )
    await session.wait_ended(NEVER)
    chunks = [chunk async for chunk in client.sessions.logs(session.id, follow=True)]
    data = b"".join(chunk.data for chunk in chunks)
    assert data.endswith(b"0123456789abcde\nend")
    assert chunks[0].offset + len(data) == size + 3
    assert len(data) in (size + 3, KEPT), "whole while its agent has it, the tail once it was collected"
    for before, after in itertools.pairwise(chunks):
        assert after.offset == before.offset + len(before.data)


async def test_output_of_all_kernels_at_once(client: Client) -> None:
    session = await client.sessions.create(
        type="batch", command=["sh", "-c", f"{UNTIL_FINISHED}; echo main"], sub_command=["sh", "-c", "echo sub; sleep infinity"], cluster_size=3,
        slots={"cpu": "0.5", "mem": "32m"}, termination_grace=0,
    )  # fmt: skip
    await session.wait("RUNNING", timeout=NEVER)
    seen: dict[str, bytes] = {}
    finishing = False
    async for chunk in client.sessions.logs(session.id, all_kernels=True, follow=True):
        seen[chunk.hostname] = seen.get(chunk.hostname, b"") + chunk.data
        if not finishing and [seen.get(name) for name in ("sub1", "sub2")] == [b"sub\n", b"sub\n"]:
            finishing = True
            await finish(session)
    assert seen == {"main1": b"main\n", "sub1": b"sub\n", "sub2": b"sub\n"}
    await session.wait_ended(NEVER)
    assert session.result == "SUCCESS"


async def test_a_session_that_waits_has_no_output(client: Client) -> None:
    session = await client.sessions.create(type="batch", command=["true"], slots={"cpu": "64"})
    assert [chunk async for chunk in client.sessions.logs(session.id)] == []
    await session.terminate()
    assert [chunk async for chunk in client.sessions.logs(session.id, follow=True)] == []


async def test_lines_and_times(client: Client) -> None:
    script = "seq 1 5; while [ ! -e go ]; do sleep 0.05; done; echo late; exec sleep 1000"  # A shell would say that its command was killed.
    session = await client.sessions.create(
        type="interactive", command=["sh", "-c", script], cluster_size=2, slots={"cpu": "0.5", "mem": "32m"}, termination_grace=0
    )  # fmt: skip

    async def read(**values: object) -> bytes:
        return b"".join([chunk.data async for chunk in session.logs(**values)])  # type: ignore[arg-type]

    async def until(text: bytes) -> None:
        await eventually(read, lambda found: found.endswith(text))

    await session.wait("RUNNING", timeout=NEVER)
    await until(b"5\n")
    assert await read(tail=2) == b"4\n5\n"
    assert await read(tail=100) == b"1\n2\n3\n4\n5\n"
    assert await read(tail=3, offset=8) == b"5\n"
    chunks = [chunk async for chunk in session.logs(tail=2)]
    assert [(chunk.offset, chunk.dropped) for chunk in chunks] == [(6, 0)]
    every = {chunk.hostname: chunk.data async for chunk in session.logs(all_kernels=True, tail=1)}
    assert every == {"main1": b"5\n"}
    since = dt.datetime.now(dt.UTC)
    # Until the agent has looked, everything may still be new.
    await eventually(lambda: read(since=dt.datetime.now(dt.UTC)), lambda found: not found)
    assert await read(since=since - dt.timedelta(hours=1)) == b"1\n2\n3\n4\n5\n"
    since = dt.datetime.now(dt.UTC)
    await shell(session, "touch go")
    await until(b"late\n")
    assert await read(since=since) == b"late\n"
    await session.terminate(force=True)
    await session.wait_ended(NEVER)
    await eventually(lambda: read(tail=1), lambda found: found == b"late\n")
    assert (await read(since=since)).endswith(b"late\n")
    with pytest.raises(InvalidRequest) as caught:
        await read(tail=-1)
    assert [violation.field for violation in caught.value.violations] == ["tail_lines"]
