"""What answers HTTP in the kernel of the tests of the gateway. Runs with the Python of JupyterLab,
which has tornado.
"""

# methods are named by tornado

from __future__ import annotations

import asyncio
import json
import signal

import tornado.web
import tornado.websocket

PORT = 8080
# Declared to see requests as those of its own machine.
LOCAL_PORT = 8083


class Headers(tornado.web.RequestHandler):
    """Says what came."""

    def get(self) -> None:
        self.set_header("Set-Cookie", "own=1; Domain=localhost; Path=/; HttpOnly")
        for cookie in self.get_arguments("cookie", strip=False):
            self.add_header("Set-Cookie", cookie)
        self.write(json.dumps({"path": self.request.uri, "headers": list(self.request.headers.get_all())}))

    async def post(self) -> None:
        self.write(str(len(self.request.body)))


class Echo(tornado.websocket.WebSocketHandler):
    """Sends back what comes."""

    def check_origin(self, origin: str) -> bool:
        # That is the gateway's affair here.
        return True

    async def on_message(self, message: str | bytes) -> None:
        await self.write_message(f"echo {message!r}")


class OwnOrigin(tornado.websocket.WebSocketHandler):
    """Takes pages of the host that it is asked for only, as tornado does by itself."""

    async def on_message(self, message: str | bytes) -> None:
        await self.write_message(f"own {message!r}")


class Endless(tornado.web.RequestHandler):
    """Sends for as long as it is read."""

    async def get(self) -> None:
        while True:
            self.write(bytes(1 << 16))
            await self.flush()


class Reset(tornado.web.RequestHandler):
    """Goes away without an answer."""

    def get(self) -> None:
        self.request.connection.stream.close()  # type: ignore[union-attr]


async def main() -> None:
    """Listens, and then says so; takes its time to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    application = tornado.web.Application(
        [("/ws", Echo), ("/own", OwnOrigin), ("/endless", Endless), ("/reset", Reset), ("/.*", Headers)]
    )
    for port in (PORT, LOCAL_PORT):
        application.listen(port, "127.0.0.1")
    print("listening", flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
