"""A Docker engine, as far as kernels need it, through the Docker SDK. Every method blocks: none belongs on an event loop."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import urllib3.exceptions
from docker.utils import decode_json_header

from retinue.agent.attempts import ATTEMPT_ID
from retinue.agent.docker.core.container_spec import AGENT_LABEL, ATTEMPT_LABEL, container_name
from retinue.agent.errors import BackendError
from retinue.agent.runtime.bwrap_status import known_exit_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

log = logging.getLogger(__name__)

DEFAULT_HOST = "unix:///var/run/docker.sock"
CALL_TIMEOUT = 30.0
"""Seconds that the engine may take for anything but fetching an image."""
MAX_ERROR = 2000
"""Characters of the engine's own words that are kept: they repeat whatever an image says, at any length."""
UNKNOWN_EXIT_CODE = 255
"""In place of one that no process has, as an engine says that lost how a container ended; never 0, which is success."""
CONNECTIONS = 16
"""Idle connections that are kept: one for each of the last paths asked for, as the SDK does it."""


class EngineError(BackendError):
    """The engine refused; the text is its own."""


class EngineUnavailableError(EngineError):
    """The engine does not answer, or is in trouble of its own; it may have done what it was asked, or may yet."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """The state of a container. `pid` is the node's number of its first process, 0 when there is none.

    `end_time` is in seconds since the epoch, None before its end; `exit_code` counts from then on.
    """

    attempt_id: str
    agent_id: str
    fresh: bool
    running: bool
    pid: int
    exit_code: int
    out_of_memory: bool
    error: str
    end_time: float | None


@dataclass(frozen=True, slots=True)
class Written:
    """Disk use of a container: directories that are volumes of its own, and bytes written over its image."""

    volumes: tuple[str, ...] = ()
    layer: int = 0


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file in a container: whether it is a plain one, and its size in bytes."""

    plain: bool
    size: int


def parse_file(header: str) -> tuple[FileFacts, str]:
    """Reads the header of the answer to `HEAD /containers/ID/archive`; also where the file leads if it is a link, all others followed."""
    found = decode_json_header(header)
    # As Go has it: kinds of files are the highest bits of a mode.
    plain = not int(found["mode"]) & (0x8F28 << 16)
    return FileFacts(plain, int(found["size"])), str(found.get("linkTarget") or "")


def parse_state(answer: Mapping[str, Any]) -> ContainerState:
    """Reads the answer to `GET /containers/ID/json`."""
    state, labels = answer["State"], answer["Config"].get("Labels") or {}
    running = bool(state["Running"])
    code = known_exit_code(state["ExitCode"])
    return ContainerState(
        attempt_id=labels.get(ATTEMPT_LABEL, ""),
        agent_id=labels.get(AGENT_LABEL, ""),
        fresh=state["Status"] == "created",
        running=running,
        pid=int(state["Pid"]),
        exit_code=UNKNOWN_EXIT_CODE if code is None else code,
        out_of_memory=bool(state["OOMKilled"]),
        error=str(state.get("Error") or ""),
        end_time=None if running else parse_time(state["FinishedAt"]),
    )


