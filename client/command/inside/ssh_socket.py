"""Gives OpenSSH's clients a socket that leads to a server of a session, and stays beside it: their `ProxyUseFdpass`.

The socket is connected to the node itself where that can be reached, else to the manager, which leads there: no byte
passes this program or gRPC then. Else it is the end of a pair whose bytes the stream carries. A client waits until the
program that gave it the socket has ended, but the stream has to last as long as the connection:
it stays with a process in the background, which ends with either.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from typing import TYPE_CHECKING

from retinue.client.kernel.direct_connection import CONNECT_SECONDS, connect
from retinue.client.kernel.port import PortConnection, carry_socket
from retinue.rpc import memory

if TYPE_CHECKING:
    from collections.abc import Iterator

SUPPORTED = hasattr(socket, "send_fds") and hasattr(os, "fork")
"""Whether clients here can be given a socket."""


class SocketHandover:
    """Passes a connected socket to the client that has started this program; the client sends nothing before it."""

    def __init__(self, done: int, client: int = 1) -> None:
        """`done` is the pipe that tells the started process of the handover.

        `client` is the descriptor of the socket that leads to the client.
        """
        self._done = done
        self._client = client
        self._client_gone = False

    def pass_on(self, connection: socket.socket) -> None:
        """Passes a socket, once; called on an event loop. Raises OSError."""
        asyncio.get_running_loop().remove_reader(self._client)
        with socket.socket(fileno=os.dup(self._client)) as client:
            socket.send_fds(client, [b"\0"], [connection.fileno()])
        # Otherwise a reader of the client's output would wait for this process.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)
        os.write(self._done, b"1")
        os.close(self._done)

    @contextlib.contextmanager
    def client_waits(self) -> Iterator[None]:
        """Ends the block, without an error, when the client goes before it has its socket.

        What the block waits for may take long, as a manager that does not answer.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def end() -> None:
            loop.remove_reader(self._client)
            self._client_gone = True
            if task is not None:
                task.cancel()

        loop.add_reader(self._client, end)
        try:
            yield
        except asyncio.CancelledError:
            if not self._client_gone:
                raise
        finally:
            loop.remove_reader(self._client)


def fork_handover() -> SocketHandover | None:
    """Continues in a background process, and returns its handover; None when the client takes no socket.

    The started process ends after the handover, or with the background process if that ends before.
    """
    if not SUPPORTED or not _takes_socket():
        return None
    done, finish = os.pipe()
    child = os.fork()
    if child:
        os.close(finish)
        # With os._exit: what is there to clean up belongs to the other process.
        if os.read(done, 1):
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
    os.close(done)
    os.setsid()
    return SocketHandover(finish)


def _takes_socket() -> bool:
    """Returns whether standard input and output are one Unix socket:
    clients that know no ProxyUseFdpass have two pipes there.
    """
    source, sink = os.fstat(0), os.fstat(1)
    return stat.S_ISSOCK(source.st_mode) and (source.st_dev, source.st_ino) == (sink.st_dev, sink.st_ino)


async def lead(remote: PortConnection, handover: SocketHandover, endpoint: str) -> None:
    """Passes on a socket that leads to a port, and returns when its connection has ended. Raises CallError, OSError.

    `endpoint` is where the manager is reached.
    """
    direct = await connect(remote, endpoint)
    if direct is not None:
        with direct:
            direct.setblocking(True)
            handover.pass_on(direct)
        await remote.finish()
        return
    here, there = _socket_pair()
    memory.reuse_freed()
    with here:
        with there:
            handover.pass_on(there)
        here.setblocking(False)
        await carry_socket(here, remote)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets.

    They are of TCP where that can be: it lets as much be under way as one transfer has, in fewer and larger messages.
    """
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 0), backlog=1) as listening:
        here = socket.create_connection(listening.getsockname(), CONNECT_SECONDS)
        there, address = listening.accept()
        if address == here.getsockname():
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return here, there
        # Another program of this machine was faster.
        here.close()
        there.close()
    return socket.socketpair()
