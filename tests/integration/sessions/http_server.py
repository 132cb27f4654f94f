"""What answers HTTP in the kernel of the tests of the gateway. Runs with the Python of JupyterLab, which has tornado."""

# methods are named by tornado

from __future__ import annotations

import asyncio
import json
import signal

import tornado.web
import tornado.websocket

PORT = 8080


class Headers(tornado.web.RequestHandler):
    """Says what came."""

    def get(self) -> None:
        # As browsers read it, and as attackers write it.
        spelling = "Domain =" if "spaced" in self.request.uri else "Domain="
        self.set_header("Set-Cookie", f"own=1; {spelling}localhost; Path=/; HttpOnly")
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


class Reset(tornado.web.RequestHandler):
    """Goes away without an answer."""

    def get(self) -> None:
        self.request.connection.stream.close()  # type: ignore[union-attr]


async def main() -> None:
    """Listens, and then says so; takes its time to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tornado.web.Application([("/ws", Echo), ("/reset", Reset), ("/.*", Headers)]).listen(PORT, "127.0.0.1")
    print("listening", flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
