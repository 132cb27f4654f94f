"""Defines the errors of the API: one tree, each leaf with its gRPC code and its reason.

    ApiError
        InvalidRequest, InvalidPage, RequestIdReused, TrafficSum
        CredentialsMissing, TokenInvalid, JoinTokenInvalid, AgentRevoked
        MethodDenied, ProjectDenied, MountNotAllowed
        NotFound, NameTaken, NameRetired, AgentIdInUse
        EtagMismatch, ConnectionReset
        FAILED_PRECONDITION: all of preconditions.py
        RevisionCompacted, RevisionInFuture, RevisionLost, OffsetPastEnd, ReaderTooSlow, QuotaExceeded,
        StreamLimit, TooManyCalls, TooManyWrongTokens, NoSpace
        Unavailable, DeadlineExceeded, Internal

Pure values, raised where a request fails, in the store as in a servicer; one interceptor sends them
(`rpc/errors.py`). What a request does not cause is an exception of its layer, no error of the API.
"""

# ruff: noqa: N818  # each name says what the caller learns, and is raised as such

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from retinue.rpc.core.errors import (
    MAX_VALUE,
    ApiError,
    Code,
    Detail,
    InvalidRequest,
    QuotaViolations,
    RetryDelay,
    StreamLimit,
    Violation,
    printable,
    printable_violations,
)
from retinue.rpc.core.reasons import ErrorReason

if TYPE_CHECKING:
    from collections.abc import Sequence

# Named here too, beside the others of the manager, which are all below.
__all__ = ["ApiError", "Code", "InvalidRequest", "StreamLimit", "Violation"]

# One more than are told.
MAX_NAMES = 17


class InvalidPage(InvalidRequest):
    """The page token is none of ours, or belongs to another caller or query."""

    def __init__(self) -> None:
        super().__init__([("page_token", "is not a token of this list, or the other fields have changed")])


class RequestIdReused(ApiError):
    """The request_id was used with another body."""

    code, reason = Code.INVALID_ARGUMENT, ErrorReason.REQUEST_ID_REUSED

    def __init__(self) -> None:
        super().__init__("the request_id was used with another body")


class TrafficSum(ApiError):
    """The shares of an endpoint's revisions are not 100 in all."""

    code, reason = Code.INVALID_ARGUMENT, ErrorReason.TRAFFIC_SUM

    def __init__(self, found: int) -> None:
        super().__init__(f"the shares of the revisions must be 100 in all, and are {found}")


class CredentialsMissing(ApiError):
    """No credentials, or malformed ones."""

    code, reason = Code.UNAUTHENTICATED, ErrorReason.CREDENTIALS_MISSING


class TokenInvalid(ApiError):
    """The token is unknown, expired or revoked. Who has the whole secret of one that was valid learns which."""

    code, reason = Code.UNAUTHENTICATED, ErrorReason.TOKEN_INVALID

    def __init__(self, why: str = "is not valid") -> None:
        super().__init__(f"the token {why}")


class JoinTokenInvalid(ApiError):
    """The join token is unknown, expired, used up or for another agent; the caller does not learn which."""

    code, reason = Code.UNAUTHENTICATED, ErrorReason.JOIN_TOKEN_INVALID

    def __init__(self) -> None:
        super().__init__("the join token is not valid")


class AgentRevoked(ApiError):
    """The agent, or the router, is unknown or was revoked: its certificate is worth nothing."""

    code, reason = Code.UNAUTHENTICATED, ErrorReason.AGENT_REVOKED

    def __init__(self) -> None:
        super().__init__("the agent was revoked, or has enrolled again since its certificate was made")


class MethodDenied(ApiError):
    """The caller's role does not include the method, or not for this target."""

    code, reason = Code.PERMISSION_DENIED, ErrorReason.METHOD_DENIED


class ProjectDenied(ApiError):
    """The caller may not use the project; the caller does not learn whether it exists."""

    code, reason = Code.PERMISSION_DENIED, ErrorReason.PROJECT_DENIED

    def __init__(self, project: str, own: Sequence[str] = ()) -> None:
        """`own` are the projects of the caller, as far as they are known."""
        there = f"; you are in {', '.join(sorted(own)[: MAX_NAMES - 1])}" if own else ""
        super().__init__(f"you may not use project {project} (or it does not exist){there}", {"project": project})


