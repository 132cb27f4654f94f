"""The agent's side of calls: nothing of a call is touched after its end, and a handler ends with its stream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from retinue.agent.api import guard as agent_guard
from retinue.agent.api import server as agent_server
from retinue.agent.api.agent_service import AgentService
from retinue.agent.api.errors import invalid
from retinue.agent.api.guard import Guard, HandlerContext
from retinue.agent.v1 import agent_service_pb2 as pb
from retinue.agent.v1 import agent_service_pb2_grpc as pb_grpc
from retinue.rpc.enrollment.peers import MANAGER_IDENTITY
from retinue.rpc.open_call import CallEndedError, OpenCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence


class Context:
    """The library's context: to touch it after the end of its call ends the process, here the test."""

    def __init__(self, writes: int, identities: Sequence[bytes] = (MANAGER_IDENTITY,)) -> None:
        """After so many writes the caller has gone."""
        self.over = False
        self.aborted: list[grpc.StatusCode] = []
        self._identities = identities
        self.touched_late: list[str] = []
        self._writes = writes

    def touch(self, what: str) -> None:
        if self.over:
            self.touched_late.append(what)

    def auth_context(self) -> dict[str, list[bytes]]:
        self.touch("auth_context")
        return {"x509_subject_alternative_name": list(self._identities)}

    def peer(self) -> str:
        self.touch("peer")
        return "ipv4:192.0.2.7:4711"

    async def write(self, response: Any) -> None:
        self.touch("write")
        await asyncio.sleep(0)
        self._writes -= 1
        if self._writes < 0:
            raise grpc.aio.InternalError

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        self.touch("abort")
        self.aborted.append(code)
        raise grpc.aio.AbortError


class Requests:
    """The library's stream of requests."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> bytes:
        self._context.touch("read")
        await asyncio.sleep(0)
        return b"request"


async def guarded(behavior: Any) -> Any:
    """A handler with the guard around it, as the library runs it."""

    async def continuation(details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(behavior)

    details: Any = Details(f"/{agent_guard.SERVICE}/Attach")
    handler: Any = await Guard().intercept_service(continuation, details)
    assert asyncio.iscoroutinefunction(handler.stream_stream)
    return handler.stream_stream


@pytest.mark.parametrize("cancelled_after", [None, 1, 2, 3, 5, 8, 13])
async def test_a_stream_leaves_nothing_behind(cancelled_after: int | None) -> None:
    context = Context(writes=20)
    before = asyncio.all_tasks()

    async def handler(requests: AsyncIterator[bytes], handling: Any) -> AsyncIterator[bytes]:
        async def take() -> None:
            async for _ in requests:
                pass

        taking = asyncio.create_task(take())
        try:
            while True:
                yield b"response"
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    task = asyncio.create_task((await guarded(handler))(Requests(context), context))
    if cancelled_after is not None:
        for _ in range(cancelled_after):
            await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    context.over = True
    for _ in range(200):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    assert not context.touched_late


async def test_a_stream_has_ended_when_its_call_ends() -> None:
    """Not when the garbage collector finds it: its tasks would outlive the call."""
    context, ended = Context(writes=3), asyncio.Event()

    async def handler(_requests: Any, _handling: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"response"
        finally:
            await asyncio.sleep(0)
            ended.set()

    with pytest.raises(asyncio.CancelledError):
        await (await guarded(handler))(Requests(context), context)
    assert ended.is_set()


async def test_nothing_passes_to_a_call_that_has_ended() -> None:
    context = Context(writes=5)
    call = OpenCall(context)
    requests = call.requests(Requests(context))
    with call.until_ended():
        assert await anext(requests) == b"request"
    context.over = True
    for late in (call.write(b""), anext(requests)):
        with pytest.raises(CallEndedError):
            await late
    assert not context.touched_late


METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["AgentService"].methods}


@dataclass(frozen=True, slots=True)
class Details:
    """As much of a call's details as registered handlers look at."""

    method: str
    invocation_metadata: tuple[()] = ()


class Recording:
    """Answers every method, in the way of the agent's own, and keeps what it was given."""

    def __init__(self, fails: BaseException | None = None) -> None:
        self.given: list[tuple[Any, Any]] = []
        for name, method in METHODS.items():
            setattr(self, name, self._streaming(fails) if method.server_streaming else self._answering(fails))

    def _answering(self, fails: BaseException | None) -> Any:
        async def answer(request: Any, context: Any) -> bytes:
            self.given.append((request, context))
            if fails is not None:
                raise fails
            return b"response"

        return answer

    def _streaming(self, fails: BaseException | None) -> Any:
        async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
            self.given.append((request, context))
            if fails is not None:
                raise fails
            yield b"response"

        return stream


