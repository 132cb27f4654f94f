"""Decides which address leads to which port, and which requests may pass. Pure.

Every port of every session has a host name of its own, so that a browser takes each for an origin of its own: what one
program sets, stores and runs there is out of reach of all others.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retinue.manager.domain.session.service_ports import PublicAddress
from retinue.manager.identity.tokens import is_secret

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TICKET_PREFIX = "rtt_"
ACCESS_PREFIX = "rta_"
TICKET_SECONDS = 60
ACCESS_SECONDS = 12 * 3600
TUNNEL_SECONDS = 7 * 24 * 3600
# Where tickets are exchanged; a program in a kernel has no page there.
OPEN_PATH = "/.retinue/open"
LONGEST_PATH = 2048

_MAX_COOKIES = 4
_LABEL = re.compile(r"p([1-9][0-9]{0,4})-([0-9a-f]{32})")
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")
_LONGEST_DOMAIN = 200
_PORTS = range(1, 65_536)
# A path, and nothing that a browser takes for a host, as it does `//` or `/\`.
_PATH = re.compile(r"/(?!/)[!-\[\]-~]*")


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed host name: a port of a session's main kernel."""

    session_id: uuid.UUID
    port: int


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which users reach a gateway: `https://pPORT-SESSION.DOMAIN:NUMBER`,
    or `http` where nothing leaves this machine.
    """

    domain: str
    number: int
    secure: bool

    @property
    def cookie(self) -> str:
        """The name of the cookie. With the prefix, browsers take it from the very host only,
        and never from one beside it.
        """
        return "__Host-retinue" if self.secure else "retinue"

    def host(self, target: Target) -> str:
        """The host name of a port."""
        return f"p{target.port}-{target.session_id.hex}.{self.domain}"

    def origin(self, target: Target) -> str:
        """Scheme, host and, unless it is the scheme's own, number."""
        return self._origin(self.host(target))

    def _origin(self, host: str) -> str:
        scheme, usual = ("https", 443) if self.secure else ("http", 80)
        number = "" if self.number == usual else f":{self.number}"
        return f"{scheme}://{host}{number}"

    def public(self, session_id: uuid.UUID, port: int) -> PublicAddress:
        """What programs are told of a port."""
        target = Target(session_id, port)
        return PublicAddress(self.host(target), f"{self.origin(target)}/")

    @property
    def console_host(self) -> str:
        """The host name of the web console. No port of a session has it."""
        return f"console.{self.domain}"

    @property
    def console_origin(self) -> str:
        """Scheme, host and, unless it is the scheme's own, number of the web console."""
        return self._origin(self.console_host)

    def target(self, host: str) -> Target | None:
        """Returns the target of a `Host`; None for one that is none of ours."""
        name, _, number = host.lower().partition(":")
        label, _, domain = name.partition(".")
        found = _LABEL.fullmatch(label)
        if domain != self.domain or found is None or int(found[1]) not in _PORTS:
            return None
        if number and number != str(self.number):
            return None
        return Target(uuid.UUID(found[2]), int(found[1]))

    def given_cookie(self, secret: str) -> str:
        """The header by which a browser gets its cookie."""
        secure = "; Secure" if self.secure else ""
        return f"{self.cookie}={secret}; Path=/; Max-Age={ACCESS_SECONDS}; HttpOnly; SameSite=Lax{secure}"

    def secrets(self, cookies: str) -> Sequence[str]:
        """Returns the secrets that a `Cookie` header holds for the gateway: nearly always one or none."""
        values = [value for name, value in _pairs(cookies) if name == self.cookie]
        return [value for value in values[:_MAX_COOKIES] if is_secret(value, ACCESS_PREFIX)]

    def wrong_source(self, target: Target, method: str, headers: Mapping[str, str]) -> str:
        """Returns why a request is refused for where it comes from; empty when it is not.

        Cookies go along with what pages of other hosts of the domain ask for: the browser takes them for the same site.
        So whatever a page causes has to be caused by the origin itself, but for a plain link to it.
        """
        origin = headers.get("Origin", "")
        if origin and origin != self.origin(target):
            return f"it comes from {_shown(origin)}, which is another origin"
        if headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin"):
            return ""
        link = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest", "document") == "document"
        if link and method in ("GET", "HEAD"):
            return ""
        return "a page of another origin asks for it"


def parse_domain(text: str) -> tuple[str, int | None]:
    """`NAME[:PORT]` of an option. Raises ValueError."""
    name, colon, number = text.lower().rstrip(".").partition(":")
    if len(name) > _LONGEST_DOMAIN or not all(_NAME.fullmatch(label) for label in name.split(".")):
        raise ValueError(f"{text!r} is not the name of a domain, with or without :PORT")
    if colon and not (number.isdecimal() and int(number) in _PORTS):
        raise ValueError(f"{text!r} does not end in the number of a port")
    return name, int(number) if colon else None


def wrong_path(path: str) -> str:
    """Returns what is wrong with a path to begin at; empty when nothing is."""
    if len(path) > LONGEST_PATH:
        return f"must have at most {LONGEST_PATH} characters"
    if not _PATH.fullmatch(path):
        return "must begin with one /, and hold printable ASCII without spaces and backslashes"
    return ""


def _pairs(cookies: str) -> Sequence[tuple[str, str]]:
    found = [part.partition("=") for part in cookies.split(";")]
    return [(name.strip(), value.strip().strip('"')) for name, _, value in found]


def _shown(origin: str) -> str:
    return "".join(character for character in origin[:100] if character.isascii() and character.isprintable())
