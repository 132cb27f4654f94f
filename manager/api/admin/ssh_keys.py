"""CreateSshKey, ListSshKeys and DeleteSshKey: the public keys by which users are let in to their system sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.errors import InvalidRequest, MethodDenied, NameTaken, NotFound, QuotaExceeded
from retinue.manager.domain.session.events import AccessMethod, KernelAccess
from retinue.manager.domain.session.ssh_keys import MAX_COMMENT, parse_public_key
from retinue.manager.server.interceptors import current_principal
from retinue.manager.server.journal_positions import with_position
from retinue.manager.server.pages import open_page
from retinue.manager.session import access_log
from retinue.manager.store.accounts import accounts, ssh_keys
from retinue.manager.v1 import account_service_pb2 as pb
from retinue.rpc.times import timestamp

if TYPE_CHECKING:
    from retinue.manager.store.accounts.ssh_keys import SshKeyRecord
    from retinue.manager.store.postgres.database import Database, Transaction

MAX_KEYS = 32


async def add_ssh_key(database: Database, request: pb.CreateSshKeyRequest) -> pb.CreateSshKeyResponse:
    """Registers one; the sessions that it opens from now on have an entry in their journals."""
    caller = current_principal()
    try:
        key = parse_public_key(request.public_key)
    except ValueError as error:
        raise InvalidRequest([("public_key", str(error))]) from None
    description = request.description or key.comment
    if len(description) > MAX_COMMENT or not description.isprintable():
        raise InvalidRequest([("description", f"must be at most {MAX_COMMENT} printable characters")])
    async with database.transaction() as tx:
        # Locked, so that two calls together do not exceed the number.
        await accounts.get_user(tx, caller.name, lock=True)
        if (number := await ssh_keys.count(tx, caller.name)) >= MAX_KEYS:
            raise QuotaExceeded([(f"users/{caller.name}", f"{number} of at most {MAX_KEYS} keys are there already")])
        made = await ssh_keys.add(tx, caller.name, key.fingerprint, key.line, description)
        if made is None:
            raise NameTaken("SSH key", key.fingerprint)
        await _record_change(tx, caller.name)
        return await with_position(tx, pb.CreateSshKeyResponse(key=_message(made)))


async def list_ssh_keys(database: Database, request: pb.ListSshKeysRequest) -> pb.ListSshKeysResponse:
    """Returns one page."""
    caller = current_principal()
    user = request.user or caller.name
    if user != caller.name and not caller.is_admin:
        raise MethodDenied("only administrators list the keys of others")
    page = open_page(request.page_size, request.page_token, ["ssh keys", user])
    async with database.transaction() as tx:
        found = await ssh_keys.list_page(tx, user, after=page.after[0] if page.after else "", limit=page.size + 1)
    messages = [_message(key) for key in found[: page.size]]
    keys, token = page.close(messages, len(found), lambda position: [found[position].fingerprint])
    return pb.ListSshKeysResponse(keys=keys, next_page_token=token)


async def remove_ssh_key(database: Database, request: pb.DeleteSshKeyRequest) -> pb.DeleteSshKeyResponse:
    """Removes one; agents learn of it by the journals of the sessions that it opened, and end its connections."""
    caller = current_principal()
    async with database.transaction() as tx:
        key = await ssh_keys.get(tx, request.fingerprint, lock=True)
        if key is None or not (caller.is_admin or key.user_name == caller.name):
            raise NotFound("SSH key", request.fingerprint)
        message, user = _message(key), key.user_name
        await ssh_keys.remove(tx, request.fingerprint)
        await _record_change(tx, user)
        return await with_position(tx, pb.DeleteSshKeyResponse(key=message))


async def _record_change(tx: Transaction, user: str) -> None:
    caller = current_principal()
    for session_id in await ssh_keys.opened_sessions(tx, user):
        access = KernelAccess(AccessMethod.SSH_KEYS, "main1", caller.name, caller.token_id)
        await access_log.record(tx, session_id, access)


def _message(key: SshKeyRecord) -> pb.SshKey:
    return pb.SshKey(
        fingerprint=key.fingerprint,
        user=key.user_name,
        public_key=key.public_key,
        description=key.description,
        create_time=timestamp(key.create_time),
    )
