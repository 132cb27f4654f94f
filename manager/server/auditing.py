"""Writes the audit: acts as `audit_rules` says, and denied calls.

An act is recorded before it begins, in a commit of its own; a call whose record cannot be written fails, and nothing
was done. Its outcome is written before the answer is given. So of each act that took effect there is a record, whenever
the manager is killed, and one without an outcome says that it may have. Denied calls are counted in memory and written
some seconds later: strangers make as many as they like.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from retinue.manager.domain import errors
from retinue.manager.server import audit_rules, lower_errors
from retinue.manager.server.audit_rules import Parser, Recorded, Rule
from retinue.manager.server.calls import Call, HandlerAbortedError
from retinue.manager.server.denials import Denials, minute_of
from retinue.manager.store.accounts import audit
from retinue.manager.store.accounts.audit import Act, Category, Denial
from retinue.manager.store.postgres.database import Database, StoreUnavailable
from retinue.manager.store.postgres.repeats import Repeats
from retinue.manager.store.sessions.visibility import Visibility
from retinue.rpc.open_call import CallEndedError

if TYPE_CHECKING:
    import datetime as dt
    import uuid
    from collections.abc import AsyncIterator, Callable, Mapping

    from retinue.manager.identity.principal import Principal

_log = logging.getLogger(__name__)

WRITE_SECONDS = 5.0
"""For so long denied calls are counted before they are written."""
_CLOSE_SECONDS = 2.0
# Of one statement.
_ROWS = 500
_DENIED = frozenset({errors.Code.PERMISSION_DENIED, errors.Code.UNAUTHENTICATED})


class Auditor:
    """Records the calls of one manager; belongs on one event loop."""

    def __init__(self, database: Database, manager: str, clock: Callable[[], dt.datetime]) -> None:
        """`manager` is the name of this one, `HOST:PID`."""
        self._database = database
        self._manager = manager
        self._clock = clock
        self._denials = Denials()
        self._changed = asyncio.Event()
        self._repeats = Repeats()

    def audited(
        self,
        call: Call,
        principal: Principal | None,
        behaviour: Any,
        parser: Parser | None,
        *,
        many: bool,
        stream: bool,
    ) -> Any:
        """Returns a handler that records what it does; the handler itself for a call that is not recorded.

        It takes `many` requests or one, and is the handler of a `stream` of responses or of one. `parser` reads
        requests that handlers take as they are on the wire.
        """
        rule = audit_rules.rule_for(call.method, principal)
        if rule is None or principal is None:
            return behaviour

        async def recorded_answer(request: Any, context: Any) -> Any:
            async with self._recorded(rule, call, principal, request):
                return await behaviour(request, context)

        async def recorded_stream(requests: Any, context: Any) -> AsyncIterator[Any]:
            first, requests = await _first(requests, parser) if many else (requests, requests)
            async with (
                self._recorded(rule, call, principal, first),
                aclosing(behaviour(requests, context)) as responses,
            ):
                async for response in responses:
                    yield response

        return recorded_stream if stream else recorded_answer

    @contextlib.asynccontextmanager
    async def _recorded(
        self, rule: Rule, call: Call, principal: Principal, request: Message | None
    ) -> AsyncIterator[None]:
        """Raises StoreUnavailable when the record cannot be written: before the block, or after one that succeeded."""
        record_id = await self._begin(rule, call, principal, request)
        if record_id is None:
            yield
            return
        try:
            yield
        except BaseException as error:
            # It is this error that the caller learns of.
            with contextlib.suppress(StoreUnavailable):
                await self._end(record_id, *_outcome(error))
            raise
        await self._end(record_id, grpc.StatusCode.OK.name, "")

    async def _begin(self, rule: Rule, call: Call, principal: Principal, request: Message | None) -> uuid.UUID | None:
        # A request that only asks for a check is no act.
        if request is None or getattr(request, "validate_only", False):
            return None
        visibility = Visibility(principal.is_admin, principal.name, principal.administered)
        if rule.recorded is Recorded.OTHERS and not visibility.sees_others:
            # Most calls of most users: nothing has to be looked for.
            return None
        async with self._database.transaction() as tx:
            name = audit_rules.object_of(rule, request, principal)
            summary = audit_rules.summary_of(rule, request)
            if rule.recorded is Recorded.OTHERS:
                references = audit_rules.references_of(rule, request)
                others = await audit.find_others(tx, rule.kind, references, visibility, principal.name)
                if not others:
                    return None
                # Of many, the journal says of each who ended it.
                name = audit_rules.shown(",".join(others), audit_rules.MAX_SUMMARY)
                summary = f"{summary} of_others={len(others)}".strip() if len(others) > 1 else summary
            by_right = principal.is_admin or rule.recorded is not Recorded.ALWAYS
            act = Act(
                category=Category.ADMINISTRATION if by_right else Category.ACCOUNT,
                principal_kind=principal.kind,
                principal=principal.name,
                role=principal.role,
                token_id=principal.token_id,
                address=call.address,
                method=call.method,
                object_kind=rule.kind,
                object=name,
                summary=summary,
                request_id=call.request_id,
                manager=self._manager,
            )
            return await audit.begin(tx, act)

    async def _end(self, record_id: uuid.UUID, code: str, reason: str) -> None:
        async with self._database.transaction() as tx:
            await audit.end(tx, record_id, code, reason)

    def note(self, call: Call, principal: Principal | None, error: errors.ApiError) -> None:
        """Counts a call that ends with an error, if that denies it."""
        if isinstance(error, errors.TooManyWrongTokens):
            # However many there were before, it is a wrong token.
            found = lower_errors.to_api_error(error.__cause__) if isinstance(error.__cause__, Exception) else None
            error = found or error
        self.deny(call.address, call.method, error, principal)

    def deny(self, address: str, method: str, error: errors.ApiError, principal: Principal | None = None) -> None:
        """Counts what a request from an address ends with, if that denies it; `method` is in words where the request
        is no call.
        """
        if error.code not in _DENIED:
            return
        who = ("", "", "") if principal is None else (str(principal.kind), principal.name, principal.role)
        self._denials.count(Denial(minute_of(self._clock()), *who, address, method, error.code.name, str(error.reason)))
        self._changed.set()

    async def run(self) -> None:
        """Writes denied calls until cancelled; what is left is written then."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await asyncio.sleep(WRITE_SECONDS)
                await self.write()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self.write()

    async def write(self) -> None:
        """Writes the denied calls that were counted; keeps them when the database is out of reach."""
        waiting = iter(self._denials.take().items())
        while counts := dict(islice(waiting, _ROWS)):
            await self._write(counts)
        if lost := self._denials.lost:
            self._denials.lost = 0
            _log.warning("%d denied calls are not in the audit: too many waited for the database", lost)

    async def _write(self, counts: Mapping[Denial, int]) -> None:
        written = False
        try:
            async with self._database.transaction() as tx:
                await audit.count_denials(tx, counts, self._manager)
            written = True
        except StoreUnavailable as error:
            if self._repeats.is_due(str(error), time.monotonic()):
                _log.warning("records of denied calls wait for the database: %s", error)
        finally:
            if not written:
                self._denials.put_back(counts)
                self._changed.set()


