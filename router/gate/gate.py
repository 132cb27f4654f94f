"""The gate: the engine asks it about each request of an endpoint without ready replicas, and waits for the answer.

A request's body stays in the engine. Here is one call per request that is held, answered when the request may go.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from envoy.config.core.v3.base_pb2 import HeaderValue, HeaderValueOption
from envoy.service.auth.v3 import external_auth_pb2_grpc
from envoy.service.auth.v3.external_auth_pb2 import CheckResponse, DeniedHttpResponse, OkHttpResponse
from envoy.type.v3.http_status_pb2 import HttpStatus, StatusCode
from google.rpc.status_pb2 import Status

from retinue.router.core.holding import HoldQueue, limited, releasable
from retinue.router.core.table import Endpoint
from retinue.rpc.retrying import Retrying

_log = logging.getLogger(__name__)

STEP_SECONDS = 0.02
"""Pause between two releases."""
_UNAVAILABLE = 14

_ALLOWED = CheckResponse(ok_response=OkHttpResponse())
_DENIED = CheckResponse(
    status=Status(code=_UNAVAILABLE),
    denied_response=DeniedHttpResponse(
        status=HttpStatus(code=StatusCode.ServiceUnavailable),
        headers=[HeaderValueOption(header=HeaderValue(key="retry-after", value="10"))],
    ),
)

# Requests in progress or pending on an endpoint's replicas.
CountInProgress = Callable[[Endpoint], Awaitable[int]]


class Gate(external_auth_pb2_grpc.AuthorizationServicer):
    """Holds requests per endpoint and releases them once replicas take them; belongs on one event loop."""

    def __init__(
        self,
        in_progress: CountInProgress,
        *,
        first_held: Callable[[], None] = lambda: None,
        emptied: Callable[[], None] = lambda: None,
    ) -> None:
        """`first_held` is called when an endpoint begins to hold, `emptied` when one holds nothing any more."""
        self._in_progress = in_progress
        self._first_held = first_held
        self._emptied = emptied
        self._endpoints: dict[str, Endpoint] = {}
        self._queues: dict[str, HoldQueue] = {}
        self._answers: dict[int, asyncio.Future[bool]] = {}
        self._numbers = itertools.count()
        self._wake = asyncio.Event()
        self._asking = Retrying("requests in progress are not known", _log)

    def held(self) -> dict[str, int]:
        """Returns how many requests are held, by endpoint."""
        return {endpoint_id: len(queue) for endpoint_id, queue in self._queues.items() if queue}

    def set_endpoints(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Takes the endpoints as the engine has them: to their ready replicas requests are released."""
        self._endpoints = dict(endpoints)
        for endpoint_id in list(self._queues):
            if endpoint_id not in endpoints or endpoints[endpoint_id].deleted:
                self._answer(self._queues.pop(endpoint_id).release(len(self._answers)), allowed=False)
        self._wake.set()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers when the request may go, or must not wait any longer; called by gRPC."""
        endpoint = self._endpoints.get(request.attributes.context_extensions.get("endpoint", ""))
        if endpoint is None:
            return _DENIED
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(endpoint.id, HoldQueue())
        number = next(self._numbers)
        if not queue.add(number, loop.time() + endpoint.routing.hold_timeout, endpoint.routing.hold_limit):
            return _DENIED
        answer: asyncio.Future[bool] = loop.create_future()
        self._answers[number] = answer
        if len(queue) == 1:
            self._first_held()
        self._wake.set()
        try:
            return _ALLOWED if await answer else _DENIED
        finally:
            self._answers.pop(number, None)
            queue.discard(number)

    async def run(self) -> None:
        """Releases requests, and answers those that were held for too long, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            held = bool(self.held())
            self._wake.clear()
            ready = [endpoint for key in self.held() if (endpoint := self._endpoints.get(key)) and endpoint.ready]
            if not ready:
                # Deadlines are seconds away: they need no step of 20 ms.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.25 if held else None):
                        await self._wake.wait()
            for key, queue in self._queues.items():
                self._answer(queue.expired(loop.time()), allowed=False)
                if not queue and held:
                    _log.debug("endpoint %s holds nothing", key)
            for endpoint in ready:
                await self._release(endpoint)
            for key in [key for key, queue in self._queues.items() if not queue]:
                del self._queues[key]
                self._emptied()
            if ready:
                await asyncio.sleep(STEP_SECONDS)

    async def _release(self, endpoint: Endpoint) -> None:
        try:
            in_progress = await self._in_progress(endpoint) if limited(endpoint) else 0
        except OSError as error:
            self._asking.fail(error)
            return
        if limited(endpoint):
            self._asking.succeed()
        if (queue := self._queues.get(endpoint.id)) is not None:
            self._answer(queue.release(releasable(endpoint, in_progress)), allowed=True)

    def _answer(self, numbers: list[int], *, allowed: bool) -> None:
        for number in numbers:
            answer = self._answers.get(number)
            if answer is not None and not answer.done():
                answer.set_result(allowed)
