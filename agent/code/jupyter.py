"""A conversation with one Jupyter kernel, by the Jupyter messaging protocol over sockets that
only it and the agent can reach.

`jupyter_client` makes, signs and reads the messages; the sockets are ZeroMQ's, with bounds on what a kernel may send.
That a kernel has ended shows by the end of its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zmq
import zmq.asyncio
from jupyter_client.session import Session
from zmq.utils.monitor import recv_monitor_message

from retinue.agent.code.core import messages
from retinue.agent.code.core.events import Finished, Notice
from retinue.agent.code.relay import Relay
from retinue.agent.errors import KernelRuntimeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retinue.agent.code.runs import Run
    from retinue.agent.runtime.kernel import KernelSocket

_log = logging.getLogger(__name__)

LARGEST_PART = 16 << 20
"""Bytes of one message, all of its parts together; a kernel that sends more is cut off."""
LARGEST_SMALL = 1 << 20
"""The same on the channels where nothing large comes."""
MAX_VALUES = 1_000_000
"""Values in one message: as objects they take a hundred times their text."""
MAX_WAITING = 64
"""Messages that wait here to be read; more wait in the kernel."""
CONNECT_TIMEOUT = 5.0
READY_TIMEOUT, READY_STEP = 30.0, 0.25
COMPLETE_TIMEOUT = 20.0
SEND_TIMEOUT = 5.0
CUT_OFF_PAUSE = 0.05
"""Seconds before what was cut off is connected again."""
IDLE_STEP, IDLE_TIMEOUT = 0.5, 10.0
"""Seconds between questions to a kernel that has answered but does not say that it is idle,
and of silence after which that is given up.
"""
_DEALERS = ("shell", "control", "stdin")
_CUT_OFF = ("shell", "iopub")
_MALFORMED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError)


class JupyterLostError(KernelRuntimeError):
    """The Jupyter kernel has ended, or does not answer."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A run in a Jupyter kernel: `begun` is set once the kernel executes its code and heeds interrupts,
    `done` once it has finished.
    """

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Request:
    """A request in progress: its answer, and whether all that came with it is in."""

    run: Run | None = None
    reply: Mapping[str, Any] | None = None
    idle: bool = False
    asks_after: _Request | None = None
    execution: Execution = field(default_factory=Execution)

    @property
    def done(self) -> asyncio.Event:
        return self.execution.done

    def settle(self) -> None:
        if self.reply is not None and (self.idle or self.run is None):
            self.done.set()


class Jupyter:
    """One Jupyter kernel; `lost` is set once it has ended. Close it in any case."""

    def __init__(self, context: zmq.asyncio.Context, key: str, targets: Mapping[str, KernelSocket]) -> None:
        """Takes over `targets`, the kernel's sockets by channel."""
        self.lost = asyncio.Event()
        self._targets = dict(targets)
        self._session = Session(key=key.encode(), signature_scheme="hmac-sha256", username="retinue")
        self._requests: dict[str, _Request] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._connected = asyncio.Event()
        self._received = asyncio.Event()
        self._received_time = 0.0
        self._sockets = {name: context.socket(zmq.DEALER) for name in _DEALERS}
        self._sockets["iopub"] = context.socket(zmq.SUB)
        self._relays = {
            name: Relay(
                target,
                LARGEST_PART if name in _CUT_OFF else min(LARGEST_PART, LARGEST_SMALL),
            )
            for name, target in targets.items()
        }
        for name, socket in self._sockets.items():
            socket.linger = 0
            socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_PART)
            socket.setsockopt(zmq.RCVHWM, MAX_WAITING)
            socket.setsockopt(zmq.RECONNECT_IVL, -1)
            if name in _DEALERS:
                # Answers to questions come back by the identity of who has asked for the run.
                socket.setsockopt(zmq.IDENTITY, self._session.bsession)
        self._sockets["iopub"].subscribe(b"")

    async def open(self, *, fresh: bool) -> None:
        """Connects, and returns once nothing that the kernel says is missed. Raises JupyterLostError.

        One that is not `fresh` may be at work, and then only its control channel answers, if that.
        """
        control = self._sockets["control"]
        monitor = control.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        self._start(self._watch(monitor), "monitor")
        for name in _CUT_OFF:
            monitor = self._sockets[name].get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            self._start(self._watch_cut(name, monitor), f"monitor of {name}")
        for name, socket in self._sockets.items():
            await self._relays[name].open()
            socket.connect(self._address(name))
            self._start(self._listen(name), name)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._connected.wait()
        except TimeoutError:
            raise JupyterLostError("the Jupyter kernel does not answer") from None
        if self.lost.is_set():
            raise JupyterLostError("the Jupyter kernel has ended")
        await self._wait_received("shell" if fresh else "control", READY_TIMEOUT if fresh else CONNECT_TIMEOUT)

    async def _wait_received(self, channel: str, seconds: float) -> None:
        """Waits for the subscription: sends requests until the output that they publish arrives."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._received.is_set() and not self.lost.is_set():
            request, _ = await self._send(channel, "kernel_info_request", {})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_STEP):
                    await self._received.wait()
            self._requests.pop(request, None)
            if asyncio.get_running_loop().time() > deadline:
                if channel == "shell":
                    raise JupyterLostError("the Jupyter kernel does not answer")
                return

    async def close(self) -> None:
        """Closes the connection; the kernel runs on."""
        self._closed = True
        # First of all: libzmq holds a lock while it sends an event, and without a receiver it would hold it for ever.
        for name in ("control", *_CUT_OFF):
            if not self._sockets[name].closed:
                self._sockets[name].disable_monitor()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for socket in self._sockets.values():
            socket.close()
        for relay in self._relays.values():
            await relay.close()
        for target in self._targets.values():
            target.close()
        self._targets.clear()

    async def execute(self, run: Run, code: str) -> Execution:
        """Sends a run to the kernel; once it is done, `result` reports how it ended."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": True}
        _, request = await self._send("shell", "execute_request", content | {"stop_on_error": False}, run)
        return request.execution

    def result(self, run: Run) -> Finished:
        """Returns the result of a finished run."""
        number = next(number for number, request in self._requests.items() if request.run is run)
        return messages.finished(self._requests.pop(number).reply or {}, run.interrupted)

    def forget(self, run: Run) -> None:
        """Takes no more interest in a run."""
        for number in [number for number, request in self._requests.items() if request.run is run]:
            del self._requests[number]

    async def answer(self, value: str) -> None:
        """Answers what the current run asks."""
        await self._send("stdin", "input_reply", {"value": value}, expect=False)

    async def interrupt(self) -> None:
        """Interrupts by a message, for kernels that take it so."""
        await self._send("control", "interrupt_request", {}, expect=False)

    async def complete(self, code: str, cursor: int) -> Mapping[str, Any]:
        """Returns completions of code; none when the kernel is busy for too long."""
        number, request = await self._send("shell", "complete_request", {"code": code, "cursor_pos": cursor})
        try:
            async with asyncio.timeout(COMPLETE_TIMEOUT):
                await request.done.wait()
        except TimeoutError:
            return {}
        finally:
            self._requests.pop(number, None)
        return request.reply or {}

    async def _send(
        self, channel: str, kind: str, content: dict[str, Any], run: Run | None = None, *, expect: bool = True
    ) -> tuple[str, _Request]:
        message = self._session.msg(kind, content)
        request, number = _Request(run), str(message["header"]["msg_id"])
        if expect:
            self._requests[number] = request
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await self._sockets[channel].send_multipart(self._session.serialize(message))
        except (TimeoutError, zmq.ZMQError) as error:
            self._requests.pop(number, None)
            raise JupyterLostError("the Jupyter kernel does not answer") from error
        return number, request

    async def _listen(self, channel: str) -> None:
        socket = self._sockets[channel]
        while True:
            frames = await socket.recv_multipart()
            self._relays[channel].taken()
            try:
                if sum(frame.count(mark) for frame in frames for mark in (b",", b"[", b"{")) > MAX_VALUES:
                    raise ValueError("too many values")
                message = self._session.deserialize(self._session.feed_identities(frames)[1])
                kind, content = message["header"]["msg_type"], message["content"]
                parent = message["parent_header"].get("msg_id", "")
                if channel == "iopub":
                    self._received.set()
                    self._received_time = asyncio.get_running_loop().time()
                request = self._requests.get(parent)
                if request is not None and isinstance(kind, str) and isinstance(content, dict):
                    self._take(channel, kind, content, request)
            except _MALFORMED as error:
                # Of use for debugging only: it is the user's own kernel.
                _log.debug("a message of a Jupyter kernel makes no sense: %s", type(error).__name__)

    def _take(self, channel: str, kind: str, content: dict[str, Any], request: _Request) -> None:
        run = request.run
        if channel == "iopub" and (other := request.asks_after) is not None and not other.idle:
            _report_lost(other)
        if run is not None and (channel == "stdin" or (channel == "iopub" and kind != "status")):
            # The first is `execute_input`, which is sent when interrupts are heeded.
            request.execution.begun.set()
        if channel == "iopub" and kind == "status":
            if content.get("execution_state") == "idle" and not request.idle:
                request.idle = True
                if run is not None and request.reply is None:
                    asyncio.get_running_loop().call_later(IDLE_STEP, self._ask_for_reply, request)
        elif channel == "iopub" and run is not None:
            for event in messages.events_of(kind, content):
                run.append(event)
        elif channel == "stdin" and kind == "input_request" and run is not None:
            run.waits_for_input = True
            run.append(messages.input_request(content))
        elif channel in {"shell", "control"} and kind.endswith("_reply"):
            request.reply = content
            if run is not None and not request.idle:
                asyncio.get_running_loop().call_later(IDLE_STEP, self._ask_after, request)
        request.settle()

    def _ask_after(self, request: _Request) -> None:
        if not (request.done.is_set() or self.lost.is_set() or self._closed):
            self._start(self._seek_end(request), "end of a run")

    def _ask_for_reply(self, request: _Request) -> None:
        if not (request.done.is_set() or self.lost.is_set() or self._closed):
            self._start(self._seek_reply(request), "answer of a run")

    async def _seek_reply(self, request: _Request) -> None:
        """A kernel that is interrupted just before or after the code does not answer for the run. Then it answers a
        question that comes behind the run, which shows that nothing more comes of that.
        """
        try:
            number, question = await self._send("shell", "kernel_info_request", {})
        except JupyterLostError:
            return
        ends = [asyncio.ensure_future(event.wait()) for event in (question.done, request.done)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in ends:
                future.cancel()
            self._requests.pop(number, None)
        if request.reply is None:
            about = "the kernel was interrupted outside of the code"
            self._take(
                "shell", "execute_reply", {"status": "error", "ename": "KeyboardInterrupt", "evalue": about}, request
            )

    async def _seek_end(self, request: _Request) -> None:
        """All output is in once the kernel says that it is idle, which is lost where it says more than is taken. Then
        what it says to a question, behind all that, shows the same.
        """
        loop = asyncio.get_running_loop()
        begin, numbers = loop.time(), []
        try:
            while not (request.done.is_set() or self.lost.is_set()):
                if loop.time() - max(begin, self._received_time) > IDLE_TIMEOUT:
                    _report_lost(request)
                    return
                number, question = await self._send("shell", "kernel_info_request", {})
                question.asks_after = request
                numbers.append(number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_STEP):
                        await request.done.wait()
        except JupyterLostError:
            _report_lost(request)
        finally:
            for number in numbers:
                self._requests.pop(number, None)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        try:
            while True:
                event = await recv_monitor_message(monitor)
                if event["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self.lost.set()
                self._connected.set()
        finally:
            monitor.close(0)

    async def _watch_cut(self, channel: str, monitor: zmq.asyncio.Socket) -> None:
        """A kernel that sends more at once than is taken is cut off.
        It is connected again, without what was in progress.
        """
        was_cut, socket = False, self._sockets[channel]
        try:
            while True:
                event = await recv_monitor_message(monitor)
                if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    if was_cut:
                        self._continue_after_cut(channel)
                    continue
                was_cut = True
                await asyncio.sleep(CUT_OFF_PAUSE)
                if self.lost.is_set():
                    return
                with contextlib.suppress(zmq.ZMQError):
                    socket.disconnect(self._address(channel))
                # One that has ended is not there to be connected, and its control connection reports that.
                socket.connect(self._address(channel))
        finally:
            if not socket.closed:
                socket.disable_monitor()
            monitor.close(0)

    def _continue_after_cut(self, channel: str) -> None:
        for request in [request for request in self._requests.values() if request.run is not None]:
            _report_cut(request)
            if channel == "shell" and request.reply is None:
                # Nothing but its answer can have been that large.
                about = f"its answer is larger than {LARGEST_PART >> 20} MiB"
                self._take("shell", "execute_reply", {"status": "error", "evalue": about}, request)

    def _address(self, channel: str) -> str:
        return self._relays[channel].address

    def _start(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=f"Jupyter {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _report_lost(request: _Request) -> None:
    """Ends the run's output and reports that the end of it was lost."""
    if request.run is not None:
        _warn(request.run, "some of what it printed last was lost: it came faster than it is taken")
    request.idle = True
    request.settle()


def _report_cut(request: _Request) -> None:
    if request.run is not None:
        _warn(request.run, f"more than {LARGEST_PART >> 20} MiB came at once, and are left out")


def _warn(run: Run, message: str) -> None:
    run.append(Notice(message))
