"""A key in a terminal of the web console, until the terminal has taken its echo. Run as root; lines as in
`tests.bench`.

The peer is `retinue exec -it` on a terminal of this machine, in turns: from the key until its echo is there to be read.
Both run `cat` in the same kernel, whose terminal echoes. `console-drawn-key` is until the page has drawn it, for which
it waits for its next frame; what a terminal emulator takes to draw is not measured.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING

from retinue.devtools.cluster import Cluster, ClusterOptions
from tests.bench import end_politely, report
from tests.bench.console_page import SECONDS, page_of

if TYPE_CHECKING:
    from playwright.async_api import Frame

# A key is one letter; its echo comes alone.
_OBSERVE = """() => {
    window.taken = []; window.drawn = [];
    let began, drawing;
    addEventListener("keydown", () => { began = drawing = performance.now(); }, true);
    terminal.onWriteParsed(() => {
        if (began !== undefined) { taken.push(performance.now() - began); began = undefined; }
    });
    terminal.onRender(() => {
        if (began === undefined && drawing !== undefined) {
            drawn.push(performance.now() - drawing);
            drawing = undefined;
        }
    });
}"""


class Terminal:
    """`retinue exec -it` on a terminal of this machine."""

    def __init__(self, session: str, environment: dict[str, str]) -> None:
        """Starts it."""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [str(Path(sys.executable).with_name("retinue")), "exec", "-it", session, "--", "cat"]
        self._process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **environment},
            start_new_session=True,
        )
        os.close(theirs)

    def press(self, key: bytes, seconds: float = SECONDS) -> float:
        """Returns the seconds until the echo. Blocks. Raises RuntimeError when there is none."""
        began = time.perf_counter()
        os.write(self._ours, key)
        while select.select([self._ours], [], [], seconds)[0]:
            if key in os.read(self._ours, 4096):
                return time.perf_counter() - began
        raise RuntimeError("no echo")

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


async def count(frame: Frame, name: str) -> int:
    """Returns how many measurements the page has."""
    return int(await frame.evaluate(f"window.{name}.length"))


async def main(*, quick: bool) -> None:
    """Prints all lines."""
    options = ClusterOptions(agents=1, prefix="rt-bench-", gateway=True)
    async with Cluster(options=options) as cluster, cluster.client() as client:
        session = await client.sessions.create(type="interactive", termination_grace=0)
        await session.wait("RUNNING", timeout=SECONDS)
        async with page_of(client) as page:
            await page.goto(page.url.partition("/sessions")[0] + f"/terminal/{session.id}/main1")
            await page.get_by_text("connected").wait_for()
            await page.locator(".xterm").click()
            await page.keyboard.type("cat\n")
            terminal = await asyncio.to_thread(Terminal, session.id, cluster.settings.environment())
            try:
                # The line of the command, and the first echo, which waits until all is there.
                await asyncio.to_thread(terminal.press, b"a")
                await asyncio.sleep(1)
                await page.evaluate(_OBSERVE)
                theirs: list[float] = []
                rounds = 20 if quick else 300
                for number in range(rounds):
                    theirs.append(await asyncio.to_thread(terminal.press, b"bc"[number % 2 : number % 2 + 1]) * 1000)
                    await page.keyboard.press("bc"[number % 2])
                    async with asyncio.timeout(SECONDS):
                        while await count(page.main_frame, "drawn") <= number:
                            await asyncio.sleep(0.01)
            finally:
                await asyncio.to_thread(terminal.close)
            taken, drawn = await page.evaluate("[window.taken, window.drawn]")
        await session.terminate(force=True)
    peer = statistics.median(theirs)
    report("console-key", statistics.median(taken), "ms", peer, spread=taken)
    report("console-drawn-key", statistics.median(drawn), "ms", peer, spread=drawn)


if __name__ == "__main__":
    end_politely()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few keys")
    asyncio.run(main(quick=parser.parse_args().quick))