class MountNotAllowed(ApiError):
    """No root of the resource group grants the mount to the session's project, or the account has no numbers."""

    code, reason = Code.PERMISSION_DENIED, ErrorReason.MOUNT_NOT_ALLOWED

    def __init__(self, source: str, *, writable: bool, without_owner: str = "") -> None:
        how = "to be written to" if writable else "at all"
        why = f"{source} may not be mounted {how}: no root of the resource group grants it"
        if without_owner:
            why = (
                f"{source} may not be mounted: files there belong to the session owner's account, which has no numbers "
                f"on the nodes; an administrator runs `retinue users update {without_owner} --file-owner UID:GID`"
            )
        super().__init__(why, {"source": source})


class ImageNotAllowed(ApiError):
    """The resource group lets no images come from the registry."""

    code, reason = Code.PERMISSION_DENIED, ErrorReason.IMAGE_NOT_ALLOWED

    def __init__(self, image: str, registry: str, group: str) -> None:
        super().__init__(
            f"image {image} may not be used: registry {registry} is not among the image registries of resource group {group}",
            {"image": image, "registry": registry},
        )


class NotFound(ApiError):
    """No such thing, or none that the caller may read."""

    code, reason = Code.NOT_FOUND, ErrorReason.NOT_FOUND

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        super().__init__(f"no such {kind.replace('_', ' ')}{hint and ': '}{hint}", {"kind": kind, "id": name})

    @classmethod
    def among(cls, kind: str, name: str, names: Sequence[str]) -> NotFound:
        """Returns the error with the first MAX_NAMES names that there are, of those that the caller may read."""
        more = ", …" if len(names) >= MAX_NAMES else ""
        verb = "is" if len(names) == 1 else "are"
        return cls(kind, name, f"{name}; there {verb} {', '.join(names[: MAX_NAMES - 1])}{more}" if names else "")


class NameTaken(ApiError):
    """Another thing of the kind has the name."""

    code, reason = Code.ALREADY_EXISTS, ErrorReason.NAME_TAKEN

    def __init__(self, kind: str, name: str, by: str = "") -> None:
        """`by` says what has taken it, where that is neither one of the caller's nor what exists already."""
        # Names of sessions are free again once these have ended.
        there = f"there is a session {name} of yours that has not ended"
        words = there if kind == "session" else f"{kind.replace('_', ' ')} {name} exists already"
        super().__init__(f"the name {name} is taken: {by}" if by else words, {"kind": kind, "name": name})


class NameRetired(ApiError):
    """A thing of the kind that was deleted had the name; what it left behind still bears it."""

    code, reason = Code.ALREADY_EXISTS, ErrorReason.NAME_RETIRED

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"the name was that of a {kind} that was deleted, and is not used again", {"kind": kind, "name": name}
        )


class AgentIdInUse(ApiError):
    """Another agent has the id."""

    code, reason = Code.ALREADY_EXISTS, ErrorReason.AGENT_ID_IN_USE


class EtagMismatch(ApiError):
    """The thing has changed since its etag was read."""

    code, reason = Code.ABORTED, ErrorReason.ETAG_MISMATCH

    def __init__(self, current: str) -> None:
        super().__init__("it has changed since the etag was read: read it again", {"etag": current})


class ConnectionReset(ApiError):
    """The program in the kernel has broken the connection off."""

    code, reason = Code.ABORTED, ErrorReason.CONNECTION_RESET


class RevisionCompacted(ApiError):
    """The journal no longer goes back that far; `oldest` is the lowest revision that reading may resume after."""

    code, reason = Code.OUT_OF_RANGE, ErrorReason.REVISION_COMPACTED

    def __init__(self, oldest: int) -> None:
        super().__init__(f"the journal goes back to revision {oldest}: list again", {"oldest": str(oldest)})
        self.oldest = oldest


class RevisionInFuture(ApiError):
    """The journal has not got that far; `newest` is its last revision."""

    code, reason = Code.OUT_OF_RANGE, ErrorReason.REVISION_IN_FUTURE

    def __init__(self, newest: int) -> None:
        super().__init__(f"the journal ends at revision {newest}", {"newest": str(newest)})
        self.newest = newest


