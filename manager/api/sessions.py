"""The SessionService: translates requests, checks who may see what, and calls the lifecycle."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from sqlalchemy.exc import IntegrityError
from sqlmodel.ext.asyncio.session import AsyncSession

from manager.api import errors
from manager.api.fields import Fields
from manager.api.filters import parse_filter
from manager.api.interceptors import current_principal
from manager.api.pages import Pager
from manager.api.session_convert import etag, event_message, explanation_message, session_message, spec_from_message
from manager.fleet.dialer import Dialer
from manager.fleet.output import OutputPastEndError, OutputUnavailableError
from manager.identity.principal import Principal
from manager.lifecycle import commands
from manager.lifecycle.admission import admit
from manager.lifecycle.outputs import read_output
from manager.lifecycle.spec import SessionSpec
from manager.lifecycle.states import ENDED_SESSION_STATES
from manager.store import groups, journal, requests, sessions
from manager.store.database import Database
from manager.store.journal import JournalTail
from retinue.manager.v1 import session_service_pb2 as pb
from retinue.manager.v1 import session_service_pb2_grpc

_FILTER_FIELDS = frozenset({"id", "name", "project", "owner", "state", "type", "result", "resource_group"})
_MAX_EVENTS = 100
_BOOKMARK_SECONDS = 10.0


class SessionServicer(session_service_pb2_grpc.SessionServiceServicer):
    """Sessions, for their owners and for administrators."""

    def __init__(self, database: Database, tail: JournalTail, dialer: Dialer, stopping: asyncio.Event) -> None:
        self._database = database
        self._tail = tail
        self._dialer = dialer
        self._stopping = stopping

    async def CreateSession(self, request: pb.CreateSessionRequest, context: grpc.aio.ServicerContext[Any, Any]) -> pb.CreateSessionResponse:
        """See the proto."""
        principal = current_principal()
        spec = self._admitted(request, principal)
        session_id = uuid.uuid4()
        row, kernels = commands.new_rows(session_id, principal.name, spec)
        async with self._database.transaction() as tx:
            await self._check_references(tx, principal, spec)
            if request.validate_only:
                return pb.CreateSessionResponse(session=session_message(row, kernels))
            async with requests.once(tx, principal.name, "CreateSession", request, pb.CreateSessionResponse) as repeated:
                if repeated.answer is not None:
                    return repeated.answer
                try:
                    revision = await commands.create(tx, row, kernels)
                except IntegrityError as error:
                    raise errors.NameTakenError("session", spec.name) from error
                stored = (await sessions.read(tx, [session_id]))[session_id]
                repeated.record(pb.CreateSessionResponse(session=session_message(stored, kernels), revision=revision))
        self._tail.wake()
        assert repeated.answer is not None
        return repeated.answer
