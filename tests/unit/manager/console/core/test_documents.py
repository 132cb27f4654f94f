"""Paths of the console, and the headers of what they show."""

from __future__ import annotations

import pytest

from retinue.manager.console.core import documents
from retinue.manager.console.core.documents import DOCUMENT, IMMUTABLE, OUTPUT, TERMINAL, Shown, shown


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/", DOCUMENT),
        ("/login", DOCUMENT),
        ("/sessions/0b1e6f1c", DOCUMENT),
        ("/sessions/new", DOCUMENT),
        ("/index.html", DOCUMENT),
        ("/terminal.html", DOCUMENT),
        ("/a%2f..%2fb", DOCUMENT),
        ("/terminal/0b1e6f1c/main1", TERMINAL),
        ("/terminal/", TERMINAL),
        ("/output", OUTPUT),
        ("/output/1", OUTPUT),
        ("/favicon.svg", Shown("favicon.svg", {}, required=False)),
    ],
)
def test_what_a_path_shows(path: str, found: Shown) -> None:
    assert shown(path) == found


def test_files_with_their_hash_in_the_name_are_kept() -> None:
    found = shown("/assets/index-Bq1.js")
    assert found is not None
    assert (found.file, found.headers["Cache-Control"]) == ("assets/index-Bq1.js", IMMUTABLE)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "sessions",
        "//",
        "//console.example.org/",
        "/sessions//1",
        "/..",
        "/../etc/passwd",
        "/./",
        "/a/..",
        "/a\\b",
        "/a b",
        "/é",
        "/\n",
        "/assets/",
        "/assets/.env",
        "/assets/a/b.js",
        "/assets/%2e%2e/index.html",
        "/assets/..",
        "http://console.localhost/",
    ],
)
def test_nothing_has_any_other_path(path: str) -> None:
    assert shown(path) is None


def test_policies() -> None:
    own = documents.HEADERS["Content-Security-Policy"]
    assert own == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
        "frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    terminal = own.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
    terminal = terminal.replace("frame-ancestors 'none'", "frame-ancestors 'self'")
    assert TERMINAL.headers == {"Content-Security-Policy": terminal}
    assert OUTPUT.headers == {
        "Content-Security-Policy": "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        "script-src 'self'; frame-ancestors 'self'"
    }
