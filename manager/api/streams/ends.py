"""How a stream into a kernel fails when the kernel ends under it: with the end and its reason."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from retinue.manager.agent_rpc.relay import AgentRefusedError, AgentUnavailableError, AttemptLocation
from retinue.manager.session import kernel_locator
from retinue.manager.store.postgres.database import Database, StoreUnavailable

if TYPE_CHECKING:
    import uuid
    from collections.abc import AsyncGenerator

# The agent has sent its report of the end, too.
_REPORT_SECONDS, _POLL_SECONDS = 5.0, 0.05


@contextlib.asynccontextmanager
async def naming_the_end(
    database: Database, session_id: uuid.UUID, hostname: str, location: AttemptLocation
) -> AsyncGenerator[None]:
    """Replaces the error of an agent, in the block, by how the attempt at `location` has ended, if it has: raises
    KernelNotRunningError or KernelRestartedError.
    """
    try:
        yield
    except (AgentRefusedError, AgentUnavailableError) as error:
        clock = asyncio.get_running_loop().time
        until = clock() + (_REPORT_SECONDS if _is_end(error) else 0.0)
        while True:
            try:
                async with database.transaction() as tx:
                    await kernel_locator.check(tx, session_id, hostname, location)
            except StoreUnavailable:
                raise error from None
            if clock() >= until:
                raise
            await asyncio.sleep(_POLL_SECONDS)


def _is_end(error: AgentRefusedError | AgentUnavailableError) -> bool:
    """Says whether the agent answered that the attempt has ended, or that there is none."""
    return isinstance(error, AgentRefusedError) and error.metadata.get("kind") == "attempt"
