"""How many descriptors a process may have: each connection is one."""

from __future__ import annotations

import resource


def soft_limit() -> int:
    """Returns how many this process may have, and those that it starts."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_limit() -> None:
    """Takes all that it may have: the usual soft limit is there for programs that use `select`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
