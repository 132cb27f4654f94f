"""Development mode: an administrator and a join token made by the manager itself,
and a file that says how to use them.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from retinue.manager.identity.tokens import JOIN_TOKEN_PREFIX, TOKEN_PREFIX, hash_secret, is_secret, new_secret
from retinue.manager.store.accounts import accounts
from retinue.manager.store.fleet import agents

if TYPE_CHECKING:
    from pathlib import Path

    from sqlmodel.ext.asyncio.session import AsyncSession

    from retinue.manager.identity.authority import Authority
    from retinue.manager.store.postgres.database import Database

ADMINISTRATOR, PROJECT, GROUP = "admin", "default", "default"
FILE = "dev.json"
_JOIN_TTL = dt.timedelta(days=30)
_JOIN_USES = 10_000


@dataclass(frozen=True, slots=True)
class Credentials:
    """Content of `dev.json`: addresses `host:port`, the CA's certificate in PEM, secrets."""

    endpoint: str
    agent_endpoint: str
    ca: str
    token: str
    join_token: str
    ca_fingerprint: str
    router_join_token: str


async def prepare(
    database: Database, authority: Authority, directory: Path, *, endpoint: str, agent_endpoint: str
) -> Credentials:
    """Makes sure that there is an administrator with a token, and a join token,
    and writes `dev.json` for its owner only.

    What the file held before is used again as long as it is good. Raises StoreUnavailable.
    """
    path = directory / FILE
    before = _read(path)
    async with database.transaction() as tx:
        if await accounts.get_user(tx, ADMINISTRATOR) is None:
            await accounts.create_user(tx, ADMINISTRATOR, "ADMIN", {})
        if await accounts.get_project(tx, PROJECT) is not None:
            await accounts.set_membership(tx, ADMINISTRATOR, PROJECT, "ADMIN")
        token = before.get("token", "")
        if not (is_secret(token, TOKEN_PREFIX) and await _is_good(tx, token)):
            token = new_secret(TOKEN_PREFIX)
            await accounts.create_token(tx, ADMINISTRATOR, hash_secret(token), description=f"for {FILE}", ttl=None)
        join_token = await _join_token(tx, before.get("join_token", ""), "AGENT")
        router_token = await _join_token(tx, before.get("router_join_token", ""), "ROUTER")
    credentials = Credentials(
        endpoint, agent_endpoint, authority.certificate.decode(), token, join_token, authority.fingerprint, router_token
    )
    _write(path, json.dumps(asdict(credentials), indent=2) + "\n")
    return credentials


async def _join_token(tx: AsyncSession, before: str, kind: str) -> str:
    """Returns the former join token while it is good, or a new one of this kind."""
    if before and await agents.is_join_token(tx, hash_secret(before)):
        return before
    secret = new_secret(JOIN_TOKEN_PREFIX)
    await agents.create_join_token(
        tx, hash_secret(secret), kind=kind, group=GROUP, agent_id=None, uses=_JOIN_USES, ttl=_JOIN_TTL
    )
    return secret


async def _is_good(tx: AsyncSession, token: str) -> bool:
    bearer = await accounts.find_bearer(tx, hash_secret(token))
    if bearer is None or bearer.revoked or bearer.user != ADMINISTRATOR:
        return False
    return bearer.expire_time is None or bearer.expire_time > dt.datetime.now(dt.UTC)


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _write(path: Path, content: str) -> None:
    """Appears whole: others wait for this file to know that the manager is ready."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    unfinished.rename(path)
