"""Terms count within an incarnation, and a former incarnation never comes back."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
from typing import TYPE_CHECKING

import pytest

from retinue.agent.api import terms as terms_module
from retinue.agent.api.terms import Terms, decode, encode
from retinue.agent.state import checked
from retinue.agent.state.damaged import DamagedFiles
from retinue.rpc.core.terms import MAX_FORMER, StaleIncarnationError, StaleTermError, TermHistory

if TYPE_CHECKING:
    from pathlib import Path


def test_terms_count_within_an_incarnation() -> None:
    seen = TermHistory().after("a", 7)
    assert seen.after("a", 7) == seen
    with pytest.raises(StaleTermError) as stale:
        seen.after("a", 6)
    assert stale.value.highest == 7
    assert seen.after("b", 1) == TermHistory("b", 1, ("a",))


def test_a_former_incarnation_is_refused_whatever_its_term() -> None:
    seen = TermHistory().after("a", 7).after("b", 1).after("c", 3)
    for former in ("a", "b"):
        with pytest.raises(StaleIncarnationError) as stale:
            seen.after(former, 100)
        assert stale.value.current == "c"


def test_former_incarnations_are_bounded() -> None:
    seen = TermHistory()
    for number in range(2 * MAX_FORMER):
        seen = seen.after(str(number), 1)
    assert len(seen.former) == MAX_FORMER
    assert seen.former[-1] == str(2 * MAX_FORMER - 2)


def test_what_was_written_is_read() -> None:
    seen = TermHistory().after("a", 7).after("b", 1)
    assert decode(encode(seen)) == seen


@pytest.mark.parametrize(
    "content", [b"", b"7", b"{}", checked.dump({"incarnation": "a", "term": -1, "former": []}), b"\xff"]
)
def test_anything_else_is_not_read(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a term"):
        decode(content)


def test_what_was_seen_outlives_the_process(tmp_path: Path) -> None:
    async def run() -> None:
        def terms() -> Terms:
            return Terms(tmp_path / "term", DamagedFiles(tmp_path / "damaged"))

        await terms().accept("a", 7)
        await terms().accept("b", 2)
        with pytest.raises(StaleIncarnationError):
            await terms().accept("a", 8)
        with pytest.raises(StaleTermError):
            await terms().accept("b", 1)

    asyncio.run(run())


async def test_a_write_that_fails_after_its_caller_has_gone_is_no_defect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, gone = threading.Event(), threading.Event()

    def fail(_path: Path, _content: bytes) -> None:
        begun.set()
        gone.wait()
        raise OSError(errno.EIO, "failed")

    monkeypatch.setattr(terms_module, "replace_file", fail)
    accepting = asyncio.create_task(Terms(tmp_path / "term", DamagedFiles(tmp_path / "damaged")).accept("a", 1))
    await asyncio.to_thread(begun.wait)
    accepting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await accepting
    gone.set()
    while any(task is not asyncio.current_task() for task in asyncio.all_tasks()):
        await asyncio.sleep(0.01)
    del accepting
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
