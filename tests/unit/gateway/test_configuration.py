"""What Caddy is told, and what people are shown."""

from __future__ import annotations

import json
import re

import pytest

from retinue.manager.gateway.core import pages
from retinue.manager.gateway.core.configuration import DOMAIN_OF_COOKIE, configuration


def test_there_is_no_port_for_administration_and_nothing_is_kept() -> None:
    made = configuration(7, "name", b"page", (b"CHAIN", b"KEY"))
    assert made["admin"] == {"disabled": True, "config": {"persist": False}}
    server = made["apps"]["http"]["servers"]["gateway"]
    assert server["listen"] == ["fd/7"]
    assert made["apps"]["tls"]["certificates"]["load_pem"] == [{"certificate": "CHAIN", "key": "KEY"}]
    # All that is dialled are sockets of this machine.
    text = json.dumps(made)
    assert text.count('"dial"') == text.count('"dial": "unix/@') == 3


def test_logs_hold_no_addresses_and_headers() -> None:
    made = configuration(7, "name", b"page", None)
    log = made["logging"]["logs"]["default"]
    assert {"request>uri", "request>headers"} <= set(log["encoder"]["fields"])
    assert "tls" not in made["apps"]


@pytest.mark.parametrize(
    ("cookie", "passed_on"),
    [
        ("a=1; Domain=x.example; Path=/", "a=1; Path=/"),
        ("a=1;domain=x.example", "a=1"),
        ("a=1; Domain =x", "a=1"),
        ("a=1;\tDOMAIN \t= x ;Secure", "a=1;Secure"),
        ("domain=1; Path=/domain=2", "domain=1; Path=/domain=2"),
        ("a=1; Path=/", "a=1; Path=/"),
    ],
)
def test_cookies_for_the_whole_domain_become_those_of_their_origin(cookie: str, passed_on: str) -> None:
    assert re.sub(DOMAIN_OF_COOKIE, "", cookie) == passed_on


def test_a_page_says_what_to_do_and_nothing_that_a_stranger_gave() -> None:
    assert b"<code>retinue open SESSION PORT</code>" in pages.NO_ACCESS.body()
    assert b"<script>" not in pages.refused("it comes from <script>").body()
    status, _, rest = pages.closed(8888).message().partition(b"\r\n")
    assert status == b"HTTP/1.1 502 Bad Gateway"
    head, _, body = rest.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Connection: close" in head
