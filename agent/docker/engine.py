"""A Docker engine, as far as kernels need it, through aiodocker. Every call ends within a time,
or when it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import aiodocker
import aiohttp

from retinue.agent.attempts import ATTEMPT_ID
from retinue.agent.docker.core.container_spec import AGENT_LABEL, ATTEMPT_LABEL, container_name
from retinue.agent.docker.core.container_state import (
    ContainerState,
    FileFacts,
    Written,
    content_of,
    parse_file,
    parse_state,
)
from retinue.agent.docker.core.image_removal import data_directories
from retinue.agent.errors import KernelRuntimeError
from retinue.rpc import failpoints
from retinue.rpc.core.reasons import AgentConditionType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from aiodocker.containers import DockerContainer
    from aiodocker.stream import Stream

    from retinue.agent.conditions import Conditions

_log = logging.getLogger(__name__)

DEFAULT_HOST = "unix:///var/run/docker.sock"
CALL_TIMEOUT = 30.0
"""Seconds that the engine may take for anything but fetching an image."""
CHECK_INTERVAL = 5.0
"""Seconds between two questions whether it answers."""
UNRESPONSIVE_AFTER = 15.0
"""Seconds without an answer until that is reported."""
MAX_ERROR = 2000
"""Characters of the engine's own words that are kept: they repeat whatever an image or a registry says,
at any length.
"""
MAX_ANSWER = 4 << 20
"""Bytes of an error, and of an event of a fetch: the engine puts all that a registry says of an error into one."""
# Bytes of an archive around the content of its one file.
_AROUND = 64 << 10
MAX_HEADER = 64 << 10
"""Bytes: a header has the path that a link of an image leads to, in JSON of up to six bytes for one, in base64."""

# aiodocker puts the name of an image into a path as it is: a name that leads elsewhere would be another request.
_IMAGE = re.compile(
    r"(\[[0-9A-Fa-f:.]+\](:\d+)?/)?[A-Za-z0-9][\w.:-]*(/[A-Za-z0-9][\w.:-]*)*(@[A-Za-z0-9][\w.+:-]*)?", re.ASCII
)


class EngineError(KernelRuntimeError):
    """The engine refused; the text is its own."""


class EngineUnavailableError(EngineError):
    """The engine does not answer, or is in trouble of its own; it may have done what it was asked, or may yet."""


class _MissingError(EngineError):
    """The engine has no such thing."""


class _ConflictError(EngineError):
    """The engine cannot do it in the state that the thing is in."""


class Engine:
    """The engine behind one socket, for one event loop. Raises EngineError,
    and EngineUnavailableError while it does not answer.
    """

    def __init__(self, host: str) -> None:
        """`host` is `unix://PATH`. Nothing is asked of the engine before the first call."""
        self._host = host
        self._client: aiodocker.Docker | None = None

    async def close(self) -> None:
        """Closes the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()
            await client.session.close()

    @failpoints.awaited("engine", EngineUnavailableError)
    async def check(self) -> None:
        """Does nothing if the engine answers."""
        async with self.request("GET", "_ping"):
            pass

    @failpoints.awaited("engine", EngineUnavailableError)
    async def create(self, name: str, body: Mapping[str, Any]) -> bool:
        """Creates a container; False when one of that name is there already, which is left as it is."""
        try:
            async with self._asked() as client:
                await client.containers.create(body, name=name)
        except _ConflictError:
            return False
        return True

    @failpoints.awaited("engine", EngineUnavailableError)
    async def file(self, name: str, path: str) -> FileFacts | None:
        """Returns facts about the file at a path of a container, links followed inside it; None when there is none.
        Never opens it.
        """
        return (await self._file(name, path))[0]

    @failpoints.awaited("engine", EngineUnavailableError)
    async def content(self, name: str, path: str) -> bytes:
        """Returns the content of the plain file at a path of a container, links followed inside it;
        empty when there is none. Its size was looked at before: it is read as far as that goes.
        """
        facts, target = await self._file(name, path)
        if facts is None:
            return b""
        async with self.request("GET", f"containers/{name}/archive", params={"path": target}) as response:
            return content_of(await _head(response, facts.size + _AROUND))

    async def _file(self, name: str, path: str) -> tuple[FileFacts | None, str]:
        facts, target = None, path
        # The engine follows all links but the last one, and says where they end.
        for _ in range(2):
            try:
                async with self.request("HEAD", f"containers/{name}/archive", params={"path": target}) as response:
                    facts, leads = parse_file(response.headers["X-Docker-Container-Path-Stat"])
            except _MissingError:
                return None, target
            if not leads:
                break
            target = leads
        return facts, target

    @failpoints.awaited("engine", EngineUnavailableError)
    async def start(self, name: str) -> None:
        """Starts a container; one that runs already continues."""
        async with self._container(name) as container:
            await container.start()

    @failpoints.awaited("engine", EngineUnavailableError)
    async def inspect(self, name: str) -> ContainerState | None:
        """Returns the state of a container; None when there is none of that name."""
        try:
            async with self._container(name) as container:
                return parse_state(await container.show())
        except _MissingError:
            return None

    @failpoints.awaited("engine", EngineUnavailableError)
    async def wait(self, name: str, seconds: float = 0) -> None:
        """Returns when a container does not run any more, or never did.
        Raises EngineUnavailableError after so many seconds.
        """
        with contextlib.suppress(_MissingError):
            async with self._container(name, seconds) as container:
                await container.wait()

    @failpoints.awaited("engine", EngineUnavailableError)
    async def kill(self, name: str) -> None:
        """Ends all processes of a container; nothing to do when it does not run."""
        with contextlib.suppress(_MissingError, _ConflictError):
            async with self._container(name) as container:
                await container.kill()

    @failpoints.awaited("engine", EngineUnavailableError)
    async def resume(self, name: str, seconds: float) -> None:
        """Has a paused container run; nothing to do when it is not paused.
        Raises EngineUnavailableError after so many seconds.
        """
        with contextlib.suppress(_MissingError, _ConflictError):
            async with self._container(name, seconds) as container:
                await container.unpause()

    @failpoints.awaited("engine", EngineUnavailableError)
    async def remove(self, name: str) -> None:
        """Ends a container and removes it with its volumes; nothing to do when there is none."""
        with contextlib.suppress(_MissingError):
            async with self._container(name) as container:
                await container.delete(v=True, force=True)

    @failpoints.awaited("engine", EngineUnavailableError)
    async def create_exec(self, name: str, command: Sequence[str], user: str) -> str | None:
        """Prepares a command in a container, as `UID:GID`; returns the engine's id of it,
        None when the container does not run.
        """
        try:
            async with self._container(name) as container:
                return (await container.exec(command, stdin=True, user=user)).id
        except (_MissingError, _ConflictError):
            return None

    @failpoints.awaited("engine", EngineUnavailableError)
    async def start_exec(self, execution: str) -> Stream | None:
        """Starts such a command; returns its input and output, None when the container does not run.
        When closed, its input ends.
        """
        try:
            async with self._asked() as client, contextlib.AsyncExitStack() as until_started:
                stream = client.containers.exec(execution).start()
                until_started.push_async_callback(stream.close)
                await stream.__aenter__()
                until_started.pop_all()
                return stream
        except (_MissingError, _ConflictError):
            return None

    @failpoints.awaited("engine", EngineUnavailableError)
    async def executing(self, execution: str) -> int | None:
        """Returns the node's number of the process of a command that was started; None when it has ended."""
        try:
            async with self._asked() as client:
                state = await client.containers.exec(execution).inspect()
                return int(state["Pid"]) if state["Running"] and state["Pid"] else None
        except _MissingError:
            return None

    @failpoints.awaited("engine", EngineUnavailableError)
    async def attempts(self, agent_id: str) -> tuple[set[str], list[str]]:
        """Returns the attempts of an agent there is a container of,
        and the names of containers with its labels that it did not make.
        """
        own, foreign = set(), []
        async with self._asked() as client:
            for container in await client.containers.list(all=True, filters=_labelled_by(agent_id)):
                attempt_id, names = container["Labels"].get(ATTEMPT_LABEL, ""), container["Names"] or []
                # Any program can set labels; these become names of directories.
                if ATTEMPT_ID.fullmatch(attempt_id) and f"/{container_name(attempt_id)}" in names:
                    own.add(attempt_id)
                else:
                    foreign.append(names[0].lstrip("/") if names else container.id[:12])
        return own, sorted(foreign)

    @failpoints.awaited("engine", EngineUnavailableError)
    async def names(self, begin: str) -> list[str]:
        """Returns the names of all containers that begin so."""
        async with self._asked() as client:
            found = await client.containers.list(all=True, filters=json.dumps({"name": [begin]}))
            names = [str(name).lstrip("/") for container in found for name in container["Names"] or []]
        # An engine looks for the text anywhere in a name.
        return sorted(name for name in names if name.startswith(begin))

    @failpoints.awaited("engine", EngineUnavailableError)
    async def written(self, agent_id: str, *, sizes: bool) -> dict[str, Written]:
        """Returns the disk use of an agent's running containers, by attempt;
        with `sizes` the engine examines all their files.
        """
        async with self._asked() as client:
            return {
                container["Labels"].get(ATTEMPT_LABEL, ""): Written(
                    tuple(mount["Source"] for mount in container["Mounts"] or [] if mount.get("Type") == "volume"),
                    int(container["SizeRw"] or 0) if "SizeRw" in container else 0,
                )
                for container in await client.containers.list(size=sizes, filters=_labelled_by(agent_id))
            }

    @failpoints.awaited("engine", EngineUnavailableError)
    async def image(self, reference: str) -> Mapping[str, Any] | None:
        """Returns the answer to `GET /images/NAME/json`; None when the image is not on this node."""
        if _IMAGE.fullmatch(reference) is None:
            return None
        try:
            async with self._asked() as client:
                return await client.images.inspect(reference)
        except _MissingError:
            return None

    @failpoints.awaited("engine", EngineUnavailableError)
    async def remove_image(self, name: str) -> None:
        """Removes a name of an image, and the image with its last one; nothing to do when there is none.
        One that a container is of stays.
        """
        with contextlib.suppress(_MissingError):
            async with self._asked() as client:
                await client.images.delete(name)

    @failpoints.awaited("engine", EngineUnavailableError)
    async def data_directories(self) -> tuple[str, ...]:
        """Returns the directories that the engine writes to, as it sees them."""
        async with self._asked() as client:
            return data_directories(await client.system.info())

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, seconds: float = 0, **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request that aiodocker has no call for, or reads without a bound.
        The connection ends with it, read or not.
        """
        async with self._asked(seconds) as client:
            url = f"{client.docker_host}/{path}"
            await failpoints.reach("engine.request", EngineUnavailableError)
            async with client.session.request(method, url, allow_redirects=False, **options) as response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise aiodocker.DockerError(response.status, _message(await _head(response)))
                yield response

    @contextlib.asynccontextmanager
    async def _container(self, name: str, seconds: float = 0) -> AsyncIterator[DockerContainer]:
        async with self._asked(seconds) as client:
            yield client.containers.container(name)

    @contextlib.asynccontextmanager
    async def _asked(self, seconds: float = 0) -> AsyncIterator[aiodocker.Docker]:
        """Bounds a call, by CALL_TIMEOUT when `seconds` is 0, and turns errors of aiodocker,
        and of what it is made of, into this module's.
        """
        seconds = seconds or CALL_TIMEOUT
        try:
            async with asyncio.timeout(seconds):
                yield self._connected()
        except aiodocker.DockerError as error:
            message = str(error.message)[:MAX_ERROR]
            if error.status == _UNCONNECTED:
                raise EngineUnavailableError(f"the Docker engine does not answer: {message}") from error
            raise _REFUSALS.get(error.status, EngineError)(message) from error
        except TimeoutError as error:
            raise EngineUnavailableError(f"the Docker engine does not answer within {seconds} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailableError(f"the Docker engine does not answer: {str(error)[:MAX_ERROR]}") from error
        except _UNREADABLE as error:
            raise EngineError(f"the Docker engine's answer makes no sense ({type(error).__name__})") from error

    def _connected(self) -> aiodocker.Docker:
        if self._client is None:
            # Attached commands and fetches have connections for long: with a limit, other calls would wait for them.
            connector = aiohttp.UnixConnector(self._host.removeprefix("unix://"), limit=0)
            session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(), max_field_size=MAX_HEADER
            )
            # The version is agreed with the engine: old ones do not know new versions, and new ones refuse old.
            self._client = aiodocker.Docker("unix://localhost", connector, session)
        return self._client


# Raised for an answer that is not what it should be: aiodocker takes it for that, and so does what reads it here.
_UNREADABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_REFUSALS: dict[int, type[EngineError]] = {HTTPStatus.NOT_FOUND: _MissingError, HTTPStatus.CONFLICT: _ConflictError}
# aiodocker's own status, for an engine that cannot be connected to, or ends the connection without an answer.
_UNCONNECTED = 900


def _labelled_by(agent_id: str) -> str:
    return json.dumps({"label": [f"{AGENT_LABEL}={agent_id}"]})


@failpoints.awaited("engine", EngineUnavailableError)
async def _head(response: aiohttp.ClientResponse, limit: int = MAX_ANSWER) -> bytes:
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > limit:
            break
    return bytes(content)


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return content[:MAX_ERROR].decode(errors="replace")


async def watch_engine(engine: Engine, conditions: Conditions) -> None:
    """Keeps the condition ENGINE_UNRESPONSIVE until it is cancelled: running kernels continue,
    and nothing new is placed on the node.
    """
    answered = time.monotonic()
    while True:
        try:
            async with asyncio.timeout(UNRESPONSIVE_AFTER):
                await engine.check()
        except TimeoutError:
            _report(conditions, "a call hangs")
        except EngineError as error:
            if time.monotonic() - answered >= UNRESPONSIVE_AFTER:
                _report(conditions, str(error))
        else:
            answered = time.monotonic()
            conditions.clear(AgentConditionType.ENGINE_UNRESPONSIVE)
        await asyncio.sleep(CHECK_INTERVAL)


def _report(conditions: Conditions, why: str) -> None:
    conditions.set(AgentConditionType.ENGINE_UNRESPONSIVE, f"the container engine does not answer: {why}")


async def find_host(given: str, needed: bool) -> str | None:
    """Returns the engine's address: as `given`, or the usual one if it answers there, or is `needed`; else None."""
    if given or needed:
        return given or DEFAULT_HOST
    engine = Engine(DEFAULT_HOST)
    try:
        await engine.check()
    except EngineError as error:
        _log.info("there are no containers here: %s", error)
        return None
    finally:
        await engine.close()
    return DEFAULT_HOST
