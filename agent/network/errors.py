"""Errors of this package.

NetworkError                something could not be done now; it may be tried again
└── InvalidNetworkError     what was asked for can never be done
"""

from __future__ import annotations


class NetworkError(Exception):
    """A network could not be made, changed, read or removed; the text says which part and why."""


class InvalidNetworkError(NetworkError):
    """The description of a network is invalid on every node."""