def _outcome(error: BaseException) -> tuple[str, str]:
    """Returns the name of the status and the reason that a call ends with."""
    if isinstance(error, HandlerAbortedError):
        return error.code.name, ""
    if not isinstance(error, Exception) or isinstance(error, CallEndedError):
        # Its caller has gone, its deadline has passed, or its manager stops.
        return grpc.StatusCode.CANCELLED.name, ""
    found = lower_errors.to_api_error(error)
    kind = errors.Internal if found is None else found
    return kind.code.name, str(kind.reason)


async def _first(requests: AsyncIterator[Any], parser: Parser | None) -> tuple[Message | None, AsyncIterator[Any]]:
    """Returns the first message of a stream, and the whole stream; None when there is none that can be read, which is
    for the handler to refuse.
    """
    waiting = aiter(requests)
    try:
        first = await anext(waiting)
    except StopAsyncIteration:
        return None, _Resumed([], waiting)
    message = first
    if not isinstance(first, Message):
        try:
            message = None if parser is None else parser(first)
        except DecodeError:
            message = None
    return message, _Resumed([first], waiting)


class _Resumed:
    """A stream of which the first message has been read."""

    def __init__(self, read: list[Any], rest: AsyncIterator[Any]) -> None:
        self._read = read
        self._rest = rest

    def __aiter__(self) -> _Resumed:
        return self

    async def __anext__(self) -> Any:
        return self._read.pop() if self._read else await anext(self._rest)
