"""A manager that does not answer is named once for each time that it falls silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from retinue.client.command.shell.connection import Silence

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Fake:
    """A channel and its loop, whose clock is the test."""

    def __init__(self) -> None:
        self.is_connecting = False
        self._due: list[Callable[[], None]] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        assert seconds > 0
        self._due.append(callback)

    def look(self, *, connecting: bool) -> None:
        self.is_connecting = connecting
        (callback,) = self._due
        self._due.clear()
        callback()


def _said(*states: bool, capsys: pytest.CaptureFixture[str]) -> list[int]:
    """The numbers of the looks after which something was said."""
    fake = Fake()
    # As much of a channel and of a loop as it needs.
    known: Any = cast("Any", fake)
    Silence(known, "a:1", known).watch()
    found = []
    for number, connecting in enumerate(states):
        fake.look(connecting=connecting)
        if (text := capsys.readouterr().err) != "":
            assert text == "retinue: a:1 does not answer; still trying, Ctrl-C ends it\n"
            found.append(number)
    return found


def test_silence_is_said_once_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert _said(True, True, True, capsys=capsys) == [0]
    assert _said(False, False, capsys=capsys) == []
    # A connection that is being made again at the moment of one look is no silence.
    assert _said(False, True, False, True, True, True, False, True, True, capsys=capsys) == [4, 8]
