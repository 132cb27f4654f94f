"""Builds the pages shown in place of a program's page. Pure.

No page says anything of a session that was not proven to be the reader's:
one without a cookie is the same whatever there is behind the address.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEMPLATE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:4em auto;padding:0 1em}}code{{background:#eee;padding:.1em .3em}}</style>
<h1>{title}</h1>
<p>{text}</p>
{remedy}</html>
"""
HEADERS: Mapping[str, str] = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Server": "retinue",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Page:
    """A status and a few words; `remedy` is a command that helps."""

    status: HTTPStatus
    title: str
    text: str
    remedy: str = ""

    def body(self) -> bytes:
        """The page, in HTML."""
        remedy = f"<p>Run <code>{html.escape(self.remedy)}</code></p>\n" if self.remedy else ""
        return _TEMPLATE.format(title=html.escape(self.title), text=html.escape(self.text), remedy=remedy).encode()

    def message(self) -> bytes:
        """The page as a whole answer of HTTP/1.1, after which the connection ends."""
        body = self.body()
        headers = {**HEADERS, "Content-Length": str(len(body)), "Connection": "close"}
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", *(f"{key}: {headers[key]}" for key in headers)]
        return "\r\n".join([*lines, "", ""]).encode() + body


OPEN = "retinue open SESSION PORT"
UNKNOWN_HOST = Page(HTTPStatus.MISDIRECTED_REQUEST, "No such address", "Nothing of this gateway has this address.")
TWO_HOSTS = Page(HTTPStatus.BAD_REQUEST, "Two addresses", "The request names more than one host.")
UNKNOWN_PAGE = Page(HTTPStatus.NOT_FOUND, "No such page", "The gateway has no such page.")
NO_ACCESS = Page(
    HTTPStatus.UNAUTHORIZED,
    "Not open to this browser",
    "A port of a session is open to its owner, in a browser that was let in for it, until 12 hours later, the end of the session, or the end of "
    "the token that it was opened with.",
    OPEN,
)
BAD_TICKET = Page(
    HTTPStatus.FORBIDDEN,
    "This link is good no more",
    "A link is good once, within a minute, and for the address that it was made for.",
    OPEN,
)
NOT_YET = Page(
    HTTPStatus.SERVICE_UNAVAILABLE, "Opened by a person only", "The link is good once: it is not fetched in advance."
)
ONLY_GET = Page(HTTPStatus.METHOD_NOT_ALLOWED, "A link to be followed", "This address is opened in a browser.")
OVER = Page(HTTPStatus.FORBIDDEN, "The session has ended", "What ran here has ended.")
NOT_RUNNING = Page(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "The session does not run",
    "Its main kernel does not run now: it is still to start, or to be started again. Load the page again in a moment.",
)
BUSY = Page(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "Too many connections",
    "As many connections as there may be are open already. Close some pages of this program.",
)
UNREACHABLE = Page(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "The node cannot be reached",
    "The session's node, or the database, does not answer at the moment. Load the page again in a moment.",
)
BROKEN = Page(HTTPStatus.BAD_GATEWAY, "The program broke off", "It closed the connection before it answered.")


def closed(port: int) -> Page:
    """Nothing listens."""
    return Page(
        HTTPStatus.BAD_GATEWAY,
        f"Nothing listens at port {port}",
        f"The session runs, and no program in it answers at port {port} (yet). If the session defines the program, it can be started.",
        "retinue app start SESSION NAME",
    )


def refused(why: str) -> Page:
    """Something about where the request comes from."""
    return Page(HTTPStatus.FORBIDDEN, "Not from here", f"The request is refused: {why}.")
