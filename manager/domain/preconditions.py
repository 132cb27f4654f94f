"""Defines the errors FAILED_PRECONDITION: the state of an object forbids a request that is valid by itself."""

# ruff: noqa: N818  # each name says what the caller learns, and is raised as such

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.manager.domain.errors import ApiError, Code
from retinue.rpc.core.errors import MAX_VALUE, Detail, UnmetPrecondition, printable
from retinue.rpc.core.reasons import ErrorReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from retinue.manager.domain.session.features import Feature
    from retinue.manager.domain.session.states import SessionType


class _Precondition(ApiError):
    """Something about the state of things is in the way."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, message: str, subject: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message, metadata)
        self.subject = printable(subject, MAX_VALUE)

    def details(self) -> Sequence[Detail]:
        """Returns the object and what is wrong with it."""
        return (UnmetPrecondition(self.subject),)


class InUse(_Precondition):
    """The thing cannot go while others need it."""

    reason = ErrorReason.IN_USE

    def __init__(self, kind: str, name: str, by: str) -> None:
        super().__init__(f"the {kind} has {by}", f"{kind}/{name}", {"kind": kind, "id": name})


class StateForbids(_Precondition):
    """The thing is in a state that does not allow it."""

    reason = ErrorReason.STATE_FORBIDS


class PortClosed(_Precondition):
    """Nothing listens on the port of a kernel."""

    reason = ErrorReason.PORT_CLOSED

    def __init__(self, port: str) -> None:
        super().__init__(f"nothing listens on port {port}", f"port/{port}", {"port": port})


class AppFailed(_Precondition):
    """The program of an app could not be started, or ended before it answered."""

    reason = ErrorReason.APP_FAILED

    def __init__(self, message: str) -> None:
        super().__init__(message, "app")


class GatewayOff(_Precondition):
    """The manager has no gateway."""

    reason = ErrorReason.GATEWAY_OFF

    def __init__(self) -> None:
        super().__init__("the manager has no gateway for HTTP: use a local port instead", "gateway")


class ConsoleOff(_Precondition):
    """The manager has no web console."""

    reason = ErrorReason.CONSOLE_OFF

    def __init__(self) -> None:
        super().__init__(
            "this manager serves no web console: it needs a gateway (--http-listen), without --no-console", "console"
        )


class NoTunnel(_Precondition):
    """The gateway has no way to a port but through the manager."""

    reason = ErrorReason.GATEWAY_OFF

    def __init__(self, port: int) -> None:
        super().__init__(f"no tunnel leads to port {port}: use OpenPort instead", "gateway")


class ExtensionRefused(_Precondition):
    """The idle policy does not let a session be kept that long."""

    reason = ErrorReason.EXTENSION_REFUSED

    def __init__(self, message: str, subject: str, most: float) -> None:
        super().__init__(message, subject, {"most": f"{most:.0f}"})


class FeatureUnavailable(_Precondition):
    """A session of this type does not have the feature."""

    reason = ErrorReason.FEATURE_UNAVAILABLE

    @classmethod
    def of_type(cls, session_type: SessionType, feature: Feature) -> FeatureUnavailable:
        """Returns the error for a feature that a request asks for."""
        kind = session_type.lower()
        return cls(f"a session of type {kind} cannot have {feature}", f"session_type/{kind}", {"feature": feature.name})


class LanguageUnavailable(_Precondition):
    """Nothing in the kernel runs code of the language."""

    reason = ErrorReason.LANGUAGE_UNAVAILABLE


class DependencyRefused(_Precondition):
    """A session of the same request that it depends on was refused."""

    reason = ErrorReason.DEPENDENCY_REFUSED

    def __init__(self, path: str, name: str) -> None:
        super().__init__(f"it depends on {name}, which was refused", path, {"session": name})


class BatchRefused(_Precondition):
    """Another session of a request for all or nothing was refused."""

    reason = ErrorReason.BATCH_REFUSED

    def __init__(self, number: int) -> None:
        super().__init__(f"nothing is made: {number} of the request are refused", "batch", {"refused": str(number)})


class FileRefused(_Precondition):
    """Something in a work directory is in the way."""

    reason = ErrorReason.FILE_REFUSED

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message, f"file/{path}", {"path": path})


class EndpointManaged(_Precondition):
    """A session names an endpoint, whose replicas only its controller makes."""

    reason = ErrorReason.ENDPOINT_MANAGED

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the replicas of endpoint {name} are made by its controller: use another name, or scale the endpoint",
            f"endpoint/{name}",
            {"endpoint": name},
        )


class RolloutRunning(_Precondition):
    """A rollout of the endpoint is not finished."""

    reason = ErrorReason.ROLLOUT_RUNNING

    def __init__(self, name: str, state: str) -> None:
        super().__init__(
            f"a rollout is {state}: wait for it, promote it or roll it back", f"endpoint/{name}", {"endpoint": name}
        )


class TokenLimit(_Precondition):
    """The endpoint has as many tokens as one may have."""

    reason = ErrorReason.TOKEN_LIMIT

    def __init__(self, name: str, most: int) -> None:
        super().__init__(
            f"the endpoint has {most} tokens that have not ended, revoked ones included",
            f"endpoint/{name}",
            {"endpoint": name},
        )


class NoRouter(_Precondition):
    """No router belongs to the manager."""

    reason = ErrorReason.NO_ROUTER

    def __init__(self) -> None:
        super().__init__("no router belongs to this manager, so nothing would check a token", "router")
