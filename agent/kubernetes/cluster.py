"""The API of a cluster, as far as pods need it, through lightkube. Every call ends within a time,
or when it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2
import msgspec
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.resources.core_v1 import Pod
from lightkube.types import PatchType

from retinue.agent.errors import KernelRuntimeError
from retinue.agent.kubernetes.core.pod_spec import AGENT_LABEL
from retinue.agent.kubernetes.core.pod_state import MAX_MESSAGE, PodState, parse_pod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

CALL_TIMEOUT = 10.0
"""Seconds that the API may take for anything but a watch."""
WATCH_TIMEOUT = 240
"""Seconds after which the API ends a watch, which then continues from where it was."""
MAX_PAUSE = 60.0
"""Seconds that the API is given at the most when it asks to be left alone."""
_PASSING = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.UNAUTHORIZED})


class ClusterError(KernelRuntimeError):
    """The API refused; the text is its own, `status` that of HTTP."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ClusterUnavailableError(ClusterError):
    """The API does not answer, or not now; it may have done what it was asked. `pause` is in seconds."""

    def __init__(self, message: str, pause: float = 0.0) -> None:
        super().__init__(message)
        self.pause = min(max(pause, 0.0), MAX_PAUSE)


class CompactedError(ClusterError):
    """What happened since then is not known any more: it has to be listed again."""


class PodExistsError(ClusterError):
    """There is a pod of that name."""


class Cluster:
    """The pods of one namespace, for one event loop. Raises ClusterError,
    and ClusterUnavailableError while the API does not answer.
    """

    def __init__(self, config: Path | None, namespace: str) -> None:
        """Nothing is asked of the API before the first call. Without `config`,
        the cluster is the one that the agent runs in.
        """
        self._config = config
        self._namespace = namespace
        self._client: AsyncClient | None = None

    async def close(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def create(self, pod: Pod) -> PodState:
        """Creates a pod. Raises PodExistsError, and leaves the one that is there as it is."""
        async with self._asked() as client:
            return parse_pod(await client.create(pod))

    async def get(self, name: str) -> PodState | None:
        """Returns a pod; None when there is none of that name."""
        try:
            async with self._asked() as client:
                return parse_pod(await client.get(Pod, name, namespace=self._namespace))
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None

    async def delete(self, name: str) -> None:
        """Asks for the end of a pod at once; nothing to do when there is none.
        It stays as long as it has a finalizer.
        """
        with _absence_tolerated():
            async with self._asked() as client:
                await client.delete(Pod, name, namespace=self._namespace, grace_period=0)

    async def release(self, name: str, uid: str) -> None:
        """Removes the finalizers of this very pod: with another uid, the API refuses.
        Nothing to do when there is none.
        """
        with _absence_tolerated():
            async with self._asked() as client:
                change = {"metadata": {"finalizers": None, "uid": uid}}
                await client.patch(Pod, name, change, namespace=self._namespace, patch_type=PatchType.MERGE)

    async def pods(self, agent_id: str) -> tuple[list[PodState], str]:
        """Returns all pods of an agent, and the version of the list, from which a watch continues."""
        async with self._asked() as client:
            listing = client.list(Pod, namespace=self._namespace, labels={AGENT_LABEL: agent_id})
            return [parse_pod(pod) async for pod in listing], listing.resourceVersion

    async def watch(self, agent_id: str, version: str) -> AsyncGenerator[tuple[PodState, bool], None]:
        """Yields each change of an agent's pods since a version, and whether the pod is gone; does not end.
        Raises CompactedError.
        """
        client = self._connected()
        with _explained():
            events = client.watch(
                Pod,
                namespace=self._namespace,
                labels={AGENT_LABEL: agent_id},
                server_timeout=WATCH_TIMEOUT,
                resource_version=version,
            )
            async with contextlib.aclosing(events) as changes:  # type: ignore[type-var]
                async for kind, pod in changes:
                    yield parse_pod(pod), kind == "DELETED"

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[AsyncClient]:
        client = self._connected()
        with _explained():
            async with asyncio.timeout(CALL_TIMEOUT):
                yield client

    def _connected(self) -> AsyncClient:
        if self._client is None:
            with _explained():
                config = None if self._config is None else KubeConfig.from_file(self._config)
                self._client = AsyncClient(config, namespace=self._namespace, field_manager="retinue-agent")
        return self._client


@contextlib.contextmanager
def _absence_tolerated() -> Iterator[None]:
    try:
        yield
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns errors of lightkube, and of what it is made of, into this module's."""
    try:
        yield
    except httpx2.HTTPStatusError as error:
        raise _refusal(error) from error
    except TimeoutError as error:
        raise ClusterUnavailableError(f"the Kubernetes API does not answer within {CALL_TIMEOUT:.0f} s") from error
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        why = str(error)[:MAX_MESSAGE] or type(error).__name__
        raise ClusterUnavailableError(f"the Kubernetes API does not answer: {why}") from error
    except ConfigError as error:
        raise ClusterUnavailableError(f"the configuration of the cluster cannot be read: {error}") from error
    except _UNREADABLE as error:
        raise ClusterError(f"the Kubernetes API's answer makes no sense ({type(error).__name__})") from error


_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""Raised for an answer that is not what it should be."""


def _refusal(error: httpx2.HTTPStatusError) -> ClusterError:
    # A refusal in the midst of a watch has no response.
    response: httpx2.Response | None = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    message, reason = str(error), ""
    if isinstance(error, ApiError):
        status = error.status.code or status
        message, reason = error.status.message or message, error.status.reason or ""
    message = message[:MAX_MESSAGE]
    if status == HTTPStatus.GONE:
        return CompactedError(message, status)
    if status == HTTPStatus.CONFLICT and reason == "AlreadyExists":
        return PodExistsError(message, status)
    if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        pause = response.headers.get("Retry-After", "") if response is not None else ""
        seconds = float(pause) if pause.isascii() and pause.isdigit() else 0.0
        return ClusterUnavailableError(f"the Kubernetes API does not serve now: {message}", seconds)
    return ClusterError(message, status)