async def behavior_of(name: str, servicer: Any) -> Any:
    """A method as the library runs it: by what the generated code registers,
    with the interceptors of the agent's server.
    """
    handlers: list[Any] = []

    class Registering:
        def add_generic_rpc_handlers(self, generic: Any) -> None:
            handlers.extend(generic)

        def add_registered_method_handlers(self, *_: Any) -> None:
            pass

    registering: Any = Registering()
    pb_grpc.add_AgentServiceServicer_to_server(servicer, registering)
    details: Any = Details(f"/{agent_guard.SERVICE}/{name}")

    async def continuation(details: Any) -> Any:
        return handlers[0].service(details)

    handler: Any = await Guard().intercept_service(continuation, details)
    method = METHODS[name]
    assert (handler.request_streaming, handler.response_streaming) == (method.client_streaming, method.server_streaming)
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    (behavior,) = [kind for kind in kinds if kind is not None]
    return behavior


def request_of(name: str, context: Context) -> Any:
    return Requests(context) if METHODS[name].client_streaming else b"request"


def reachable(holder: Any) -> Iterator[Any]:
    """What can be got from an object by its attributes, at any depth."""
    seen: dict[int, Any] = {}
    waiting = [holder]
    while waiting:
        found = waiting.pop()
        if id(found) in seen or isinstance(found, type):
            continue
        seen[id(found)] = found
        yield found
        waiting.extend(getattr(found, "__dict__", {}).values())


@pytest.mark.parametrize("name", METHODS)
async def test_no_method_holds_the_context_of_its_call(name: str) -> None:
    servicer, context = Recording(), Context(writes=5)
    behavior = await behavior_of(name, servicer)
    # The library calls it with the context, and runs what it returns in the task of the call: it may be no generator.
    assert asyncio.iscoroutinefunction(behavior)
    response = await behavior(request_of(name, context), context)
    assert response == (None if METHODS[name].server_streaming else b"response")
    ((request, handling),) = servicer.given
    assert type(handling) is HandlerContext
    # The call has ended: neither what the handler had nor what hangs on it leads to the context.
    context.over = True
    assert not [found for found in reachable(handling) if found is context]
    late = [handling.write(b"")]
    if METHODS[name].client_streaming:
        late.append(anext(request))
    for touching in late:
        with pytest.raises(CallEndedError):
            await touching
    assert not context.touched_late


@pytest.mark.parametrize("name", METHODS)
async def test_only_a_manager_gets_in_and_errors_become_answers(name: str) -> None:
    for identities, fails, code in (
        ((), None, grpc.StatusCode.PERMISSION_DENIED),
        ((b"spiffe://retinue/agent/n1/1",), None, grpc.StatusCode.PERMISSION_DENIED),
        ((MANAGER_IDENTITY,), invalid("field", "is odd"), grpc.StatusCode.INVALID_ARGUMENT),
        ((MANAGER_IDENTITY,), ZeroDivisionError("a secret"), grpc.StatusCode.INTERNAL),
        # By a library, or by mistake; without an answer the caller would wait for ever.
        ((MANAGER_IDENTITY,), asyncio.CancelledError(), grpc.StatusCode.UNAVAILABLE),
    ):
        servicer, context = Recording(fails), Context(5, identities)
        behavior = await behavior_of(name, servicer)
        with pytest.raises(grpc.aio.AbortError):
            await behavior(request_of(name, context), context)
        assert context.aborted == [code]
        assert bool(servicer.given) is (fails is not None)


def test_the_server_of_an_agent_has_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Around all that is registered there, and every method is one of the agent's own."""
    made: list[dict[str, Any]] = []

    def server(**options: Any) -> Any:
        made.append(options)
        raise ZeroDivisionError

    monkeypatch.setattr(grpc.aio, "server", server)
    monkeypatch.setattr(agent_server, "AttachService", lambda *_: None)
    monkeypatch.setattr(agent_server, "PortService", lambda *_: None)
    monkeypatch.setattr(agent_server, "CodeService", lambda _: None)
    nothing: Any = None
    with pytest.raises(ZeroDivisionError):
        agent_server.Server(nothing, nothing, nothing, nothing, nothing, builds=nothing, history=nothing)
    (options,) = made
    assert [type(interceptor) for interceptor in options["interceptors"]] == [Guard]
    assert set(METHODS) <= vars(AgentService).keys()
