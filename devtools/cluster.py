"""A manager with its own database and agents on their nodes, as processes of this machine. Needs root."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from retinue.client.client import Client
from retinue.client.errors import CallError, RetinueError
from retinue.client.settings import Settings
from retinue.devtools import commands, leftovers, nodes, process, state, virtual_machines
from retinue.devtools.process import ChildProcess
from retinue.devtools.threads import in_thread
from retinue.manager.v1 import fleet_service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

DIRECTORIES = Path("/var/lib/retinue")
"""The parent of clusters without a directory of their own; the database's user can reach it."""
AGENT_PORT = 7450
_POLL_SECONDS = 0.1
_DRAIN_SECONDS = 15.0
# Those to choose from, up to the first that the kernel gives to connections if that is higher.
_PORTS = (10_000, 30_000)
_PORT_TRIES = 100


class ClusterError(RetinueError):
    """The cluster does not come up, or is not in the state asked for."""


DISK = "64g"
"""Of each node: all of them are on one disk, and what is free there would be found, and promised, by each."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The parts of a cluster.

    `agents` on nodes of their own, each with `slots`; 0 means one agent in this machine's own network, for machines
    where namespaces cannot be made. Without `disk` among them, an agent offers DISK. Times of the agents' supervision
    in seconds. `port` is the manager's for users, the next one is that for agents; 0 takes free ones. With `gateway`,
    browsers reach ports of sessions at the one after that; with `router`, clients reach endpoints at the fourth, by
    `envoy` or the installed one. `prefix` starts the names of the nodes' namespaces.
    `agent_arguments` are added to the command of every agent, `manager_arguments` to the manager's, `router_arguments`
    to that of every router. `engine` gives the
    Docker engine of an agent by its id and node, as `unix://PATH`, and may start it first; without it, agents use the
    machine's engine if it answers. With `vm`, kernels are virtual machines unless they ask to be something else.
    """

    agents: int = 2
    slots: Mapping[str, str] = field(default_factory=lambda: {"cpu": "4", "mem": "2g"})
    port: int = 0
    heartbeat: float = 5.0
    suspect_after: float = 20.0
    lost_after: float = 60.0
    prefix: str = "retinue-"
    manager_seconds: float = 300.0
    agent_seconds: float = 300.0
    agent_arguments: tuple[str, ...] = ()
    manager_arguments: tuple[str, ...] = ()
    router_arguments: tuple[str, ...] = ()
    engine: Callable[[str, nodes.Node | None], str] | None = None
    gateway: bool = False
    router: bool = False
    envoy: Path | None = None
    vm: bool = False


@dataclass(slots=True)
class LocalAgent:
    """One agent of a cluster; `node` is None in this machine's own network."""

    id: str
    node: nodes.Node | None
    state_directory: Path
    process: ChildProcess
    docker_host: str = ""


