"""The options that runtimes of every kind have, and the objects that all runtimes of one agent share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retinue.agent.attempts import Owner
from retinue.agent.conditions import Conditions
from retinue.agent.host.users import UserRange
from retinue.agent.inside.provision import WITHOUT_RESOLVER
from retinue.agent.kernel.build import CACHE
from retinue.agent.resources.core.holdings import Holdings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from retinue.agent.state.damaged import DamagedFiles
    from retinue.agent.state.disk import Disk


def _without_resolver() -> str:
    return WITHOUT_RESOLVER


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """The options of kernels; `tasks` bounds their processes and threads, `output_limit` is in bytes.

    `work_size` bounds what a kernel without a slot has on the disk, in bytes; 0 means a part of the disk. `work_files`
    bounds the files of every kernel; 0 means in proportion to its slot.

    `cache_dir` is for what is built once. Each kernel has a user of `users` and the group `gid`; files in mounts that
    name no other owner belong to `uid` and `gid`. `resolver` returns the resolv.conf of a kernel with egress that is
    created now.
    """

    agent_id: str
    state_dir: Path
    scratch_dir: Path
    boot_id: str
    uid: int = 60_000
    gid: int = 60_000
    users: UserRange = field(default_factory=UserRange)
    tasks: int = 4096
    output_limit: int = 64 << 20
    work_size: int = 0
    work_files: int = 0
    cache_dir: Path = CACHE
    resolver: Callable[[], str] = _without_resolver

    @property
    def owner(self) -> Owner:
        """Returns the owner of files in mounts that name no other."""
        return Owner(self.uid, self.gid)


@dataclass(frozen=True, slots=True)
class Shared:
    """The objects that all runtimes of one agent share.

    Cores and devices are taken from `holdings`, by default none. Damaged files are set aside in `damaged`, by default
    in the state directory; what must be written uses the reserve of `disk`. What is wrong is set in `conditions`.
    `clock` is monotonic.
    """

    holdings: Holdings = field(default_factory=Holdings)
    damaged: DamagedFiles | None = None
    disk: Disk | None = None
    conditions: Conditions = field(default_factory=Conditions)
    clock: Callable[[], float] = time.monotonic
