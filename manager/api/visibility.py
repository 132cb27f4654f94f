"""The sessions that a caller may read, the one that a request refers to, and the access log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain import errors, preconditions
from retinue.manager.domain.session import features
from retinue.manager.domain.session.events import AccessMethod, KernelAccess
from retinue.manager.domain.session.features import Feature
from retinue.manager.domain.session.spec_views import SpecView
from retinue.manager.server.fields import parse_uuid
from retinue.manager.server.interceptors import current_address, current_principal
from retinue.manager.session import access_log
from retinue.manager.session.transaction import WorkingSet, load_for_update, working_set
from retinue.manager.store.sessions import lookup, sessions
from retinue.manager.store.sessions.visibility import Visibility

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Mapping, Sequence

    from retinue.manager.store.postgres.database import Transaction

# Of sessions that others call as the caller calls none.
_NAMED = 4


def caller_visibility(*, owner_only: bool = False) -> Visibility:
    """Returns the sessions that the caller may read; with `owner_only`,
    without those that are read as an administrator of a project.
    """
    principal = current_principal()
    administered = () if owner_only else principal.administered
    return Visibility(principal.is_admin, principal.name, administered)


def full_view(owner: str) -> SpecView:
    """Returns how much the caller sees of the requests of `owner`: no other caller gets the values of variables,
    administrators included.
    """
    return SpecView.FULL if current_principal().name == owner else SpecView.NAMES


async def find_session(tx: Transaction, reference: str, *, owner_only: bool = False) -> uuid.UUID:
    """The session of a reference: id, prefix of it, or name. Raises NotFound for none,
    and for one the caller may not see.
    """
    found = (await find_sessions(tx, [reference], owner_only=owner_only))[reference]
    if isinstance(found, errors.NotFound):
        raise found
    return found


async def lock_session(tx: Transaction, reference: str) -> tuple[uuid.UUID, WorkingSet]:
    """Locks the session of a reference; returns its id, and the session with its machine. Raises NotFound as
    `find_session` does.
    """
    if (guess := parse_uuid(reference)) is not None:
        visibility = caller_visibility()
        finding = lookup.finding([reference], visibility, current_principal().name)
        locking = sessions.reading([guess], lock=True, visibility=visibility)
        kernels = sessions.reading_kernels([guess])
        answers = await tx.pipeline(finding, locking, kernels)
        if answers.of(finding).get(reference) == guess and guess in answers.of(locking):
            return guess, working_set(answers.of(locking), answers.of(kernels))
    session_id = await find_session(tx, reference)
    return session_id, await load_for_update(tx, [session_id])


async def find_sessions(
    tx: Transaction, references: Collection[str], *, owner_only: bool = False
) -> dict[str, uuid.UUID | errors.NotFound]:
    """Returns what `find_session` finds or raises, for each reference."""
    visibility = caller_visibility(owner_only=owner_only)
    found = await lookup.find(tx, references, visibility, current_principal().name)
    missing = [reference for reference in references if reference not in found]
    others = await lookup.owners_of(tx, missing, visibility, _NAMED) if missing and visibility.sees_others else {}
    return {reference: found.get(reference) or _not_found(reference, others) for reference in references}


def _not_found(reference: str, owners: Mapping[str, Sequence[str]]) -> errors.NotFound:
    named = ", ".join(f"{owner}/{reference}" for owner in owners.get(reference, ()))
    return errors.NotFound("session", reference, f"{reference}; there is {named}" if named else "")


async def require_feature(tx: Transaction, session_id: uuid.UUID, feature: Feature) -> None:
    """Raises FeatureUnavailable unless the session is of a type that has the feature;
    another version may know more types than this one.
    """
    session = (await sessions.read(tx, [session_id]))[session_id]
    kind = session.type
    # System sessions of administrators serve something else.
    serves = feature is not Feature.SFTP or session.known_spec.sftp is not None
    if kind is not None and not (features.has(kind, feature) and serves):
        raise preconditions.FeatureUnavailable(
            f"a session of type {kind.lower()} does not have {feature}",
            f"session_type/{kind.lower()}",
            {"feature": feature.name},
        )


async def record_access(
    tx: Transaction,
    session_id: uuid.UUID,
    method: AccessMethod,
    hostname: str,
    *,
    port: int = 0,
    app: str = "",
    connection_address: str = "",
    key_fingerprint: str = "",
) -> None:
    """Keeps in the session's journal that the caller enters a kernel; last in the transaction that found the kernel."""
    caller, source = current_principal(), current_address()
    access = KernelAccess(
        *(method, hostname, caller.name, caller.token_id, port, app),
        source=source,
        connection_address=connection_address,
        key_fingerprint=key_fingerprint,
    )
    await access_log.record(tx, session_id, access)
