"""The API of a cluster, as far as pods need it, through lightkube. Every call ends within a time,
or when it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import httpx2
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import GenericGlobalResource, GenericNamespacedResource, create_api_info
from lightkube.models.meta_v1 import DeleteOptions, Preconditions, Status
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType
from yaml import YAMLError

from retinue.agent.errors import KernelRuntimeError
from retinue.agent.kubernetes.core.pod_spec import AGENT_LABEL
from retinue.agent.kubernetes.core.pod_state import MAX_MESSAGE, UNREADABLE, PodState, parse_pod, read_pod

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
    from pathlib import Path

_log = logging.getLogger(__name__)

CALL_TIMEOUT = 10.0
"""Seconds that the API may take for anything but a watch."""
WATCH_TIMEOUT = 70
"""Seconds after which the API ends a watch, which then continues from where it was. One that neither says anything nor
ends in that time, and in that of a call, stands still.
"""
MAX_PAUSE = 60.0
"""Seconds that the API is given at the most when it asks to be left alone."""
FIRST_BACKOFF, MAX_BACKOFF = 0.5, 30.0
"""Seconds without calls after the first one that failed, and at the most."""
MIN_WATCH = 10.0
"""Seconds that a stream of a watch lasts at least, but for one: a proxy may end each at once."""
_PASSING = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.UNAUTHORIZED})

_NO_SUCH_POD = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})


class _RawPod(GenericNamespacedResource):
    """A pod as a mapping: one that cannot be read must not hide the others."""

    _api_info = create_api_info("", "v1", "Pod", "pods")


class _RawNode(GenericGlobalResource):
    """A node as a mapping."""

    _api_info = create_api_info("", "v1", "Node", "nodes")


_Kind = TypeVar("_Kind", Pod, Node)
_RAW: Mapping[type, Any] = {Pod: _RawPod, Node: _RawNode}


class ClusterError(KernelRuntimeError):
    """The API refused; the text is its own, `status` that of HTTP."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ClusterUnavailableError(ClusterError):
    """The API does not answer, or not now; it may have done what it was asked.

    `pause` is in seconds; `credentials` says whether these may be why.
    """

    def __init__(self, message: str, pause: float = 0.0, *, credentials: bool = False) -> None:
        super().__init__(message)
        self.pause = min(max(pause, 0.0), MAX_PAUSE)
        self.credentials = credentials


class _BackoffError(ClusterUnavailableError):
    """Nothing was asked, since the API has failed or has requested a pause."""


class CompactedError(ClusterError):
    """What happened since then is not known any more: it has to be listed again."""


class PodExistsError(ClusterError):
    """There is a pod of that name."""


