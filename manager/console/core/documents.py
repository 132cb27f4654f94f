"""Decides what a path of the console shows, and what a browser may do with it. Pure.

Paths are taken as they come: nothing is decoded, joined or shortened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_OWN = (
    "default-src 'none'; script-src 'self'; style-src 'self'{style}; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors {ancestors}; require-trusted-types-for 'script'"
)
POLICY = _OWN.format(style="", ancestors="'none'")
"""The content security policy of everything but the documents below."""
# What draws terminals makes style sheets of its own, and the document is shown in a frame of the session's page.
_TERMINAL_POLICY = _OWN.format(style=" 'unsafe-inline'", ancestors="'self'")
# What users' code made, in a frame whose origin is none: it reaches no cookie, no page and no network.
_OUTPUT_POLICY = "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'self'; frame-ancestors 'self'"
NO_STORE, IMMUTABLE = "no-store", "public, max-age=31536000, immutable"
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": NO_STORE,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Server": "retinue",
}
"""Headers of every answer that has no other ones of these names."""

_SEGMENTS = re.compile(r"/(?:[!-.0-\[\]-~]+/)*[!-.0-\[\]-~]*")
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]*"
_ASSET, _FILE = re.compile(rf"/assets/({_NAME})"), re.compile(rf"/({_NAME}\.{_NAME})")


@dataclass(frozen=True, slots=True)
class Shown:
    """A file below the static folder, and the headers that it differs by. If it is missing and not `required`,
    the document of the console is shown.
    """

    file: str
    headers: Mapping[str, str]
    required: bool = True


DOCUMENT = Shown("index.html", {})
TERMINAL = Shown("terminal.html", {"Content-Security-Policy": _TERMINAL_POLICY})
OUTPUT = Shown("output.html", {"Content-Security-Policy": _OUTPUT_POLICY})


def shown(path: str) -> Shown | None:
    """Returns what a path shows, without its query; None for a path that nothing of the console has."""
    if _SEGMENTS.fullmatch(path) is None or {".", ".."} & set(path.split("/")):
        return None
    if path.startswith("/terminal/"):
        return TERMINAL
    if path.startswith("/output"):
        return OUTPUT
    if path.startswith("/assets/"):
        asset = _ASSET.fullmatch(path)
        # A sandboxed document has no origin, so that its scripts are those of another one. They are public.
        headers = {"Cache-Control": IMMUTABLE, "Access-Control-Allow-Origin": "*"}
        return None if asset is None else Shown(f"assets/{asset[1]}", headers)
    file = _FILE.fullmatch(path)
    if file is None or file[1].endswith(".html"):
        return DOCUMENT
    return Shown(file[1], {}, required=False)
