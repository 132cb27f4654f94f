"""Shares over time: who sees which, by the hour and by the day."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.manager.v1 import fleet_service_pb2_grpc
from retinue.rpc.times import timestamp
from tests.integration.manager.rig import Service, bearer, failure
from tests.integration.manager.rows import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from retinue.manager.store.postgres.database import Database

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR = dt.timedelta(hours=1)
# Midnight UTC, some days ago.
DAY = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0) - dt.timedelta(days=3)
GROUP, PROJECT, USER = pb.SHARE_KIND_RESOURCE_GROUP, pb.SHARE_KIND_PROJECT, pb.SHARE_KIND_USER


@pytest_asyncio.fixture(loop_scope="session")
async def stub(service: Service) -> AsyncIterator[fleet_service_pb2_grpc.FleetServiceAsyncStub]:
    async with service.channel() as channel:
        yield fleet_service_pb2_grpc.FleetServiceStub(channel)


async def put(database: Database, kind: str, name: str, hour: dt.datetime, samples: int, total: float) -> None:
    await execute(
        database,
        "INSERT INTO share_hour (resource_group, kind, name, hour, samples, share_sum, peak)"
        " VALUES ('default', :kind, :name, :hour, :samples, :total, :peak)",
        kind=kind,
        name=name,
        hour=hour,
        samples=samples,
        total=total,
        peak=total / samples,
    )


def shown(histories: Any) -> list[tuple[int, str, list[float]]]:
    return [(history.kind, history.name, [round(point.share, 6) for point in history.points]) for history in histories]


async def test_who_sees_which(service: Service, stub: fleet_service_pb2_grpc.FleetServiceAsyncStub) -> None:
    database = service.database
    admin = bearer(await service.user("root", role="ADMIN", projects=()))
    ada, eve = bearer(await service.user("ada")), bearer(await service.user("eve", projects=()))
    for hour in range(2):
        await put(database, "RESOURCE_GROUP", "", DAY + hour * HOUR, 12, 6.0)
    await put(database, "PROJECT", "default", DAY, 12, 6.0)
    await put(database, "USER", "ada", DAY, 6, 3.0)
    await put(database, "USER", "bob", DAY + HOUR, 3, 6.0)
    await execute(database, "UPDATE resource_group SET owner_weights = '{\"ada\": 3}' WHERE name = 'default'")
    asked: dict[str, Any] = {"start_time": timestamp(DAY), "end_time": timestamp(DAY + 24 * HOUR)}

    async def listed(metadata: Any, **more: Any) -> list[pb.ShareHistory]:
        request = pb.ListShareHistoriesRequest(**{**asked, **more})
        return list((await stub.ListShareHistories(request, metadata=metadata)).histories)

    whole, project = (GROUP, "", [0.5, 0.5]), (PROJECT, "default", [0.5, 0.0])
    own, other = (USER, "ada", [0.25, 0.0]), (USER, "bob", [0.0, 0.5])
    everything = await listed(admin)
    assert shown(everything) == [whole, project, other, own]
    assert [history.weight for history in everything] == [0, 0, 1, 3]
    assert [point.start_time.ToDatetime(dt.UTC) for point in everything[0].points] == [DAY, DAY + HOUR]
    assert [point.peak for point in everything[2].points] == [0.0, 2.0]
    assert shown(await listed(ada)) == [whole, project, own]
    assert shown(await listed(eve)) == [whole]
    # By the day, and a part of it.
    assert shown(await listed(ada, interval=Duration(seconds=86400))) == [
        (GROUP, "", [0.5]), (PROJECT, "default", [0.25]), (USER, "ada", [0.125]),
    ]  # fmt: skip
    assert shown(await listed(ada, start_time=timestamp(DAY + HOUR))) == [(GROUP, "", [0.5])]
    assert shown(await listed(ada, start_time=timestamp(DAY - HOUR), end_time=timestamp(DAY))) == []
    # The last 7 days.
    unbounded = await stub.ListShareHistories(pb.ListShareHistoriesRequest(), metadata=ada)
    assert shown(unbounded.histories) == [whole, project, own]
    pages, token = [], ""
    while True:
        request = pb.ListShareHistoriesRequest(**asked, page_size=1, page_token=token)
        page = await stub.ListShareHistories(request, metadata=admin)
        pages += shown(page.histories)
        token = page.next_page_token
        if not token:
            break
        assert len(page.histories) == 1
    assert pages == [whole, project, other, own]
    request = pb.ListShareHistoriesRequest(resource_group="nowhere")
    assert (await failure(stub.ListShareHistories(request, metadata=ada))).code is grpc.StatusCode.NOT_FOUND
