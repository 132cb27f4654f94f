"""A picker that chooses replicas by what requests say, and what happens where it is away, hangs or is wrong."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as pb_grpc

from retinue.router import picker_addresses
from retinue.router.core.table import Algorithm, Endpoint, Picker, Revision, Routing
from retinue.rpc.core.addresses import PUBLIC_ONLY
from tests.integration.agent.authority import Authority
from tests.integration.router.backends import Backend
from tests.integration.router.clients import request
from tests.integration.router.running import HOST, Running, replicas, running, toy
from tests.support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

_HEADER = "x-gateway-destination-endpoint"


@dataclass
class Chooser(pb_grpc.ExternalProcessorServicer):
    """Sends a request to the address that is its whole body, as pickers do: after the last byte of it."""

    default: str = ""
    hanging: bool = False
    asked: int = 0
    bodies: list[bytes] = field(default_factory=list)
    claimed: list[str] = field(default_factory=list)

    async def Process(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        body, whole = b"", False
        self.asked += 1
        async for message in requests:
            if self.hanging:
                await asyncio.Event().wait()
            if message.HasField("request_headers"):
                whole = message.request_headers.end_of_stream
                self.claimed += [found.key for found in message.request_headers.headers.headers if found.key == _HEADER]
            elif message.HasField("request_body"):
                body += message.request_body.body
                whole = message.request_body.end_of_stream
            if whole:
                break
        self.bodies.append(body)
        answer = pb.ProcessingResponse()
        option = answer.request_headers.response.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = _HEADER, body or self.default.encode()
        yield answer
        if body:
            answer = pb.ProcessingResponse()
            streamed = answer.request_body.response.body_mutation.streamed_response
            streamed.body, streamed.end_of_stream = body, True
            yield answer


@asynccontextmanager
async def serving(chooser: Chooser, credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[int]:
    server = grpc.aio.server()
    pb_grpc.add_ExternalProcessorServicer_to_server(chooser, server)
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


def picked(endpoint: Endpoint, host: str, port: int, ca: str = "") -> Endpoint:
    return replace(endpoint, routing=Routing(Algorithm.PICKER, picker=Picker(host, port, ca)))


async def answered(router: Running, to: str = "", fields: Mapping[str, str] | None = None) -> Any:
    """Returns what the replica says that answers; `to` is the body."""
    method = "POST" if to else "GET"
    answer = await request(router.port, HOST, method=method, body=to.encode(), fields=fields)
    assert answer.status == 200, answer.body
    return answer.json


async def chosen(chooser: Chooser, router: Running, to: str = "", fields: Mapping[str, str] | None = None) -> Any:
    """The same of the first request that the picker is asked about: it may count as away until one has reached it."""

    async def ask() -> Any:
        asked = chooser.asked
        answer = await answered(router, to, fields)
        return answer if chooser.asked > asked else None

    return await eventually(ask)


async def both_answer(ask: Callable[[], Awaitable[Any]]) -> None:
    """Asks until both have answered: of two that have nothing to do, either is taken by chance."""
    names: set[str] = set()

    async def seen() -> set[str]:
        names.add((await ask())["name"])
        return names

    await eventually(seen, {"a", "b"}.__eq__)


async def test_a_picker_chooses_by_the_body_and_least_request_does_without_it(tmp_path: Path) -> None:
    chooser = Chooser()
    async with running(tmp_path) as router, Backend("a") as one, Backend("b") as two:
        endpoint = toy(Revision(1, 100, replicas=replicas(one.port, two.port)))
        async with serving(chooser) as port:
            await router.serve(picked(endpoint, "127.0.0.1", port))
            await router.listening()
            for backend in (one, two, two, one):
                answer = await chosen(chooser, router, f"127.0.0.1:{backend.port}")
                assert (answer["name"], answer["size"]) == (backend.name, len(f"127.0.0.1:{backend.port}"))
            # The first of several that takes requests; without a body by the headers alone.
            assert (await chosen(chooser, router, f"192.0.2.1:9,127.0.0.1:{two.port}"))["name"] == "b"
            chooser.default = f"127.0.0.1:{two.port}"
            assert {(await chosen(chooser, router))["name"] for _ in range(4)} == {"b"}
            # One that it names and that is no replica is never dialled: another is chosen.
            await both_answer(lambda: chosen(chooser, router, "192.0.2.1:9"))
            assert chooser.claimed == []
            await chosen(chooser, router, fields={_HEADER: f"127.0.0.1:{one.port}"})
            assert chooser.claimed == []

        # Away: what was on its way to it may fail, and says why; then all goes to the one with the fewest requests.
        while (lost := await request(router.port, HOST, method="POST", body=b"x")).status != 200:
            assert (lost.status, lost.json["error"]["code"]) == (503, "PICKER_FAILED")
        # The client's own choice does not count either.
        place = f"127.0.0.1:{one.port}"
        await both_answer(lambda: answered(router, place, {_HEADER: place}))


async def test_a_picker_that_hangs_costs_a_wait_and_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retinue.router.core.picker._ANSWER_SECONDS", 3.0)
    chooser = Chooser(hanging=True)
    async with running(tmp_path) as router, Backend("a") as one, serving(chooser) as port:
        await router.serve(picked(toy(Revision(1, 100, replicas=replicas(one.port))), "127.0.0.1", port))
        await router.listening()
        while not chooser.asked:
            await answered(router)
        # What it has a part of cannot be taken back.
        asked = chooser.asked
        while (answer := await request(router.port, HOST, method="POST", body=b"x")).status == 200:
            assert chooser.asked == asked
        assert (answer.status, answer.json["error"]["code"]) == (503, "PICKER_FAILED")
        # An answer may take longer than a choice.
        chooser.hanging = False
        place = chooser.default = f"127.0.0.1:{one.port}"

        async def chosen_and_slow() -> list[int]:
            """The statuses of two slow answers; none when the picker, which this process is, was not asked of both."""
            asked = chooser.asked
            answers = await asyncio.gather(
                request(router.port, HOST, "/slow?4"),
                request(router.port, HOST, "/slow?4", method="POST", body=place.encode()),
            )
            return [answer.status for answer in answers] if chooser.asked == asked + 2 else []

        # A choice that came too late, as this process stood still, is no answer that did.
        await eventually(chosen_and_slow, [200, 200].__eq__)


async def test_a_picker_is_known_by_its_certificate(tmp_path: Path) -> None:
    authority = Authority()
    key, certificate = authority.issue("localhost", "spiffe://retinue/picker")
    credentials = grpc.ssl_server_credentials([(key.encode(), certificate.encode())])
    chooser = Chooser()
    async with running(tmp_path) as router, Backend("a") as one, Backend("b") as two:
        endpoint = toy(Revision(1, 100, replicas=replicas(one.port, two.port)))
        async with serving(chooser, credentials) as port:
            chooser.default = f"127.0.0.1:{two.port}"
            await router.serve(picked(endpoint, "localhost", port, authority.certificate))
            await router.listening()
            assert {(await chosen(chooser, router))["name"] for _ in range(4)} == {"b"}
            asked = chooser.asked
            await router.serve(picked(endpoint, "localhost", port, Authority().certificate))
            await answered(router)
            assert chooser.asked == asked


async def test_an_endpoint_whose_picker_has_no_address_is_served(tmp_path: Path) -> None:
    async with running(tmp_path) as router, Backend("a") as one:
        await router.serve(picked(toy(Revision(1, 100, replicas=replicas(one.port))), "picker.invalid", 9))
        await router.listening()
        assert (await request(router.port, HOST)).status == 200


@pytest.mark.attack("pickers-to-inner-addresses")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::ffff:127.0.0.1"])
async def test_no_picker_is_connected_to_at_an_address_that_is_not_allowed(tmp_path: Path, host: str) -> None:
    """A user names it: routers reach more than the user does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with running(tmp_path, pickers=PUBLIC_ONLY) as router, Backend("a") as one:
            endpoint = toy(Revision(1, 100, replicas=replicas(one.port)))
            await router.serve(picked(endpoint, host, listener.getsockname()[1]))
            await router.listening()
            refusal = await eventually(lambda: router.serving.refusals.get(endpoint.id, ""))
            assert refusal.endswith("is no address that this router connects to (--picker-allow)")
            assert host in refusal
            # It is served all the same, and a look at a picker's health takes a second.
            for _ in range(4):
                assert (await request(router.port, HOST)).status == 200
                await asyncio.sleep(0.5)
            with pytest.raises(BlockingIOError):
                listener.accept()
            # Another one is taken at once.
            await router.serve(replace(endpoint, routing=Routing(Algorithm.LEAST_REQUEST)))
            assert endpoint.id not in router.serving.refusals


async def test_the_addresses_of_a_pickers_name_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["192.0.2.7"]

    async def look_up(host: str) -> list[tuple[socket.AddressFamily, int, str, int]]:
        assert host == "picker.test"
        if not addresses:
            raise OSError("no answer")
        return [(socket.AF_INET, 6, address, 0) for address in addresses]

    monkeypatch.setattr(picker_addresses, "look_up", look_up)
    monkeypatch.setattr(picker_addresses, "_PAUSE_SECONDS", 0.05)
    chooser = Chooser()
    async with running(tmp_path) as router, Backend("a") as one, serving(chooser) as port:
        endpoint = toy(Revision(1, 100, replicas=replicas(one.port)))
        await router.serve(picked(endpoint, "picker.test", port))
        await router.listening()
        await eventually(lambda: "is at 192.0.2.7, which" in router.serving.refusals.get(endpoint.id, ""))
        addresses[:] = ["127.0.0.1", "192.0.2.7"]
        await chosen(chooser, router)
        assert endpoint.id not in router.serving.refusals
        # What it meant last counts while nothing answers.
        addresses.clear()
        await chosen(chooser, router)
        addresses[:] = ["192.0.2.7"]
        await eventually(lambda: endpoint.id in router.serving.refusals)
