"""A stream to an agent on which nothing is sent that a former leader may not send."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from retinue.agent.v1 import agent_service_pb2 as pb


class GuardedStream:
    """A Sync stream. Checks before each message whether the lease is still valid: a process that was paused continues where it was."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[pb.SyncRequest, pb.SyncResponse], check_lease: Callable[[], None]
    ) -> None:
        """`check_lease` raises TermOverError when the lease has ended."""
        self._call = call
        self._check_lease = check_lease

    async def write(self, message: pb.SyncRequest) -> None:
        """Sends a message. Raises TermOverError when the lease has ended."""
        self._check_lease()
        await self._call.write(message)

    async def read(self) -> object:
        """Returns the next message of the agent, or something else at the end."""
        return await self._call.read()

    def cancel(self) -> None:
        """Ends the stream."""
        self._call.cancel()
