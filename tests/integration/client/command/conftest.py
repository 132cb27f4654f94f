"""Runs the installed program `retinue` against the shared cluster, as a user would."""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from retinue.manager.v1 import fleet_service_pb2
from tests.support.eventually import NEVER
from tests.support.forked_programs import FORKED, PROGRAM, Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from retinue.client.aio import Client
    from retinue.devtools.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Program:
    """The program with the environment it is run in. Called, it runs to its end, and is not loaded again for that."""

    environment: dict[str, str]
    directory: Path | None = None
    """Where what is started begins; by default where the test is."""

    async def start(self, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            PROGRAM,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**self.environment, **environment},
            cwd=self.directory,
        )

    async def __call__(self, *arguments: str, **environment: str) -> Outcome:
        return await FORKED.run(arguments, {**self.environment, **environment})


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Ends what forks."""
    yield
    FORKED.close()


@pytest.fixture
def environment(cluster: Cluster, tmp_path: Path) -> dict[str, str]:
    settings = cluster.settings
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("RETINUE_", "NO_COLOR"))}
    return {
        **kept,
        "RETINUE_ENDPOINT": settings.endpoint,
        "RETINUE_TOKEN": settings.token or "",
        "RETINUE_CA": settings.ca or "",
        "RETINUE_CONTEXTS": str(tmp_path / "contexts.yaml"),
    }


@pytest.fixture
def retinue(environment: dict[str, str]) -> Program:
    return Program(environment)


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def nothing_left(cluster: Cluster) -> AsyncIterator[None]:
    """Ends what a test left, also after it failed."""
    yield
    async with cluster.client() as client:
        living = [session async for session in client.sessions.list()]
        await asyncio.gather(*(session.terminate(force=True) for session in living))
        await asyncio.gather(*(session.wait_ended(timeout=NEVER) for session in living))


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """Reads up to the first line that holds the text, and returns that line."""
    assert stream is not None
    seen = []
    with suppress(TimeoutError):
        async with asyncio.timeout(NEVER):
            async for line in stream:
                seen.append(line.decode())
                if text in seen[-1]:
                    return seen[-1]
    raise AssertionError(f"no line with {text!r} in {''.join(seen)}")


@pytest.fixture
def owner_name() -> str:
    """The name of the user that `owner` makes: names of removed users are not used again."""
    return f"cli-user-{uuid.uuid4().hex[:8]}"


@pytest_asyncio.fixture(loop_scope="session")
async def owner(client: Client, owner_name: str) -> AsyncIterator[str]:
    """The token of a user who is no administrator; the user is removed afterwards."""
    user = await client.users.create(owner_name, projects={"default": "member"})
    token = await client.tokens.create(user=user.name, description="command line")
    yield token.secret
    async for session in client.sessions.list(filter=f'owner = "{user.name}"'):
        await session.terminate(force=True)
        await session.wait_ended(timeout=NEVER)
    await client.users.delete(user.name)


@pytest_asyncio.fixture(loop_scope="session")
async def shared(client: Client, tmp_path: Path) -> AsyncIterator[Path]:
    """A directory that the default group grants to every user, for writing."""
    directory = tmp_path / "shared"
    directory.mkdir()
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(path.stat().st_mode | 0o055)
    directory.chmod(0o777)
    roots = [fleet_service_pb2.MountRoot(path=str(tmp_path), writable=True)]
    await client.resource_groups.update("default", mount_roots=roots)
    yield directory
    await client.resource_groups.update("default", mount_roots=[])


@pytest.fixture
def files(retinue: Program, tmp_path: Path) -> Program:
    """The program, with a home of its own."""
    return Program({**retinue.environment, "HOME": str(tmp_path)})
