"""Errors of this package.

NetworkError                something could not be done now; it may be tried again
├── InvalidNetworkError     what was asked for can never be done
├── PortsExhaustedError     no number for a published port is free
└── PortUnreachableError    a port cannot be reached from outside of its kernel
"""

from __future__ import annotations

from retinue.agent.errors import NetworkError

__all__ = ["InvalidNetworkError", "NetworkError", "PortUnreachableError", "PortsExhaustedError"]


class InvalidNetworkError(NetworkError):
    """The description of a network is invalid on every node."""


class PortsExhaustedError(NetworkError):
    """No number for a published port of this node is free."""


class PortUnreachableError(NetworkError):
    """The kernel has no egress link, or one side has no IPv4 address."""
