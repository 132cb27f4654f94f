"""The bridge from browsers to the manager's own API. It passes bytes on, and knows no message.

It authorises nothing: the token of the cookie goes with each call, and the API decides. Only who has no valid token is
refused here, before a body is read or a connection is made. A unary call is gRPC-Web by POST, a stream of either kind
is a websocket.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from aiohttp import web

from retinue.manager.console.browsers import BodyRefusedError, browser_address, read_body
from retinue.manager.console.core import frames
from retinue.manager.console.core.frames import End
from retinue.manager.console.core.limits import OpenSockets
from retinue.manager.console.stream import CLOSE_SECONDS, Stream, end_of
from retinue.manager.domain.errors import ApiError, CredentialsMissing, TokenInvalid, TooManyWrongTokens, Unavailable
from retinue.manager.server.wrong_tokens import WrongTokens
from retinue.manager.store.postgres.database import StoreUnavailable
from retinue.manager.v1 import (
    account_service_pb2,
    app_service_pb2,
    endpoint_service_pb2,
    fleet_service_pb2,
    kernel_service_pb2,
    session_service_pb2,
    template_service_pb2,
)
from retinue.rpc.errors import status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.protobuf.descriptor import FileDescriptor

    from retinue.manager.console.core.address import ConsoleAddress
    from retinue.manager.server.auditing import Auditor
    from retinue.manager.server.authentication import Authenticator
    from retinue.manager.server.calls import Browsers


def _methods(*files: FileDescriptor) -> Mapping[str, bool]:
    services = [service for file in files for service in file.services_by_name.values()]
    return {
        f"/{service.full_name}/{method.name}": method.client_streaming or method.server_streaming
        for service in services
        for method in service.methods
    }


METHODS = _methods(
    account_service_pb2.DESCRIPTOR,
    app_service_pb2.DESCRIPTOR,
    endpoint_service_pb2.DESCRIPTOR,
    fleet_service_pb2.DESCRIPTOR,
    kernel_service_pb2.DESCRIPTOR,
    session_service_pb2.DESCRIPTOR,
    template_service_pb2.DESCRIPTOR,
)
"""The methods that browsers may call, by their paths, and of each whether it is a stream. No other is passed on."""

_BODY_SECONDS = 60.0


class Bridge:
    """Calls of all browsers; belongs on one event loop."""

    def __init__(
        self,
        address: ConsoleAddress,
        authenticator: Authenticator,
        connect: Callable[[], grpc.aio.Channel],
        auditor: Auditor,
        browsers: Browsers,
    ) -> None:
        """`connect` returns a new channel to the API, with a connection of its own, which knows of `browsers`."""
        self._auditor = auditor
        self._browsers = browsers
        self._address = address
        self._authenticator = authenticator
        self._connect = connect
        # Unary calls share one.
        self._channel = connect()
        self._sockets = OpenSockets()
        # The API sees one address only, of this bridge.
        self._wrong_tokens = WrongTokens()

    async def close(self) -> None:
        """Ends unary calls."""
        await self._channel.close()

    async def call(self, request: web.Request, method: str) -> web.StreamResponse:
        """Answers a unary call."""
        if request.content_type != frames.CONTENT_TYPE:
            return _refused(415, f"a call is {frames.CONTENT_TYPE}")
        secret = self._secret(request)
        user = await self._user(request, method, secret)
        if isinstance(user, End):
            return _answered(user.trailers())
        longest, seconds = frames.HEADER_BYTES + frames.MAX_MESSAGE, _BODY_SECONDS
        try:
            message = frames.request_in(await read_body(request, longest, seconds))
        except BodyRefusedError as error:
            return _refused(error.status, str(error))
        if message is None:
            return _refused(400, "the body is not one message that is not compressed")
        make: Any = self._channel.unary_unary(method)
        call = make(message, metadata=self._metadata(request, secret))
        try:
            body = frames.response(await call)
        except grpc.aio.AioRpcError as error:
            body = end_of(error).trailers()
        finally:
            call.cancel()
        return _answered(body)

    async def stream(self, request: web.Request, method: str) -> web.StreamResponse:
        """Carries a stream until it ends."""
        offered = request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        if frames.PROTOCOL not in {protocol.strip() for protocol in offered}:
            return _refused(400, f"the subprotocol is {frames.PROTOCOL}")
        secret = self._secret(request)
        user = await self._user(request, method, secret)
        if isinstance(user, str) and not self._sockets.open(user):
            return _refused(429, "this user has too many streams open")
        try:
            socket = web.WebSocketResponse(
                protocols=(frames.PROTOCOL,),
                max_msg_size=frames.MAX_MESSAGE,
                compress=False,
                autoping=False,
                timeout=CLOSE_SECONDS,
            )
            await socket.prepare(request)
            stream = Stream(socket, lambda: self._check(secret))
            if isinstance(user, End):
                await stream.end(user)
            else:
                async with self._connect() as channel:
                    await stream.carry(channel, method, self._metadata(request, secret))
        finally:
            if isinstance(user, str):
                self._sockets.close(user)
        if request.transport is not None and request.transport.get_write_buffer_size():
            # What was not read in time is not waited for.
            request.transport.abort()
        return socket

    def _secret(self, request: web.Request) -> str:
        return self._address.secret(request.headers.getall("Cookie", []))

    def _metadata(self, request: web.Request, secret: str) -> tuple[tuple[str, str], ...]:
        return ("authorization", f"Bearer {secret}"), self._browsers.metadata(browser_address(request))

    async def _user(self, request: web.Request, method: str, secret: str) -> str | End:
        """Returns who a token stands for, or how a call ends that has no valid one."""
        try:
            return (await self._authenticator.user(secret)).name
        except StoreUnavailable:
            return _end(Unavailable("the database is out of reach for a moment"))
        except TokenInvalid as error:
            denied = error if secret else CredentialsMissing("log in")
            self._auditor.deny(browser_address(request), method, denied)
            seconds = self._wrong_tokens.count(browser_address(request), time.monotonic()) if secret else 0.0
            return _end(TooManyWrongTokens(seconds) if seconds > 0 else error)

    async def _check(self, secret: str) -> End | None:
        try:
            await self._authenticator.user(secret)
        except StoreUnavailable:
            # An outage of the database is no reason to cut streams.
            return None
        except TokenInvalid as error:
            return _end(error)
        return None


def _end(error: ApiError) -> End:
    return End(error.code, str(error), status_of(error).SerializeToString())


def _answered(body: bytes) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": frames.CONTENT_TYPE})


def _refused(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
