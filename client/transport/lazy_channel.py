"""A channel that its first call opens, in the event loop of that call."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, ClassVar

import grpc
import grpc.aio

from retinue.client.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_FORKED = (
    "this process was forked from one that had called a manager, and gRPC does not work in both: start processes by "
    '"spawn" (multiprocessing.get_context("spawn")), or call managers only after the fork, in each process'
)


_NO_LOOP = (
    "no event loop of asyncio runs here, and retinue.client.aio needs one: under trio call retinue.client.Client in a "
    "thread (trio.to_thread.run_sync), as you would without an event loop"
)
# Any call would do; this one is small.
_ASKED = "/retinue.manager.v1.AccountService/GetCaller"
_UNANSWERED = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}


def running_loop() -> asyncio.AbstractEventLoop:
    """Returns the running event loop. Raises UsageError when none of asyncio's runs, as under trio."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(_NO_LOOP) from None


class ChannelMethod:
    """A method of the channel that is open when it is called."""

    def __init__(self, channel: LazyChannel, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """`kind` is how the channel makes it, as in `unary_unary`, from arguments and options."""
        self._channel = channel
        self._kind = kind
        self._arguments = arguments
        self._options = options
        self._made: tuple[grpc.aio.Channel, Any] | None = None

    @property
    def timeout(self) -> float | None:
        """Returns the seconds that callers want to wait at most; None for the usual ones."""
        return self._channel.timeout

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Calls it, with the metadata of the channel."""
        channel = self._channel.current()
        if self._made is None or self._made[0] is not channel:
            self._made = channel, getattr(channel, self._kind)(*self._arguments, **self._options)
        own = named.pop("metadata", None) or ()
        return self._made[1](*values, metadata=(*own, *self._channel.metadata), **named)

    async def is_answered(self) -> bool:
        """Says whether a manager answers anything within `timeout`."""
        asked = ChannelMethod(self._channel, "unary_unary", (_ASKED,), {})
        try:
            await asked(b"", timeout=self.timeout)
        except grpc.aio.AioRpcError as error:
            return error.code() not in _UNANSWERED
        return True


class LazyChannel(grpc.aio.Channel):
    """Stands for a channel that may be made where no event loop runs, or another one than that of its calls.

    A call in another loop than the one before opens another channel: the former one broke off with its loop. In a
    process that was forked after the first channel was opened, no call works: gRPC's threads stay behind.
    """

    _first_opened_by: ClassVar[int | None] = None

    def __init__(
        self,
        open_channel: Callable[[], grpc.aio.Channel],
        metadata: Iterable[tuple[str, str]] = (),
        timeout: float | None = None,
        endpoint: str = "",
    ) -> None:
        """Opens nothing yet. `metadata` goes with every call; `timeout` is for those who make them, and so is
        `endpoint`, where the manager is reached.
        """
        self.endpoint: str = endpoint
        self._open = open_channel
        self.metadata: tuple[tuple[str, str], ...] = tuple(metadata)
        self.timeout: float | None = timeout
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def current(self) -> grpc.aio.Channel:
        """Returns the channel of the running loop, which is opened if there is none. Raises UsageError."""
        loop = running_loop()
        process = os.getpid()
        if LazyChannel._first_opened_by not in (None, process):
            raise UsageError(_FORKED)
        LazyChannel._first_opened_by = process
        if self._channel is None or self._loop is not loop:
            self._channel, self._loop = self._open(), loop
        return self._channel

    def _method(self, kind: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return ChannelMethod(self, kind, arguments, options)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        """Returns a method of the channel that is open when it is called."""
        return self._method("unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        """Returns a method of the channel that is open when it is called."""
        return self._method("unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        """Returns a method of the channel that is open when it is called."""
        return self._method("stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        """Returns a method of the channel that is open when it is called."""
        return self._method("stream_stream", arguments, options)

    async def close(self, grace: float | None = None) -> None:
        """Closes the channel, if one is open in this loop; a later call opens another."""
        channel, self._channel = self._channel, None
        if channel is None or LazyChannel._first_opened_by != os.getpid():
            return
        if self._loop is asyncio.get_running_loop():
            await channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Returns the state of the open channel."""
        return self.current().get_state(try_to_connect)

    @property
    def is_connecting(self) -> bool:
        """Whether a channel is open and has no connection, though calls want one."""
        states = (grpc.ChannelConnectivity.CONNECTING, grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        return self._channel is not None and self._channel.get_state() in states

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Waits until the state of the open channel is another one."""
        await self.current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Waits until the open channel is connected."""
        await self.current().channel_ready()

    async def __aenter__(self) -> LazyChannel:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes the channel."""
        await self.close()
