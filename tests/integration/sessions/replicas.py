"""Endpoints of tests on a local cluster: a program for replicas that answers as it is asked to,
and what their clients see.
"""

from __future__ import annotations

import collections
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from retinue.client.errors import FailedPrecondition
from retinue.client.manifest import read_manifest
from retinue.manager.v1 import endpoint_pb2 as epb
from tests.integration.router.clients import Answer, Load, request
from tests.integration.sessions.inside import ran
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from retinue.client.aio import Client

PORT = 8000
PROGRAM = """
import http.server, json, os, sys, threading, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Head and body in one piece.
    wbufsize = -1

    def do_GET(self):
        word, _, number = self.path.lstrip("/").partition("?")
        mode = open("/home/work/mode").read().strip() if os.path.exists("/home/work/mode") else ""
        if word == "stream":
            return self.stream(int(number))
        if mode == "hang" and word != "mode":
            time.sleep(600)
        if word == "slow":
            time.sleep(float(number))
        status = 200
        if word == "health" and mode == "unready":
            status = 503
        if word != "health" and mode == "fail":
            status = 500
        body = json.dumps({"name": sys.argv[1], "pid": os.getpid(), "path": self.path}).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, pieces):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number in range(pieces):
            data = b"data: %d\\n\\n" % number
            self.wfile.write(b"%x\\r\\n%s\\r\\n" % (len(data), data))
            self.wfile.flush()
            time.sleep(0.05)
        self.wfile.write(b"0\\r\\n\\r\\n")

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

open("/home/work/pid", "w").write(str(os.getpid()))
if len(sys.argv) > 2:
    open("/home/work/mode", "w").write(sys.argv[2])
Server(("0.0.0.0", 8000), Handler).serve_forever()
"""
_STATES = epb.ReplicaState


def manifest(
    name: str,
    *arguments: str,
    kernel: dict[str, Any] | None = None,
    session: dict[str, Any] | None = None,
    revision: dict[str, Any] | None = None,
    **fields: Any,
) -> epb.EndpointSpec:
    """Returns an endpoint as a manifest says it: PROGRAM with these arguments, ended without grace;
    the rest is added or replaced.
    """
    kernels = {"command": ["python3", "-c", PROGRAM, *arguments], "slots": {"cpu": "0.2", "mem": "64m"}}
    sessions = {"kernel": kernels | (kernel or {}), "terminationGrace": "0s", **(session or {})}
    probe = {"http": {"path": "/health"}, "period": "1s"}
    revisions = {"port": PORT, "readiness": probe, "session": sessions, **(revision or {})}
    ((found, _),) = read_manifest(
        json.dumps({"name": name, "revision": revisions, **fields}), "the test", default="endpoint"
    ).endpoints
    return found


def revision(*arguments: str, **fields: Any) -> epb.RevisionSpec:
    """Returns a revision of `manifest`."""
    return manifest("any", *arguments, **fields).revision


@dataclass(slots=True)
class Deployed:
    """An endpoint that there is, and how clients reach it."""

    client: Client
    name: str
    port: int
    host: str
    bearer: str

    @classmethod
    async def create(cls, client: Client, spec: epb.EndpointSpec) -> Self:
        """Makes an endpoint; returns once the router knows it and its token."""
        await client.endpoints.create(spec)
        # It has an address once a router has said where clients reach it.
        found = await eventually(lambda: client.endpoints.get(spec.name), lambda answer: answer.endpoint.url)
        host = urlsplit(found.endpoint.url).netloc
        port = int(host.rpartition(":")[2])
        token = (await client.endpoints.create_token(spec.name)).secret
        self = cls(client, spec.name, port, host, f"Bearer {token}")
        await eventually(lambda: request(port, host), lambda answer: answer.status == 401, ignoring=OSError)
        return self

    async def ask(self, path: str = "/", **options: Any) -> Answer:
        """Sends one request, with a token."""
        return await request(self.port, self.host, path, authorization=self.bearer, **options)

    def load(self, clients: int = 4, *, pause: float = 0.05, path: str = "/") -> Load:
        """Returns clients that send requests, with a token, until they are stopped."""
        headers = f"authorization: {self.bearer}\r\n"
        return Load(self.port, self.host, clients=clients, path=path, pause=pause, headers=headers)

    async def get(self) -> epb.Endpoint:
        """Returns the endpoint."""
        return (await self.client.endpoints.get(self.name)).endpoint

    async def replicas(self) -> list[epb.Replica]:
        """Returns its replicas, in order of their sessions."""
        return sorted((await self.client.endpoints.get(self.name)).replicas, key=lambda item: item.session_id)

    async def states(self) -> list[tuple[int, str]]:
        """Returns the revision and the state of each replica."""
        found = await self.replicas()
        return sorted((item.revision, _STATES.Name(item.state).removeprefix("REPLICA_STATE_")) for item in found)

    async def reach(self, *wanted: tuple[int, str]) -> None:
        """Waits until there are exactly these replicas, by revision and state."""
        await eventually(self.states, sorted(wanted).__eq__)

    async def rollout(self, state: epb.RolloutState.ValueType) -> epb.Endpoint:
        """Waits until the rollout is in a state."""
        return await eventually(self.get, lambda found: found.rollout.state == state)

    async def tell(self, replica: epb.Replica, mode: str) -> None:
        """Sets how one replica answers from now on: `hang`, `unready`, `fail`, or as usual."""
        await run(self.client, replica.session_id, f"echo {mode} > /home/work/mode")

    async def kill(self, replica: epb.Replica) -> None:
        """Kills the program of a replica."""
        # The kernel ends with its program, and takes the command along.
        with contextlib.suppress(FailedPrecondition):
            assert await run(self.client, replica.session_id, "kill -9 $(cat /home/work/pid)") == ""

    async def delete(self) -> None:
        """Deletes it; returns once it is gone, and its replicas."""
        endpoint = (await self.get()).id
        await self.client.endpoints.delete(self.name)

        async def left() -> list[str]:
            return [item.id async for item in self.client.endpoints.list() if item.id == endpoint]

        await eventually(left, [].__eq__)


async def run(client: Client, session_id: str, script: str) -> str:
    """Runs a shell script in a session's main kernel; returns what it prints."""
    out, _, _ = await ran(await client.sessions.get(session_id), "sh", "-c", script)
    return out.decode()


async def names_after(load: Load, count: int) -> collections.Counter[str]:
    """Returns who answered the next so many requests."""
    before = collections.Counter(load.by_name)
    await load.sent_more(count)
    return load.by_name - before