class RevisionLost(ApiError):
    """The revision counts in a history that ended when the database was restored; `incarnation` is the present one."""

    code, reason = Code.OUT_OF_RANGE, ErrorReason.REVISION_LOST

    def __init__(self, incarnation: str) -> None:
        message = "the database was restored from a backup since that revision: list again"
        super().__init__(message, {"incarnation": incarnation})
        self.incarnation = incarnation


class OffsetPastEnd(ApiError):
    """The offset is past the end of the output."""

    code, reason = Code.OUT_OF_RANGE, ErrorReason.OFFSET_PAST_END

    def __init__(self, size: int | str) -> None:
        super().__init__("the offset is past the end of the output", {"size": str(size)})


class ReaderTooSlow(ApiError):
    """The reader fell out of what is kept at hand; `revision` is the last one it was given."""

    code, reason = Code.RESOURCE_EXHAUSTED, ErrorReason.READER_TOO_SLOW

    def __init__(self, revision: int) -> None:
        super().__init__("the reader fell too far behind: resume where it stopped", {"revision": str(revision)})
        self.revision = revision


class QuotaExceeded(ApiError):
    """Quotas are in the way."""

    code, reason = Code.RESOURCE_EXHAUSTED, ErrorReason.QUOTA_EXCEEDED

    def __init__(self, violations: Sequence[Violation]) -> None:
        """`violations` are whose quotas they are and what is wrong there, with amounts, at least one."""
        super().__init__("; ".join(text for _, text in violations))
        self.violations = printable_violations(violations)

    def details(self) -> Sequence[Detail]:
        """Returns every violation."""
        return (QuotaViolations(tuple(self.violations)),)


class TooManyCalls(ApiError):
    """The caller has too many calls of this kind running, or has made too many in a short time. Nothing was done."""

    code, reason = Code.RESOURCE_EXHAUSTED, ErrorReason.TOO_MANY_CALLS

    def __init__(self, subject: str, description: str, seconds: float) -> None:
        """`subject` is who is limited, as `users/ann`; `seconds` are to pass before it is tried again."""
        super().__init__(f"too many calls: {description}")
        self.retry_seconds = seconds
        self.subject = printable(subject, MAX_VALUE)

    def details(self) -> Sequence[Detail]:
        """Returns the limit, and when to try again."""
        return (RetryDelay(self.retry_seconds), QuotaViolations(((self.subject, str(self)),)))


class TooManyWrongTokens(ApiError):
    """The token is not valid either, and the caller's address has sent too many that were not."""

    code, reason = Code.RESOURCE_EXHAUSTED, ErrorReason.TOO_MANY_WRONG_TOKENS

    def __init__(self, seconds: float) -> None:
        """`seconds` are to pass before it is tried again."""
        self.retry_seconds = math.ceil(seconds)
        super().__init__(f"too many wrong tokens came from your address: try again in {self.retry_seconds} s")

    def details(self) -> Sequence[Detail]:
        """Returns when to try again."""
        return (RetryDelay(self.retry_seconds),)


class NoSpace(ApiError):
    """The node has no space for a file."""

    code, reason = Code.RESOURCE_EXHAUSTED, ErrorReason.NO_SPACE

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message, {"path": path})


class Unavailable(ApiError):
    """It may work in a moment, here or at another replica."""

    code, reason = Code.UNAVAILABLE, ErrorReason.UNAVAILABLE
    retry_seconds = 1

    def details(self) -> Sequence[Detail]:
        """Returns when to try again."""
        return (RetryDelay(self.retry_seconds),)


class AgentNotReached(Unavailable):
    """The manager cannot connect to an agent."""

    reason = ErrorReason.AGENT_NOT_REACHED
    retry_seconds = 2


class DeadlineExceeded(ApiError):
    """The call took longer than the server allows."""

    code, reason = Code.DEADLINE_EXCEEDED, ErrorReason.DEADLINE


class Internal(ApiError):
    """A bug; `incident` finds it in the log."""

    code, reason = Code.INTERNAL, ErrorReason.INTERNAL

    def __init__(self, incident: str) -> None:
        super().__init__(f"internal error, incident {incident}", {"incident": incident})
