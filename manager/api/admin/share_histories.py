"""ListShareHistories: shares of users, projects and groups over time."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from retinue.manager.server.fields import Violations
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.pages import open_page
from retinue.manager.store.placement import share_history
from retinue.manager.store.placement.share_history import Range, ShareKind, SharePoint, Subject, SubjectTotal
from retinue.manager.v1 import fleet_service_pb2 as pb
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.store.fleet.groups import GroupRecord

_HOUR, _LONGEST = dt.timedelta(hours=1), dt.timedelta(days=31)
_DEFAULT_RANGE = dt.timedelta(days=7)
_MAX_POINTS = 1000
_MAX_HISTORIES = 50
_KINDS = {
    ShareKind.RESOURCE_GROUP: pb.SHARE_KIND_RESOURCE_GROUP,
    ShareKind.PROJECT: pb.SHARE_KIND_PROJECT,
    ShareKind.USER: pb.SHARE_KIND_USER,
}


async def list_share_histories(
    tx: AsyncSession, group: GroupRecord, request: pb.ListShareHistoriesRequest
) -> pb.ListShareHistoriesResponse:
    """See the proto; `group` is the one that the request names."""
    violations = Violations()
    within, interval = _range(request, group.name, violations)
    violations.raise_any()
    query = ["shares", group.name, *map(str, (request.start_time, request.end_time, request.interval))]
    page = open_page(request.page_size, request.page_token, query)
    size = min(page.size, _MAX_HISTORIES)
    caller = current_principal()
    visible = None if caller.is_admin else (caller.name, caller.projects)
    after = None if not page.after else _total(*page.after)
    found = await share_history.read_totals(tx, within, visible=visible, after=after, limit=size + 1)
    points = await share_history.read_points(tx, within, interval, [item.subject for item in found[:size]])
    histories, token = page.close(
        [_message(group, item.subject, points[item.subject]) for item in found[:size]],
        len(found),
        lambda position: _key(found[position]),
    )
    return pb.ListShareHistoriesResponse(histories=histories, next_page_token=token)


def _range(request: pb.ListShareHistoriesRequest, group: str, violations: Violations) -> tuple[Range, dt.timedelta]:
    end = violations.timestamp("end_time", request.end_time) if request.HasField("end_time") else None
    end = end or dt.datetime.now(dt.UTC)
    start = violations.timestamp("start_time", request.start_time) if request.HasField("start_time") else None
    if start is None:
        start = end - min(_DEFAULT_RANGE, end - dt.datetime.min.replace(tzinfo=dt.UTC))
    interval = _HOUR
    if request.HasField("interval"):
        interval = violations.duration("interval", request.interval, _HOUR, _LONGEST)
        if interval % _HOUR:
            violations.add("interval", "must be whole hours")
    if start >= end:
        violations.add("start_time", "must be before end_time")
    elif (end - start) / interval > _MAX_POINTS:
        violations.add("interval", f"must be longer: at most {_MAX_POINTS} intervals fit in the range")
    return Range(group, start, end), interval


def _key(found: SubjectTotal) -> list[str]:
    return [found.subject.kind.value, found.subject.name, repr(found.total)]


def _total(kind: str, name: str, total: str) -> SubjectTotal:
    return SubjectTotal(Subject(ShareKind(kind), name), float(total))


def _message(group: GroupRecord, subject: Subject, points: Sequence[SharePoint]) -> pb.ShareHistory:
    return pb.ShareHistory(
        kind=_KINDS[subject.kind],
        name=subject.name,
        weight=group.owner_weights.get(subject.name, 1) if subject.kind is ShareKind.USER else 0,
        points=[
            pb.SharePoint(start_time=timestamp(point.start), share=point.share, peak=point.peak) for point in points
        ],
    )
