"""Pictures on a terminal that are drawn again, as long as the terminal is this program's.

A shell gives its terminal to one process group, the foreground. A program in the background (`retinue watch play &`)
would draw over the prompt and what is typed there, so it prints lines only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.live import Live
from rich.live_render import LiveRender

from retinue.client.command.shell.terminal import in_foreground

if TYPE_CHECKING:
    from rich.console import ConsoleRenderable


class LiveView(Live):
    """A picture that is left alone in the background, and drawn below what is there when it comes to the foreground."""

    def start(self, refresh: bool = False) -> None:
        """Begins to draw. The cursor stays visible: a program that is stopped or killed cannot bring it back."""
        super().start(refresh)
        self.console.show_cursor(True)

    def refresh(self) -> None:
        """Draws the picture again."""
        if self._may_draw():
            super().refresh()

    def stop(self) -> None:
        """Ends the view."""
        self._may_draw()
        super().stop()

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Returns what is printed for lines above the picture."""
        return super().process_renderables(renderables) if self._may_draw() else renderables

    def _may_draw(self) -> bool:
        if in_foreground():
            return True
        # The cursor is no longer below the picture: it is not to be drawn over, but again.
        self._live_render = LiveRender(self.get_renderable(), vertical_overflow=self.vertical_overflow)
        return False
