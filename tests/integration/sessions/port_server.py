"""What listens in the kernel of the tests of ports: one behaviour per port. Runs with the standard library only."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading

ECHO, DIGEST, DEAF, ENDLESS, RESET, OWN_ADDRESS, V6 = 7001, 7002, 7003, 7004, 7005, 7006, 7007


def echo(connection: socket.socket) -> None:
    """Sends back what comes, and at its end how much that was."""
    count = 0
    while data := connection.recv(1 << 18):
        count += len(data)
        connection.sendall(data)
    connection.sendall(b"%020d" % count)


def digest(connection: socket.socket) -> None:
    """Says the digest of what comes once all has come."""
    found = hashlib.sha256()
    while data := connection.recv(1 << 18):
        found.update(data)
    connection.sendall(found.hexdigest().encode())


def deaf(_connection: socket.socket) -> None:
    """Never reads."""
    threading.Event().wait()


def endless(connection: socket.socket) -> None:
    """Sends until the peer stops reading."""
    while True:
        connection.sendall(bytes(1 << 16))


def reset(connection: socket.socket) -> None:
    """Breaks the connection off once something has come."""
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


SERVERS = (
    ("127.0.0.1", ECHO, echo),
    ("0.0.0.0", DIGEST, digest),  # noqa: S104  # inside a kernel
    ("127.0.0.1", DEAF, deaf),
    ("127.0.0.1", ENDLESS, endless),
    ("127.0.0.1", RESET, reset),
    ("main1", OWN_ADDRESS, echo),
    ("::1", V6, echo),
)


def main() -> None:
    """Listens everywhere, and then says so."""
    for host, port, behaviour in SERVERS:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=64)

        def serve(listening: socket.socket = listening, behaviour: object = behaviour) -> None:
            def one(connection: socket.socket) -> None:
                with connection:
                    try:
                        behaviour(connection)  # type: ignore[operator]
                    except OSError:
                        return

            while True:
                threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
    print("listening", flush=True)  # noqa: T201
    threading.Event().wait()


if __name__ == "__main__":
    main()