class Cluster:
    """The pods of one namespace, for one event loop. Raises ClusterError,
    and ClusterUnavailableError while the API does not answer.

    After an error of the API, calls fail without being sent for a time that doubles with each further error.
    """

    def __init__(self, config: Path | None, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is asked of the API before the first call. Without `config`,
        the cluster is the one that the agent runs in.
        """
        self._config = config
        self._namespace = namespace
        self._clock = clock
        self._client: AsyncClient | None = None
        # Whose credentials were refused, still to be closed.
        self._former: list[AsyncClient] = []
        self._backoff = 0.0
        self._paused_until = float("-inf")
        self._why = ""
        self._watched_at = float("-inf")
        self._short_streams = 0

    async def close(self) -> None:
        """Closes the connections."""
        self._forget_credentials()
        while self._former:
            await self._former.pop().close()

    async def list_all(self, kind: type[_Kind], fields: Mapping[str, str]) -> tuple[list[_Kind], str]:
        """Returns the objects of a kind with these fields in the whole cluster, and the version of the list."""
        async with self._asked() as client:
            listing = client.list(_RAW[kind], fields=dict(fields), **_everywhere(kind))
            found = [item async for raw in listing if (item := _decoded(kind, raw)) is not None]
            return found, listing.resourceVersion

    async def watch_all(
        self, kind: type[_Kind], fields: Mapping[str, str], version: str, seconds: float
    ) -> AsyncGenerator[tuple[_Kind, bool], None]:
        """Yields each change of such objects since a version, and whether it is gone. Raises CompactedError."""
        params = {"fieldSelector": _selector(fields), **_everywhere(kind)}
        async with contextlib.aclosing(self._changes(_RAW[kind], version, seconds, **params)) as changes:
            async for raw, gone in changes:
                if (item := _decoded(kind, raw)) is not None:
                    yield item, gone

    async def create(self, pod: Pod) -> PodState:
        """Creates a pod. Raises PodExistsError, and leaves the one that is there as it is."""
        async with self._asked() as client:
            return parse_pod(await client.create(pod))

    async def get(self, name: str) -> PodState | None:
        """Returns a pod; None when there is none of that name."""
        try:
            async with self._asked() as client:
                return read_pod(await client.get(_RawPod, name, namespace=self._namespace))
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return None

    async def delete(self, name: str, uid: str) -> bool:
        """Asks for the end of this very pod at once: with another uid, the API refuses. It stays as long as it has a
        finalizer. Returns False when there is none, or another one has its name.
        """
        try:
            async with self._asked() as client:
                await _delete(client, name, self._namespace, uid)
        except ClusterError as error:
            if error.status not in _NO_SUCH_POD:
                raise
            return False
        return True

    async def release(self, name: str, uid: str) -> None:
        """Removes the finalizers of this very pod: with another uid, the API refuses.
        Nothing to do when there is none.
        """
        with _absence_tolerated():
            async with self._asked() as client:
                change = {"metadata": {"finalizers": None, "uid": uid}}
                await client.patch(_RawPod, name, change, namespace=self._namespace, patch_type=PatchType.MERGE)

    async def pods(self, agent_id: str) -> tuple[list[PodState], str]:
        """Returns all pods of an agent, and the version of the list, from which a watch continues."""
        async with self._asked() as client:
            listing = client.list(_RawPod, namespace=self._namespace, labels={AGENT_LABEL: agent_id})
            pods = [pod async for raw in listing if (pod := _read(raw)) is not None]
            return pods, listing.resourceVersion

    async def watch(self, agent_id: str, version: str) -> AsyncGenerator[tuple[PodState, bool], None]:
        """Yields each change of an agent's pods since a version, and whether the pod is gone; does not end.
        Raises CompactedError.
        """
        params = {"namespace": self._namespace, "labelSelector": _selector({AGENT_LABEL: agent_id})}
        async with contextlib.aclosing(self._changes(_RawPod, version, WATCH_TIMEOUT, **params)) as changes:
            async for raw, gone in changes:
                if (pod := _read(raw)) is not None:
                    yield pod, gone

    async def _changes(
        self, kind: type[_RawPod | _RawNode], version: str, seconds: float, namespace: str | None = None, **params: str
    ) -> AsyncGenerator[tuple[Any, bool], None]:
        """Yields each change since a version, and whether the object is gone."""
        # What lightkube's own `watch` leaves out: bookmarks, by which one that has nothing to say is not compacted.
        options = {"timeoutSeconds": int(seconds), "resourceVersion": version, "allowWatchBookmarks": "true", **params}
        with self._failures_noted(), _explained():
            client = self._connected()._client  # noqa: SLF001
            request = client.prepare_request("list", kind, namespace=namespace, watch=True, params=options)
            self._watched_at, self._short_streams = float("-inf"), 0
            async with contextlib.aclosing(client.watch(request)) as events:
                async for change, raw in events:
                    if change != "BOOKMARK":
                        yield raw, change == "DELETED"

    @contextlib.asynccontextmanager
    async def _asked(self) -> AsyncIterator[AsyncClient]:
        with self._failures_noted(), _explained():
            while self._former:
                await self._former.pop().close()
            client = self._connected()
            async with asyncio.timeout(CALL_TIMEOUT):
                yield client
        self._backoff = 0.0

    def _forget_credentials(self) -> None:
        """Has the configuration, and the files that it names, read again by the next call."""
        client, self._client = self._client, None
        if client is not None:
            self._former.append(client)

    @contextlib.contextmanager
    def _failures_noted(self) -> Iterator[None]:
        try:
            yield
        except _BackoffError:
            raise
        except ClusterUnavailableError as error:
            # Certificates and tokens are replaced in time by others, whose files have the same names.
            if error.credentials:
                self._forget_credentials()
            now = self._clock()
            # Calls that failed together count once.
            if now >= self._paused_until or error.pause > 0:
                self._backoff = min(2 * self._backoff, MAX_BACKOFF) or FIRST_BACKOFF
                self._paused_until = max(self._paused_until, now + max(self._backoff, error.pause))
                self._why = str(error)
            raise

    async def _before(self, request: httpx2.Request) -> None:
        """Runs before each request; raises ClusterUnavailableError when it must not be sent now."""
        now = self._clock()
        if (left := self._paused_until - now) > 0:
            raise _BackoffError(self._why, left)
        if "watch" in request.url.params:
            self._short_streams = self._short_streams + 1 if now - self._watched_at < MIN_WATCH else 0
            if self._short_streams > 1:
                raise ClusterUnavailableError("the Kubernetes API ends watches at once")
            self._watched_at = now
            # lightkube waits for a watch without an end.
            seconds = float(request.url.params["timeoutSeconds"])
            request.extensions["timeout"]["read"] = seconds + CALL_TIMEOUT

    def _connected(self) -> AsyncClient:
        if self._client is None:
            config = KubeConfig.from_env() if self._config is None else KubeConfig.from_file(self._config)
            # The API is inside the cluster: no web proxy of the environment is asked.
            client = AsyncClient(config, namespace=self._namespace, field_manager="retinue-agent", trust_env=False)
            # lightkube has no hooks of its own, and repeats a watch without a pause.
            client._client._client.event_hooks = {"request": [self._before]}  # noqa: SLF001
            self._client = client
        return self._client


def _read(raw: GenericNamespacedResource) -> PodState | None:
    try:
        return read_pod(raw)
    except ValueError as error:
        _log.warning("a pod is left out: %s", error)
        return None


async def _delete(client: AsyncClient, name: str, namespace: str, uid: str) -> None:
    # lightkube's own `delete` has no preconditions.
    within = client._client  # noqa: SLF001
    request = within.prepare_request("delete", _RawPod, name=name, namespace=namespace)
    preconditions = Preconditions(uid=uid)
    request.data = DeleteOptions("v1", kind="DeleteOptions", gracePeriodSeconds=0, preconditions=preconditions)
    within.raise_for_status(await within.send(within.build_adapter_request(request)))  # type: ignore[no-untyped-call]


def _selector(wanted: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in wanted.items())


def _everywhere(kind: type[Pod | Node]) -> Any:
    """Returns the options with which objects of the whole cluster are meant."""
    return {"namespace": "*"} if kind is Pod else {}


def _decoded(kind: type[_Kind], raw: GenericNamespacedResource) -> _Kind | None:
    try:
        return cast("_Kind", kind.from_dict(dict(raw), lazy=False))
    except UNREADABLE as error:
        _log.warning("a %s is left out: %s", kind.__name__, error)
        return None


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
        # A certificate that has ended, of one side or of the other, breaks the handshake or the first reading.
        broken = isinstance(error, httpx2.NetworkError)
        raise ClusterUnavailableError(f"the Kubernetes API does not answer: {why}", credentials=broken) from error
    except (ConfigError, YAMLError) as error:
        raise ClusterUnavailableError(f"the configuration of the cluster cannot be read: {error}") from error
    except UNREADABLE as error:
        if isinstance(error.__context__, httpx2.HTTPStatusError):
            # lightkube could not read a refusal: that of a proxy in between, for example.
            raise _refusal(error.__context__) from error
        message = f"the Kubernetes API's answer makes no sense ({type(error).__name__})"
        raise ClusterUnavailableError(message) from error


def _said(error: httpx2.HTTPStatusError) -> Status | None:
    """Returns what the API said of a refusal; None when there is nothing that can be read."""
    if isinstance(error, ApiError):
        return error.status
    # lightkube reads it only where nothing was added to the type of the content, such as a character set.
    with contextlib.suppress(httpx2.StreamError, *UNREADABLE):
        return cast("Status", Status.from_dict(error.response.json()))
    return None


def _refusal(error: httpx2.HTTPStatusError) -> ClusterError:
    # A refusal in the midst of a watch has no response.
    response: httpx2.Response | None = getattr(error, "response", None)
    status = response.status_code if response is not None else 0
    message, reason = str(error), ""
    if (said := _said(error)) is not None:
        status = said.code or status
        message, reason = said.message or message, said.reason or ""
    message = message[:MAX_MESSAGE]
    if status == HTTPStatus.GONE:
        return CompactedError(message, status)
    if status == HTTPStatus.CONFLICT and reason == "AlreadyExists":
        return PodExistsError(message, status)
    if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        pause = response.headers.get("Retry-After", "") if response is not None else ""
        seconds = float(pause) if pause.isascii() and pause.isdigit() else 0.0
        unknown = status == HTTPStatus.UNAUTHORIZED
        return ClusterUnavailableError(
            f"the Kubernetes API does not serve now: {message}", seconds, credentials=unknown
        )
    return ClusterError(message, status)
