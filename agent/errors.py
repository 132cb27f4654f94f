"""Errors of kernels' runtimes and networks."""

from __future__ import annotations


def in_words(error: Exception) -> str:
    """Returns an error as people read it: of the system's errors the words, without their number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error)


class NetworkError(Exception):
    """A network could not be made, changed, read or removed; the text says which part and why."""


class KernelRuntimeError(Exception):
    """Something could not be done; may be tried again."""


class UnknownAttemptError(KernelRuntimeError):
    """There is no record of the attempt."""


class NotRunningError(KernelRuntimeError):
    """The attempt does not run."""


class PausedError(NotRunningError):
    """Something outside of the kernel keeps it from running; the text says what."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the kernel is paused: {why}")


class WorkDirectoryMissingError(NotRunningError):
    """The work directory of a kernel is not on its node any more; the kernel may still run."""

    def __init__(self) -> None:
        super().__init__(
            "the kernel's work directory is gone: the kernel has ended, or something on its node removed the directory; "
            "a session that still runs has to be ended and started again"
        )


class PortClosedError(Exception):
    """Nothing listens on the port, at any of the addresses."""


class KernelStartError(Exception):
    """A kernel could not be started; the text says why, and `reason` as a word. Nothing of it runs any more."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