def parse_time(text: str) -> float | None:
    """Returns the seconds since the epoch from the engine's time, which has up to nine decimals; its year 1 means never."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return None if moment.year <= 1 else moment.timestamp()


class Engine:
    """The engine behind one socket. Raises EngineError, and EngineUnavailableError while it does not answer."""

    def __init__(self, host: str) -> None:
        """`host` is `unix://PATH`. Nothing is asked of the engine before the first call."""
        self.host = host
        self._client: docker.APIClient | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def check(self) -> None:
        """Does nothing if the engine answers."""
        self._call(lambda client: client.ping())

    def create(self, name: str, body: Mapping[str, Any]) -> bool:
        """Creates a container; False when one of that name is there already, which is left as it is."""
        with _translated():
            try:
                self._connected().create_container_from_config(dict(body), name)
            except docker.errors.APIError as error:
                if error.status_code != HTTPStatus.CONFLICT:
                    raise
                return False
            return True

    def file(self, name: str, path: str) -> FileFacts | None:
        """Returns facts about the file at a path of a container, links followed inside it; None when there is none. Never opens it."""
        with _translated():
            client = self._connected()
            url = f"{client.base_url}/v{client.api_version}/containers/{name}/archive"
            facts, target = None, path
            # The engine follows all links but the last one, and says where they end.
            for _ in range(2):
                answer = client.head(url, params={"path": target}, timeout=CALL_TIMEOUT)
                if answer.status_code == HTTPStatus.NOT_FOUND:
                    return None
                if answer.status_code != HTTPStatus.OK:
                    raise EngineError(f"{path} in container {name} cannot be looked at")
                facts, target = parse_file(answer.headers["X-Docker-Container-Path-Stat"])
                if not target:
                    break
            return facts

    def start(self, name: str) -> None:
        """Starts a container; one that runs already continues."""
        self._call(lambda client: client.start(name))

    def inspect(self, name: str) -> ContainerState | None:
        """Returns the state of a container; None when there is none of that name."""
        try:
            return parse_state(self._call(lambda client: client.inspect_container(name)))
        except _MissingError:
            return None

    def wait(self, name: str, timeout: float = CALL_TIMEOUT) -> None:
        """Returns when a container does not run any more, or never did. Raises EngineUnavailableError after `timeout` seconds."""
        with contextlib.suppress(_MissingError):
            self._call(lambda client: client.wait(name, timeout=timeout))

    def kill(self, name: str) -> None:
        """Ends all processes of a container; nothing to do when it does not run."""
        with contextlib.suppress(_MissingError), _translated():
            try:
                self._connected().kill(name)
            except docker.errors.APIError as error:
                if error.status_code != HTTPStatus.CONFLICT:
                    raise

    def execute(self, name: str, command: Sequence[str]) -> tuple[str, socket.socket] | None:
        """Starts a command in a container, as its user; None when the container does not run.

        The result is the engine's id of it, and a connection to its input and output. When that is closed, the command's input ends.
        """
        with _translated():
            try:
                client = self._connected()
                created = client.exec_create(name, list(command), stdin=True, stdout=True, stderr=True)
                # The command says nothing before it is spoken to, so nothing is lost in what the SDK has read ahead.
                answer = client.exec_start(created["Id"], socket=True)
            except docker.errors.NotFound:
                return None
            except docker.errors.APIError as error:
                if error.status_code != HTTPStatus.CONFLICT:
                    raise
                return None
            # The SDK keeps references to its object for as long as it likes; the connection is ours now.
            return created["Id"], socket.socket(fileno=answer._sock.detach())  # noqa: SLF001  # nothing public gives it

    def executing(self, execution: str) -> int | None:
        """Returns the node's number of the process of a command that `execute` has started; None when it has ended."""
        try:
            state = self._call(lambda client: client.exec_inspect(execution))
        except _MissingError:
            return None
        return int(state["Pid"]) if state["Running"] and state["Pid"] else None

    def remove(self, name: str) -> None:
        """Ends a container and removes it with its volumes; nothing to do when there is none."""
        with contextlib.suppress(_MissingError):
            self._call(lambda client: client.remove_container(name, v=True, force=True))

    def attempts(self, agent_id: str) -> set[str]:
        """Returns the attempts of an agent there is a container of, by the containers' labels and names."""
        return set(self._labelled(agent_id)[0])

    def written(self, agent_id: str, *, sizes: bool) -> dict[str, Written]:
        """Returns the disk use of an agent's running containers, by attempt; with `sizes` the engine examines all their files."""
        wanted = {"label": f"{AGENT_LABEL}={agent_id}"}
        found = self._call(lambda client: client.containers(size=sizes, filters=wanted))
        return {
            container["Labels"].get(ATTEMPT_LABEL, ""): Written(
                tuple(mount["Source"] for mount in container.get("Mounts") or [] if mount.get("Type") == "volume"),
                int(container.get("SizeRw") or 0),
            )
            for container in found
        }

    def foreign(self, agent_id: str) -> list[str]:
        """Returns the names of containers that have the labels of an agent and were not made by it."""
        return self._labelled(agent_id)[1]

    def _labelled(self, agent_id: str) -> tuple[list[str], list[str]]:
        wanted = {"label": f"{AGENT_LABEL}={agent_id}"}
        own, foreign = [], []
        for container in self._call(lambda client: client.containers(all=True, filters=wanted)):
            attempt_id, names = container["Labels"].get(ATTEMPT_LABEL, ""), container["Names"] or []
            # Any program can set labels; these become names of directories.
            if ATTEMPT_ID.fullmatch(attempt_id) and f"/{container_name(attempt_id)}" in names:
                own.append(attempt_id)
            else:
                foreign.append(names[0].lstrip("/") if names else container["Id"][:12])
        return own, sorted(foreign)

    def image(self, reference: str) -> Mapping[str, Any] | None:
        """Returns the answer to `GET /images/NAME/json`; None when the image is not on this node."""
        try:
            found: Mapping[str, Any] = self._call(lambda client: client.inspect_image(reference))
        except _MissingError:
            return None
        return found

    def _call(self, action: Callable[[docker.APIClient], Any]) -> Any:
        with _translated():
            return action(self._connected())

    def _connected(self) -> docker.APIClient:
        self._probe()
        with self._lock:
            if self._client is None:
                self._client = docker.APIClient(
                    base_url=self.host,
                    # Agreed with the engine: old engines do not know new versions, and new ones refuse old.
                    version="auto",
                    timeout=CALL_TIMEOUT,
                    num_pools=CONNECTIONS,
                )
                # Proxies and passwords in the environment are not meant for the engine, and would be read again for each call.
                self._client.trust_env = False
            return self._client

    def _probe(self) -> None:
        """Raises OSError when nothing listens: the SDK leaks a socket for each call that finds that out."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CALL_TIMEOUT)
            probe.connect(self.host.removeprefix("unix://"))


class _MissingError(EngineError):
    """The engine has no such thing."""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turns errors of the SDK, and of what it is made of, into this module's."""
    try:
        yield
    except docker.errors.NotFound as error:
        raise _MissingError(str(error.explanation)[:MAX_ERROR]) from error
    except docker.errors.APIError as error:
        raise EngineError(str(error.explanation or error)[:MAX_ERROR]) from error
    except (docker.errors.DockerException, urllib3.exceptions.HTTPError, OSError) as error:
        raise EngineUnavailableError(f"the Docker engine does not answer: {error}") from error


def find_host(given: str, needed: bool) -> str | None:
    """Returns the engine's address: as `given`, or the usual one if it answers there, or is `needed`; else None. Blocks."""
    if given or needed:
        return given or DEFAULT_HOST
    if not Path(DEFAULT_HOST.removeprefix("unix://")).is_socket():
        return None
    engine = Engine(DEFAULT_HOST)
    try:
        engine.check()
    except EngineError as error:
        log.info("there are no containers here: %s", error)
        return None
    finally:
        engine.close()
    return DEFAULT_HOST
