"""Lists of audit records."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import TYPE_CHECKING

from retinue.manager.identity.principal import ADMIN, USER, Kind
from retinue.manager.server.fields import Violations
from retinue.manager.server.filters import parse_filter
from retinue.manager.server.pages import open_page
from retinue.manager.store.accounts import audit
from retinue.manager.store.accounts.audit import Category, StoredRecord
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.manager.store.postgres.database import Database

_FIELDS = frozenset(
    {"category", "principal", "address", "method", "object_kind", "object", "code", "reason", "request_id"}
)
_CATEGORIES: Mapping[str, pb.AuditCategory.ValueType] = {
    Category.ADMINISTRATION: pb.AUDIT_CATEGORY_ADMINISTRATION,
    Category.ACCOUNT: pb.AUDIT_CATEGORY_ACCOUNT,
    Category.DENIAL: pb.AUDIT_CATEGORY_DENIAL,
}
_KINDS: Mapping[str, pb.AuditPrincipalKind.ValueType] = {
    Kind.USER: pb.AUDIT_PRINCIPAL_KIND_USER,
    Kind.AGENT: pb.AUDIT_PRINCIPAL_KIND_AGENT,
    Kind.ROUTER: pb.AUDIT_PRINCIPAL_KIND_ROUTER,
    audit.HOST: pb.AUDIT_PRINCIPAL_KIND_HOST,
}
_ROLES: Mapping[str, pb.UserRole.ValueType] = {USER: pb.USER_ROLE_USER, ADMIN: pb.USER_ROLE_ADMIN}


async def list_audit_records(database: Database, request: pb.ListAuditRecordsRequest) -> pb.ListAuditRecordsResponse:
    """Returns a page of the records that match filter and times. Raises InvalidRequest."""
    terms = [
        (field, operator, value.removeprefix("AUDIT_CATEGORY_") if field == "category" else value)
        for field, operator, value in parse_filter(request.filter, _FIELDS)
    ]
    violations = Violations()
    start = violations.timestamp("start_time", request.start_time) if request.HasField("start_time") else None
    end = violations.timestamp("end_time", request.end_time) if request.HasField("end_time") else None
    violations.raise_any()
    query = ["audit", request.filter, *(moment and moment.isoformat() for moment in (start, end))]
    page = open_page(request.page_size, request.page_token, query)
    after = (dt.datetime.fromisoformat(page.after[0]), uuid.UUID(page.after[1])) if page.after else None
    async with database.transaction() as tx:
        found = await audit.list_page(tx, terms=terms, start=start, end=end, after=after, limit=page.size + 1)
    records, token = page.close(
        [record_message(record) for record in found[: page.size]],
        len(found),
        lambda position: [found[position].create_time.isoformat(), str(found[position].id)],
    )
    return pb.ListAuditRecordsResponse(records=records, next_page_token=token)


def record_message(record: StoredRecord) -> pb.AuditRecord:
    """Returns a record as the API has it; words that another version wrote, and this one does not know,
    are unspecified.
    """
    return pb.AuditRecord(
        id=str(record.id),
        category=_CATEGORIES.get(record.category, pb.AUDIT_CATEGORY_UNSPECIFIED),
        create_time=timestamp(record.create_time),
        end_time=None if record.end_time is None else timestamp(record.end_time),
        principal_kind=_KINDS.get(record.principal_kind, pb.AUDIT_PRINCIPAL_KIND_UNSPECIFIED),
        principal=record.principal,
        role=_ROLES.get(record.role, pb.USER_ROLE_UNSPECIFIED),
        token_id="" if record.token_id is None else str(record.token_id),
        address=record.address,
        method=record.method,
        object_kind=record.object_kind,
        object=record.object,
        summary=record.summary,
        code=record.code,
        reason=record.reason,
        request_id=record.request_id,
        manager=record.manager,
        count=record.count,
    )
