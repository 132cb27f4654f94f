"""The size of the terminal that a remote command runs on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import pytest

from retinue.client.command.inside import exec as exec_module
from retinue.client.command.shell import terminal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Attached:
    """A command that ends once its terminal has got a new size, or nothing more can come."""

    def __init__(self) -> None:
        self.exit_code: int | None = 5
        self.sizes: list[tuple[int, int]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[Any]:
        # The loop runs what is ready before a task that began later continues.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self.exit_code is None:
            yield None

    async def resize(self, rows: int, columns: int) -> None:
        self.sizes.append((rows, columns))


@pytest.mark.parametrize(("now", "sizes"), [((41, 81), [(41, 81)]), ((31, 71), [])])
async def test_a_size_that_changed_before_the_command_was_attached_is_sent(
    monkeypatch: pytest.MonkeyPatch, now: tuple[int, int], sizes: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(terminal, "size", lambda: now)
    attached: Any = Attached()
    assert await exec_module._attend(attached, (31, 71), interactive=False) == 5  # noqa: SLF001
    assert attached.sizes == sizes
