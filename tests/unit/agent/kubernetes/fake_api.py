"""A small API server that has pods, watches of them, and the faults that a test gives it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from retinue.agent.kubernetes.cluster import WATCH_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAMESPACE = "retinue-kernels"
Raw = dict[str, Any]


class VirtualClock:
    """A clock that sleeping sets forward; sleeping takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        """Returns seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sets the clock forward."""
        self.now += seconds
        await asyncio.sleep(0)


def refusal(code: int, reason: str) -> Raw:
    """The status that comes with a refusal."""
    words = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return words | {"code": code, "reason": reason, "message": reason}


@dataclass(frozen=True)
class Fault:
    """What becomes of one call: this answer, or none if `lost`; `done` says whether it does what it is to do."""

    status: int = 500
    content: str | Raw = ""
    headers: tuple[tuple[str, str], ...] = ()
    lost: bool = False
    done: bool = False


class FakeApi:
    """Pods by name, with uid, finalizers, and versions. A call's name is its verb: create, get, list, watch,
    patch, delete.
    """

    def __init__(self, clock: VirtualClock | None = None) -> None:
        self.clock = clock
        self.pods: dict[str, Raw] = {}
        self.calls: list[tuple[float, str]] = []
        self.asked = asyncio.Event()
        """Set by each call."""
        self.faults: dict[str, deque[Fault]] = {}
        """What becomes of the next calls of each verb."""
        self.always: dict[str, Fault] = {}
        """What becomes of calls of a verb for which there is no other fault."""
        self.stalled = False
        """Watches say nothing more, and do not end."""
        self.frozen = False
        """No call is answered, and watches say nothing more."""
        self.ends_watches = False
        """Watches without an event end, after the time that was asked for."""
        self.port = 0
        self._version = 5
        self._events: list[tuple[int, bytes]] = []
        self._oldest = 0
        self._changed = asyncio.Event()

    @property
    def verbs(self) -> list[str]:
        """The verbs of all calls, without those that only follow the pods."""
        return [verb for _, verb in self.calls if verb not in {"list", "watch"}]

    def will(self, verb: str, *faults: Fault) -> None:
        """Gives the next calls of a verb these faults."""
        self.faults.setdefault(verb, deque()).extend(faults)

    def add(self, raw: Raw) -> Raw:
        """Makes a pod."""
        name = raw["metadata"]["name"]
        raw["metadata"].setdefault("uid", f"uid-{name}-{self._version}")
        raw.setdefault("status", {"phase": "Pending"})
        self.pods[name] = raw
        self._emit("ADDED", raw)
        return raw

    def set_status(self, name: str, **status: object) -> None:
        """Gives a pod another status."""
        self.pods[name]["status"] = status
        self._emit("MODIFIED", self.pods[name])

    def drop(self, name: str) -> None:
        """Removes a pod with its finalizers, as an operator may."""
        self._emit("DELETED", self.pods.pop(name))

    def say(self, text: str) -> None:
        """Has watches say this."""
        self._version += 1
        self._events.append((self._version, text.encode()))
        self._changed.set()

    def mark(self) -> None:
        """Has watches that wish for it say at which version they are: the oldest that is not forgotten."""
        self.compact()
        metadata = {"resourceVersion": str(self._version)}
        event = {"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}}
        self._events.append((self._version, json.dumps(event).encode() + b"\n"))
        self._changed.set()

    def compact(self) -> None:
        """Forgets all events."""
        self._version += 1
        self._oldest = self._version
        self._events.clear()

    @contextlib.asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[Path]:
        """Serves; yields the configuration of a client."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        self.port = runner.addresses[0][1]
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        (directory / "kubeconfig").write_text(json.dumps(config))
        try:
            yield directory / "kubeconfig"
        finally:
            await runner.cleanup()

    def _emit(self, kind: str, raw: Raw) -> None:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        event = json.dumps({"type": kind, "object": raw}).encode() + b"\n"
        self._events.append((self._version, event))
        self._changed.set()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if "/namespaces/" not in request.path:
            # What the whole cluster has is not for every agent.
            return web.json_response(refusal(403, "Forbidden"), status=403)
        name = request.path.partition("/pods")[2].lstrip("/")
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(request.method)
        if verb is None:
            verb = "get" if name else "watch" if "watch" in request.query else "list"
        self.calls.append((self.clock.now if self.clock is not None else 0.0, verb))
        self.asked.set()
        faults = self.faults.get(verb)
        fault = faults.popleft() if faults else self.always.get(verb)
        while self.frozen:
            await asyncio.sleep(0.01)
        body = await request.json() if request.can_read_body else {}
        if fault is None or fault.done:
            answer = await self._watch(request) if verb == "watch" else self._do(verb, name, body)
            if fault is None:
                return answer
        if fault.lost:
            assert request.transport is not None
            request.transport.close()
        text = fault.content if isinstance(fault.content, str) else json.dumps(fault.content)
        headers = {"Content-Type": "application/json"} | dict(fault.headers)
        return web.Response(status=fault.status, body=text.encode(), headers=headers)

    def _do(self, verb: str, name: str, body: Raw) -> web.Response:
        if verb == "list":
            items = list(self.pods.values())
            return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})
        if verb == "create":
            if body["metadata"]["name"] in self.pods:
                return web.json_response(refusal(409, "AlreadyExists"), status=409)
            return web.json_response(self.add(body), status=201)
        raw = self.pods.get(name)
        if raw is None:
            return web.json_response(refusal(404, "NotFound"), status=404)
        wanted = {"patch": body.get("metadata"), "delete": body.get("preconditions")}.get(verb) or {}
        if wanted.get("uid", raw["metadata"]["uid"]) != raw["metadata"]["uid"]:
            return web.json_response(refusal(409, "Conflict"), status=409)
        if verb == "patch":
            raw["metadata"]["finalizers"] = None
        if verb == "delete":
            raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if verb != "get":
            if raw["metadata"].get("finalizers") or not raw["metadata"].get("deletionTimestamp"):
                self._emit("MODIFIED", raw)
            else:
                self.drop(name)
        return web.json_response(raw)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        if version < self._oldest:
            return web.json_response(refusal(410, "Expired"), status=410)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            self._changed.clear()
            for number, event in list(self._events):
                wished = b"BOOKMARK" not in event or request.query.get("allowWatchBookmarks") == "true"
                if number > version and wished and not (self.stalled or self.frozen):
                    await response.write(event)
                    version = number
            if self.ends_watches:
                if self.clock is not None:
                    await self.clock.sleep(WATCH_TIMEOUT)
                return response
            await self._changed.wait()
