"""Errors of kernels' runtimes."""

from __future__ import annotations


class BackendError(Exception):
    """Something could not be done; may be tried again."""


class UnknownAttemptError(BackendError):
    """There is no record of the attempt."""


class NotRunningError(BackendError):
    """The attempt does not run."""


class PortClosedError(Exception):
    """Nothing listens on the port, at any of the addresses."""
