"""Sources of requests to the console, and the cookie that browsers are logged in by."""

from __future__ import annotations

import pytest

from retinue.manager.console.core.address import ConsoleAddress
from retinue.manager.gateway.core.rules import Address
from retinue.manager.identity.tokens import TOKEN_PREFIX, new_secret

ORIGIN = "https://console.apps.example.org"
PUBLIC, LOCAL = ConsoleAddress(ORIGIN), ConsoleAddress("http://console.localhost:7442")
SECRET = new_secret(TOKEN_PREFIX)


def test_it_is_at_a_host_of_the_gateway_that_no_port_has() -> None:
    public, local = Address("apps.example.org", 443, secure=True), Address("localhost", 7442, secure=False)
    assert (public.console_origin, local.console_origin) == (PUBLIC.origin, LOCAL.origin)
    assert public.target(public.console_host) is None


@pytest.mark.parametrize("sites", [[], ["same-origin"]])
def test_its_own_pages_may_act(sites: list[str]) -> None:
    assert PUBLIC.wrong_source({"Origin": [ORIGIN], "Sec-Fetch-Site": sites}) == ""


@pytest.mark.parametrize(
    ("origins", "sites"),
    [
        ([], []),
        ([], ["same-origin"]),
        ([""], ["same-origin"]),
        (["null"], []),
        (["https://p8000-0b1e6f1c5a524c9e8a360d6a3c1f2b4d.apps.example.org"], ["same-site"]),
        (["http://console.apps.example.org"], []),
        (["https://console.apps.example.org:444"], []),
        (["https://CONSOLE.apps.example.org"], []),
        (["https://console.apps.example.org.evil.test"], []),
        ([ORIGIN + "/"], []),
        ([ORIGIN, ORIGIN], []),
        ([ORIGIN], ["same-site"]),
        ([ORIGIN], ["cross-site"]),
        ([ORIGIN], ["none"]),
        ([ORIGIN], [""]),
        ([ORIGIN], ["same-origin", "same-origin"]),
    ],
)
def test_no_other_page_may(origins: list[str], sites: list[str]) -> None:
    assert PUBLIC.wrong_source({"Origin": origins, "Sec-Fetch-Site": sites})


def test_the_cookie_is_for_no_script_and_no_other_host() -> None:
    given = f"__Host-retinue-console={SECRET}; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure"
    assert PUBLIC.given_cookie(SECRET, 60) == given
    assert LOCAL.given_cookie(SECRET, 60) == f"retinue-console={SECRET}; Path=/; Max-Age=60; HttpOnly; SameSite=Strict"
    assert LOCAL.cleared_cookie() == "retinue-console=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"


def test_the_token_of_a_request() -> None:
    assert PUBLIC.secret([f"a=1; __Host-retinue-console={SECRET}; b=2"]) == SECRET
    assert PUBLIC.secret(["a=1", f"__Host-retinue-console={SECRET}"]) == SECRET
    assert LOCAL.secret([f"retinue-console={SECRET}"]) == SECRET


@pytest.mark.parametrize(
    "cookies",
    [
        [],
        ["a=1"],
        [f"retinue-console={SECRET}"],
        ["__Host-retinue-console="],
        ["__Host-retinue-console=rtn_short"],
        [f"__Host-retinue-console={SECRET}", f"__Host-retinue-console={new_secret(TOKEN_PREFIX)}"],
        [f"__Host-retinue-console={new_secret('rta_')}"],
    ],
)
def test_nothing_else_is_one(cookies: list[str]) -> None:
    assert PUBLIC.secret(cookies) == ""