class Cluster:
    """A cluster in a directory; `async with` starts it, and stops and removes it whatever happens."""

    def __init__(
        self,
        directory: Path | None = None,
        options: ClusterOptions | None = None,
        *,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Without a `directory` one is made, and removed at the end. `say` is called with each step."""
        self.options = options or ClusterOptions()
        self.agents: list[LocalAgent] = []
        self._wanted = directory
        self._directory: Path | None = None
        self._lock: int | None = None
        self._say = say or (lambda _text: None)
        self._state = state.ClusterState()
        self._manager: ChildProcess | None = None
        self.routers: list[ChildProcess] = []
        """Routers: that of the options first."""
        self._ports = Ports(0, 0, 0, 0)
        self._facts: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Starts the cluster."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stops the cluster."""
        await self.stop()

    @property
    def directory(self) -> Path:
        """Returns the directory of its data and logs. Raises ClusterError before the start."""
        if self._directory is None:
            raise ClusterError("the cluster was not started")
        return self._directory

    @property
    def settings(self) -> Settings:
        """Returns the settings to reach its manager as its administrator. Raises ClusterError before the start."""
        if not self._facts:
            raise ClusterError("the manager has not come up")
        return Settings(f"127.0.0.1:{self._ports.users}", self._facts["token"], str(self.directory / "ca.pem"))

    @property
    def ca_fingerprint(self) -> str:
        """Returns the SHA-256 of the manager's CA, in hexadecimal."""
        return self._facts["ca_fingerprint"]

    @property
    def agent_endpoint(self) -> str:
        """Returns the manager's port for agents."""
        return self._facts["agent_endpoint"]

    @property
    def manager(self) -> ChildProcess:
        """Returns the manager's process. Raises ClusterError before the start."""
        if self._manager is None:
            raise ClusterError("the cluster was not started")
        return self._manager

    def client(self, token: str | None = None) -> Client:
        """Returns a client, of the administrator or of the owner of `token`; to be closed by the caller."""
        settings = self.settings
        return Client.connect(settings.endpoint, token=token or settings.token, ca=settings.ca)

    async def start(self) -> None:
        """Starts everything and waits until every agent is alive. Raises ClusterError or
        NoVirtualMachinesError; nothing is left then.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("a local cluster needs root: it makes network namespaces and control groups")
        if self.options.vm:
            await virtual_machines.fetch_guest(self._say)
        await in_thread(self._take_directory)
        await in_thread(state.clear, self.directory)
        if self.options.agents > 0:
            await in_thread(self._make_underlay)
        self._say("starting the manager and its database")
        self._ports = free_ports(self.options.port)
        await self.start_manager()
        join_token = self._facts["join_token"]
        for index in range(max(1, self.options.agents)):
            await self.add_agent(self.options.slots, join_token, wait=False)
            self._say(f"starting agent {self.agents[index].id} on {_location(self.agents[index].node)}")
        if self.options.router:
            self._say("starting a router")
            await self.add_router("r1", self._ports.endpoints, join_token=self._facts["router_join_token"])
        for index in range(len(self.agents)):
            await self.wait_agent(index)
        await virtual_machines.set_default(self.directory, self.client, wanted=self.options.vm)

    async def add_router(self, router_id: str, port: int = 0, *, join_token: str = "") -> int:
        """Starts another router for clients at a port of this machine, by default a free one; returns the port."""
        if not join_token:
            async with self.client() as client:
                join_token = (await client.agents.create_join_token(agent_id=router_id, router=True)).token
        port = port or free_ports().users
        directory = self.directory / ("router" if not self.routers else router_id)
        await in_thread(directory.mkdir, 0o700, parents=True, exist_ok=True)
        token_file = directory.with_suffix(".join-token")
        token_file.touch(mode=0o600)
        token_file.write_text(join_token)
        command = commands.router(
            router_id,
            directory,
            self._joining("127.0.0.1", token_file),
            clients=port,
            url_port=self._ports.endpoints,
            envoy=self.options.envoy,
        )
        command += self.options.router_arguments
        self.routers.append(self._child(router_id if self.routers else "router", command))
        await self._launch(self.routers[-1])
        return port

    def _take_directory(self) -> None:
        """Creates the directory: searchable for the database's user, readable for no other user;
        its content belongs to no running cluster.
        """
        if self._wanted is None:
            DIRECTORIES.mkdir(mode=0o711, parents=True, exist_ok=True)
            for killed in state.sweep(DIRECTORIES):
                self._say(f"removing what a killed cluster left in {killed}")
            directory, self._lock = state.create(DIRECTORIES)
        else:
            directory = self._wanted.absolute()
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = state.lock(directory)
        if self._lock is None:
            raise ClusterError(f"another cluster runs in {directory}")
        self._directory = directory
        self._directory.chmod(0o711)

    def _make_underlay(self) -> None:
        # The number is in the names of agents: the same for a directory each time,
        # and not soon that of another cluster again.
        self._state.underlay = nodes.create_underlay(self.options.prefix, zlib.crc32(bytes(self.directory)))
        self._state.write(self.directory)

    async def start_manager(self) -> None:
        """Starts the manager, unless it runs, and waits until it answers. Raises ClusterError."""
        data = self.directory / "manager"
        facts = data / "dev.json"
        if self._manager is None:
            self._manager = self._child("manager", self._manager_command(data))
        if self.manager.pid is not None:
            return
        # The manager rewrites it once it is ready; the version of an earlier run does not count.
        before = _version(facts)
        await self._launch(self.manager)
        deadline = time.monotonic() + self.options.manager_seconds
        while _version(facts) == before:
            self._check(self.manager, deadline, "the manager does not come up")
            await asyncio.sleep(_POLL_SECONDS)
        self._facts = {key: str(value) for key, value in json.loads(facts.read_text()).items()}
        (self.directory / "ca.pem").write_text(self._facts["ca"])

    async def add_agent(
        self, slots: Mapping[str, str], join_token: str = "", *, wait: bool = True, arguments: Sequence[str] = ()
    ) -> int:
        """Adds an agent on a node of its own, and returns its index; with a join token of a group it joins that group.

        Without `slots` it offers what its node has. `arguments` are added to its command.
        """
        index = len(self.agents)
        underlay = self._state.underlay
        if underlay is None:
            agent_id, node = f"n{index + 1}-local-{os.getpid()}", None
        else:
            # Control groups and namespaces of agents go by their ids: these differ between clusters of one machine.
            agent_id = f"n{index + 1}-{underlay.number}"
            node = await in_thread(nodes.add_node, underlay, index)
        self._state.agents.append(agent_id)
        self._state.write(self.directory)
        directory = self.directory / "agents" / agent_id
        await in_thread(directory.mkdir, 0o700, parents=True, exist_ok=True)
        token_file = directory.with_suffix(".join-token")
        token_file.touch(mode=0o600)
        token_file.write_text(join_token or self._facts["join_token"])
        engine = self.options.engine
        docker_host = await in_thread(engine, agent_id, node) if engine is not None else ""
        if docker_host:
            self._state.engines[agent_id] = docker_host
            self._state.write(self.directory)
        address, port = (node.address, AGENT_PORT) if node is not None else ("127.0.0.1", free_ports().users)
        command = commands.agent(
            agent_id,
            directory,
            self._joining("127.0.0.1" if underlay is None else underlay.host_address, token_file),
            listen=f"{address}:{port}",
            node=node,
            hidden=self.directory,
            slots={"disk": DISK, **slots} if slots else {},
        )
        command += [*(("--docker-host", docker_host) if docker_host else ()), *self.options.agent_arguments, *arguments]
        self.agents.append(LocalAgent(agent_id, node, directory, self._child(agent_id, command), docker_host))
        await self.start_agent(index, wait=wait)
        return index

    async def start_agent(self, index: int, *, wait: bool = True) -> None:
        """Starts an agent, unless it runs, and by default waits until the manager calls it alive.
        Raises ClusterError.
        """
        await self._launch(self.agents[index].process)
        if wait:
            await self.wait_agent(index)

    async def wait_agent(self, index: int) -> None:
        """Waits until the manager calls an agent alive. Raises ClusterError."""
        agent = self.agents[index]
        deadline = time.monotonic() + self.options.agent_seconds
        async with self.client() as client:
            while True:
                self._check(agent.process, deadline, f"agent {agent.id} does not come up")
                try:
                    known = await client.agents.get(agent.id)
                except CallError:
                    # Not enrolled yet, or the manager is just coming up: the deadline bounds both.
                    pass
                else:
                    if known.state == fleet_service_pb2.AGENT_STATE_ALIVE:
                        return
                await asyncio.sleep(_POLL_SECONDS)

    async def wait_clean(self, seconds: float) -> dict[str, leftovers.Leftovers]:
        """Waits until nothing of kernels and networks is left, at most so long;
        returns what is, for agents that have any.
        """
        deadline = time.monotonic() + seconds
        while True:
            found = {agent.id: await in_thread(self.find_leftovers, agent) for agent in self.agents}
            left = {agent: leftover for agent, leftover in found.items() if not leftover.is_clean}
            if not left or time.monotonic() >= deadline:
                return left
            await asyncio.sleep(_POLL_SECONDS)

    def find_leftovers(self, agent: LocalAgent) -> leftovers.Leftovers:
        """Returns what exists of an agent's kernels and networks. Blocks."""
        return leftovers.find(agent.id, agent.node, agent.state_directory, agent.docker_host)

    def casualties(self) -> list[ChildProcess]:
        """Processes that were started and do not run."""
        singles = [] if self._manager is None else [self._manager]
        children = [*singles, *self.routers, *(agent.process for agent in self.agents)]
        return [child for child in children if child.exit_status is not None]

    async def stop(self) -> None:
        """Ends all sessions, stops everything and removes what there is of it, from whatever state; idempotent."""
        try:
            await self._end_sessions()
        finally:
            await asyncio.gather(*(agent.process.stop() for agent in self.agents))
            await asyncio.gather(*(router.stop(20.0) for router in self.routers))
            if self._manager is not None:
                await self._manager.stop(20.0)
            await in_thread(self._remove)
            self.agents.clear()
            self.routers.clear()
            self._manager, self._facts, self._state = None, {}, state.ClusterState()

    async def _end_sessions(self) -> None:
        """Ends what lives while there are agents to end it, endpoints first, which would replace their replicas; what
        is not over in time is removed by force.
        """
        if self._manager is None or self._manager.pid is None or not self._facts or not self.agents:
            return
        if all(agent.process.exit_status is not None for agent in self.agents):
            self._say("no agent runs any more; removing what is left of sessions by force")
            return
        try:
            async with asyncio.timeout(_DRAIN_SECONDS), self.client() as client:
                async for endpoint in client.endpoints.list():
                    await client.endpoints.delete(endpoint.id)
                ended = False
                while sessions := [session async for session in client.sessions.list()]:
                    if not ended:
                        self._say(f"ending {len(sessions)} sessions")
                        ended = True
                        await asyncio.gather(*(session.terminate(force=True) for session in sessions))
                    await asyncio.sleep(_POLL_SECONDS)
                if ended:
                    await self.wait_clean(_DRAIN_SECONDS)
        except (CallError, TimeoutError) as error:
            # A time that is up has no words.
            why = str(error) or f"within {_DRAIN_SECONDS:.0f} s"
            self._say(f"sessions were not ended in time: {why}; removing what is left by force")

    def _remove(self) -> None:
        if self._directory is None:
            return
        state.clear(self._directory)
        if self._wanted is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _child(self, name: str, command: list[str]) -> ChildProcess:
        logs = self.directory / "logs"
        logs.mkdir(exist_ok=True)
        # Settings of this process (another manager, another database) are not meant for the cluster's.
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RETINUE_", "PYTEST_"))}
        return ChildProcess(name, command, logs / f"{name}.log", environment)

    def _manager_command(self, data: Path) -> list[str]:
        options = self.options
        return [
            *commands.manager(
                data,
                users=self._ports.users,
                agents=self._ports.agents,
                gateway=self._ports.gateway if options.gateway else 0,
                nodes="" if self._state.underlay is None else self._state.underlay.host_address,
                supervision=commands.Supervision(options.heartbeat, options.suspect_after, options.lost_after),
            ),
            *options.manager_arguments,
        ]

    def _joining(self, address: str, token_file: Path) -> commands.Joining:
        return commands.Joining(f"{address}:{self._ports.users}", token_file, self.ca_fingerprint)

    async def _launch(self, child: ChildProcess) -> None:
        await child.start()
        if (pid := child.pid) is not None and (started := process.start_time(pid)) is not None:
            self._state.processes[child.name] = (pid, started)
            self._state.write(self.directory)

    def _check(self, child: ChildProcess, deadline: float, failure: str) -> None:
        if child.pid is None:
            raise ClusterError(f"{failure}: it {child.exit_report()}")
        if time.monotonic() >= deadline:
            raise ClusterError("\n  ".join([f"{failure} in time", *child.last_lines()]))


class Ports(NamedTuple):
    """Ports of a cluster: the manager's for users and for agents, its gateway's, and the router's for clients."""

    users: int
    agents: int
    gateway: int
    endpoints: int


def _location(node: nodes.Node | None) -> str:
    return f"node {node.namespace} ({node.address})" if node is not None else "this machine"


def _version(file: Path) -> tuple[int, int] | None:
    """Returns something that differs between two files that had the same name one after the other."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def free_ports(first: int = 0) -> Ports:
    """Returns four ports in a row from `first`, by default four that are free.
    Raises ClusterError when they are in use.

    What is free is not among those that the kernel gives to connections: nothing takes it while a manager is down, and
    no connection to it meets itself. Nor does another process get it from here while this one runs.
    """
    given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lowest, highest = _PORTS[0], max(_PORTS[1], given)
    for candidate in [first] if first else random.sample(range(lowest, highest - 4, 4), _PORT_TRIES):
        try:
            if not first:
                _reserve(candidate)
            with contextlib.ExitStack() as stack:
                for offset in range(4):
                    stack.enter_context(socket.create_server(("", candidate + offset)))
        except OSError as error:
            failure = error
        else:
            return Ports(candidate, candidate + 1, candidate + 2, candidate + 3)
    where = f"one of the ports {first}-{first + 3}" if first else "at least one of any four ports in a row"
    raise ClusterError(f"{where} is in use: {failure.strerror}; choose others") from failure


def _reserve(first: int) -> None:
    """Reserves four ports for this process among those that ask here: between the look whether a port is free and the
    program that binds it lie seconds. Raises OSError when another process has them, or this one.
    """
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # An abstract name: the kernel frees it whatever becomes of the process.
        reservation.bind(f"\0retinue-ports-{first}")
    except OSError:
        reservation.close()
        raise
    # It is open until the process ends.
    reservation.detach()
