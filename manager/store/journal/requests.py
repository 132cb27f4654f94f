"""Idempotent calls: the first one takes effect, repetitions get its answer."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING, Protocol, TypeVar

from google.protobuf.message import Message
from sqlalchemy import LargeBinary, Text, Uuid, and_, literal_column, select, update
from sqlalchemy.dialects.postgresql import insert

from retinue.manager.domain.errors import RequestIdReused
from retinue.manager.store.postgres.constructs import Construct, parameter, table_of
from retinue.manager.store.postgres.database import Query, Statement, Transaction
from retinue.manager.store.tables import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from retinue.manager.store.postgres.recordset import Row

_request = table_of(Request)
_KEY = {
    "principal": parameter("caller", Text()),
    "method": parameter("call", Text()),
    "request_id": parameter("id", Uuid()),
}
_IS_IT = and_(*(_request.c[name] == value for name, value in _KEY.items()))
_CLAIMED = Construct(
    insert(_request)
    .values(**_KEY, body_hash=parameter("hash", LargeBinary()), answer=literal_column("''::bytea"))
    .on_conflict_do_nothing()
    .returning(literal_column("TRUE"))
)
_KEPT = Construct(update(_request).where(_IS_IT).values(answer=parameter("serialized", LargeBinary())))
_ANSWERED = select(_request.c.body_hash, _request.c.answer).where(_IS_IT)


class Repeatable(Protocol):
    """A request with a `request_id`: a UUID, or empty when it will not be repeated."""

    request_id: str


Answer = TypeVar("Answer", bound=Message)


async def once(  # noqa: PLR0917  # in the order they are thought of
    tx: Transaction,
    principal: str,
    method: str,
    request: Repeatable,
    answer_type: type[Answer],
    effect: Callable[[], Awaitable[Answer]],
) -> Answer:
    """Returns the answer of `effect`, which runs at most once for a principal, a method and a request_id.
    Ends the transaction.

    The answer is kept in the transaction of the effect: both are there or neither. A repetition that comes while the
    first is under way waits for its end: at the first statements of its effect, which are undone then. Raises
    RequestIdReused, and ValueError when `request_id` is no UUID.
    """
    if not request.request_id:
        return await effect()
    key = {"caller": principal, "call": method, "id": uuid.UUID(request.request_id)}
    body_hash = _hash(request)
    tx.ahead(Query(_CLAIMED, {**key, "hash": body_hash}, read=_claimed), guards=True)
    try:
        answer = await effect()
        await tx.pipeline(Statement(_KEPT, {**key, "serialized": answer.SerializeToString()}), commit=True)
    except _RepeatedError:
        await tx.rollback()
    else:
        return answer
    kept = (await tx.execute(_ANSWERED, key)).one()
    if bytes(kept.body_hash) != body_hash:
        raise RequestIdReused
    return answer_type.FromString(bytes(kept.answer))


class _RepeatedError(Exception):
    """The request was made before."""


def _claimed(rows: Sequence[Row]) -> None:
    if not rows:
        raise _RepeatedError


def _hash(request: Repeatable) -> bytes:
    """Returns the hash of all but the request_id: a UUID may be written in several ways."""
    assert isinstance(request, Message)  # noqa: S101  # the protocol cannot say so
    body = type(request)()
    body.CopyFrom(request)
    body.ClearField("request_id")
    return hashlib.sha256(body.SerializeToString(deterministic=True)).digest()
