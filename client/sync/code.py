"""The form of `retinue.client.kernel.code` for callers that block.

Written by scripts/generate-sync-client; do not edit it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retinue.client.blocking import iterate, run
from retinue.client.kernel import code as aio_code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import TYPE_CHECKING, Self

    from retinue.client.kernel.code import CodeResult
    from retinue.client.words import Span
    from retinue.types.v1 import code_pb2


class Code:
    """A stream of runs of one language in one session; variables are kept from run to run, and from stream to stream.

    with session.code() as code:
        result = code.execute("6 * 7")
        print(result.value)
        for event in code.run("for n in range(3): print(n)"):
            print(event.stdout, end="")

    Runs continue when the block is left: `resume` sends the rest of their events to another stream.
    All methods raise CallError.
    """

    def __init__(self, asynchronous: aio_code.Code) -> None:
        """Takes the asynchronous form."""
        self._asynchronous = asynchronous

    def __enter__(self) -> Self:
        """Opens the stream, and returns when it takes runs."""
        run(self._asynchronous.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the stream, not what runs."""
        run(self._asynchronous.__aexit__(kind, error, trace))

    def run(self, code: str, *, run_id: str = "", timeout: Span | None = None) -> Iterator[code_pb2.CodeEvent]:
        """Runs code; what happens, as it happens, up to `finished`. The same `run_id` (a UUID) does not run twice."""
        return iterate(self._asynchronous.run(code, run_id=run_id, timeout=timeout))

    def batch(
        self, *, clean: str = "", build: str = "", execute: str = "", run_id: str = "", timeout: Span | None = None
    ) -> Iterator[code_pb2.CodeEvent]:
        """Runs shell commands one after the other, `*` for the usual ones; what happens, up to `finished`."""
        return iterate(
            self._asynchronous.batch(clean=clean, build=build, execute=execute, run_id=run_id, timeout=timeout)
        )

    def resume(self, run_id: str, offset: int = 0) -> Iterator[code_pb2.CodeEvent]:
        """Yields the events of a run of any stream, from an offset on."""
        return iterate(self._asynchronous.resume(run_id, offset))

    def execute(self, code: str, *, run_id: str = "", timeout: Span | None = None) -> CodeResult:
        """Runs code to its end; what it prints and shows is put together. A run that asks for input is interrupted, and
        so is one whose caller leaves: what runs next would wait behind it.
        """
        return run(self._asynchronous.execute(code, run_id=run_id, timeout=timeout))

    def answer(self, run_id: str, value: str) -> None:
        """Answers a run that asked for input."""
        run(self._asynchronous.answer(run_id, value))

    def interrupt(self, run_id: str = "", *, force: bool = False) -> None:
        """Interrupts a run, by default the one that runs now or is the next to, no matter who started it;
        with `force` its variables are lost.
        """
        run(self._asynchronous.interrupt(run_id, force=force))

    def finish(self) -> None:
        """Asks for nothing more, and waits until all that was asked for is done."""
        run(self._asynchronous.finish())

    def complete(self, code: str, cursor: int | None = None) -> code_pb2.CodeCompletions:
        """Returns completions of code at a position, by default its end; nothing while something runs."""
        return run(self._asynchronous.complete(code, cursor))
