"""Decides by which requests of browsers the console is entered: their source, and the cookie that they hold. Pure.

Programs of sessions are served from hosts beside the console's, which browsers take for the same site: cookies go along
with what their pages ask for. So whatever acts has to come from the console's own pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.identity.tokens import TOKEN_PREFIX, is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOGIN_SECONDS = 12 * 3600


@dataclass(frozen=True, slots=True)
class ConsoleAddress:
    """The address of the console: `https://console.DOMAIN:NUMBER`, or `http` where nothing leaves this machine."""

    origin: str

    @property
    def secure(self) -> bool:
        """Returns whether it is reached by TLS."""
        return self.origin.startswith("https://")

    @property
    def cookie(self) -> str:
        """The name of the cookie. With the prefix, browsers take it from the very host only."""
        return "__Host-retinue-console" if self.secure else "retinue-console"

    def given_cookie(self, secret: str, seconds: int) -> str:
        """The header by which a browser gets the token that it is logged in by, for so many seconds."""
        secure = "; Secure" if self.secure else ""
        return f"{self.cookie}={secret}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    def cleared_cookie(self) -> str:
        """The header by which a browser loses it."""
        return self.given_cookie("", 0)

    def secret(self, cookies: Sequence[str]) -> str:
        """Returns the token in the `Cookie` headers of a request; empty when there is none.

        Of two, one was set by a neighbour: neither counts.
        """
        pairs = [part.partition("=") for header in cookies for part in header.split(";")]
        values = {value.strip() for name, _, value in pairs if name.strip() == self.cookie}
        found = values.pop() if len(values) == 1 else ""
        return found if is_secret(found, TOKEN_PREFIX) else ""

    def wrong_source(self, headers: Mapping[str, Sequence[str]]) -> str:
        """Returns why a request that acts is refused for where it comes from; empty when it is not.

        `headers` are all values of `Origin` and `Sec-Fetch-Site`. Handshakes of websockets carry no second one.
        """
        if list(headers["Origin"]) != [self.origin]:
            return "it does not come from a page of the console"
        if list(headers["Sec-Fetch-Site"]) not in ([], ["same-origin"]):
            return "a page of another origin asks for it"
        return ""
