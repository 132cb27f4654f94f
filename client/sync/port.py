"""The form of `retinue.client.kernel.port` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.blocking import iterate, run
from retinue.client.kernel import port as aio_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import TYPE_CHECKING, Self

    from retinue.types.v1 import port_pb2


class PortConnection:
    """One connection to a port of `main1`: iterate over what comes, up to its end, and write what goes.

    with session.open_port("web") as connection:
        connection.write(b"GET / HTTP/1.0\r\n\r\n")
        connection.end_data()
        for data in connection:
            print(data.decode(), end="")

    Leaving the block closes it: what the other side has not taken by then is lost, unless `finish` has waited for it.
    One task at a time reads, and one writes. All methods raise CallError.
    """

    def __init__(self, asynchronous: aio_port.PortConnection) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    @property
    def port(self) -> int:
        """Returns the `port` of the asynchronous form."""
        return self._asynchronous.port

    def __enter__(self) -> Self:
        """Connects; `port` is set from then on."""
        run(self._asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        run(self._asynchronous.__aexit__(kind, error, trace))

    @property
    def direct_port(self) -> port_pb2.DirectPort | None:
        """Returns the port of the node that carries the data, unless it is refused;
        None for one that carries it itself.
        """
        return self._asynchronous.direct_port

    @property
    def relay_port(self) -> port_pb2.DirectPort | None:
        """Returns the port of the manager that leads there too, whose host is the one that
        the manager was reached at.
        """
        return self._asynchronous.relay_port

    def refuse_direct(self) -> None:
        """Has the data carried by this connection after all."""
        run(self._asynchronous.refuse_direct())

    def __iter__(self) -> Iterator[bytes]:
        """Yields what comes, until the other side ends; reads nothing ahead of the iterating task."""
        return iterate(aiter(self._asynchronous))

    def views(self) -> Iterator[memoryview]:
        """Yields what iterating yields, without a copy."""
        return iterate(self._asynchronous.views())

    def write(self, data: bytes | memoryview) -> None:
        """Sends data; returns when it is sent, which may take until the other side reads."""
        run(self._asynchronous.write(data))

    @property
    def max_message(self) -> int:
        """Returns how many bytes the next message may hold; once much has been sent, it may hold more."""
        return self._asynchronous.max_message

    def end_data(self) -> None:
        """Ends sending; received data may still be read."""
        run(self._asynchronous.end_data())

    def finish(self) -> None:
        """Waits until the other side has taken all that was sent; after `end_data`, and once nothing more comes."""
        run(self._asynchronous.finish())
