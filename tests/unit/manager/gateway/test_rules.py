"""Addresses, cookies and sources of requests, as the gateway takes them."""

from __future__ import annotations

import uuid

import pytest

from retinue.manager.gateway.core.rules import ACCESS_PREFIX, TICKET_PREFIX, Address, Target, parse_domain, wrong_path
from retinue.manager.identity.tokens import new_secret

SESSION = uuid.UUID("0b1e6f1c-5a52-4c9e-8a36-0d6a3c1f2b4d")
TARGET = Target(SESSION, 8888)
PUBLIC = Address("apps.example.org", 443, secure=True)
LOCAL = Address("localhost", 7442, secure=False)
HOST = f"p8888-{SESSION.hex}"


def test_every_port_of_every_session_has_an_origin_of_its_own() -> None:
    assert PUBLIC.origin(TARGET) == f"https://{HOST}.apps.example.org"
    assert LOCAL.origin(TARGET) == f"http://{HOST}.localhost:7442"
    origins = {
        PUBLIC.origin(Target(session, port)) for session in (SESSION, uuid.uuid4()) for port in (80, 8888, 65535)
    }
    assert len(origins) == 6
    # Labels of names have at most 63 characters.
    assert all(len(origin.split("//")[1].split(".")[0]) <= 63 for origin in origins)


@pytest.mark.parametrize(
    "host", [f"{HOST}.apps.example.org", f"{HOST}.apps.example.org:443", f"{HOST.upper()}.Apps.Example.ORG"]
)
def test_a_host_stands_for_a_port(host: str) -> None:
    assert PUBLIC.target(host) == TARGET


@pytest.mark.parametrize(
    "host",
    [
        "",
        "apps.example.org",
        f"{HOST}.apps.example.org:444",
        f"{HOST}.apps.example.org.evil.org",
        f"{HOST}.evil.org",
        f"{HOST}.x.apps.example.org",
        f"x.{HOST}.apps.example.org",
        f"{HOST}apps.example.org",
        f"p08888-{SESSION.hex}.apps.example.org",
        f"p70000-{SESSION.hex}.apps.example.org",
        f"p0-{SESSION.hex}.apps.example.org",
        f"p8888-{SESSION}.apps.example.org",
        f"p8888-{SESSION.hex}0.apps.example.org",
        f"p٨888-{SESSION.hex}.apps.example.org",
        f"{HOST}.apps.example.org\n",
        "127.0.0.1:443",
        "[::1]:443",
    ],
)
def test_any_other_host_stands_for_nothing(host: str) -> None:
    assert PUBLIC.target(host) is None


def test_the_cookie_is_for_one_host_and_no_script() -> None:
    secret = new_secret(ACCESS_PREFIX)
    assert PUBLIC.given_cookie(secret) == (
        f"__Host-retinue={secret}; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"
    )
    # Browsers refuse the prefix, and the attribute, without TLS.
    assert LOCAL.given_cookie(secret) == f"retinue={secret}; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"
    assert "domain" not in PUBLIC.given_cookie(secret).lower()


def test_cookies_are_found() -> None:
    secret, other = new_secret(ACCESS_PREFIX), new_secret(ACCESS_PREFIX)
    cookies = f'_xsrf=2|a=b; __Host-retinue={secret};theme="a b" ; __Host-retinue={other}; x'
    assert PUBLIC.secrets(cookies) == [secret, other]


def test_what_is_no_secret_is_not_looked_up() -> None:
    for value in ("", "x", new_secret(TICKET_PREFIX), new_secret(ACCESS_PREFIX) + "x"):
        assert PUBLIC.secrets(f"__Host-retinue={value}") == []
    many = "; ".join(f"__Host-retinue={new_secret(ACCESS_PREFIX)}" for _ in range(100))
    assert len(PUBLIC.secrets(many)) == 4


OWN = f"https://{HOST}.apps.example.org"
SIBLING = f"https://p9999-{SESSION.hex}.apps.example.org"


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {}),
        ("POST", {}),
        ("GET", {"Origin": OWN}),
        ("POST", {"Origin": OWN, "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}),
        ("GET", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
    ],
)
def test_what_comes_from_the_origin_itself_or_from_a_link(method: str, headers: dict[str, str]) -> None:
    assert PUBLIC.wrong_source(TARGET, method, headers) == ""


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"Origin": SIBLING}),
        ("GET", {"Origin": "null"}),
        ("GET", {"Origin": OWN.replace("https", "http")}),
        ("GET", {"Origin": f"{OWN}.evil.org"}),
        ("POST", {"Origin": "https://evil.org"}),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}),
        ("POST", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}),
        ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "websocket", "Sec-Fetch-Dest": "websocket"}),
    ],
)
def test_what_another_page_causes(method: str, headers: dict[str, str]) -> None:
    assert PUBLIC.wrong_source(TARGET, method, headers)


@pytest.mark.parametrize("path", ["/", "/lab", "/a//b", "/lab?token=1&x=%20#tab", "/" + "a" * 2047])
def test_paths_to_begin_at(path: str) -> None:
    assert wrong_path(path) == ""


@pytest.mark.parametrize(
    "path",
    [
        "",
        "lab",
        "//evil.org",
        "/\\evil.org",
        "https://evil.org",
        "/a b",
        "/a\r\nSet-Cookie: x=1",
        "/ä",
        "/a\\b",
        "/" + "a" * 2048,
    ],
)
def test_paths_that_lead_away_or_break_out(path: str) -> None:
    assert wrong_path(path)


def test_domains() -> None:
    assert parse_domain("Apps.Example.org.") == ("apps.example.org", None)
    assert parse_domain("apps.example.org:8443") == ("apps.example.org", 8443)
    for text in (
        "",
        "*.example.org",
        "a..b",
        "-a.org",
        "a.org:",
        "a.org:0",
        "a.org:x",
        "a.org:70000",
        "[::1]",
        "a" * 201,
    ):
        with pytest.raises(ValueError, match=r"is not the name|does not end in the number"):
            parse_domain(text)
