"""A creating call with a request_id takes effect once, however often and however concurrently it comes."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from retinue.manager.domain.errors import RequestIdReused
from retinue.manager.store.accounts import accounts
from retinue.manager.store.journal import requests
from retinue.manager.v1 import account_service_pb2 as pb

if TYPE_CHECKING:
    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")


def request(name: str, request_id: str) -> pb.CreateProjectRequest:
    return pb.CreateProjectRequest(project=pb.Project(name=name), request_id=request_id)


async def create(
    database: Database, message: pb.CreateProjectRequest, *, principal: str = "ada", method: str = "Make"
) -> str:
    """Makes a project of a new name and returns it: an answer that no second effect could give."""
    async with database.transaction() as tx:

        async def effect() -> pb.CreateProjectResponse:
            made = await accounts.create_project(tx, f"{message.project.name}-{uuid.uuid4().hex[:8]}")
            assert made is not None
            return pb.CreateProjectResponse(project=pb.Project(name=made.name))

        answer = await requests.once(tx, principal, method, message, pb.CreateProjectResponse, effect)
    return answer.project.name


async def projects(database: Database) -> int:
    async with database.transaction() as tx:
        found = await tx.execute(text("SELECT count(*) FROM project WHERE name <> 'default'"))
        return int(found.scalar_one())


async def test_32_at_once(database: Database) -> None:
    message = request("p", str(uuid.uuid4()))
    answers = await asyncio.gather(*(create(database, message) for _ in range(32)))
    assert len(set(answers)) == 1
    assert await projects(database) == 1


async def test_another_spelling_of_the_id_is_the_same_id(database: Database) -> None:
    request_id = str(uuid.uuid4())
    assert await create(database, request("p", request_id)) == await create(database, request("p", request_id.upper()))


async def test_another_body(database: Database) -> None:
    request_id = str(uuid.uuid4())
    await create(database, request("p", request_id))
    with pytest.raises(RequestIdReused):
        await create(database, request("q", request_id))
    assert await projects(database) == 1


@pytest.mark.attack("request-ids-of-others")
async def test_ids_of_others_are_independent(database: Database) -> None:
    message = request("p", str(uuid.uuid4()))
    answers = {
        await create(database, message),
        await create(database, message, principal="bob"),
        await create(database, message, method="Other"),
    }
    assert len(answers) == 3


async def test_without_an_id_every_call_counts(database: Database) -> None:
    assert await create(database, request("p", "")) != await create(database, request("p", ""))


async def test_a_failed_effect_leaves_the_id_free(database: Database) -> None:
    message = request("p", str(uuid.uuid4()))

    async def fail() -> pb.CreateProjectResponse:
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        async with database.transaction() as tx:
            await requests.once(tx, "ada", "Make", message, pb.CreateProjectResponse, fail)
    assert (await create(database, message)).startswith("p-")


async def test_a_call_that_waits_for_one_that_fails_takes_over(database: Database) -> None:
    message = request("p", str(uuid.uuid4()))
    entered, released = asyncio.Event(), asyncio.Event()

    async def fail() -> pb.CreateProjectResponse:
        entered.set()
        await released.wait()
        raise ZeroDivisionError

    async def first() -> None:
        async with database.transaction() as tx:
            await requests.once(tx, "ada", "Make", message, pb.CreateProjectResponse, fail)

    failing = asyncio.create_task(first())
    await entered.wait()
    second = asyncio.create_task(create(database, message))
    released.set()
    with contextlib.suppress(ZeroDivisionError):
        await failing
    assert (await second).startswith("p-")
    assert await projects(database) == 1
