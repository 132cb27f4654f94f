"""Enrols a node ahead of the agent's first start, and writes the agent's configuration file."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from retinue.agent.state.exclusive import lock
from retinue.rpc.enrollment.enrollment import enroll
from retinue.rpc.enrollment.identity import IdentityError, IdentityStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


async def join(agent_id: str, directory: Path, managers: Sequence[str], join_token: str, fingerprint: str) -> None:
    """Enrols the agent and keeps its certificate in its data directory.

    Raises IdentityError when it is enrolled already, InUseError while it runs, ValueError, OSError,
    and grpc.aio.AioRpcError.
    """
    await asyncio.to_thread(directory.mkdir, 0o700, parents=True, exist_ok=True)
    in_use = f"an agent process uses the data directory {directory}: stop it first"
    descriptor = await asyncio.to_thread(lock, directory, in_use)
    try:
        identities = IdentityStore(directory / "identity.json")
        found = await asyncio.to_thread(identities.load, agent_id)
        if found is not None and not found.expired(datetime.now(UTC)):
            raise IdentityError(f"agent {agent_id} is enrolled already: {directory} has its certificate")
        key = await asyncio.to_thread(identities.enrolment_key, agent_id, join_token)
        identity = await enroll(agent_id, managers, join_token, fingerprint, key=key)
        await asyncio.to_thread(identities.save, identity)
    finally:
        os.close(descriptor)


def write_configuration(file: Path, agent_id: str, managers: Sequence[str], directory: Path | None) -> None:
    """Writes the keys that `run` needs; `directory` unless it is the usual one. Raises FileExistsError, OSError."""
    keys: dict[str, object] = {"id": agent_id, "manager": list(managers)}
    if directory is not None:
        keys["data-dir"] = str(directory.absolute())
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("x") as opened:
        # Texts and lists of texts in JSON are the same in TOML.
        opened.writelines(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in keys.items())
