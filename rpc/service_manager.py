"""Notifies the service manager that started a daemon that it is ready, by sd_notify(3)."""

from __future__ import annotations

import os
import socket

_ADDRESS = "NOTIFY_SOCKET"


def notify_ready() -> None:
    """Says that the daemon serves; without a service manager that asked for it, does nothing. Raises OSError."""
    # Taken away: no child of the daemon speaks for it.
    address = os.environ.pop(_ADDRESS, "")
    if not address:
        return
    # A name that begins with @ is in the abstract namespace.
    path = f"\0{address[1:]}" if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notification:
        notification.connect(path)
        notification.send(b"READY=1")
