"""Calls that a node makes to the manager by itself: announces its address, and asks to renew its certificate."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc

from retinue.manager.v1 import enrollment_service_pb2, enrollment_service_pb2_grpc
from retinue.rpc.enrollment.enrollment import channel_options, recover
from retinue.rpc.enrollment.identity import new_key
from retinue.rpc.enrollment.managers import ManagerChoice, agent_endpoints
from retinue.rpc.retrying import Retrying

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from retinue.rpc.enrollment.identity import IdentityStore

_log = logging.getLogger(__name__)

T = TypeVar("T")

ANNOUNCE_INTERVAL = 30.0
"""Seconds between two announcements while no manager is connected."""
RENEWAL_INTERVAL = 60.0
"""Seconds between two looks at the certificate's age."""
FIRST_DELAY = 0.2
"""Seconds before an announcement that failed is tried again, the first time."""
TIMEOUT = 10.0
"""Seconds for one call."""


def now_utc() -> dt.datetime:
    """Returns the time now, in UTC."""
    return dt.datetime.now(dt.UTC)


@dataclass(frozen=True, slots=True)
class Announcement:
    """An announcement and its recipients: `address` is where the managers dial this node."""

    managers: Sequence[str]
    address: str
    instance: str
    version: str


class Announcer:
    """Announces a node and renews its certificate."""

    def __init__(
        self,
        announcement: Announcement,
        identities: IdentityStore,
        random_numbers: random.Random,
        now: Callable[[], dt.datetime] = now_utc,
        kind: enrollment_service_pb2.NodeKind.ValueType = enrollment_service_pb2.NODE_KIND_AGENT,
    ) -> None:
        """`now` is the wall clock, that validity of certificates is checked against; `kind` is that of the node."""
        self._announcement = announcement
        self._identities = identities
        self._random = random_numbers
        self._now = now
        self._kind = kind
        self._recovered = asyncio.Event()
        self._found_expired = asyncio.Event()
        self._choice = ManagerChoice()
        # Of the last call: the managers that failed, and how.
        self._failures: dict[str, grpc.aio.AioRpcError] = {}

    async def announce_always(self, wait_disconnected: Callable[[], Awaitable[object]]) -> None:
        """Announces now, and again while no manager is connected, until cancelled; at once with a certificate that was
        renewed after it had expired.
        """
        delay = FIRST_DELAY
        announcing = Retrying("cannot announce this node", _log, part="announcement")
        while True:
            if self._identities.current().expired(self._now()):
                # Nobody would hear it. Where no manager is connected, the certificate is looked at before its time.
                self._found_expired.set()
                await self._pause(ANNOUNCE_INTERVAL)
                continue
            self._recovered.clear()
            try:
                await self.announce()
                delay, pause = FIRST_DELAY, ANNOUNCE_INTERVAL
                announcing.succeed()
            except (grpc.aio.AioRpcError, ValueError) as error:
                announcing.fail(self._in_words(error))
                pause, delay = delay, min(ANNOUNCE_INTERVAL, delay * 2)
            await self._pause(pause)
            await wait_disconnected()

    async def _pause(self, seconds: float) -> None:
        """Waits about so long, or until a certificate that had expired was renewed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds * self._random.uniform(0.8, 1.2)):
                await self._recovered.wait()

    async def renew_always(self) -> None:
        """Renews the certificate after two thirds of its lifetime, until cancelled; one that has expired by a proof."""
        delay = FIRST_DELAY
        renewing = Retrying("cannot renew the certificate", _log, part="certificate")
        while True:
            self._found_expired.clear()
            if self._identities.current().due(self._now()):
                expired = self._identities.current().expired(self._now())
                try:
                    await self.renew()
                    _log.info("the certificate was renewed")
                    renewing.succeed()
                    delay = FIRST_DELAY
                except (grpc.aio.AioRpcError, ValueError, OSError) as error:
                    renewing.fail(f"{'it has expired; ' if expired else ''}{self._in_words(error)}")
                    if expired:
                        await asyncio.sleep(delay * self._random.uniform(0.8, 1.2))
                        delay = min(ANNOUNCE_INTERVAL, delay * 2)
                        continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEWAL_INTERVAL * self._random.uniform(0.8, 1.2)):
                    await self._found_expired.wait()

    async def announce(self) -> None:
        """Announces once. Raises grpc.aio.AioRpcError."""
        about = self._announcement
        request = enrollment_service_pb2.AnnounceRequest(
            agent_id=self._identities.current().agent_id,
            address=about.address,
            instance=about.instance,
            version=about.version,
        )

        async def announce(stub: enrollment_service_pb2_grpc.EnrollmentServiceAsyncStub) -> None:
            await stub.Announce(request, timeout=TIMEOUT)

        await self._call(announce)

    async def renew(self) -> None:
        """Renews once, with a new key. Raises grpc.aio.AioRpcError, and OSError when it cannot be stored."""
        if self._identities.current().expired(self._now()):
            await self._recover()
            return
        try:
            await self._renew()
        except grpc.aio.AioRpcError as error:
            # So looks a manager by whose clock the certificate has expired.
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            failures = dict(self._failures)
            try:
                await self._recover()
            except (grpc.aio.AioRpcError, OSError):
                self._failures = failures
                raise error from None

    async def _recover(self) -> None:
        self._failures.clear()
        managers = self._announcement.managers
        try:
            identity = await recover(self._identities.current(), managers, self._kind)
        except grpc.aio.AioRpcError as error:
            self._failures[managers[-1]] = error
            raise
        await asyncio.to_thread(self._identities.save, identity)
        self._recovered.set()

    async def _renew(self) -> None:
        agent_id = self._identities.current().agent_id
        key = new_key(agent_id)
        request = enrollment_service_pb2.RenewCertificateRequest(
            agent_id=agent_id, certificate_request=key.certificate_request
        )

        async def renew(
            stub: enrollment_service_pb2_grpc.EnrollmentServiceAsyncStub,
        ) -> enrollment_service_pb2.RenewCertificateResponse:
            return await stub.RenewCertificate(request, timeout=TIMEOUT)

        response = await self._call(renew)
        await asyncio.to_thread(self._identities.renew, key, response.certificate, response.ca_certificate)

    async def _call(self, work: Callable[[enrollment_service_pb2_grpc.EnrollmentServiceAsyncStub], Awaitable[T]]) -> T:
        """Returns what a call says, of the first manager that answers."""
        identity = self._identities.current()
        credentials = grpc.ssl_channel_credentials(
            identity.ca_certificate.encode(), identity.private_key.encode(), identity.certificate.encode()
        )

        async def at(address: str) -> T:
            async with grpc.aio.secure_channel(address, credentials, options=channel_options()) as channel:
                stub: enrollment_service_pb2_grpc.EnrollmentServiceAsyncStub = (
                    enrollment_service_pb2_grpc.EnrollmentServiceStub(channel)
                )
                try:
                    return await work(stub)
                except grpc.aio.AioRpcError as error:
                    self._failures[address] = error
                    raise

        self._failures.clear()
        return await self._choice.call(agent_endpoints(identity.agent_endpoint, self._announcement.managers), at)

    def _in_words(self, error: Exception) -> str:
        """Returns in words what failed: each manager that was tried, and what it said."""
        if not isinstance(error, grpc.aio.AioRpcError):
            return str(error)
        return "; ".join(f"at {address}: {_fault(failure)}" for address, failure in self._failures.items())


def _fault(error: grpc.aio.AioRpcError) -> str:
    code = error.code()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {TIMEOUT:g} s"
    return f"{getattr(code, 'name', code)}: {error.details()}"
